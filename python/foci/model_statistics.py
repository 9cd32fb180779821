# SPDX-License-Identifier: Apache-2.0
"""foci.measure_model: does attention concentrate, do tokens collapse, is the metric well, in any
model whose attention foci computes. The numbers are those of `foci measure`; docs/measure.md has
their formulas."""
import math
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from . import _tokens, _watch
from ._blocks import between_blocks, plainly
from ._weights import Grid, finite, is_full, look_closely, mean_over, metric_of, words_of

ROWS = ("concentration", "effective_keys", "entropy", "largest", "distance", "top_mass")
WHOLE = ("head_distance", "rollout_keys", "key_change")
TOKENS = _tokens.ALIKE + _tokens.SPECTRUM
# Their places in a call's statistics.
_AT = {"concentration": 2, "effective_keys": 3, "entropy": 4, "largest": 5}


class Value(NamedTuple):
    """A mean over samples, its standard error, and how many there were."""

    mean: float
    error: float
    n: int


class _Samples:
    """Numbers of samples, one after another, until they are asked for."""

    def __init__(self) -> None:
        self.all: List[float] = []

    def add(self, numbers: Iterable[float]) -> None:
        self.all += [float(x) for x in numbers if math.isfinite(x)]

    def value(self) -> Optional[Value]:
        n = len(self.all)
        if n == 0:
            return None
        mean = math.fsum(self.all) / n
        squares = math.fsum((x - mean) ** 2 for x in self.all)
        return Value(mean, math.sqrt(squares / (n * (n - 1))) if n > 1 else 0.0, n)


class LayerStatistics(NamedTuple):
    """One layer; what was not measured is None."""

    heads: int
    queries: int
    keys: int
    mechanism: str
    rows: Dict[str, Optional[Value]]
    """concentration, effective_keys, entropy, largest, distance, top_mass; head_distance,
    rollout_keys, key_change"""
    by_head: List[Dict[str, Optional[Value]]]
    metric: Optional[Dict[str, float]]
    """least, most, mean, variation, anisotropy, condition, entropy, at_floor, drift"""
    tokens: Dict[str, Optional[Value]]
    """as they leave the block: cosine, high_low, residual, dirichlet, dirichlet_relative,
    effective_rank, effective_rank_squares, stable_rank, participation"""
    metric_samples: int = 0
    """that the metric's numbers are of: of full metrics the closely measured ones"""
    metric_error: Optional[Dict[str, float]] = None
    """standard errors over samples of those that are means: without least, most and drift"""


class ModelStatistics(NamedTuple):
    """What foci.measure_model found."""

    samples: int
    layers: List[LayerStatistics]
    embedded: Dict[str, Optional[Value]]
    """tokens as they enter the first block"""

    def summary(self) -> str:
        """Tables of attention, of tokens, and of the metric, a line a layer."""
        names = (*ROWS, *WHOLE)
        tables = [_table("layer", names, [(str(i), x.rows) for i, x in enumerate(self.layers)])]
        after = [("embedding", self.embedded)]
        after += [(f"layer {i}", layer.tokens) for i, layer in enumerate(self.layers)]
        after = [(name, numbers) for name, numbers in after if numbers.get("cosine")]
        if after:
            tables.append(_table("tokens after", TOKENS, after))
        metrics: List[Tuple[str, Dict[str, Any]]] = [
            (f"layer {i}", layer.metric)
            for i, layer in enumerate(self.layers)
            if layer.metric is not None
        ]
        if metrics:
            tables.append(_table("metric of", tuple(metrics[0][1]), metrics))
        return "\n\n".join(tables)


def _table(first: str, names: Tuple[str, ...], lines: List[Tuple[str, Dict[str, Any]]]) -> str:
    rows = [[first, *(name.replace("_", " ") for name in names)]]
    for name, numbers in lines:
        rows.append([name, *(_cell(numbers.get(column)) for column in names)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(x.ljust(w) if i == 0 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths)))
        for row in rows
    )


def _cell(value: Union[None, float, Value]) -> str:
    if value is None:
        return "-"
    return f"{value.mean if isinstance(value, Value) else value:.3g}"


