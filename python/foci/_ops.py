# SPDX-License-Identifier: Apache-2.0
"""torch.ops.foci with types: the operators that libfoci_torch.so registers."""
from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import _watch

_torch: Any = torch


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    v_prev: Optional[Tensor],
    key_mask: Optional[Tensor],
    key_bias: Optional[Tensor],
    metric: Optional[Tensor],
    q_offsets: Optional[Tensor],
    k_offsets: Optional[Tensor],
    how: str,
) -> Tuple[Tensor, Tensor]:
    """o (B,H,N,E) and lse (B,H,N), or of shape (0) where the weighting is not softmax."""
    if _watch.listeners:
        return _heard(q, k, v, v_prev, key_mask, key_bias, metric, q_offsets, k_offsets, how)
    o, lse = _torch.ops.foci.attend(
        q, k, v, v_prev, key_mask, key_bias, metric, q_offsets, k_offsets, how
    )
    return o, lse


def measure(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    v_prev: Optional[Tensor],
    key_mask: Optional[Tensor],
    key_bias: Optional[Tensor],
    metric: Optional[Tensor],
    q_offsets: Optional[Tensor],
    k_offsets: Optional[Tensor],
    how: str,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """o, lse, concentration, effective_keys, entropy, largest, largest_at, metric; no gradient."""
    found: Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
    found = _torch.ops.foci.measure(
        q, k, v, v_prev, key_mask, key_bias, metric, q_offsets, k_offsets, how
    )
    return found


def _heard(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    v_prev: Optional[Tensor],
    key_mask: Optional[Tensor],
    key_bias: Optional[Tensor],
    metric: Optional[Tensor],
    q_offsets: Optional[Tensor],
    k_offsets: Optional[Tensor],
    how: str,
) -> Tuple[Tensor, Tensor]:
    """attend() through measure(); the newest listener is told, and does not hear what it calls."""
    listener = _watch.listeners[-1]
    kept, _watch.listeners[:] = list(_watch.listeners), []
    try:
        found = measure(q, k, v, v_prev, key_mask, key_bias, metric, q_offsets, k_offsets, how)
        listener(_watch.Seen(q, k, v, key_mask, key_bias, metric, how, found))
    finally:
        _watch.listeners[:] = kept
    return found[0], found[1]


def check_settings(how: str) -> str:
    """A settings text written out in full, defaults included; ValueError when it is not one."""
    return str(_torch.ops.foci.check_settings(how))


def compiling() -> bool:
    """Whether torch.compile or torch.export is tracing."""
    compiler: Any = getattr(torch, "compiler", None)
    return compiler is not None and bool(compiler.is_compiling())


def judge(how: str) -> None:
    """check_settings for its ValueError; not while torch traces, to whom a text is no output."""
    if not compiling():
        check_settings(how)


def constant(number: Any) -> Any:
    """A number that goes into a text: a compiled graph holds for this one, and is made again for
    another."""
    if compiling():
        return _torch.fx.experimental.symbolic_shapes.guard_scalar(number)
    return number


def load_library(path: str) -> None:
    _torch.ops.load_library(path)
