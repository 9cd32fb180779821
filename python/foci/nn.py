# SPDX-License-Identifier: Apache-2.0
"""Layers: Attention and Block, with torch's names, and a Cache for decoding token by token.

The values of the layer below come in and a layer's own go out as arguments, never as hidden state:

    x, v = block(x, v)
"""
from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from . import _estimates, _ops, _settings
from ._cache import Cache
from ._mechanism import Mechanism, decoded, differ
from ._metric_state import MetricState, Projected

__all__ = ["Attention", "Block", "Cache", "Mlp"]


class Attention(MetricState):
    """Self-attention under a metric and a weighting: `forward(x, v_prev) -> (y, v)`.

    Args:
        dim: size of a token.
        heads: query heads.
        kv_heads: key heads, a divisor of `heads`; by default as many.
        head_dim: size of a head; dim / heads by default.
        qkv_bias, proj_bias: biases of the two projections.
        metric: "dot", "layer-change", "flat", "jacobian", "key-covariance", "random", "learned" (a
            diagonal per key head, kept positive by softplus) or "learned-full" (P = L L^T).
        weighting: "softmax", "relu2", "identity", "linear" or "decay".
        scope: which tokens an estimate may see: "sequence" (default), "prefix" (default when
            causal) or "running" (the average over past training batches, fixed in eval()).
        causal: a token sees itself and what came before.
        scale: factor of the scores; 1/sqrt(head_dim) by default, also for full metrics (linear: 1).
        lowest: set it on the layer that has none below: layer-change and flat are `dot` there.
        init: where learned metrics begin: "identity", "estimate" (of the first training batch: the
            values' change, or the keys' covariance) or "random".
        momentum: of scope "running".
        rotary_pairs: turn q and k by their position, in pairs of coordinates "halves" (d, d + D/2)
            or "neighbours" (2d, 2d + 1); a diagonal metric is averaged within the pairs.
        rotary_base: the slowest of these turns once in about 2 pi rotary_base tokens.
        backend: "auto", "ref", "cpu" or "cuda".
        **settings: of the metric and the weighting, see `foci.Settings`. key-covariance has
            prior = head_dim here.

    All of it but the backend is written into the buffer `mechanism`, and a state dict made under
    other settings is refused: a checkpoint cannot be evaluated under another metric by mistake.

    With scope "running" or init "estimate" and several processes: averages are per process unless
    buffers are broadcast (DistributedDataParallel does it); run the first batch before wrapping.

    Example:
        >>> first = foci.nn.Attention(192, 3, metric="layer-change", lowest=True)
        >>> second = foci.nn.Attention(192, 3, metric="layer-change")
        >>> y, v = first(x)
        >>> y, v = second(y, v)
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        kv_heads: Optional[int] = None,
        head_dim: Optional[int] = None,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        metric: str = "dot",
        weighting: str = "softmax",
        scope: Optional[str] = None,
        causal: bool = False,
        scale: Optional[Union[float, str]] = None,
        lowest: bool = False,
        init: str = "identity",
        momentum: float = 0.99,
        rotary_pairs: Optional[str] = None,
        rotary_base: float = 10000.0,
        backend: str = "auto",
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        if head_dim is None and dim % heads:
            raise ValueError(
                f"foci.nn.Attention: dim {dim} is no multiple of {heads} heads: set head_dim"
            )
        head_dim = dim // heads if head_dim is None else head_dim
        if heads % kv_heads:
            raise ValueError(
                f"foci.nn.Attention: {heads} heads is no multiple of kv_heads {kv_heads}"
            )
        self.dim, self.heads, self.kv_heads, self.head_dim = dim, heads, kv_heads, head_dim
        made: Dict[str, Any] = {"device": device, "dtype": dtype}
        self.qkv = nn.Linear(dim, (heads + 2 * kv_heads) * head_dim, bias=qkv_bias, **made)
        self.proj = nn.Linear(heads * head_dim, dim, bias=proj_bias, **made)
        mechanism = Mechanism(
            metric=metric,
            weighting=weighting,
            scope=scope,
            causal=causal,
            scale=scale,
            lowest=lowest,
            init=init,
            momentum=momentum,
            rotary_pairs=rotary_pairs,
            rotary_base=rotary_base,
            backend=backend,
            sizes={"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim},
            settings=_settings.split("nn.Attention", settings, _KEYWORDS),
        )
        self._remember(mechanism, heads, kv_heads, head_dim)
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)
        self.register_buffer("mechanism", mechanism.encoded())

    def extra_repr(self) -> str:
        return f"dim={self.dim}, {self.how.text}"

    def forward(
        self,
        x: Tensor,
        v_prev: Optional[Tensor] = None,
        key_mask: Optional[Tensor] = None,
        key_bias: Optional[Tensor] = None,
        cache: Optional[Cache] = None,
    ) -> Tuple[Tensor, Tensor]:
        """(B,N,dim) -> y (B,N,dim) and this layer's values v (B,G,N,D), for the layer above.

        v_prev: the values of the layer below (B,G,N,D); metrics that do not use it ignore it.
        key_mask: (B,N) bool, true = keep, of the tokens in x.
        key_bias: (B,H,M) or (B,G,M) added to the scores; M counts cached tokens too.
        cache: tokens before x (causal layers, without gradients); x is added to it.
        """
        if cache is None:
            return self._attended(x, v_prev, key_mask, key_bias, None)
        mark = cache.mark()
        try:
            return self._attended(x, v_prev, key_mask, key_bias, cache)
        except Exception:
            cache.back(mark)  # a step that is refused leaves nothing behind
            raise

    def _attended(
        self,
        x: Tensor,
        v_prev: Optional[Tensor],
        key_mask: Optional[Tensor],
        key_bias: Optional[Tensor],
        cache: Optional[Cache],
    ) -> Tuple[Tensor, Tensor]:
        p = self._project(x, v_prev, key_mask, 0 if cache is None else cache.length)
        v = p.v
        learns = self.training and cache is None
        if learns:
            self.start(p)
            self.observe(p)
        metric = self.given_metric(before=learns)
        if cache is not None:
            p = self._appended(p, cache)
            if self.metric == "jacobian" and metric is None:
                metric = self._jacobian(p, x.size(1), cache)
        if self.how.rotary_pairs is not None and metric is None:
            metric = self.paired_metric(p)
        how = self.how.op
        if metric is not None:
            how = self.how.given
            metric = metric.to(torch.float64 if p.q.dtype == torch.float64 else torch.float32)
        below = p.v_prev if metric is None and self.how.compares else None
        o, _ = _ops.attend(p.q, p.k, p.v, below, p.key_mask, key_bias, metric, None, None, how)
        joined = o.transpose(1, 2).reshape(x.size(0), x.size(1), o.size(1) * o.size(3))
        y: Tensor = self.proj(joined)
        return y, v

    def _project(
        self, x: Tensor, v_prev: Optional[Tensor], key_mask: Optional[Tensor], first: int
    ) -> Projected:
        """q (B,H,N,D), k and v (B,G,N,D) of the tokens x, which stand at `first` and after."""
        if x.dim() != 3 or x.size(2) != self.dim:
            raise ValueError(
                f"foci.nn.Attention: x has shape {tuple(x.shape)}; it must be (batch, tokens, "
                f"{self.dim})"
            )
        if not x.is_floating_point():
            raise ValueError(
                f"foci.nn.Attention: x has type {x.dtype}; it must be a floating one: embed tokens "
                "first"
            )
        self._check_below(v_prev)
        if key_mask is not None and key_mask.dtype != torch.bool:
            raise ValueError(
                f"foci.nn.Attention: key_mask has {key_mask.dtype}; it must be bool, true = keep: "
                "use key_mask.bool()"
            )
        parts = [self.heads * self.head_dim] + 2 * [self.kv_heads * self.head_dim]
        q, k, v = [
            part.unflatten(2, (-1, self.head_dim)).transpose(1, 2)
            for part in self.qkv(x).split(parts, dim=2)
        ]
        if self.how.rotary_pairs is not None:
            pairs, base = self.how.rotary_pairs, self.how.rotary_base
            q, k = rotated(q, first, pairs, base), rotated(k, first, pairs, base)
        return Projected(q, k, v, v_prev, key_mask)

    def _check_below(self, v_prev: Optional[Tensor]) -> None:
        if self.lowest and v_prev is not None:
            raise ValueError(
                "foci.nn.Attention: v_prev came, but lowest=True says there is no layer below"
            )
        needed = self.how.compares and (self.scope != "running" or self.training)
        if needed and v_prev is None:
            raise ValueError(
                f"foci.nn.Attention: metric {self.metric} compares values with those of the layer "
                "below: v_prev is missing (on the lowest layer set lowest=True, which makes it dot)"
            )

    def _appended(self, p: Projected, cache: Cache) -> Projected:
        if not self.causal:
            raise ValueError("foci.nn.Attention: a cache needs a causal layer: set causal=True")
        cache.belong(self)
        if torch.is_grad_enabled() and (p.k.requires_grad or p.v.requires_grad):
            raise RuntimeError(
                "foci.nn.Attention: a cache keeps no gradients: decode under torch.no_grad()"
            )
        v_prev = p.v_prev if self.how.compares else None
        return Projected(p.q, *cache.append(p.k, p.v, v_prev, p.key_mask))

    def _jacobian(self, p: Projected, tokens: int, cache: Cache) -> Tensor:
        """Metric jacobian under prefix: its mean runs over queries, which a cache does not hold."""
        count = _estimates.counted(p.key_mask, p.k)[:, :, -tokens:].to(_estimates.wide(p.q).dtype)
        n = count.cumsum(2)  # (B,1,N,1)
        if cache.jacobian_sum is None or cache.jacobian_count is None:
            total = self.jacobian_means(p) * n
        else:
            sizes = self.jacobian_sizes(p, tokens)
            total = torch.where(count > 0, sizes, torch.zeros_like(sizes)).cumsum(2)
            total, n = total + cache.jacobian_sum, n + cache.jacobian_count
        cache.jacobian_sum, cache.jacobian_count = total[:, :, -1:], n[:, :, -1:]
        ones = torch.ones_like(total)
        return self.finish(torch.where(n > 0, _estimates.divided(total, n.expand_as(total)), ones))

    def _load_from_state_dict(
        self, state_dict: Dict[str, Any], prefix: str, *rest: Any, **named: Any
    ) -> None:
        name = prefix + "mechanism"
        stored = state_dict.get(name)
        if stored is not None:
            text = decoded(stored)
            if differ(text, self.how.text):
                # Raised here, not gathered: torch would go on and replace this layer's weights.
                raise RuntimeError(
                    f"foci.nn.Attention: {name}: the checkpoint was made under `{text}` and this "
                    f"layer has `{self.how.text}`: build the layer with the checkpoint's settings"
                )
            state_dict[name] = self.mechanism  # the same settings, as they are written here
        self.loaded(state_dict, prefix)
        load: Any = super()._load_from_state_dict
        load(state_dict, prefix, *rest, **named)


_KEYWORDS = tuple(Attention.__init__.__annotations__)


def rotated(x: Tensor, first: int, pairs: str, base: float) -> Tensor:
    """x (B,H,N,D) with each pair of coordinates turned by its token's position."""
    tokens, half = x.size(2), x.size(3) // 2
    turn = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    place = torch.arange(first, first + tokens, dtype=torch.float64, device=x.device)
    angle = place[:, None] * turn  # (N,D/2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    if pairs == "halves":
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


