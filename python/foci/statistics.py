# SPDX-License-Identifier: Apache-2.0
"""foci.measure: what every row of attention looks at, without the N x M matrix."""
from typing import Any, List, NamedTuple, Optional

import torch
from torch import Tensor

from . import _ops
from ._call import NAMED, How, Prepared, prepare
from ._settings import Unpack


MEANS = ("concentration", "effective_keys", "entropy", "largest")


class Statistics(NamedTuple):
    """Per row: n visible keys, weights a. Absent where the mechanism has none (lse: softmax;
    entropy: weights that sum to one; metric: all but dot)."""

    o: Tensor
    """(B,H,N,E) the output"""
    lse: Optional[Tensor]
    """(B,H,N) log of the sum of exp of the scores"""
    concentration: Tensor
    """(B,H,N) S = sum|a| / sqrt(n sum a^2): 1 is an even spread, 1/sqrt(n) a single key"""
    effective_keys: Tensor
    """(B,H,N) n S^2: how many keys a row really looks at"""
    entropy: Optional[Tensor]
    """(B,H,N) -sum a ln a"""
    largest: Tensor
    """(B,H,N) the largest |a|"""
    largest_at: Tensor
    """(B,H,N) its lowest index; -1 where a row sees no key"""
    metric: Optional[Tensor]
    """the metric as used: m (B,G|H,1|N,D), or P (B,G,D,D), under prefix (B,G,chunks,D,D)"""

    def summary(self) -> str:
        """A table: means per head, and of all, over the rows that see a key and are finite."""
        columns = [name for name in MEANS if getattr(self, name) is not None]
        lines = ["head  " + "  ".join(name.replace("_", " ") for name in columns)]
        for head in [*range(self.concentration.size(1)), None]:
            cells = (f"{self._mean(name, head):{len(name)}.4g}" for name in columns)
            lines.append(("mean" if head is None else f"{head:4d}") + "  " + "  ".join(cells))
        lost = int((self._seen() & ~self.concentration.isfinite()).sum())
        if lost:
            lines.append(f"left out: {lost} of {self.concentration.numel()} rows, not finite")
        return "\n".join(lines)

    def _seen(self) -> Tensor:
        return self.largest_at >= 0  # (B,H,N)

    def _mean(self, name: str, head: Optional[int] = None) -> float:
        """Over rows that see a key and are finite, of one head or all; 0 where there are none."""
        x, counts = getattr(self, name), self._seen() & self.concentration.isfinite()
        if head is not None:
            x, counts = x[:, head], counts[:, head]
        return float(x[counts].mean()) if bool(counts.any()) else 0.0

    def __repr__(self) -> str:
        batch, heads, rows = self.concentration.shape
        parts = [f"batch={batch}", f"heads={heads}", f"rows={rows}"]
        if bool((self._seen() & self.concentration.isfinite()).any()):
            present = (name for name in MEANS if getattr(self, name) is not None)
            parts += [f"{name}={self._mean(name):.4g}" for name in present]
        if self.metric is not None:
            parts.append(f"metric={tuple(self.metric.shape)}")
        return f"Statistics({', '.join(parts)})"


def statistics_of(call: Prepared) -> Statistics:
    """Runs the operator; what a mechanism does not have comes back empty and is given as None."""
    detached: List[Any] = [x.detach() if isinstance(x, Tensor) else x for x in call]
    o, lse, concentration, effective_keys, entropy, largest, at, metric = _ops.measure(*detached)
    return Statistics(
        o,
        _present(lse),
        concentration,
        effective_keys,
        _present(entropy),
        largest,
        at,
        _present(metric),
    )


def _present(x: Tensor) -> Optional[Tensor]:
    return None if x.dim() == 1 and x.size(0) == 0 else x


def measure(q: Tensor, k: Tensor, v: Tensor, **how: Unpack[How]) -> Statistics:
    """Row statistics of `foci.attend(q, k, v, **how)`, and its output, without gradients.

    Takes every keyword of `foci.attend` but return_lse and return_stats. Memory grows with the
    rows, not with rows times keys.

    Example:
        >>> stats = foci.measure(q, k, v, metric="key-covariance", prior=64.0)
        >>> print(stats.summary())
    """
    known = {name: value for name, value in how.items() if name in NAMED}
    rest = {name: value for name, value in how.items() if name not in NAMED}
    return statistics_of(prepare("measure", q, k, v, known, rest))
