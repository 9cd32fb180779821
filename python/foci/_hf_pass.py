# SPDX-License-Identifier: Apache-2.0
"""What transformers calls during a forward pass: the attention function and the mask function
"foci", which importing this module registers, and the hooks around a stack of layers. What foci
lacks is refused here by name. foci.hf says which model has them.
"""
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn

try:
    from transformers import AttentionInterface
    from transformers.masking_utils import (
        AttentionMaskInterface,
        bidirectional_mask_function,
        causal_mask_function,
    )
except ImportError as error:
    raise ImportError(
        f"foci.hf needs transformers 5 or later ({error}). Run: pip install 'transformers>=5'"
    ) from error

from . import _stack

NAME = "foci"

# Arguments of attention functions that foci has no counterpart for: what to do instead.
_REFUSED: Dict[str, str] = {
    "position_bias": "use a model whose positions are not a bias, or metric-free attention there",
    "sliding_window": "set config.sliding_window to None (and layer_types to full_attention)",
    "softcap": "set config.attn_logit_softcapping to None",
    "s_aux": "attention sinks have no place in foci; use another model",
    "head_mask": "prune the heads, or multiply the output projection's columns",
    "seq_idx": "give one sequence per row of the batch, with an attention_mask",
    "cu_seq_lens_q": "give one sequence per row of the batch, with an attention_mask",
    "cu_seq_lens_k": "give one sequence per row of the batch, with an attention_mask",
    "cache": "paged caches are not supported; use generate() with the default cache",
    "block_table": "paged caches are not supported; use generate() with the default cache",
}


