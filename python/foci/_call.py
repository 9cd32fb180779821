# SPDX-License-Identifier: Apache-2.0
"""A call in Python's words, made into what the operators take.

What needs the library's knowledge is judged by the operators, with its own messages; here is what
belongs to Python: names, masks, the alignment of a causal mask, metrics of rotary models.
"""
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _estimates, _settings
from ._settings import Literal, Settings

Align = Literal["bottom-right", "top-left"]
Pairs = Literal["halves", "neighbours"]


class How(Settings, total=False):
    """Every keyword of foci.attend and foci.measure, for type checkers."""

    metric: Union[str, Tensor]
    weighting: str
    v_prev: Optional[Tensor]
    metric_tensor: Optional[Tensor]
    attn_mask: Optional[Tensor]
    key_mask: Optional[Tensor]
    key_bias: Optional[Tensor]
    q_offsets: Optional[Tensor]
    k_offsets: Optional[Tensor]
    is_causal: bool
    causal_align: Optional[Align]
    scale: Optional[Union[float, str]]
    enable_gqa: bool
    dropout_p: float
    rotary_pairs: Optional[Pairs]
    backend: str
    deterministic: Optional[bool]


NAMED: Tuple[str, ...] = tuple(n for n in How.__annotations__ if n not in _settings.SETTINGS)
KEYWORDS: Tuple[str, ...] = ("q", "k", "v", *NAMED, *_settings.SETTINGS)


class Prepared(NamedTuple):
    """A call as the operators take it."""

    q: Tensor
    k: Tensor
    v: Tensor
    v_prev: Optional[Tensor]
    key_mask: Optional[Tensor]
    key_bias: Optional[Tensor]
    metric: Optional[Tensor]
    q_offsets: Optional[Tensor]
    k_offsets: Optional[Tensor]
    how: str


FIELDS = Prepared._fields


def changed(p: Prepared, **parts: Any) -> Prepared:
    """Prepared._replace, in words that torch.compile follows."""
    return Prepared(*[parts.get(name, part) for name, part in zip(FIELDS, p)])


def prepare(
    call: str, q: Tensor, k: Tensor, v: Tensor, known: Dict[str, Any], rest: Dict[str, Any]
) -> Prepared:
    """Checks what Python can tell, and brings masks, alignment and metric into the operators' form.

    `known` holds keywords that foci.attend names, any of which may be absent; `rest` the others:
    settings, or names that do not exist.
    """
    settings = _settings.split(call, rest, KEYWORDS) if rest else {}
    if known.get("dropout_p"):
        raise NotImplementedError(
            f"foci.{call}: dropout_p is {known['dropout_p']}; dropout on attention weights is not "
            "supported: use 0 (and dropout on the output)"
        )
    _check_tensors(call, q, k, v, known)
    name, given = _metric_of(call, q, known, settings)
    prepared = Prepared(
        q,
        k,
        v,
        known.get("v_prev"),
        _key_mask_of(call, q, k, known.get("attn_mask"), known.get("key_mask")),
        known.get("key_bias"),
        given,
        known.get("q_offsets"),
        known.get("k_offsets"),
        "",
    )
    causal = known.get("is_causal", False)
    if not isinstance(causal, bool):
        raise ValueError(f"foci.{call}: is_causal is {causal!r}; it must be True or False")
    if known.get("weighting") == "decay" and not causal:
        raise ValueError(
            f"foci.{call}: weighting decay looks back in time and is causal only: set "
            "is_causal=True"
        )
    if causal:
        prepared = _align(call, prepared, known.get("causal_align"), name)
    elif known.get("causal_align") not in (None, "bottom-right", "top-left"):
        raise ValueError(_align_words(call, known.get("causal_align")))
    weighting = str(known.get("weighting") or "softmax")
    scale, backend = known.get("scale"), str(known.get("backend") or "auto")
    pairs = known.get("rotary_pairs")
    if pairs is not None:
        name, given, settings = _estimates.paired(
            call, prepared, pairs, name, settings, weighting, scale, causal
        )
        prepared = changed(prepared, metric=given)
    if isinstance(scale, int):
        scale = float(scale)
    how = _settings.text(name, weighting, settings, scale, causal, backend)
    return changed(prepared, how=how)


OTHERS = (
    "v_prev",
    "key_mask",
    "attn_mask",
    "key_bias",
    "metric_tensor",
    "q_offsets",
    "k_offsets",
)


def _check_tensors(call: str, q: Tensor, k: Tensor, v: Tensor, known: Dict[str, Any]) -> None:
    for name, one in (("q", q), ("k", k), ("v", v)):
        if not isinstance(one, Tensor):
            raise TypeError(f"foci.{call}: {name} is a {type(one).__name__}; it must be a tensor")
        if one.layout != torch.strided:
            raise ValueError(
                f"foci.{call}: {name} is a sparse tensor; it must be dense: {name}.to_dense()"
            )
        if one.dim() != 4:
            raise ValueError(
                f"foci.{call}: {name} has shape {tuple(one.shape)}; it must be (batch, heads, "
                "tokens, size): add what is missing with unsqueeze, or split the heads off"
            )
    if q.size(1) != k.size(1) and not known.get("enable_gqa"):
        raise ValueError(
            f"foci.{call}: q has {q.size(1)} heads and k has {k.size(1)}: set enable_gqa=True if "
            "query heads share key heads"
        )
    tensors: List[Tuple[str, Optional[Tensor]]] = [("k", k), ("v", v)]
    tensors += [(name, known.get(name)) for name in OTHERS]
    for name, x in tensors:
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"foci.{call}: {name} is a {type(x).__name__}; it must be a tensor")
        if x is not None and name.endswith("_offsets") and x.device.type == "cpu":
            continue  # where the kernels of a GPU want them
        if x is not None and x.device != q.device:
            raise ValueError(
                f"foci.{call}: {name} is on {x.device} and q on {q.device}: move it with "
                f"{name}.to(q.device)"
            )


