# SPDX-License-Identifier: Apache-2.0
"""Diagonal metrics estimated in torch: raw means, rotary pairs, normalisation.

The operators estimate on their own; this is for metrics that are changed between the raw mean and
the normalisation: averaged over a training run (foci.nn), or within rotary pairs.
"""
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _ops, _settings

if TYPE_CHECKING:
    from ._call import Prepared

CHANGES = ("layer-change", "flat")


def wide(x: Tensor) -> Tensor:
    """Metrics are kept in f32, in f64 beside f64."""
    return x if x.dtype == torch.float64 else x.float()


def divided(x: Tensor, by: Tensor) -> Tensor:
    """x / by, and 0 where by is 0."""
    none = by == 0
    return torch.where(none, torch.zeros_like(x), x / torch.where(none, torch.ones_like(by), by))


def normalised(m: Tensor, how: str) -> Tensor:
    """m divided by its largest or mean entry; 1 where that is 0."""
    if how == "none":
        return m
    if how not in ("max", "mean"):
        raise ValueError(f"foci: normalize is '{how}'; it must be max, mean or none")
    by = m.amax(-1, keepdim=True) if how == "max" else m.mean(-1, keepdim=True)
    none = by == 0
    return torch.where(none, torch.ones_like(m), m / torch.where(none, torch.ones_like(by), by))


def levelled(m: Tensor, name: str) -> Tensor:
    """flat: the mean of a normalised m in place of each entry."""
    return m.mean(-1, keepdim=True).expand_as(m) if name == "flat" else m


def pair_means(m: Tensor, pairs: Optional[str]) -> Tensor:
    """m (.., D) averaged within each rotary pair: d and d + D/2, or 2d and 2d + 1."""
    if pairs is None:
        return m
    if pairs not in ("halves", "neighbours"):
        raise ValueError(f"foci: rotary_pairs is '{pairs}'; it must be halves or neighbours")
    size = m.size(-1)
    if size % 2:
        raise ValueError(f"foci: rotary_pairs needs an even head size; D is {size}")
    if pairs == "halves":
        mean = (m[..., : size // 2] + m[..., size // 2 :]) / 2
        return torch.cat([mean, mean], -1)
    mean = (m[..., 0::2] + m[..., 1::2]) / 2
    return torch.stack([mean, mean], -1).flatten(-2)


def counted(key_mask: Optional[Tensor], like: Tensor) -> Tensor:
    """(B,1,M,1): 1 for tokens that count, in the type of `like` (B,G,M,D)."""
    if key_mask is None:
        return torch.ones(like.size(0), 1, like.size(2), 1, dtype=like.dtype, device=like.device)
    return key_mask[:, None, :, None].to(like.dtype)


def value_change(v: Tensor, v_prev: Tensor, key_mask: Optional[Tensor]) -> Tuple[Tensor, Tensor]:
    """|v - v_prev| (B,G,M,D), 0 where masked, and which tokens count (B,1,M,1)."""
    if v.shape != v_prev.shape:
        raise ValueError(
            f"foci: v_prev has shape {tuple(v_prev.shape)}; it must be that of v, {tuple(v.shape)}"
        )
    change = (wide(v) - wide(v_prev)).abs()
    keep = counted(key_mask, change)
    # A masked token may hold anything, NaN too: it is replaced, not multiplied by 0.
    return torch.where(keep > 0, change, torch.zeros_like(change)), keep


def layer_change(p: "Prepared", queries: int, scope: str, reduce: str) -> Tensor:
    """Raw m (B,G,1,D), under prefix (B,G,N,D); 1 where no token counts."""
    assert p.v_prev is not None
    change, keep = value_change(p.v, p.v_prev, p.key_mask)
    if scope == "prefix":
        total, count = change.cumsum(2), keep.cumsum(2)
        before = queries - total.size(2)
        if before > 0:  # queries that stand before the first key
            total = torch.nn.functional.pad(total, (0, 0, before, 0))
            count = torch.nn.functional.pad(count, (0, 0, before, 0))
        total, count = total[:, :, -queries:], count[:, :, -queries:]
    elif reduce == "median":
        count = keep.sum(2, keepdim=True)
        sorted_ = torch.where(keep > 0, change, torch.full_like(change, float("inf"))).sort(2)
        at = (count.long() - 1).clamp(min=0) // 2
        total = sorted_.values.gather(2, at.expand(-1, change.size(1), 1, change.size(3)))
        return torch.where(count > 0, total, torch.ones_like(total))
    else:
        total, count = change.sum(2, keepdim=True), keep.sum(2, keepdim=True)
    return torch.where(count > 0, divided(total, count.expand_as(total)), torch.ones_like(total))


def operators_raw(p: "Prepared", name: str, words: Dict[str, Any]) -> Tensor:
    """Raw m of jacobian or random, from the operators: jacobian (B,H,1|N,D), random (B,G,1,D)."""
    how = _settings.text(name, "softmax", {**words, "normalize": "none"})
    q, k, v = p.q.detach(), p.k.detach(), p.v.detach()
    # The jacobian is plain attention's: no bias.
    return _ops.measure(q, k, v, None, p.key_mask, None, None, None, None, how)[-1]


def paired(
    call: str,
    p: "Prepared",
    pairs: str,
    name: str,
    settings: Dict[str, Any],
    weighting: str,
    scale: Union[None, float, str],
    causal: bool,
) -> Tuple[str, Optional[Tensor], Dict[str, Any]]:
    """The metric for rotated q and k: its name for the operators, its tensor, its settings."""
    pair_means(p.q[:1, :1, :1], pairs)  # judges the word and the size
    if name in ("dot", "key-covariance"):
        return name, p.metric, settings
    if name == "given":
        raise ValueError(
            f"foci.{call}: a given metric is taken as it is: average it within rotary pairs "
            "yourself and leave out rotary_pairs"
        )
    if p.q_offsets is not None or p.k_offsets is not None:
        raise NotImplementedError(f"foci.{call}: rotary_pairs with packed sequences")
    left = dict(settings)
    normalize = left.pop("normalize", "max")
    through = left.pop("metric_grad", "detached") == "through"
    left.pop("allow_leak", None)
    # The operators judge what does not belong; the given metric below would not.
    _ops.judge(_settings.text(name, weighting, settings, scale, causal))
    scope = left.pop("scope", "prefix" if causal else "sequence")
    if name in CHANGES:
        if p.v_prev is None:
            raise ValueError(
                f"foci.{call}: metric {name} compares values with those of the layer below: v_prev "
                "is missing (the lowest layer has none: use dot)"
            )
        raw = layer_change(p, p.q.size(2), scope, left.pop("reduce", "mean"))
    elif name == "random":
        drawn = {n: left.pop(n) for n in ("floor", "seed", "layer") if n in left}
        raw = operators_raw(p, name, drawn)
    else:
        if through:
            raise NotImplementedError(
                f"foci.{call}: metric jacobian with rotary_pairs has no metric_grad through"
            )
        words: Dict[str, Any] = {"scope": scope}
        if causal:
            words.update(causal=True, allow_leak=True)
        if scale is not None and weighting != "linear":
            words["scale"] = float(scale)
        raw = operators_raw(p, name, words)
    m = levelled(normalised(pair_means(raw, pairs), normalize), name)
    return "given", m if through else m.detach(), left
