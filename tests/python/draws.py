# SPDX-License-Identifier: Apache-2.0
"""Random tensors, the formulas of dot attention written plainly, and the tolerance rule."""
import torch

EPS = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}
EPS[torch.float16] = 2.0**-10


def draw(B=2, H=2, G=2, N=5, M=5, D=4, E=4, dtype=torch.float64, seed=0):
    """q, k, v, v_prev."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=source, dtype=torch.float64).to(dtype)

    return normal(B, H, N, D), normal(B, G, M, D), normal(B, G, M, E), normal(B, G, M, E)


def visible(q, k, causal=False, key_mask=None, top_left=False):
    """(B,1,N,M) bool."""
    N, M = q.size(2), k.size(2)
    ok = torch.ones(q.size(0), 1, N, M, dtype=torch.bool)
    if causal:
        ok = ok & torch.ones(N, M, dtype=torch.bool).tril(0 if top_left else M - N)
    return ok if key_mask is None else ok & key_mask[:, None, None, :]


def plain(q, k, v, ok, scale=None, bias=None):
    """Softmax attention with the N x M matrix."""
    heads = q.size(1) // k.size(1)
    k, v = k.repeat_interleave(heads, 1), v.repeat_interleave(heads, 1)
    s = (q @ k.transpose(-2, -1)) * (q.size(-1) ** -0.5 if scale is None else scale)
    if bias is not None:
        s = s + bias.repeat_interleave(q.size(1) // bias.size(1), 1)[:, :, None, :]
    a = s.masked_fill(~ok, float("-inf")).softmax(-1)
    return torch.where(ok.any(-1, keepdim=True), a, torch.zeros_like(a)) @ v


class Rule:
    """max|ours - exact| <= 2 max|naive - exact| + eps max|exact|, maxima over everything added."""

    def __init__(self):
        self.error, self.naive, self.largest, self.eps = 0.0, 0.0, 0.0, 0.0

    def add(self, ours, naive, exact):
        self.eps = EPS[ours.dtype]
        self.error = max(self.error, apart(ours, exact))
        self.naive = max(self.naive, apart(naive, exact))
        finite = exact[exact.isfinite()].abs()
        self.largest = max(self.largest, finite.max().item() if finite.numel() else 0.0)

    def allowed(self):
        return 2 * self.naive + self.eps * self.largest

    def holds(self):
        return self.error <= self.allowed()

    def __repr__(self):
        return f"error {self.error:.3g}, allowed {self.allowed():.3g} (naive {self.naive:.3g})"


def apart(a, b):
    """Largest difference; infinities of one sign are equal, NaN is far from everything."""
    a, b = a.detach().double(), b.detach().double()
    gap = torch.where(a == b, torch.zeros_like(a), (a - b).abs())
    gap = torch.where(gap.isnan(), torch.full_like(gap, float("inf")), gap)
    return gap.max().item() if gap.numel() else 0.0
