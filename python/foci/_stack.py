# SPDX-License-Identifier: Apache-2.0
"""The layers of somebody else's model as a stack: which metric each has, and how one layer's values
reach the layer above, which their attention calls do not pass on.

Shared by foci.hf and foci.timm. Nothing here knows transformers or timm.
"""
import re
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Tuple, Union

import torch

from . import _estimates, _ops
from ._call import Prepared
from ._settings import written

Layers = Union[str, int, Iterable[int]]
# How coordinates are rotated: ("halves", 1.0) turns d with d + D/2, ("neighbours", 1.0) turns 2d
# with 2d + 1; the number is the share of the coordinates that turn at all.
Pairs = Tuple[str, float]

METRICS = ("dot", "layer-change", "flat", "jacobian", "key-covariance", "random")
_NEEDS_LAYER_BELOW = ("layer-change", "flat")
_ROTARY_MATTERS = ("layer-change", "flat", "jacobian", "random")
_OF_WEIGHTING = ("weighting", "rescale", "feature", "rate", "content", "backend")
_LEARNED = ("learned", "learned-full")


def compiling() -> bool:
    """Whether torch.compile or torch.export is looking."""
    compiler = getattr(torch, "compiler", None)
    return compiler is not None and compiler.is_compiling()


class Stack:
    """The layers of one model, lowest first. Holds values only while a forward pass runs."""

    def __init__(self) -> None:
        self.values: Dict[int, Tuple[torch.Tensor, bool]] = {}

    def __getstate__(self) -> Dict[str, Any]:
        """A copy of a model begins with no values."""
        return {"values": {}}


class Link:
    """One layer's place in its stack, and what it computes."""

    def __init__(self, stack: Stack, index: int, metric: str, settings: Mapping[str, Any]) -> None:
        self.stack = stack
        self.index = index
        self.metric = metric
        self.settings = dict(settings)
        self.below = metric in _NEEDS_LAYER_BELOW
        self.through = settings.get("metric_grad") == "through"
        self.above = False  # whether the layer above asks for this layer's values,
        self.above_through = False  # and for their graph
        self.pairs: Optional[Pairs] = None
        # Settings texts without causal, and without scale unless one is asked for: the layer's
        # own, the one that gives m before it is normalised, the one that takes m from the caller.
        own = dict(settings, layer=index) if metric == "random" else dict(settings)
        self.own = text(metric, own)
        plain = {name: value for name, value in own.items() if name not in _OF_WEIGHTING[:-1]}
        self.raw = text(metric, {**plain, "normalize": "none", "form": None})
        taken = (*_OF_WEIGHTING, "form", "scale")
        self.given = text("given", {name: settings.get(name) for name in taken})
        # linear attention has no use for 1/sqrt(D): its scale is 1 unless one is asked for.
        self.scaled = settings.get("scale") is not None or settings.get("weighting") == "linear"
        self.prior = metric == "key-covariance" and settings.get("prior") is None
        self.usual_scale: Optional[float] = None
        self.usual_word = ""

    def expect(self, scale: Optional[float]) -> None:
        """The scale of most calls, written once: torch.compile cannot write a number that it
        holds for variable."""
        if scale is not None:
            self.usual_scale, self.usual_word = float(scale), f" scale={float(scale)!r}"

    def leave(self, v: torch.Tensor) -> None:
        """Puts this layer's values (B,G,M,E) where the layer above finds them."""
        if self.above:
            kept = v if self.above_through else v.detach()
            self.stack.values[self.index] = (kept, torch.is_grad_enabled())

    def take(self, v: torch.Tensor, keep: bool) -> torch.Tensor:
        """The values of the layer below, of this forward pass."""
        if self.index - 1 not in self.stack.values:
            raise RuntimeError(
                f"foci: layer {self.index} needs the values of layer {self.index - 1}, which has "
                "not run before it in this forward pass. Run the layers in order, each once; a "
                "model that skips layers (layer drop, early exit from below) needs metric='dot'."
            )
        below, with_grad = self.stack.values[self.index - 1]
        if not keep:
            del self.stack.values[self.index - 1]
        if self.through and torch.is_grad_enabled() and not with_grad:
            raise RuntimeError(
                "foci: metric_grad='through' needs the graph of the layer below, and reentrant "
                "checkpointing has none. Use gradient_checkpointing_kwargs={'use_reentrant': "
                "False}, or metric_grad='detached'."
            )
        if below.shape != v.shape:
            raise ValueError(
                f"foci: layer {self.index} has values of shape {tuple(v.shape)}, the layer below "
                f"of shape {tuple(below.shape)}; metric='{self.metric}' compares them one by one. "
                "Choose with layers= only layers of equal heads and tokens."
            )
        return below if below.device == v.device else below.to(v.device)


def make_links(count: int, metric: str, layers: Layers, settings: Mapping[str, Any]) -> List[Link]:
    """One link for each of `count` layers. The metric holds where `layers` says, elsewhere dot; the
    lowest layer has no layer below and stays dot for metrics that need one."""
    check(metric, settings)
    chosen = choose(layers, count)
    plain = {name: settings.get(name) for name in (*_OF_WEIGHTING, "form", "scale")}
    if metric == "key-covariance":
        plain["scale"] = None  # "auto" and the like are the full metric's
    stack = Stack()
    links = []
    for index in range(count):
        here = index in chosen and not (index == 0 and metric in _NEEDS_LAYER_BELOW)
        links.append(
            Link(stack, index, metric, settings) if here else Link(stack, index, "dot", plain)
        )
    for lower, upper in zip(links, links[1:]):
        lower.above, lower.above_through = upper.below, upper.below and upper.through
    return links