def _metric_of(
    call: str, q: Tensor, known: Dict[str, Any], settings: Dict[str, Any]
) -> Tuple[str, Optional[Tensor]]:
    metric, given = known.get("metric", "dot"), known.get("metric_tensor")
    if isinstance(metric, Tensor):
        if given is not None:
            raise ValueError(f"foci.{call}: metric is a tensor and metric_tensor too: give one")
        metric, given = "given", metric
    if metric == "given" and given is None:
        raise ValueError(f"foci.{call}: metric given needs metric_tensor, or the tensor as metric")
    if metric != "given" and given is not None:
        raise ValueError(
            f"foci.{call}: metric_tensor came along, but the metric is {metric}: use "
            'metric="given", or leave it out'
        )
    if metric in ("learned", "learned-full"):
        raise ValueError(
            f"foci.{call}: metric {metric} has a parameter: use foci.nn.Attention, or give your "
            "parameter as metric_tensor"
        )
    if given is not None and given.device != q.device:
        raise ValueError(
            f"foci.{call}: the metric is on {given.device} and q on {q.device}: move it with "
            ".to(q.device)"
        )
    if given is not None and "extent" not in settings and given.dim() == 4:
        size = q.size(3)
        if given.size(2) == size and given.size(2) not in (1, q.size(2)):
            raise ValueError(
                f"foci.{call}: the metric has shape {tuple(given.shape)}, a matrix per head: set "
                'extent="full"'
            )
    return str(metric), given


def _key_mask_of(
    call: str, q: Tensor, k: Tensor, attn_mask: Optional[Tensor], key_mask: Optional[Tensor]
) -> Optional[Tensor]:
    if attn_mask is not None:
        if key_mask is not None:
            raise ValueError(f"foci.{call}: attn_mask and key_mask are both given: give one")
        batch, keys = q.size(0), k.size(2)
        fits = attn_mask.dim() == 4 and attn_mask.size(1) == 1 and attn_mask.size(2) == 1
        fits = fits and attn_mask.size(0) in (1, batch) and attn_mask.size(3) == keys
        keyed = attn_mask.dim() == 4 and attn_mask.size(1) == 1 and attn_mask.size(2) == 1
        if attn_mask.dtype == torch.bool and keyed and not fits:
            raise ValueError(
                f"foci.{call}: attn_mask has shape {tuple(attn_mask.shape)}; with {batch} "
                f"sequences and {keys} keys it must be ({batch}|1, 1, 1, {keys})"
            )
        if attn_mask.dtype != torch.bool or not fits:
            raise NotImplementedError(
                f"foci.{call}: attn_mask of shape {tuple(attn_mask.shape)}, {attn_mask.dtype} is "
                "not supported: use key_mask (B,M) for padding, is_causal for a causal mask, "
                "key_bias for a number added per key; a bool attn_mask of shape (B|1,1,1,M) is "
                "taken as a key mask"
            )
        return attn_mask[:, 0, 0, :].expand(batch, keys)
    if key_mask is not None and key_mask.dtype != torch.bool:
        raise ValueError(
            f"foci.{call}: key_mask has {key_mask.dtype}; it must be bool, true = keep: use "
            "key_mask.bool()"
        )
    return key_mask


def _align_words(call: str, align: object) -> str:
    return f'foci.{call}: causal_align is {align!r}; it must be "bottom-right" or "top-left"'


def _align(call: str, p: Prepared, align: Optional[str], metric: str) -> Prepared:
    """Operators align bottom-right; top-left drops keys that nobody sees, or adds masked ones."""
    if align not in (None, "bottom-right", "top-left"):
        raise ValueError(_align_words(call, align))
    queries, keys = p.q.size(2), p.k.size(2)
    if p.q_offsets is not None or p.k_offsets is not None:
        if align == "top-left":
            raise NotImplementedError(
                f"foci.{call}: packed sequences are aligned bottom-right: leave out "
                'causal_align="top-left"'
            )
        return p
    if queries == keys or align == "bottom-right":
        return p
    if align is None:
        raise ValueError(
            f"foci.{call}: is_causal with {queries} queries and {keys} keys: say which key a query "
            'stands at, causal_align="bottom-right" (the last query sees every key: a cache) or '
            'causal_align="top-left" (query i sees keys 0..i: scaled_dot_product_attention)'
        )
    if metric == "jacobian":
        raise NotImplementedError(
            f'foci.{call}: metric jacobian with causal_align="top-left" needs as many keys as '
            "queries"
        )
    if keys > queries:
        return changed(
            p,
            k=p.k[:, :, :queries],
            v=p.v[:, :, :queries],
            v_prev=None if p.v_prev is None else p.v_prev[:, :, :queries],
            key_mask=None if p.key_mask is None else p.key_mask[:, :queries],
            key_bias=None if p.key_bias is None else p.key_bias[:, :, :queries],
        )
    more = queries - keys
    pad = torch.nn.functional.pad
    mask = p.key_mask
    if mask is None:
        mask = torch.ones(p.q.size(0), keys, dtype=torch.bool, device=p.q.device)
    return changed(
        p,
        k=pad(p.k, (0, 0, 0, more)),
        v=pad(p.v, (0, 0, 0, more)),
        v_prev=None if p.v_prev is None else pad(p.v_prev, (0, 0, 0, more)),
        key_mask=pad(mask, (0, more), value=False),
        key_bias=None if p.key_bias is None else pad(p.key_bias, (0, more)),
    )