class _Layer:
    def __init__(self, call: _watch.Seen) -> None:
        self.heads, self.queries = call.q.size(1), call.q.size(2)
        self.keys = call.k.size(2)
        self.words = words_of(call.how)
        self.mechanism = " ".join(f"{name}={value}" for name, value in self.words.items())
        self.numbers = {name: _Samples() for name in (*ROWS, *WHOLE)}
        self.by_head = [{name: _Samples() for name in ROWS} for _ in range(self.heads)]
        self.tokens = {name: _Samples() for name in TOKENS}
        self.health: Dict[str, _Samples] = {}
        self.least, self.most = math.inf, -math.inf
        self.typical: Optional[Tensor] = None
        self.counted = 0

    def add_rows(self, name: str, x: Tensor) -> None:
        """x (B,H)"""
        for h, samples in enumerate(self.by_head):
            samples[name].add(x[:, h].tolist())
        finite = x.isfinite()
        self.numbers[name].add(mean_over(x, finite).tolist())

    def add_metric(self, m: Tensor, full: bool, times: int) -> None:
        """`times`: samples that have this one metric in common."""
        for one in m.split(1):
            for name, number in _tokens.health(one, full).items():
                if name == "least":
                    self.least = min(self.least, number)
                elif name == "most":
                    self.most = max(self.most, number)
                else:
                    self.health.setdefault(name, _Samples()).add([number] * times)
        last = m[:, :, -1] if not full or m.dim() == 5 else m
        mean, n = last.detach().double().mean(0), m.size(0) * times
        self.counted += n
        before = self.typical
        self.typical = mean if before is None else before + (mean - before) * (n / self.counted)

    def metric(self, below: Optional[Tensor]) -> Optional[Dict[str, float]]:
        if not self.health:
            return None
        found = {"least": self.least, "most": self.most}
        for name, samples in self.health.items():
            value = samples.value()
            found[name] = math.nan if value is None else value.mean
        found["drift"] = 0.0
        if below is not None and self.typical is not None and below.shape == self.typical.shape:
            size = float(below.norm())
            found["drift"] = float((self.typical - below).norm()) / size if size > 0 else 0.0
        return found

    def metric_error(self) -> Optional[Dict[str, float]]:
        values = {name: samples.value() for name, samples in self.health.items()}
        return {name: x.error for name, x in values.items() if x is not None} or None


class _Meter:
    """Hears of every call of a pass, and of the tokens between blocks."""

    def __init__(self, closely: int, top: int, grid: Optional[Grid], rollout: int) -> None:
        self.closely, self.top, self.grid, self.rollout = closely, top, grid, rollout
        self.layers: List[_Layer] = []
        self.embedded = {name: _Samples() for name in TOKENS}
        self.samples = 0
        self.start()

    def start(self) -> None:
        self.calls = self.batch = 0
        self.told: Dict[int, bool] = {}
        self.mask: Optional[Tensor] = None
        self.keys_below: Optional[Tensor] = None
        self.product: Optional[Tensor] = None

    def end(self) -> None:
        if self.calls == 0:
            raise ValueError(
                "foci.measure_model: this model calls no attention of foci's; give it some with "
                "foci.hf.enable(model, metric='dot', layers=':'), foci.timm.enable or foci.nn"
            )
        if self.calls != len(self.layers):
            raise ValueError(
                f"foci.measure_model: a pass had {self.calls} calls of attention and the first one "
                f"{len(self.layers)}: measure each model, and no decoding, by itself"
            )
        self.samples += self.batch
        self.start()

    def hear(self, call: _watch.Seen) -> None:
        if self.calls == 0:
            self.batch = call.q.size(0)
        if self.calls == len(self.layers) and self.samples == 0:
            self.layers.append(_Layer(call))
        if self.calls >= len(self.layers):
            self.calls += 1
            return  # end() tells
        layer = self.layers[self.calls]
        self.calls += 1
        layer.queries = max(layer.queries, call.q.size(2))
        layer.keys = max(layer.keys, call.k.size(2))
        self.mask = call.key_mask if call.q.size(2) == call.k.size(2) else None
        rows = (call.statistics[6] >= 0) & call.statistics[2].isfinite()
        if self.mask is not None:
            rows = rows & self.mask.unsqueeze(1)
        for name, at in _AT.items():
            x = call.statistics[at]
            if x.dim() > 1:
                layer.add_rows(name, mean_over(x, rows))
        self._metric(layer, call)
        some = min(call.q.size(0), max(0, self.closely - self.samples))
        if some > 0:
            self._closely(layer, _first(call, some), rows[:some])

    def _metric(self, layer: _Layer, call: _watch.Seen) -> None:
        used = metric_of(call)
        if used is None:
            return
        full = is_full(layer.words)
        shared = used.size(0) == 1 and layer.words["metric"] != "key-covariance"
        some = used[: max(0, self.closely - self.samples)] if full and not shared else used
        some = some[some.flatten(1).isfinite().all(1)]
        if some.size(0) > 0:
            layer.add_metric(some, full, call.q.size(0) if shared else 1)

    def _closely(self, layer: _Layer, call: _watch.Seen, rows: Tensor) -> None:
        N, M = call.q.size(2), call.k.size(2)
        first = self.calls == 1
        rolls = N == M and N <= self.rollout and (first or self.product is not None)
        if self.product is not None and self.product.size(-1) != N:
            rolls = False
        grid = self.grid
        if grid is not None and grid.leading + grid.height * grid.width > M:
            raise ValueError(
                f"foci.measure_model: a layer has {M} keys, and its grid {grid.leading} leading "
                f"tokens and {grid.height} x {grid.width} others"
            )
        below, k = self.keys_below, call.k.detach().double()
        call, sound = finite(call)
        rows = rows & sound[:, None, None]
        found = look_closely(call, rows, self.top, grid, self.product, rolls)
        self.product = found.product
        layer.add_rows("distance", found.distance)
        layer.add_rows("top_mass", found.top)
        layer.numbers["head_distance"].add(found.head_distance[sound].tolist())
        if found.rollout_keys is not None:
            layer.numbers["rollout_keys"].add(found.rollout_keys[sound].tolist())
        if below is not None and below.shape == k.shape:
            keep = torch.ones_like(k[:, :1, :, :1])
            if call.key_mask is not None:
                keep = call.key_mask.double()[:, None, :, None]
            change = ((k - below).abs() * keep).flatten(1).sum(1)
            size = (below.abs() * keep).flatten(1).sum(1)
            layer.numbers["key_change"].add(
                torch.where(size > 0, change / size.clamp_min(1e-300), size).tolist()
            )
        self.keys_below = k

    def pass_tokens(self, calls: int, x: Tensor) -> None:
        """Tokens (B,N,D) that `calls` layers have been through; the first to say so is heard."""
        if self.told.get(calls) or calls > len(self.layers):
            return
        self.told[calls] = True
        to = self.embedded if calls == 0 else self.layers[calls - 1].tokens
        for b in range(x.size(0)):
            mask = self.mask if self.mask is not None and self.mask.size(1) == x.size(1) else None
            kept = _tokens.only(x[b], None if mask is None else mask[b])
            if kept.size(0) == 0:
                continue
            for name, number in _tokens.likeness(kept).items():
                to[name].add([number])
            if self.samples + b < self.closely:
                for name, number in _tokens.spectrum(kept).items():
                    to[name].add([number])

    def report(self) -> ModelStatistics:
        layers, below = [], None
        for one in self.layers:
            numbers = {name: samples.value() for name, samples in one.numbers.items()}
            heads = [{name: x.value() for name, x in head.items()} for head in one.by_head]
            layers.append(
                LayerStatistics(
                    one.heads,
                    one.queries,
                    one.keys,
                    one.mechanism,
                    numbers,
                    heads,
                    one.metric(below),
                    {name: samples.value() for name, samples in one.tokens.items()},
                    one.counted,
                    one.metric_error(),
                )
            )
            below = one.typical if one.typical is not None else below
        embedded = {name: samples.value() for name, samples in self.embedded.items()}
        return ModelStatistics(self.samples, layers, embedded)