def check(metric: str, settings: Mapping[str, Any]) -> None:
    """Refuses what an adapter cannot give: parameters of its own, running averages."""
    if metric in _LEARNED or settings.get("scope") == "running":
        asked = f"metric='{metric}'" if metric in _LEARNED else "scope='running'"
        raise NotImplementedError(
            f"foci: {asked} stores numbers of its own with the weights, and an adapter adds none "
            "to a model. Use foci.nn.Attention for that layer."
        )
    if metric not in METRICS:
        raise ValueError(f"foci: metric is '{metric}'; it must be one of {', '.join(METRICS)}")
    for name in ("causal", "layer", "extent"):
        if name in settings:
            raise ValueError(f"foci: {name} is not yours to set: the model decides it")


def choose(layers: Layers, count: int) -> FrozenSet[int]:
    """'1:' (from the second on), ':', '2:8:2', '1,3,5', 4, or numbers; those the stack has."""
    if isinstance(layers, int):
        layers = [layers]
    if isinstance(layers, str):
        found: List[int] = []
        for part in layers.replace(" ", "").split(","):
            if re.fullmatch(r"-?\d+", part):
                found.append(int(part))
            elif re.fullmatch(r"(-?\d+)?:(-?\d+)?(:\d*)?", part) and not part.endswith(":0"):
                ends = [int(x) if x else None for x in part.split(":")]
                found.extend(range(count)[slice(*ends)])
            elif part == "all":
                found.extend(range(count))
            else:
                raise ValueError(
                    f"foci: layers is '{layers}'; write a slice like '1:', numbers like '1,3,5', "
                    "or 'all'"
                )
        layers = found
    numbers = [int(x) for x in layers]
    return frozenset(x + count if x < 0 else x for x in numbers) & frozenset(range(count))


def text(metric: str, settings: Mapping[str, Any]) -> str:
    """A settings text; what is None, or a backend left to the library, is left out."""
    words = {name: value for name, value in settings.items() if value is not None}
    if words.get("backend") == "auto":
        del words["backend"]
    return " ".join(written(name, value) for name, value in {"metric": metric, **words}.items())


def attend(
    link: Link,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    key_mask: Optional[torch.Tensor],
    causal: bool,
    scale: float,
    keep: bool,
) -> torch.Tensor:
    """One layer's attention: q (B,H,N,D), k and v (B,G,M,·), key_mask (B,M) -> o (B,H,N,E). `keep`
    leaves the values of the layer below in place, for a pass that will be run again."""
    if link.metric == "jacobian" and causal and q.shape[2] != k.shape[2]:
        raise NotImplementedError(
            "foci: metric='jacobian' is a mean over queries, and a cache of keys and values does "
            "not hold them. Decode with use_cache=False, or choose another metric"
        )
    below = link.take(v, keep) if link.below else None
    link.leave(v)
    call = " causal=true" if causal else " causal=false"
    if not link.scaled:
        call += link.usual_word if scale == link.usual_scale else f" scale={float(scale)!r}"
    if link.pairs is not None and link.metric in _ROTARY_MATTERS:
        metric = _paired(link, Prepared(q, k, v, below, key_mask, None, None, None, None, ""), call)
        how = link.given + call
        return _ops.attend(q, k, v, None, key_mask, None, metric, None, None, how)[0]
    if link.prior:
        call += f" prior={q.shape[-1]}"
    return _ops.attend(q, k, v, below, key_mask, None, None, None, None, link.own + call)[0]


def _paired(link: Link, p: Prepared, call: str) -> torch.Tensor:
    """m of a layer with rotary positions: averaged within each pair before it is normalised."""
    settings, causal = link.settings, "causal=true" in call
    scope = settings.get("scope") or ("prefix" if causal else "sequence")
    if link.below:
        if scope == "sequence" and causal and not settings.get("allow_leak"):
            raise ValueError(
                "foci: scope='sequence' lets a causal model see later tokens; leave scope out (it "
                "is then 'prefix'), or say allow_leak=True"
            )
        reduce = settings.get("reduce") or "mean"
        if scope == "prefix" and reduce == "median":
            raise ValueError("foci: reduce='median' has no running form; with prefix use 'mean'")
        raw = _estimates.layer_change(p, p.q.size(2), scope, reduce)
    else:
        raw = _from_core(link, p, call)
    assert link.pairs is not None
    m = average_pairs(raw, link.pairs)
    m = _estimates.normalised(m, settings.get("normalize") or "max")
    m = _estimates.levelled(m, link.metric)
    return m if link.through else m.detach()


def _from_core(link: Link, p: Prepared, call: str) -> torch.Tensor:
    """jacobian's (B,H,1|N,D) or random's (1,G,1,D) m before it is normalised."""
    if link.through:
        raise NotImplementedError(
            f"foci: metric='{link.metric}' with rotary positions has no metric_grad='through'"
        )
    q, k, v, key_mask = p.q.detach(), p.k.detach(), p.v.detach(), p.key_mask
    if link.metric == "random":
        q = k = v = torch.zeros(1, k.shape[1], 1, k.shape[3], device=k.device)
        key_mask = None
    how = link.raw + call
    return _ops.measure(q, k, v, None, key_mask, None, None, None, None, how)[7]


def average_pairs(m: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """m (.., D) with the two coordinates of each rotary pair made equal."""
    kind, share = pairs
    turned = int(m.shape[-1] * share)
    if turned == m.shape[-1]:
        return _estimates.pair_means(m, kind)
    return torch.cat((_estimates.pair_means(m[..., :turned], kind), m[..., turned:]), dim=-1)
