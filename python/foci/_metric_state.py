# SPDX-License-Identifier: Apache-2.0
"""What a layer remembers of its metric: a parameter that is learned, an average over training
batches, a draw. Such metrics go to the operators as given ones; the names of parameters and buffers
are part of the checkpoint's format.
"""
import contextlib
import math
from typing import Any, Callable, ContextManager, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor, nn

from . import _estimates
from ._call import Prepared
from ._mechanism import LEARNED, Mechanism


class Projected(NamedTuple):
    """What a layer attends with: q (B,H,N,D), k and v (B,G,N,D), v_prev as v, key_mask (B,N)."""

    q: Tensor
    k: Tensor
    v: Tensor
    v_prev: Optional[Tensor]
    key_mask: Optional[Tensor]

    def prepared(self) -> Prepared:
        return Prepared(
            self.q, self.k, self.v, self.v_prev, self.key_mask, None, None, None, None, ""
        )


def in_full_precision(x: Tensor) -> ContextManager[Any]:
    """Autocast would multiply metrics in bf16."""
    autocast: Callable[..., ContextManager[Any]] = getattr(torch, "autocast")
    kind = x.device.type
    return autocast(kind, enabled=False) if kind in ("cpu", "cuda") else contextlib.nullcontext()


def inverse_softplus(m: Tensor) -> Tensor:
    """x with log(1 + exp(x)) = m > 0."""
    return m + torch.log(-torch.expm1(-m))


def factor(s: Tensor, ridge: float = 0.0) -> Tensor:
    """Cholesky factor of s + ridge I (..,D,D) in f64; where it fails the ridge is raised tenfold,
    six times at most."""
    eye = torch.eye(s.size(-1), dtype=s.dtype, device=s.device)
    ridges = torch.full(s.shape[:-2], ridge, dtype=s.dtype, device=s.device)
    for _ in range(7):
        lower: Tensor
        lower, info = torch.linalg.cholesky_ex(s + ridges[..., None, None] * eye)
        failed = info != 0
        if not bool(failed.any()):
            return lower
        ridges = torch.where(failed, 10 * ridges, ridges)
    raise RuntimeError(
        f"foci.nn.Attention: the keys' covariance cannot be factored, not with a ridge of "
        f"{ridges.max().item() / 10:g} either: raise ridge"
    )


