# SPDX-License-Identifier: Apache-2.0
"""Elliptical attention in a timm vision transformer.

    import foci.timm, timm
    model = timm.create_model("deit_tiny_patch16_224", pretrained=True)
    foci.timm.enable(model, metric="layer-change")    # all blocks but the lowest

or, made so from the start:

    model = timm.create_model("deit_tiny_patch16_224", attn_layer=foci.timm.EllipticalAttention)
    foci.timm.link(model, metric="layer-change")

Parameters keep timm's names (qkv, q_norm, k_norm, norm, gate, proj), so its weights load strictly.
A state dict also holds `mechanism`, the settings as text: it does not load into a model with
another metric. docs/adapters.md says more.
"""
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Type

import torch
from torch import nn

from . import _ops, _stack
from ._mechanism import decoded, differ
from ._settings import SETTINGS, refuse_unknown

__all__ = ["EllipticalAttention", "disable", "enable", "link"]


class EllipticalAttention(nn.Module):
    """timm's Attention with a metric: the same arguments, parameters and forward. It must know its
    place among the blocks: call foci.timm.link(model) once the model is made."""

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        attn_head_dim: Optional[int] = None,
        dim_out: Optional[int] = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        gated: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Optional[Callable[..., nn.Module]] = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if attn_head_dim is None and dim % num_heads:
            raise ValueError(f"foci.timm: dim is {dim}, not a multiple of num_heads {num_heads}")
        if norm_layer is None:
            if qk_norm or scale_norm:
                raise ValueError("foci.timm: qk_norm and scale_norm need a norm_layer")
            norm_layer = nn.LayerNorm
        made: Dict[str, Any] = {"device": device, "dtype": dtype}
        self.num_heads = num_heads
        self.head_dim = attn_head_dim or dim // num_heads
        self.attn_dim = num_heads * self.head_dim
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, self.attn_dim * 3, bias=qkv_bias, **made)
        self.q_norm = norm_layer(self.head_dim, **made) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, **made) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = norm_layer(self.attn_dim, **made) if scale_norm else nn.Identity()
        self.gate = nn.Linear(dim, self.attn_dim, bias=qkv_bias, **made) if gated else None
        self.proj = nn.Linear(self.attn_dim, dim_out or dim, bias=proj_bias, **made)
        self.proj_drop = nn.Dropout(proj_drop)
        self._foci: Optional[_stack.Link] = None
        self._stored: Optional[str] = None

    @classmethod
    def of(cls, attn: Any) -> "EllipticalAttention":
        """The same layer with the same parameters, out of timm's Attention."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.num_heads, made.head_dim, made.scale = attn.num_heads, attn.head_dim, attn.scale
        made.attn_dim = attn.num_heads * attn.head_dim
        for name in ("qkv", "q_norm", "k_norm", "attn_drop", "norm", "gate", "proj", "proj_drop"):
            part = getattr(attn, name, None)
            made.add_module(name, nn.Identity() if part is None and name != "gate" else part)
        made.train(attn.training)
        made._foci = made._stored = None
        return made

    def forward(
        self,
        x: torch.Tensor,
        attn_mask: Optional[torch.Tensor] = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        """x (B,N,C) -> (B,N,C). attn_mask: which tokens count, (B,N) or (B,1,1,N), true = keep."""
        if self._foci is None:
            raise RuntimeError(
                "foci.timm: this layer does not know its place among the blocks; call "
                "foci.timm.link(model, metric=...) once the model is made"
            )
        if self.training and self.attn_drop.p > 0:
            raise NotImplementedError(
                f"foci.timm: attn_drop={self.attn_drop.p}: attention weights are never formed, so "
                "none can be dropped. Make the model with attn_drop_rate=0"
            )
        B, N, _ = x.shape
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        q, k, v = (
            self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        ).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        keep = self.training and not _stack.compiling()
        mask = _key_mask(attn_mask, B, N)
        o = _stack.attend(self._foci, q, k, v, mask, bool(is_causal), self.scale, keep)
        o = self.norm(o.transpose(1, 2).reshape(B, N, self.attn_dim))
        if gate is not None:
            o = o * gate
        y: torch.Tensor = self.proj_drop(self.proj(o))
        return y

    @property
    def mechanism(self) -> Optional[str]:
        """The settings in full, as stored in a state dict; None before link()."""
        if self._foci is None:
            return self._stored
        one = self._foci
        said = {"scale": self.scale, **one.settings, "backend": None}
        if one.metric == "random":
            said["layer"] = one.index
        return _ops.check_settings(_stack.text(one.metric, said))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, mechanism={self.mechanism!r}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        save: Any = super()._save_to_state_dict
        save(destination, prefix, keep_vars)
        said = self.mechanism
        if said is not None:
            destination[prefix + "mechanism"] = torch.tensor(list(said.encode()), dtype=torch.uint8)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: List[str],
        unexpected_keys: List[str],
        error_msgs: List[str],
    ) -> None:
        load: Any = super()._load_from_state_dict
        load(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        key = prefix + "mechanism"
        if key not in state_dict:
            return
        if key in unexpected_keys:
            unexpected_keys.remove(key)
        stored = decoded(state_dict[key])
        here = self.mechanism
        if here is not None and differ(here, stored):
            error_msgs.append(
                f"{key}: the checkpoint is of '{stored}', the model is '{here}'. Make the model "
                "so, with foci.timm.enable(model, metric=...), or take the key out to force it."
            )
        elif self._foci is None:
            self._stored = stored


def enable(
    model: nn.Module, metric: str = "layer-change", layers: _stack.Layers = "1:", **settings: Any
) -> nn.Module:
    """Replaces each block's attention, in place and with the same parameters, and links the blocks.

    metric: "dot", "layer-change", "flat", "jacobian", "key-covariance", "random".
    layers: where it holds: "1:" (default), ":", "2:8:2", "1,3,5", or numbers. Other blocks are dot;
        so is the lowest one for layer-change and flat, which need a layer below.
    settings: the metric's and the weighting's, as for foci.attend: scope, normalize, metric_grad,
        weighting, backend, ...
    """
    plain = _timm_attention()
    _links(model, metric, layers, settings, (plain, EllipticalAttention))
    for name, module in list(model.named_modules()):
        if type(module) is plain:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, EllipticalAttention.of(module))
    return link(model, metric, layers, **settings)


def link(
    model: nn.Module, metric: str = "layer-change", layers: _stack.Layers = "1:", **settings: Any
) -> nn.Module:
    """Tells each EllipticalAttention of a model its place and its metric; enable() calls it."""
    for name, module, made in _links(model, metric, layers, settings, (EllipticalAttention,)):
        stored, module._foci = module._stored, made
        if stored is not None and differ(stored, module.mechanism or ""):
            said, module._foci = module.mechanism, None
            raise ValueError(
                f"foci.timm.link: the checkpoint's {name} is of '{stored}', asked for is '{said}'"
            )
        module._stored = None
    return model


def disable(model: nn.Module) -> nn.Module:
    """Puts timm's own Attention back, with the same parameters."""
    plain = _timm_attention()
    for name, module in list(model.named_modules()):
        if isinstance(module, EllipticalAttention):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, _plain_again(plain, module))
    return model


