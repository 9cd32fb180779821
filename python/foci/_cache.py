# SPDX-License-Identifier: Apache-2.0
"""What a layer keeps between calls when tokens come a few at a time."""
import weakref
from typing import Dict, NamedTuple, Optional

import torch
from torch import Tensor, nn


class Held(NamedTuple):
    """Everything up to and including the newest tokens: k, v, v_prev (B,G,M,D), key_mask (B,M)."""

    k: Tensor
    v: Tensor
    v_prev: Optional[Tensor]
    key_mask: Optional[Tensor]


class Mark(NamedTuple):
    """A cache as it was before a step."""

    length: int
    held: Dict[str, Tensor]
    layer: Optional["weakref.ref[nn.Module]"]
    jacobian_sum: Optional[Tensor]
    jacobian_count: Optional[Tensor]


class Cache:
    """Keys and values of the tokens so far, for one layer.

    Give the same object to the layer at every step; each layer needs its own. Memory grows by
    doubling, so a step copies only its own tokens.

    Example:
        >>> cache = foci.nn.Cache()
        >>> with torch.no_grad():
        ...     y, v = layer(prompt, cache=cache)       # (B,N,dim)
        ...     y, v = layer(next_token, cache=cache)   # (B,1,dim)
    """

    def __init__(self) -> None:
        self.length = 0
        self._held: Dict[str, Tensor] = {}
        self._layer: Optional["weakref.ref[nn.Module]"] = None
        self.jacobian_sum: Optional[Tensor] = None  # (B,H,1,D): metric jacobian under prefix
        self.jacobian_count: Optional[Tensor] = None  # (B,1,1,1)

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"Cache(length={self.length})"

    def reset(self) -> None:
        """Forgets everything."""
        self.__init__()  # type: ignore[misc]

    def reorder(self, batch: Tensor) -> None:
        """Row b becomes row batch[b]: beam search picks its survivors."""
        for name, held in self._held.items():
            self._held[name] = held.index_select(0, batch)
        if self.jacobian_sum is not None and self.jacobian_count is not None:
            self.jacobian_sum = self.jacobian_sum.index_select(0, batch)
            self.jacobian_count = self.jacobian_count.index_select(0, batch)

    def mark(self) -> Mark:
        """Where a step begins, for `back` when it is refused."""
        return Mark(
            self.length, dict(self._held), self._layer, self.jacobian_sum, self.jacobian_count
        )

    def back(self, to: Mark) -> None:
        """Forgets what came since the mark."""
        self.length, self._held, self._layer = to.length, dict(to.held), to.layer
        self.jacobian_sum, self.jacobian_count = to.jacobian_sum, to.jacobian_count

    def belong(self, layer: nn.Module) -> None:
        """Each layer has keys of its own: a cache that another one has begun is refused."""
        if self._layer is not None and self._layer() is not layer:
            raise ValueError(
                "foci.nn.Cache: another layer has put its tokens here: give each layer a Cache of "
                "its own"
            )
        self._layer = weakref.ref(layer)

    def append(
        self, k: Tensor, v: Tensor, v_prev: Optional[Tensor], key_mask: Optional[Tensor]
    ) -> Held:
        """Takes the newest tokens, k and v (B,G,n,D), key_mask (B,n); gives back all of them."""
        if v_prev is not None and (v_prev.shape != v.shape or v_prev.dtype != v.dtype):
            raise ValueError(
                f"foci.nn.Cache: v_prev is {v_prev.dtype} of shape {tuple(v_prev.shape)}; it must "
                f"be that of the new tokens alone, {v.dtype} of shape {tuple(v.shape)}"
            )
        if key_mask is not None and key_mask.shape != (k.size(0), k.size(2)):
            raise ValueError(
                f"foci.nn.Cache: key_mask has shape {tuple(key_mask.shape)}; it must be that of "
                f"the new tokens alone, {(k.size(0), k.size(2))}: the cache keeps the earlier ones"
            )
        held = self._held.get("k")
        if held is not None and held.size(0) != k.size(0):
            raise ValueError(
                f"foci.nn.Cache: it holds {held.size(0)} sequences and {k.size(0)} came: use one "
                "cache per batch, or reset() it"
            )
        if held is not None and (v_prev is not None) != ("v_prev" in self._held):
            raise ValueError("foci.nn.Cache: v_prev must come at every step, or at none")
        if key_mask is not None and "key_mask" not in self._held and self.length:
            seen = torch.ones(k.size(0), self.length, dtype=torch.bool, device=k.device)
            self._put("key_mask", seen, 1, 0)
        if key_mask is None and "key_mask" in self._held:
            key_mask = torch.ones(k.size(0), k.size(2), dtype=torch.bool, device=k.device)
        new = {"k": (k, 2), "v": (v, 2), "v_prev": (v_prev, 2), "key_mask": (key_mask, 1)}
        for name, (x, axis) in new.items():
            if x is not None:
                self._put(name, x, axis, self.length)
        self.length += k.size(2)
        return Held(
            self._held["k"][:, :, : self.length],
            self._held["v"][:, :, : self.length],
            self._held["v_prev"][:, :, : self.length] if "v_prev" in self._held else None,
            self._held["key_mask"][:, : self.length] if "key_mask" in self._held else None,
        )

    def _put(self, name: str, x: Tensor, axis: int, at: int) -> None:
        needed = at + x.size(axis)
        held = self._held.get(name)
        if held is None or held.size(axis) < needed:
            shape = list(x.shape)
            shape[axis] = max(needed, 2 * at)
            larger = x.new_empty(shape)
            if held is not None:
                larger.narrow(axis, 0, at).copy_(held.narrow(axis, 0, at))
            self._held[name] = held = larger
        held.narrow(axis, at, x.size(axis)).copy_(x)
