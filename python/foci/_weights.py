# SPDX-License-Identifier: Apache-2.0
"""What needs the weights themselves, of one call: they come in blocks of keys, as the output of the
same call over values that are columns of the identity. So they are those of any mechanism, and the
whole matrix is there only for rollout."""
from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from . import _ops
from ._watch import Seen

_OF_WEIGHTS = ("weighting", "rescale", "feature", "rate", "content", "scale", "form", "causal")
_BLOCK = 256


class Grid(NamedTuple):
    """Where tokens stand: `leading` nowhere, then height x width patches row by row; what comes
    after stands nowhere."""

    leading: int
    height: int
    width: int


def words_of(how: str) -> Dict[str, str]:
    """Every setting of a call, defaults written out."""
    return dict(word.split("=", 1) for word in _ops.check_settings(how).split())


def is_full(words: Dict[str, str]) -> bool:
    return words["metric"] == "key-covariance" or words.get("extent") == "full"


def metric_of(call: Seen) -> Optional[Tensor]:
    """The metric that a call used; None for dot."""
    if words_of(call.how)["metric"] == "given":
        return call.metric
    m = call.statistics[7]
    return m if m.dim() > 1 else None


def finite(call: Seen) -> Tuple[Seen, Tensor]:
    """The call with zeros in place of samples that are not finite, and which (B) are."""
    B = call.q.size(0)
    sound = torch.ones(B, dtype=torch.bool, device=call.q.device)
    for x in (call.q, call.k, call.key_bias, call.metric, call.statistics[7]):
        if x is not None and x.dim() > 1 and x.size(0) == B:
            sound = sound & x.flatten(1).isfinite().all(1)
    if bool(sound.all()):
        return call, sound

    def mended(x: Optional[Tensor]) -> Optional[Tensor]:
        if x is None or x.dim() < 2 or x.size(0) != B:
            return x
        return torch.where(sound.view(-1, *[1] * (x.dim() - 1)), x, torch.zeros_like(x))

    q, k, v, mask, bias, metric, how, statistics = call
    found = (*statistics[:7], mended(statistics[7]))
    parts = [mended(q), mended(k), mended(v), mask, mended(bias), mended(metric)]
    return Seen(*parts, how, found), sound  # type: ignore[arg-type]


def columns(call: Seen, first: int, count: int) -> Tensor:
    """a (B,H,N,count): the weights of some keys."""
    B, G, M = call.k.shape[:3]
    values = torch.zeros(B, G, M, count, dtype=call.q.dtype, device=call.q.device)
    values[:, :, first : first + count] = torch.eye(count, dtype=values.dtype, device=values.device)
    words = words_of(call.how)
    how, metric = call.how, call.metric
    if words["metric"] not in ("dot", "given", "key-covariance"):  # from values, or drawn
        kept = [f"{name}={words[name]}" for name in _OF_WEIGHTS if name in words]
        how, metric = " ".join(["metric=given", *kept]), call.statistics[7]
    return _ops.attend(
        call.q, call.k, values, None, call.key_mask, call.key_bias, metric, None, None, how
    )[0]


def _places(grid: Optional[Grid], tokens: Tensor) -> Tuple[Tensor, Tensor]:
    """Coordinates (n,2) of these tokens, and which of them stand somewhere."""
    if grid is None:
        return torch.stack([tokens, torch.zeros_like(tokens)], 1), torch.ones_like(tokens).bool()
    i = tokens - grid.leading
    stands = (i >= 0) & (i < grid.height * grid.width)
    row = torch.div(i, grid.width, rounding_mode="floor")
    return torch.stack([row, i - row * grid.width], 1), stands


class Closely(NamedTuple):
    """Means over rows, (B,H), NaN where none counts; (B) the others."""

    distance: Tensor
    top: Tensor
    head_distance: Tensor
    rollout_keys: Optional[Tensor]
    product: Optional[Tensor]  # (B,N,N): rollout up to here


def look_closely(
    call: Seen, rows: Tensor, top: int, grid: Optional[Grid], below: Optional[Tensor], rolls: bool
) -> Closely:
    """rows (B,H,N): those that count. `below`: the rollout of the layers below, None at the first
    layer. `rolls`: whether it is followed here."""
    (B, H, N), M = call.q.shape[:3], call.k.size(2)
    device = call.q.device
    at = torch.arange(M, device=device, dtype=torch.float64)
    queries, stand = _places(grid, at[M - N :] if N <= M else torch.arange(M - N, M).double())
    keys, there = _places(grid, at)
    zero = torch.zeros(B, H, N, dtype=torch.float64, device=device)
    mass, shown, moment = zero, zero.clone(), zero.clone()
    most: List[Tensor] = []
    products = torch.zeros(B, H, H, dtype=torch.float64, device=device)
    mean = torch.zeros(B, N, M, dtype=torch.float64, device=device) if rolls else None
    for first in range(0, M, _BLOCK):
        count = min(_BLOCK, M - first)
        a = columns(call, first, count).double()
        size = a.abs()
        far = (queries[:, None] - keys[None, first : first + count]).square().sum(-1).sqrt()
        own = size * there[first : first + count]
        mass = mass + size.sum(-1)
        shown = shown + own.sum(-1)
        moment = moment + (own * far).sum(-1)
        best = torch.cat([*most, size], -1)
        most = [best.topk(min(top, best.size(-1)), -1).values]
        flat = a.flatten(2)
        products = products + flat @ flat.transpose(1, 2)
        if mean is not None:
            mean[:, :, first : first + count] = size.mean(1)
    stands = rows & stand & (shown > 0)
    kept = most[0].sum(-1) / mass.clamp_min(1e-300)
    step = None if mean is None else _rolled(mean, below)
    return Closely(
        mean_over(moment / shown.clamp_min(1e-300), stands),
        mean_over(kept.clamp_max(1), rows & (mass > 0)),
        _apart(products),
        None if step is None else mean_over(1 / step.square().sum(-1), rows.any(1)),
        step,
    )


def _rolled(mean: Tensor, below: Optional[Tensor]) -> Tensor:
    mixed = mean + torch.eye(mean.size(-1), dtype=mean.dtype, device=mean.device)
    step = mixed / mixed.sum(-1, keepdim=True)
    return step if below is None else step @ below


def _apart(products: Tensor) -> Tensor:
    """Mean over pairs of heads of how far their weights are apart."""
    H = products.size(1)
    if H < 2:
        return torch.zeros(products.size(0), dtype=products.dtype)
    own = products.diagonal(dim1=1, dim2=2)
    squares = own.unsqueeze(1) + own.unsqueeze(2) - 2 * products
    return squares.clamp_min(0).sqrt().sum((1, 2)) / (H * (H - 1))


def mean_over(x: Tensor, rows: Tensor) -> Tensor:
    """Over the last dimension, of rows that count; NaN where there are none."""
    x = x.double()
    return torch.where(rows, x, torch.zeros_like(x)).sum(-1) / rows.sum(-1)