def moments(k: Tensor, key_mask: Optional[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
    """Of the keys (B,G,M,D) that count, over batch and tokens: n, mean (G,D), scatter/(n-1)."""
    keep = _estimates.counted(key_mask, k)
    x = torch.where(keep > 0, k, torch.zeros_like(k)).double()
    n = keep.double().sum()
    mean = x.sum(dim=(0, 2)) / n.clamp(min=1)  # (G,D)
    centred = torch.where(keep > 0, x - mean[None, :, None, :], torch.zeros_like(x))
    scatter = torch.einsum("bgmd,bgme->gde", centred, centred) / (n - 1).clamp(min=1)
    return n, mean, scatter


class MetricState(nn.Module):
    """Base of foci.nn.Attention: registers what its metric remembers, and turns it into m or P."""

    metric_drawn: Tensor
    running_m: Tensor
    running_mean: Tensor
    running_scatter: Tensor
    running_steps: Tensor
    running_steps_before: Tensor
    mechanism: Tensor

    def _remember(self, how: Mechanism, heads: int, kv_heads: int, head_dim: int) -> None:
        self.how = how
        self.metric, self.weighting, self.scope = how.metric, how.weighting, how.scope
        self.causal, self.lowest = how.causal, how.lowest
        if how.metric == "learned":
            self.metric_raw = nn.Parameter(torch.empty(kv_heads, head_dim))
        elif how.metric == "learned-full":
            self.metric_factor = nn.Parameter(torch.empty(kv_heads, head_dim, head_dim))
        elif how.metric == "random":
            self.register_buffer("metric_drawn", self._draw(kv_heads, head_dim))
        elif how.scope == "running" and how.metric == "key-covariance":
            self.register_buffer("running_mean", torch.zeros(kv_heads, head_dim))
            self.register_buffer("running_scatter", torch.zeros(kv_heads, head_dim, head_dim))
        elif how.scope == "running":
            rows = heads if how.metric == "jacobian" else kv_heads
            self.register_buffer("running_m", torch.zeros(rows, head_dim))
        if how.scope == "running":
            self.register_buffer("running_steps", torch.zeros((), dtype=torch.int64))
            for name in self._averages():
                old = getattr(self, name)
                self.register_buffer(f"{name}_before", old.clone(), persistent=False)
                seen = torch.full_like(old, math.nan)
                self.register_buffer(f"{name}_seen", seen, persistent=False)
            before = torch.zeros((), dtype=torch.int64)
            self.register_buffer("running_steps_before", before, persistent=False)
        # The lowest layer has no values below to start from.
        self._awaits = how.metric in LEARNED and how.init == "estimate"
        self._awaits = self._awaits and not (how.lowest and how.metric == "learned")
        if how.metric in LEARNED:
            self.reset_metric()

    def _draw(self, kv_heads: int, head_dim: int) -> Tensor:
        settings = self.how.settings
        words = {name: settings[name] for name in ("floor", "seed", "layer") if name in settings}
        x = torch.zeros(1, kv_heads, 1, head_dim)
        raw = _estimates.operators_raw(Projected(x, x, x, None, None).prepared(), "random", words)
        return self.finish(raw)[0, :, 0]  # (G,D)

    def reset_metric(self) -> None:
        """A learned metric as `init` says; "estimate" is the identity until the first batch."""
        with torch.no_grad():
            at_random = self.how.init == "random"
            if self.metric == "learned":
                m = torch.ones_like(self.metric_raw)
                if at_random:
                    m.uniform_(0.1, 1.0)
                self.metric_raw.copy_(inverse_softplus(m))
            else:
                lower = torch.zeros_like(self.metric_factor)
                if at_random:
                    lower.normal_(std=1 / math.sqrt(lower.size(-1))).tril_(-1)
                lower.diagonal(dim1=-2, dim2=-1).fill_(1.0)
                self.metric_factor.copy_(lower)

    def finish(self, raw: Tensor) -> Tensor:
        """Raw m to m: rotary pairs, normalisation, flat's mean."""
        m = _estimates.pair_means(raw, self.how.rotary_pairs)
        m = _estimates.normalised(m, self.how.settings.get("normalize", "max"))
        return _estimates.levelled(m, self.metric)

    def _averages(self) -> Tuple[str, ...]:
        """The buffers of scope "running"."""
        if self.metric == "key-covariance":
            return ("running_mean", "running_scatter")
        return ("running_m",)

    def given_metric(self, before: bool = False) -> Optional[Tensor]:
        """m (1,G|H,1,D) or P (1,G,D,D) for the operators; None when they estimate it. `before`: the
        average as it was before the batch that was observed last."""
        if self.metric == "learned":
            m = nn.functional.softplus(_estimates.wide(self.metric_raw))
            return _estimates.pair_means(m, self.how.rotary_pairs)[None, :, None, :]
        if self.metric == "learned-full":
            lower = _estimates.wide(self.metric_factor).tril()
            with in_full_precision(lower):
                product = lower @ lower.transpose(-2, -1)
            return product[None]
        if self.metric == "random":
            return self.metric_drawn[None, :, None, :]
        if self.scope != "running":
            return None
        when = "_before" if before else ""
        steps: Tensor = getattr(self, f"running_steps{when}")
        average: Tensor = getattr(self, f"{self._averages()[-1]}{when}")
        none = steps == 0
        past = torch.full((), self.how.momentum, dtype=torch.float64, device=none.device)
        part = torch.where(none, torch.ones_like(past), 1 - past**steps)
        if self.metric == "key-covariance":
            return self._precision(average.double() / part, none)[None]
        m = self.finish(average.double() / part)
        return torch.where(none, torch.ones_like(m), m)[None, :, None, :]

    def _precision(self, scatter: Tensor, none: Tensor) -> Tensor:
        """(S + ridge I)^-1; I takes the place of S before the first batch."""
        eye = torch.eye(scatter.size(-1), dtype=scatter.dtype, device=scatter.device)
        s = torch.where(none, eye.expand_as(scatter), scatter)
        return torch.cholesky_inverse(factor(s, self.how.settings.get("ridge", 1e-6)))

    def start(self, p: Projected) -> None:
        """init "estimate": a learned metric begins at the first training batch's estimate."""
        if not self._awaits:
            return
        with torch.no_grad():
            if self.metric == "learned":
                if p.v_prev is None:
                    raise ValueError(
                        "foci.nn.Attention: a learned metric with init estimate starts from how "
                        "values change: the first batch needs v_prev (or use init identity)"
                    )
                m = _estimates.normalised(self._raw(p)[1], "max").clamp(min=1e-3)
                self.metric_raw.copy_(inverse_softplus(m))
            else:
                n, _, s = moments(p.k, p.key_mask)
                eye = torch.eye(s.size(-1), dtype=s.dtype, device=s.device)
                prior = float(s.size(-1))
                shrunk = (n * s + prior * eye) / (n + prior)
                self.metric_factor.copy_(factor(torch.cholesky_inverse(factor(shrunk, 1e-6))))
        self._awaits = False

    def observe(self, p: Projected) -> None:
        """scope "running": takes a training batch into the average, and keeps what was before.

        The same numbers twice in a row are one batch: activation checkpointing computes it again,
        and must meet the metric it met the first time.
        """
        if self.scope != "running":
            return
        with torch.no_grad():
            found: Tuple[Tensor, ...]
            if self.metric == "key-covariance":
                found = moments(p.k, p.key_mask)
            else:
                found = self._raw(p)
            n, batch = found[0], found[1:]
            again = torch.ones((), dtype=torch.bool, device=n.device)
            for name, new in zip(self._averages(), batch):
                seen: Tensor = getattr(self, f"{name}_seen")
                again = again & (seen == new.to(seen.dtype)).all()
                seen.copy_(new)
            keep = self.how.momentum
            for name, new in zip(self._averages(), batch):
                now: Tensor = getattr(self, name)
                before: Tensor = getattr(self, f"{name}_before")
                before.copy_(torch.where(again, before, now))
                mixed = keep * before + (1 - keep) * new.to(now.dtype)
                now.copy_(torch.where(again | (n == 0), now, mixed))
            steps, earlier = self.running_steps, self.running_steps_before
            earlier.copy_(torch.where(again, earlier, steps))
            steps.copy_(torch.where(again | (n == 0), steps, earlier + 1))

    def _raw(self, p: Projected) -> Tuple[Tensor, Tensor]:
        """How many tokens count, and raw m (G|H,D) over batch and tokens."""
        if self.metric == "jacobian":
            raw = _estimates.operators_raw(p.prepared(), "jacobian", self._plain())[:, :, 0]
            count = _estimates.counted(p.key_mask, p.k).to(raw.dtype).sum(dim=(2, 3))  # (B,1)
            n = count.sum()
            return n, (raw * count[..., None]).sum(0) / n.clamp(min=1)
        assert p.v_prev is not None
        change, keep = _estimates.value_change(p.v, p.v_prev, p.key_mask)
        n = keep.sum()
        return n, change.sum(dim=(0, 2)) / n.clamp(min=1)

    def _plain(self) -> Dict[str, Any]:
        """Settings of the plain attention whose jacobian is taken."""
        words: Dict[str, Any] = {"scope": "sequence"}
        if self.causal:
            words.update(causal=True, allow_leak=True)
        if self.how.scale is not None and self.weighting != "linear":
            words["scale"] = float(self.how.scale)
        return words

    def jacobian_means(self, p: Projected) -> Tensor:
        """Raw m (B,H,N,D) of queries that stand at the beginning: means over those so far."""
        words = {**self._plain(), "scope": "prefix"}
        words.pop("allow_leak", None)
        return _estimates.operators_raw(p.prepared(), "jacobian", words)

    def jacobian_sizes(self, p: Projected, tokens: int) -> Tensor:
        """sum_e |d o_e / d q_d| (B,H,N,D) of each of the newest tokens."""
        first = p.k.size(2) - tokens
        rows = []
        for i in range(tokens):
            seen = first + i + 1
            one = Projected(
                p.q[:, :, i : i + 1],
                p.k[:, :, :seen],
                p.v[:, :, :seen],
                None,
                None if p.key_mask is None else p.key_mask[:, :seen],
            )
            rows.append(_estimates.operators_raw(one.prepared(), "jacobian", self._plain()))
        return torch.cat(rows, 2)

    def paired_metric(self, p: Projected) -> Optional[Tensor]:
        """Rotary positions: the estimate averaged within pairs; None for dot and key-covariance."""
        settings = {n: x for n, x in self.how.settings.items() if n != "scope"}
        if self.scope:
            settings["scope"] = self.scope
        assert self.how.rotary_pairs is not None
        name, metric, _ = _estimates.paired(
            "nn.Attention",
            p.prepared(),
            self.how.rotary_pairs,
            self.metric,
            settings,
            self.weighting,
            self.how.scale,
            self.causal,
        )
        return metric if name == "given" else None

    def loaded(self, state_dict: Dict[str, Any], prefix: str) -> None:
        """A learned metric that comes from a checkpoint waits for no estimate, unless it never
        saw a batch there either."""
        for name in ("metric_raw", "metric_factor"):
            stored = state_dict.get(prefix + name)
            mine = getattr(self, name, None)
            if self._awaits and stored is not None and mine is not None:
                same = stored.shape == mine.shape and bool((stored.to(mine) == mine).all())
                self._awaits = same

    def _apply(self, fn: Any, *rest: Any, **named: Any) -> Any:
        """half() and bfloat16() leave averages wide: a momentum of .99 drowns in 8 bits."""
        apply: Any = super()._apply
        apply(fn, *rest, **named)
        wide = ("running_m", "running_mean", "running_scatter", "metric_drawn")
        for name in [wide_ + when for wide_ in wide for when in ("", "_before", "_seen")]:
            buffer = self._buffers.get(name)
            if buffer is not None and buffer.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = buffer.float()
        return self