def _plain_again(plain: Any, module: EllipticalAttention) -> nn.Module:
    bias = module.qkv.bias is not None
    made = plain(module.qkv.in_features, num_heads=module.num_heads, qkv_bias=bias, device="meta")
    made.head_dim, made.scale = module.head_dim, module.scale
    if hasattr(made, "attn_dim"):
        made.attn_dim = module.attn_dim
    for name, part in module.named_children():
        setattr(made, name, part)
    again: nn.Module = made.train(module.training)
    return again


def _timm_attention() -> Type[nn.Module]:
    try:
        from timm.layers import Attention
    except ImportError:
        try:
            from timm.models.vision_transformer import Attention
        except ImportError as error:
            raise ImportError(
                f"foci.timm.enable needs timm ({error}). Run: pip install timm"
            ) from error
    found: Type[nn.Module] = Attention
    return found


def _links(
    model: nn.Module,
    metric: str,
    layers: _stack.Layers,
    settings: Mapping[str, Any],
    kinds: Tuple[Type[nn.Module], ...],
) -> List[Tuple[str, EllipticalAttention, _stack.Link]]:
    """A link for each attention of these kinds, in the order of the blocks."""
    allowed = (*SETTINGS, "weighting", "backend", "scale")
    unknown = {name: value for name, value in settings.items() if name not in allowed}
    refuse_unknown("timm.enable", unknown, ["metric", "layers", *allowed])
    given = {name: value for name, value in settings.items() if value is not None}
    if not isinstance(layers, (str, int)):
        layers = [int(x) for x in layers]
    stacks: Dict[str, Dict[int, Tuple[str, EllipticalAttention]]] = {}
    for name, module in model.named_modules():
        if type(module) in kinds:
            folder, index = _place(name)
            layer = stacks.setdefault(folder, {})
            if index in layer:
                raise NotImplementedError(
                    f"foci.timm: {layer[index][0]} and {name} are both attention of one block; "
                    "foci takes models with one attention a block"
                )
            layer[index] = (name, module)
        elif "Attention" in type(module).__name__ and hasattr(module, "qkv"):
            raise NotImplementedError(
                f"foci.timm.enable: {name} is a {type(module).__name__}; foci takes the place of "
                "timm.layers.Attention only"
            )
    made = []
    for layer in stacks.values():
        ordered = [layer[index] for index in sorted(layer)]
        own = dict(given)
        if metric == "key-covariance":
            own.setdefault("prior", ordered[0][1].head_dim)
        links = _stack.make_links(len(ordered), metric, layers, own)
        for (name, module), one in zip(ordered, links):
            _ops.check_settings(one.own)
            one.expect(module.scale)
            made.append((name, module, one))
    if not stacks:
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(
            f"foci.timm: {type(model).__name__} has no {wanted} in blocks; foci.timm.enable takes "
            "vision transformers, foci.timm.link models made with attn_layer=EllipticalAttention"
        )
    if all(one.metric != metric for _, _, one in made):
        raise ValueError(
            f"foci.timm: layers is {layers!r}, and metric='{metric}' then holds in no block of "
            f"{type(model).__name__}"
        )
    return made


def _place(name: str) -> Tuple[str, int]:
    """'blocks.3.attn' -> ('blocks', 3)."""
    parts = name.split(".")
    if len(parts) < 2 or [part.isdigit() for part in parts].count(True) != 1:
        raise NotImplementedError(
            f"foci.timm: {name} does not stand alone in its block; foci takes models with one "
            "attention a block, blocks one after the other"
        )
    at = next(i for i, part in enumerate(parts) if part.isdigit())
    return ".".join(parts[:at]), int(parts[at])


def _key_mask(mask: Optional[torch.Tensor], B: int, N: int) -> Optional[torch.Tensor]:
    """(B,N) out of a mask that leaves out keys alone; any other is refused."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        if mask.shape == (B, N):
            return mask
        if mask.dim() == 4 and mask.shape[1:] == (1, 1, N) and mask.shape[0] in (1, B):
            return mask[:, 0, 0].expand(B, N)
    raise NotImplementedError(
        f"foci.timm: attn_mask is {mask.dtype} of shape {tuple(mask.shape)}; foci leaves out keys, "
        f"not pairs of query and key: pass bool of shape ({B}, {N}) or ({B}, 1, 1, {N}), true = "
        "keep"
    )
