# SPDX-License-Identifier: Apache-2.0
"""Who hears of every call of attention: while one listens, calls also give their rows' statistics.
One at a time in a process."""
from typing import Callable, List, NamedTuple, Optional, Tuple

from torch import Tensor


class Seen(NamedTuple):
    """One call, as the operators took it."""

    q: Tensor
    k: Tensor
    v: Tensor
    key_mask: Optional[Tensor]
    key_bias: Optional[Tensor]
    metric: Optional[Tensor]  # metric `given`
    how: str
    statistics: Tuple[Tensor, ...]  # of _ops.measure


Listener = Callable[[Seen], None]
listeners: List[Listener] = []