def _begin(owner: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
    """Before a stack runs: nothing of an earlier pass is left."""
    for stack in owner._foci_stacks:
        stack.values.clear()
    if kwargs.get("output_attentions"):
        _refuse_maps()


def _end(owner: Any, args: Tuple[Any, ...], output: Any) -> None:
    """After a stack ran: values stay only where checkpointing will run the layers again."""
    if _stack.compiling():
        return
    again = owner.training and any(
        getattr(module, "gradient_checkpointing", False) for module in owner.modules()
    )
    if not again:
        for stack in owner._foci_stacks:
            stack.values.clear()


def _refuse_maps() -> None:
    raise NotImplementedError(
        "foci: output_attentions=True: the attention matrix is never formed. foci.measure(q, k, v) "
        "gives each row's concentration, entropy and largest weight; for the matrix itself, "
        "foci.hf.disable(model) and model.set_attn_implementation('eager')"
    )


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Optional[torch.Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    is_causal: Optional[bool] = None,
    position_bias: Optional[torch.Tensor] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[torch.Tensor] = None,
    **kwargs: Any,
) -> Tuple[torch.Tensor, None]:
    """What transformers calls: query (B,H,N,D), key and value (B,G,M,·) with the cache in them,
    attention_mask what key_mask() made -> (B,N,H,E) and no attention matrix."""
    link = getattr(module, "_foci", None)
    if link is None:
        raise RuntimeError(_unlinked(module))
    if dropout:
        raise NotImplementedError(
            f"foci: dropout={dropout}: attention weights are never formed, so none can be dropped. "
            "Load the model with that dropout at 0 (attention_dropout, attn_pdrop or "
            "attention_probs_dropout_prob)"
        )
    if position_bias is not None or s_aux is not None:
        _refuse("position_bias" if position_bias is not None else "s_aux")
    if sliding_window is not None or softcap is not None:
        _refuse("sliding_window" if sliding_window is not None else "softcap")
    for name in ("head_mask", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "cache", "block_table"):
        if kwargs.get(name) is not None:
            _refuse(name)
    if kwargs.get("output_attentions"):
        _refuse_maps()
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    _check_mask(module, key, attention_mask, causal, is_causal)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    keep = module.training and not _stack.compiling()
    o = _stack.attend(link, query, key, value, attention_mask, bool(causal), scale, keep)
    return o.transpose(1, 2).contiguous(), None


def _refuse(name: str) -> None:
    raise NotImplementedError(f"foci: {name} is not supported: {_REFUSED[name]}")


def _unlinked(module: nn.Module) -> str:
    stored = getattr(getattr(module, "config", None), "foci", None)
    said = f"the config stores {stored}, but" if stored else "the attention is 'foci', but"
    return (
        f"foci: {said} {type(module).__name__} does not know its place among the layers. Call "
        f"foci.hf.enable(model{'' if stored else ', metric=...'}) after the model is made"
    )


def _check_mask(
    module: nn.Module,
    key: torch.Tensor,
    mask: Optional[torch.Tensor],
    causal: bool,
    asked: Optional[bool],
) -> None:
    if getattr(module, "_is_replica", False):
        raise NotImplementedError(
            "foci: nn.DataParallel runs copies of a layer at once and their values would mix; use "
            "DistributedDataParallel"
        )
    config = getattr(module, "config", None)
    if causal and asked is None and not getattr(config, "is_causal", True):
        raise ValueError(
            f"foci: config.is_causal is False and {type(module).__name__}.is_causal is True; pass "
            "is_causal= to the model's forward, or set both alike"
        )
    if mask is None:
        return
    if mask.dim() != 2:
        raise NotImplementedError(
            f"foci: attention_mask has shape {tuple(mask.shape)}; foci leaves out keys, not pairs "
            "of query and key. Pass a mask of shape (batch, keys), or none"
        )
    if mask.shape[1] != key.shape[2]:
        raise ValueError(
            f"foci: attention_mask has {mask.shape[1]} entries a row for {key.shape[2]} keys; with "
            "a cache it must cover the tokens in the cache too"
        )


def key_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Optional[torch.Tensor] = None,
    **kwargs: Any,
) -> Optional[torch.Tensor]:
    """What transformers calls to make a mask: the keys that count, (B,M), or None for all of them.
    Causality is the attention's own; any pattern beyond it is refused."""
    if mask_function is not causal_mask_function:
        if mask_function is not bidirectional_mask_function:
            raise NotImplementedError(_pattern(mask_function))
    elif (
        isinstance(q_offset, torch.Tensor) or kv_offset != 0 or kv_length != q_offset + q_length
    ):
        raise NotImplementedError(
            f"foci: {q_length} new tokens with room for {kv_length} keys: a static or sliding "
            "cache, whose empty places foci does not know. Use cache_implementation='dynamic' "
            "(the default of generate())"
        )
    if attention_mask is None:
        return None
    if attention_mask.shape[-1] < kv_length:
        raise ValueError(
            f"foci: attention_mask covers {attention_mask.shape[-1]} tokens of {kv_length}; with a "
            "cache it must cover the tokens in the cache too"
        )
    mask = attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)
    if not _stack.compiling() and bool(mask.all()):
        return None
    return mask


def _pattern(mask_function: Callable[..., Any]) -> str:
    """Names a mask that is neither plain causal nor plain bidirectional."""
    parts: List[str] = []
    queue = [mask_function]
    while queue:
        function = queue.pop()
        parts.append(getattr(function, "__qualname__", repr(function)).split(".")[0])
        for cell in getattr(function, "__closure__", None) or ():
            inside = cell.cell_contents
            for value in inside if isinstance(inside, (tuple, list)) else (inside,):
                if callable(value) and hasattr(value, "__qualname__"):
                    queue.append(value)
    said = ", ".join(dict.fromkeys(parts))
    hint = ""
    if "packed_sequence_mask_function" in parts:
        hint = (
            " Sequences packed into one row (by position_ids) are not separated: give one sequence "
            "per row, and pass an attention_mask (torch.ones_like(input_ids) will do, and is "
            "needed under torch.compile without a cache)."
        )
    return (
        f"foci: the model asks for a mask made of {said}; foci has causal and bidirectional "
        f"attention with padding.{hint}"
    )


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, key_mask)
