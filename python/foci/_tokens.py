# SPDX-License-Identifier: Apache-2.0
"""How alike tokens are and in how many directions they lie: the formulas of docs/measure.md, in
double, a sample at a time."""
from typing import Dict, Optional

import torch
from torch import Tensor

ALIKE = ("cosine", "high_low", "residual", "dirichlet", "dirichlet_relative")
SPECTRUM = ("effective_rank", "effective_rank_squares", "stable_rank", "participation")
_MOST = 1e12


def _ratio(above: Tensor, below: Tensor) -> float:
    """above / below, 0 for 0/0 and never more than 1e12."""
    top, bottom = float(above), float(below)
    if top == 0:
        return 0.0
    return top / bottom if bottom > top / _MOST else _MOST


def likeness(x: Tensor) -> Dict[str, float]:
    """Of one sample's tokens (N,D)."""
    x = x.detach().double()
    if not bool(x.isfinite().all()):
        return {name: float("nan") for name in ALIKE}
    n = x.size(0)
    sizes = x.norm(dim=1, keepdim=True)
    units = torch.where(sizes > 0, x / sizes.clamp_min(1e-300), torch.zeros_like(x))
    mean = x.mean(0)
    off = x - mean
    high = off.square().sum()
    directed = units.square().sum()
    cosine = float((units.sum(0).square().sum() - directed) / (n * (n - 1))) if n > 1 else 1.0
    return {
        "cosine": max(-1.0, min(1.0, cosine)),
        "high_low": _ratio(high.sqrt(), n**0.5 * mean.norm()),
        "residual": _ratio(_between(off), _between(x)),
        "dirichlet": float(high) / n,
        "dirichlet_relative": _ratio(high / n, x.square().sum()),
    }


def _between(x: Tensor) -> Tensor:
    """sqrt(|x|_1 |x|_inf)"""
    size = x.abs()
    return (size.sum(0).max() * size.sum(1).max()).sqrt()


def spectrum(x: Tensor) -> Dict[str, float]:
    """Of one sample's tokens (N,D), from the eigenvalues of the smaller Gram matrix."""
    x = x.detach().double()
    top = float(x.abs().max()) if x.numel() else 0.0
    if not 0 < top < float("inf"):
        return {name: 0.0 if top == 0 else float("nan") for name in SPECTRUM}
    x = x / top
    squares = torch.linalg.eigvalsh(x @ x.t() if x.size(1) > x.size(0) else x.t() @ x)
    squares = squares[squares > 1e-15 * len(squares) * float(squares[-1])]
    return {
        "effective_rank": _rank(squares.sqrt()),
        "effective_rank_squares": _rank(squares),
        "stable_rank": float(squares.sum() / squares[-1]),
        "participation": float(squares.sum() ** 2 / squares.square().sum()),
    }


def _rank(sigma: Tensor) -> float:
    """exp of the entropy of sigma / sum sigma."""
    p = sigma / sigma.sum()
    return float((-torch.special.xlogy(p, p).sum()).exp())


def health(m: Tensor, full: bool) -> Dict[str, float]:
    """Of a metric (B,G|H,1|N,D), or full (B,G,D,D) and under prefix (B,G,chunks,D,D): of the last
    query or chunk. Means over samples and heads, but the extremes."""
    if not full or m.dim() == 5:
        m = m[:, :, -1]
    m = m.detach().double()
    if full:
        m = torch.linalg.eigvalsh(m).clamp_min(0)
    most, least, mean = m.amax(-1), m.amin(-1), m.mean(-1)
    some = mean > 0
    safe = torch.where(some, mean, torch.ones_like(mean))
    p = m / m.sum(-1, keepdim=True).clamp_min(1e-300)
    entropy = -torch.special.xlogy(p, p).sum(-1)

    def average(x: Tensor, otherwise: float) -> float:
        return float(torch.where(some, x, torch.full_like(x, otherwise)).mean())

    D = m.size(-1)
    log_D = float(torch.tensor(float(D)).log()) if D > 1 else 1.0
    return {
        "least": float(least.min()),
        "most": float(most.max()),
        "mean": float(mean.mean()),
        "variation": average((m - mean.unsqueeze(-1)).square().mean(-1).sqrt() / safe, 0.0),
        "anisotropy": average(most / safe, 1.0),
        "condition": average(most / torch.maximum(least, most / _MOST).clamp_min(1e-300), 1.0),
        "entropy": average(entropy / log_D, 1.0) if D > 1 else 1.0,
        "at_floor": float((m < 0.01 * most.unsqueeze(-1)).double().mean()),
    }


def only(x: Tensor, mask: Optional[Tensor]) -> Tensor:
    """The tokens that a sample's mask keeps."""
    return x if mask is None else x[mask]
