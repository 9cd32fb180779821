# SPDX-License-Identifier: Apache-2.0
"""The settings of a layer: judged, given their defaults, and written out as the text that is
stored with the weights. It has the operators' names, and metric=learned, metric=learned-full,
scope=running, init and momentum beside them.
"""
import math
from typing import Any, Dict, List, Optional, Union

import torch
from torch import Tensor

from . import _ops, _settings

CHANGES = ("layer-change", "flat")
ESTIMATED = (*CHANGES, "jacobian", "key-covariance")
LEARNED = ("learned", "learned-full")
METRICS = ("dot", *ESTIMATED, "random", *LEARNED)
INITS = ("identity", "estimate", "random")
OF_WEIGHTING = ("rescale", "feature", "rate", "content")


class Mechanism:
    """What a layer computes. `op`: the operators' text when they estimate the metric; `given`:
    when the layer gives it to them; `text`: what is stored."""

    def __init__(
        self,
        *,
        metric: str,
        weighting: str,
        scope: Optional[str],
        causal: bool,
        scale: Optional[Union[float, str]],
        lowest: bool,
        init: str,
        momentum: float,
        rotary_pairs: Optional[str],
        rotary_base: float,
        backend: str,
        sizes: Dict[str, int],
        settings: Dict[str, Any],
    ) -> None:
        head_dim = sizes["head_dim"]
        if metric not in (*METRICS, "given"):  # which has a message of its own
            raise ValueError(
                f"foci.nn.Attention: metric is {metric!r}; it must be one of {', '.join(METRICS)}"
            )
        self.sizes = sizes
        self.weighting, self.causal, self.lowest = weighting, causal, lowest
        self.init, self.momentum = init, momentum
        self.rotary_pairs, self.rotary_base = rotary_pairs, rotary_base
        self.settings = dict(settings)
        self.metric = "dot" if lowest and metric in CHANGES else metric
        if lowest and metric in CHANGES:
            for name in ("reduce", "normalize", "scope", "metric_grad", "allow_leak"):
                self.settings.pop(name, None)
            scope, self.momentum = None, 0.99
        self.full = self.metric in ("key-covariance", "learned-full")
        self.compares = self.metric in CHANGES
        self.scope = self._scope(scope)
        self.scale = scale if scale is None or isinstance(scale, str) else float(scale)
        if scale is None:
            product = weighting == "linear" and not self.full
            self.scale = 1.0 if product else 1 / math.sqrt(head_dim)
        if self.metric in ESTIMATED and self.scope != "running":
            through = self.metric == "key-covariance"
            self.settings.setdefault("metric_grad", "through" if through else "detached")
        if self.metric == "key-covariance" and self.scope != "running":
            self.settings.setdefault("prior", float(head_dim))
        self._check(head_dim)
        self.op = self._op(backend)
        self.given = self._given(backend)
        self.text = self._written()

    def _scope(self, scope: Optional[str]) -> str:
        if self.metric not in ESTIMATED:
            if scope is not None:
                raise ValueError(
                    f"foci.nn.Attention: scope {scope} belongs to metrics that are estimated; the "
                    f"metric is {self.metric}: leave it out"
                )
            return ""
        scope = scope or ("prefix" if self.causal else "sequence")
        if scope not in ("sequence", "prefix", "running"):
            raise ValueError(
                f"foci.nn.Attention: scope is '{scope}'; it must be sequence, prefix or running"
            )
        return scope

    def _check(self, head_dim: int) -> None:
        wrong: List[str] = []
        if self.metric == "given":
            wrong.append("metric given has no tensor here: use foci.attend, or metric learned")
        if self.init not in INITS:
            wrong.append(f"init is '{self.init}'; it must be identity, estimate or random")
        if self.init != "identity" and self.metric not in LEARNED:
            wrong.append(f"init {self.init} belongs to learned metrics, not to {self.metric}")
        if not 0 <= self.momentum < 1:
            wrong.append(f"momentum is {self.momentum}; it must lie in [0, 1)")
        if self.momentum != 0.99 and self.scope != "running":
            wrong.append("momentum belongs to scope running")
        if self.metric in LEARNED and "metric_grad" in self.settings:
            wrong.append("a learned metric always has its gradient: leave out metric_grad")
        if self.scope == "running":
            if self.settings.get("metric_grad") == "through":
                wrong.append("scope running averages the past: it has no metric_grad through")
            if self.settings.get("reduce") == "median":
                wrong.append("scope running averages: use reduce mean")
            for name in ("prior", "period", "allow_leak"):
                if name in self.settings:
                    wrong.append(f"{name} has no place under scope running: leave it out")
        if self.rotary_pairs is not None:
            if self.rotary_pairs not in ("halves", "neighbours"):
                pairs = self.rotary_pairs
                wrong.append(f"rotary_pairs is '{pairs}'; it must be halves or neighbours")
            if head_dim % 2:
                wrong.append(f"rotary_pairs needs an even head size; it is {head_dim}")
            if self.metric == "jacobian" and self.settings.get("metric_grad") == "through":
                raise NotImplementedError(
                    "foci.nn.Attention: metric jacobian with rotary_pairs has no metric_grad "
                    "through"
                )
        elif self.rotary_base != 10000.0:
            wrong.append("rotary_base belongs to rotary_pairs")
        if wrong:
            raise ValueError(f"foci.nn.Attention: {'; '.join(wrong)}")

    def _op(self, backend: str) -> str:
        """Also judges, by the operators, what belongs to the metric and the weighting."""
        settings = dict(self.settings)
        metric = self.metric
        if metric in LEARNED:
            metric = "given"
            settings["extent"] = "full" if self.full else "diagonal"
        elif self.scope == "running":
            settings["scope"] = "sequence"
            if self.causal:
                settings["allow_leak"] = True
        elif self.scope:
            settings["scope"] = self.scope
        how = _settings.text(metric, self.weighting, settings, self.scale, self.causal)
        try:
            try_out(how, metric == "given", self.full)
        except ValueError as error:
            if self.metric not in LEARNED:
                raise
            said = str(error).replace("metric given", f"metric {self.metric}")
            said = said.replace("the metric is given", f"the metric is {self.metric}")
            raise ValueError(said) from None
        if backend == "auto":
            return how
        how = f"{how} {_settings.written('backend', backend)}"
        _ops.check_settings(how)
        return how

    def _given(self, backend: str) -> str:
        names = OF_WEIGHTING if self.full else (*OF_WEIGHTING, "form")
        settings = {name: self.settings[name] for name in names if name in self.settings}
        if self.full:
            settings["extent"] = "full"
        return _settings.text("given", self.weighting, settings, self.scale, self.causal, backend)

    def _written(self) -> str:
        named = parsed(_ops.check_settings(self.op))
        named.pop("backend", None)
        if self.metric in LEARNED:
            named.pop("extent", None)
            named["metric"] = self.metric
            named["init"] = self.init
        if self.scope == "running":
            for name in ("allow_leak", "metric_grad", "prior", "period"):
                named.pop(name, None)
            named["scope"] = "running"
            named["momentum"] = repr(float(self.momentum))
        if self.rotary_pairs is not None:
            named["rotary_pairs"] = self.rotary_pairs
            named["rotary_base"] = repr(float(self.rotary_base))
        named.update({name: str(size) for name, size in self.sizes.items()})
        order = ["metric", "weighting", *sorted(named.keys() - {"metric", "weighting"})]
        return " ".join(f"{name}={named[name]}" for name in order)

    def encoded(self) -> Tensor:
        """The text as a uint8 tensor, which state dicts can hold."""
        return torch.tensor(list(self.text.encode()), dtype=torch.uint8, device="cpu")


def try_out(how: str, given: bool, full: bool) -> None:
    """One token through the operators: they refuse now what they would refuse at the first call."""
    x = torch.ones(1, 1, 1, 2, device="cpu")
    metric = torch.eye(2, device="cpu").reshape(1, 1, 2, 2) if full else x
    _ops.attend(x, x, x, x, None, None, metric if given else None, None, None, how)


def parsed(text: str) -> Dict[str, str]:
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def decoded(stored: Tensor) -> str:
    return bytes(stored.cpu().to(torch.uint8).tolist()).decode(errors="replace")


def _same(a: Optional[str], b: Optional[str]) -> bool:
    if a == b:
        return True
    try:
        if a is None or b is None or (a.isdigit() and b.isdigit()):
            return False
        return math.isclose(float(a), float(b), rel_tol=1e-12)
    except ValueError:
        return False


# They say how a layer is trained or run, not what it computes.
NOT_COMPARED = {"backend", "metric_grad", "momentum", "init"}


def differ(one: str, other: str) -> bool:
    """Whether layers of these texts compute different things."""
    a, b = parsed(one), parsed(other)
    return any(not _same(a.get(n), b.get(n)) for n in {*a, *b} - NOT_COMPARED)
