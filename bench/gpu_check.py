# SPDX-License-Identifier: Apache-2.0
# What bench/gpu.py holds the CUDA backend's answers to: the formulas in float64 over one head, and
# in float32 with weights rounded as the naive formula has them; `ref` on the CPU where there is no
# formula here; row statistics from whole rows of weights.
import foci
import torch


def scores(q, k, v_prev, v, how):
    """Of dot, layer-change and key-covariance over the sequence, in q's type."""
    if how.get("metric") == "layer-change":
        change = (v - v_prev).abs().detach()
        if how.get("is_causal"):
            seen = torch.arange(1, q.size(-2) + 1, device=q.device, dtype=q.dtype)
            m = change.cumsum(-2) / seen[:, None]
        else:
            m = change.mean(-2, keepdim=True)
        return q * (m / m.amax(-1, keepdim=True)) @ k.transpose(-2, -1) * q.size(-1) ** -0.5
    if how.get("metric") == "key-covariance":
        n, eye = k.size(-2), torch.eye(k.size(-1), device=k.device, dtype=k.dtype)
        centre = k.mean(-2, keepdim=True).detach()
        q, k = q - centre, k - centre
        of_mean = k - k.mean(-2, keepdim=True)
        S = of_mean.transpose(-2, -1) @ of_mean / (n - 1)
        P = torch.linalg.inv((n * S + how["prior"] * eye) / (n + how["prior"]) + 1e-6 * eye)
        return (q @ P) @ k.transpose(-2, -1) - 0.5 * ((k @ P) * k).sum(-1)[..., None, :]
    return q @ k.transpose(-2, -1) * q.size(-1) ** -0.5


def by_formula(line, how, tensors, d_o, dtype):
    """o of one head, and dq, dk, dv where both passes are timed; in float32 as the naive formula
    has it, with weights and results rounded to bf16."""
    rounds = dtype == torch.float32
    q, k, v, v_prev = (x[:1, :1].detach().to(dtype).requires_grad_(line.both)
                       for x in tensors["heads"])
    s = scores(q, k, v_prev, v, {**how, "is_causal": line.causal})
    if tensors["bias"] is not None:
        s = s + tensors["bias"][:1, :1, None].detach().to(dtype)
    if line.causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf"))
    a = torch.softmax(s, -1)
    o = (a + (a.bfloat16().to(dtype) - a).detach() if rounds else a) @ v
    found = {"o": o.detach()}
    if line.both:
        o.backward(d_o[:1, :1].to(dtype))
        found.update(dq=q.grad, dk=k.grad, dv=v.grad)
    return {name: (x.bfloat16() if rounds else x).double() for name, x in found.items()}


def by_reference(line, how, tensors, dtype):
    """o of one head's first queries by `ref` on the CPU: mechanisms that have no formula here."""
    few = line.shape[2] if line.causal else 64
    q, k, v, _ = (x[:1, :1].detach().to(dtype).cpu() for x in tensors["heads"])
    o = foci.attend(q[:, :, :few].contiguous(), k, v, is_causal=line.causal, backend="ref", **how)
    return {"o": o.double().cuda()}


def check(line, how, tensors, d_o, ours):
    """The tolerance rule over one head; where that takes too long, whether numbers are finite."""
    prefix = how.get("metric") == "key-covariance" and line.causal
    formula = "weighting" not in how and not prefix
    if line.shape[2] > (1024 if prefix else 4096):
        return {"finite": all(bool(x.isfinite().all()) for x in ours.values())}
    if formula:
        exact = by_formula(line, how, tensors, d_o, torch.float64)
        naive = by_formula(line, how, tensors, d_o, torch.float32)
    else:
        exact = by_reference(line, how, tensors, torch.float64)
        naive = by_reference(line, how, tensors, torch.bfloat16)
    found = {}
    for name, x in exact.items():
        error = (ours[name][:1, :1, :x.size(2)].double() - x).abs().max().item()
        of_naive = (naive[name] - x).abs().max().item()
        allowed = 2 * of_naive + 2.0**-7 * x.abs().max().item()
        found[name] = {"error": error, "naive_error": of_naive, "tolerance": allowed}
    worst = max(found.values(), key=lambda x: x["error"] / x["tolerance"])
    return {"tensors": found, **worst, "passed": worst["error"] <= worst["tolerance"]}


STATISTICS = ("concentration", "effective_keys", "entropy", "largest")


def statistics_by_matrix(q, k, dtype):
    """Of some queries of one head, from their whole rows of weights."""
    s = q.to(dtype) @ k.to(dtype).transpose(-2, -1) * q.size(-1) ** -0.5
    a = torch.softmax(s, -1)
    S = a.sum(-1) / (a.size(-1) * a.square().sum(-1)).sqrt()
    largest = a.amax(-1)
    values = (S, a.size(-1) * S.square(), torch.special.entr(a).sum(-1), largest)
    # Of equals the first; what f64 tells apart, floats may not.
    leads = a >= largest[..., None] * (1 - 1e-5)
    return {name: x.double() for name, x in zip(STATISTICS, values)}, leads
