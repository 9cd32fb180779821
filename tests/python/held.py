# SPDX-License-Identifier: Apache-2.0
"""The tolerance rule for whole models, and elliptical attention written down once more, plainly."""
import torch


def hold(ours, naive, exact, said=""):
    """max|ours - exact| <= 2 max|naive - exact| + eps max|exact|: exact in double, naive in the
    dtype of ours. Each may be a list, of which the worst counts."""
    ours, naive, exact = ([x] if torch.is_tensor(x) else list(x) for x in (ours, naive, exact))
    assert len(ours) == len(naive) == len(exact) > 0
    eps = torch.finfo(ours[0].dtype).eps
    error = max(float((a.double() - c).abs().max()) for a, c in zip(ours, exact))
    other = max(float((b.double() - c).abs().max()) for b, c in zip(naive, exact))
    size = max(float(c.abs().max()) for c in exact)
    assert all(c.dtype == torch.float64 and bool(torch.isfinite(c).all()) for c in exact)
    assert error <= 2 * other + eps * size, (
        f"{said}: off by {error:.3g}, the plain one by {other:.3g}, values up to {size:.3g}"
    )


def layer_change(v, below, kept, rows):
    """m (B,G,1,D), or (B,G,rows,D) over the tokens up to each of the last `rows`; kept (B,M)."""
    B, G, M, D = v.shape
    m = torch.ones(B, G, 1 if rows is None else rows, D, dtype=v.dtype)
    for b in range(B):
        for i in range(m.shape[2]):
            end = M if rows is None else M - rows + i + 1
            seen = [j for j in range(end) if bool(kept[b, j])]
            if seen:
                mean = (v[b][:, seen] - below[b][:, seen]).abs().mean(1)
                m[b, :, i] = mean
    return m


def normalise(m):
    top = m.amax(-1, keepdim=True)
    return torch.where(top > 0, m / top.where(top > 0, torch.ones_like(top)), torch.ones_like(m))


def halves(m):
    half = (m[..., : m.shape[-1] // 2] + m[..., m.shape[-1] // 2 :]) / 2
    return torch.cat((half, half), -1)


def attend(q, k, v, m, kept, causal, scale):
    """softmax(scale q m k) v, with grouped heads, the whole matrix in sight."""
    B, H, N, D = q.shape
    G, M = k.shape[1], k.shape[2]
    if m is not None:
        q = q * m.repeat_interleave(H // G, 1)
    scores = scale * q @ k.repeat_interleave(H // G, 1).transpose(-1, -2)
    seen = kept.view(B, 1, 1, M).expand(B, 1, N, M)
    if causal:
        seen = seen & (torch.arange(M)[None] <= torch.arange(N)[:, None] + M - N)
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1).masked_fill(~seen, 0.0)
    return weights @ v.repeat_interleave(H // G, 1)