def _first(call: _watch.Seen, n: int) -> _watch.Seen:
    """The first n samples of a call."""
    B = call.q.size(0)

    def cut(x: Optional[Tensor]) -> Optional[Tensor]:
        return x[:n] if x is not None and x.dim() > 1 and x.size(0) == B else x

    q, k, v, *rest, how, statistics = call
    found = tuple(x[:n] if x.dim() > 1 and x.size(0) == B else x for x in statistics)
    return _watch.Seen(q[:n], k[:n], v[:n], *(cut(x) for x in rest), how, found)


def measure_model(
    model: nn.Module,
    *inputs: Any,
    over: Optional[Iterable[Any]] = None,
    closely: int = 4,
    top: int = 10,
    grid: Optional[Tuple[int, int, int]] = None,
    rollout: int = 1024,
    **named: Any,
) -> ModelStatistics:
    """Runs model(*inputs, **named) without gradients, in evaluation mode, and looks at every call
    of attention on the way. The model has foci's attention: foci.nn, foci.timm, foci.hf; a plain
    Hugging Face model is given it for the while.

    over: several inputs instead, one after another: tensors, tuples or dicts.
    closely: samples, the first ones, whose weights are formed and whose spectra are taken.
    top: keys of the top-k mass.
    grid: of an image (leading, height, width): tokens before the patches, and rows and columns of
        those; without it tokens stand in a line.
    rollout: tokens up to which it is followed.

    Example:
        >>> report = foci.measure_model(model, images, grid=(1, 14, 14))
        >>> print(report.summary())
        >>> report.layers[3].rows["effective_keys"].mean
    """
    if top < 1 or closely < 0:
        raise ValueError(f"foci.measure_model: top {top}, closely {closely}; at least 1 and 0")
    meter = _Meter(closely, top, None if grid is None else Grid(*grid), rollout)
    batches = [inputs] if over is None else over
    was = model.training
    model.eval()
    try:
        with torch.no_grad(), plainly(model), between_blocks(model, meter):
            for batch in batches:
                _run(model, batch, named, meter)
    finally:
        model.train(was)
    return meter.report()


def _run(model: nn.Module, batch: Any, named: Dict[str, Any], meter: _Meter) -> None:
    meter.start()
    _watch.listeners.append(meter.hear)
    try:
        if hasattr(batch, "keys"):
            model(**batch, **named)
        else:
            model(*(batch if isinstance(batch, (tuple, list)) else (batch,)), **named)
    finally:
        _watch.listeners.remove(meter.hear)
    meter.end()
