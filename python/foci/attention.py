# SPDX-License-Identifier: Apache-2.0
"""foci.attend: attention in the manner of torch.nn.functional.scaled_dot_product_attention."""
from typing import Any, Optional, Tuple, Union, overload

import torch
from torch import Tensor

from . import _ops
from ._call import Align, How, Pairs, prepare
from ._settings import Literal, Unpack
from .statistics import Statistics, statistics_of


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = ...,
    return_stats: Literal[False] = ...,
    **how: Unpack[How],
) -> Tensor:
    ...


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[True],
    return_stats: Literal[False] = ...,
    **how: Unpack[How],
) -> Tuple[Tensor, Tensor]:
    ...


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = ...,
    return_stats: Literal[True],
    **how: Unpack[How],
) -> Tuple[Tensor, Statistics]:
    ...


@overload
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[True],
    return_stats: Literal[True],
    **how: Unpack[How],
) -> Tuple[Tensor, Tensor, Statistics]:
    ...


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    metric: Union[str, Tensor] = "dot",
    weighting: str = "softmax",
    v_prev: Optional[Tensor] = None,
    metric_tensor: Optional[Tensor] = None,
    attn_mask: Optional[Tensor] = None,
    key_mask: Optional[Tensor] = None,
    key_bias: Optional[Tensor] = None,
    q_offsets: Optional[Tensor] = None,
    k_offsets: Optional[Tensor] = None,
    is_causal: bool = False,
    causal_align: Optional[Align] = None,
    scale: Optional[Union[float, str]] = None,
    enable_gqa: bool = False,
    dropout_p: float = 0.0,
    rotary_pairs: Optional[Pairs] = None,
    return_lse: bool = False,
    return_stats: bool = False,
    backend: str = "auto",
    deterministic: Optional[bool] = None,
    **settings: Any,
) -> Union[
    Tensor, Tuple[Tensor, Tensor], Tuple[Tensor, Statistics], Tuple[Tensor, Tensor, Statistics]
]:
    """Attention under a metric and a weighting: o_i = sum_j a_ij v_j.

    With the defaults this is `scaled_dot_product_attention(q, k, v)`; gradients reach q, k, v,
    v_prev, key_bias and a given metric.

    Args:
        q: (B,H,N,D) queries. D is the head size; f64, f32, bf16 or f16.
        k: (B,G,M,D) keys. H is a multiple of G; H != G needs `enable_gqa=True`.
        v: (B,G,M,E) values.
        metric: how near a query and a key are: "dot", "layer-change", "flat", "jacobian",
            "key-covariance", "random", or "given"; or your own metric as a tensor, m >= 0 of shape
            (1|B, G|H, 1|N, D), or with `extent="full"` a symmetric P >= 0 of shape (1|B, G, D, D).
        weighting: "softmax", "relu2", "identity", "linear" or "decay".
        v_prev: (B,G,M,E) the values of the layer below; layer-change and flat need it.
        metric_tensor: the tensor of `metric="given"`.
        attn_mask: only what is a key mask: bool of shape (B|1, 1, 1, M), true = keep.
        key_mask: (B,M) bool, true = keep. Masked keys are seen by no query and no estimate.
        key_bias: (B,H,M) or (B,G,M), added to the scores.
        q_offsets, k_offsets: (S+1) packed sequences, B = 1: where each begins.
        is_causal: a query sees keys up to its own position.
        causal_align: needed when N != M: "bottom-right" (the last query sees every key, as a cache
            wants it) or "top-left" (query i sees keys 0..i: scaled_dot_product_attention).
        scale: the factor of the scores; 1/sqrt(D) by default (1 for full metrics and linear);
            "auto" matches dot's concentration (full metrics).
        enable_gqa: allows fewer key heads than query heads.
        dropout_p: 0; dropout on weights is not supported.
        rotary_pairs: set it when q and k carry rotary positions: a diagonal metric is then averaged
            within each pair of coordinates, "halves" (d, d + D/2) or "neighbours" (2d, 2d + 1).
        return_lse: also return lse (B,H,N), the log of the sum of exp of the scores (softmax).
        return_stats: also return `foci.Statistics`, without gradients.
        backend: "auto", or "ref", "cpu", "cuda" by name; a backend asked for never falls back.
        deterministic: every backend gives the same bits each time, so either answer is met.
        **settings: those of the metric and the weighting, see `foci.Settings`.

    Returns:
        o (B,H,N,E); or (o, lse), (o, stats), (o, lse, stats) as asked.

    Example:
        >>> o = foci.attend(q, k, v, metric="layer-change", v_prev=v_below, is_causal=True)
    """
    call = prepare(
        "attend",
        q,
        k,
        v,
        dict(
            metric=metric,
            weighting=weighting,
            v_prev=v_prev,
            metric_tensor=metric_tensor,
            attn_mask=attn_mask,
            key_mask=key_mask,
            key_bias=key_bias,
            q_offsets=q_offsets,
            k_offsets=k_offsets,
            is_causal=is_causal,
            causal_align=causal_align,
            scale=scale,
            enable_gqa=enable_gqa,
            dropout_p=dropout_p,
            rotary_pairs=rotary_pairs,
            backend=backend,
            deterministic=deterministic,
        ),
        settings,
    )
    if return_lse and weighting != "softmax":
        raise ValueError(
            f"foci.attend: return_lse belongs to softmax; the weighting is {weighting}"
        )
    if not return_stats:
        o, lse = _ops.attend(*call)
        return (o, lse) if return_lse else o
    stats = statistics_of(call)
    o = stats.o
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in call):
        o, _ = _ops.attend(*call)
    if return_lse:
        assert stats.lse is not None
        return o, stats.lse, stats
    return o, stats