class Mlp(nn.Module):
    """fc2(gelu(fc1(x))), with the exact GELU."""

    def __init__(self, dim: int, hidden: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden, device=device, dtype=dtype)
        self.fc2 = nn.Linear(hidden, dim, device=device, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(nn.functional.gelu(self.fc1(x)))
        return y


class Block(nn.Module):
    """Pre-norm transformer block: x + attn(norm1(x)), then x + mlp(norm2(x)); returns (x, v).

    Takes every keyword of Attention. The names are timm's: norm1, attn, norm2, mlp.fc1, mlp.fc2.

    Example:
        >>> blocks = [foci.nn.Block(192, 3, metric="flat", lowest=i == 0) for i in range(12)]
        >>> v = None
        >>> for block in blocks:
        ...     x, v = block(x, v)
    """

    def __init__(self, dim: int, heads: int, *, mlp_ratio: float = 4.0, **attention: Any) -> None:
        super().__init__()
        made: Dict[str, Any] = {name: attention.get(name) for name in ("device", "dtype")}
        self.norm1 = nn.LayerNorm(dim, eps=1e-6, **made)
        self.attn = Attention(dim, heads, **attention)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6, **made)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), **made)

    def forward(
        self,
        x: Tensor,
        v_prev: Optional[Tensor] = None,
        key_mask: Optional[Tensor] = None,
        key_bias: Optional[Tensor] = None,
        cache: Optional[Cache] = None,
    ) -> Tuple[Tensor, Tensor]:
        """As Attention.forward; a v_prev that the lowest layer is given is refused there too."""
        y, v = self.attn(self.norm1(x), v_prev, key_mask, key_bias, cache)
        x = x + y
        return x + self.mlp(self.norm2(x)), v
