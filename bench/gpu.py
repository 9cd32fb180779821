#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/gpu.py [--results DIR] [--machine NAME] [--commit NAME] [--only REGEX] [--limit SECONDS]:
# the CUDA backend through its torch operators beside torch's own attention, one GPU, bf16. Every
# line is checked against float64 before it is timed; all contestants of a line take turns, medians
# of CUDA events. Writes <results>/<machine>/gpu.json; tools/performance.py makes tables of it.
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import time

import foci
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

TURNS, ENOUGH_MS = 7, 12.0


def draw(B, H, N, D, seed=0):
    source = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(B, H, N, D, generator=source, device="cuda", dtype=torch.bfloat16)
            for _ in range(4)]


def fused(backend):
    def attend(q, k, v, causal):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return attend


def eager_diagonal(q, k, v, v_prev):
    """The published formulation: m from the values, scores and weights as N x N matrices."""
    m = (v - v_prev).abs().mean(-2, keepdim=True)
    m = m / m.amax(-1, keepdim=True)
    return torch.softmax((q * m) @ k.transpose(-2, -1) * q.size(-1) ** -0.5, -1) @ v


def eager_covariance(q, k, v):
    centred = (k - k.mean(-2, keepdim=True)).float()
    S = centred.transpose(-2, -1) @ centred / (k.size(-2) - 1)
    eye = torch.eye(k.size(-1), device=k.device)
    n, prior = k.size(-2), k.size(-1)
    P = torch.linalg.inv((n * S + prior * eye) / (n + prior) + 1e-6 * eye).to(q.dtype)
    b = -0.5 * ((k @ P) * k).sum(-1)
    return torch.softmax((q @ P) @ k.transpose(-2, -1) + b[..., None, :], -1) @ v


_flex = {}


def flex(q, k, v, bias, causal):
    from torch.nn.attention.flex_attention import flex_attention

    if "of" not in _flex:
        _flex["of"] = torch.compile(flex_attention)
    return _flex["of"](q, k, v, score_mod=lambda s, b, h, i, j: s + bias[b, h, j])


class Line:
    """One row of the table: ours, its peers, and how each is run."""

    def __init__(self, group, name, shape, both, causal=False, bar=None, against=None):
        self.group, self.name, self.shape = group, name, shape
        self.both, self.causal, self.bar, self.against = both, causal, bar, against
        self.runs = {}

    def flops(self):
        B, H, N, D = self.shape
        return 4.0 * B * H * N * N * D * (3.5 if self.both else 1) / (2 if self.causal else 1)


def runner(call, leaves, d_o, both):
    def run():
        if not both:
            with torch.no_grad():
                return call()
        for leaf in leaves:
            leaf.grad = None
        call().backward(d_o)
        return None
    return run


def event_ms(run, times):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / times


def contest(runs):
    """Medians of turns taken one after the other; a contestant that cannot run says why."""
    times, lost, found = {}, {}, {}
    for name, run in runs.items():
        try:
            run()
            torch.cuda.synchronize()
            once = min(event_ms(run, 1) for _ in range(2))
            times[name] = max(1, min(50, int(ENOUGH_MS / max(once, 1e-3))))
            found[name] = []
        except Exception as error:  # noqa: BLE001: whatever it is, it goes into the table
            lost[name] = str(error).splitlines()[0][:160]
            torch.cuda.synchronize()
    for _ in range(TURNS):
        for name in found:
            found[name].append(event_ms(runs[name], times[name]))
    return {name: statistics.median(all_) for name, all_ in found.items()}, lost


def exact_rows(line, q, k, v, how, bias, v_prev):
    """o of a few queries of one head in float64: on the CPU, by the reference."""
    B, H, N, D = line.shape
    few = 64 if not line.causal else None
    one = [x[:1, :1].double().cpu() for x in (q, k, v)]
    if few and not how.get("metric") == "jacobian":
        one[0] = one[0][:, :, :few].contiguous()
    words = dict(how, backend="ref")
    below = v_prev[:1, :1].double().cpu() if how.get("metric") == "layer-change" else None
    b = bias[:1, :1].double().cpu() if bias is not None else None
    exact = foci.attend(*one, v_prev=below, key_bias=b, is_causal=line.causal, **words)
    half = [x.to(torch.bfloat16) for x in one]
    naive = foci.attend(*half, v_prev=None if below is None else below.to(torch.bfloat16),
                        key_bias=None if b is None else b.float(), is_causal=line.causal, **words)
    return exact, (naive.double() - exact).abs().max().item()


def check(line, o, exact, naive):
    ours = o[:1, :1, :exact.size(2)].double().cpu()
    error = (ours - exact).abs().max().item()
    allowed = 2 * naive + 2.0**-7 * exact.abs().max().item()
    return {"error": error, "naive_error": naive, "tolerance": allowed,
            "passed": bool(error <= allowed)}


def measure(line, how, peers, bias=False, with_exact=True):
    B, H, N, D = line.shape
    q, k, v, v_prev = draw(*line.shape)
    b = torch.randn(B, H, N, device="cuda") if bias else None
    d_o = torch.randn_like(q)
    leaves = [q, k, v] + ([b] if bias else [])
    for leaf in leaves:
        leaf.requires_grad_(line.both)
    below = v_prev if how.get("metric") == "layer-change" else None
    o = torch.full_like(q, float("nan"))
    with torch.no_grad():
        o = foci.attend(q, k, v, v_prev=below, key_bias=b, is_causal=line.causal, **how)
    found = {}
    if with_exact and N <= 4096:
        exact, naive = exact_rows(line, q.detach(), k.detach(), v.detach(), how,
                                  b.detach() if bias else None, v_prev)
        found = check(line, o, exact, naive)
    else:
        found = {"finite": bool(o.isfinite().all())}
    runs = {"ours": runner(lambda: foci.attend(q, k, v, v_prev=below, key_bias=b,
                                               is_causal=line.causal, **how),
                           leaves, d_o, line.both)}
    for name, call in peers.items():
        runs[name] = runner(lambda call=call: call(q, k, v, v_prev, b), leaves, d_o, line.both)
    ms, lost = contest(runs)
    return row_of(line, ms, lost, found)


def row_of(line, ms, lost, found):
    row = {"group": line.group, "name": line.name, "shape": list(line.shape),
           "pass": "both" if line.both else "forward", "causal": line.causal,
           "ms": ms.get("ours"),
           "tflops": line.flops() / ms["ours"] / 1e9 if "ours" in ms else None,
           "peers": {name: {"ms": x, "tflops": line.flops() / x / 1e9}
                     for name, x in ms.items() if name != "ours"},
           "lost": lost, **found}
    if line.bar and line.against in ms and "ours" in ms:
        row["against"], row["bar"] = line.against, line.bar
        row["ratio"] = ms[line.against] / ms["ours"]
    return row


def ours(**how):
    causal = how.pop("is_causal", False)
    return lambda q, k, v, v_prev, b: foci.attend(q, k, v, is_causal=causal, **how)


def plan():
    """Every line with its bar: ratio of the peer's time to ours, at least."""
    flash, cudnn = fused(SDPBackend.FLASH_ATTENTION), fused(SDPBackend.CUDNN_ATTENTION)
    plain = {"flash": lambda q, k, v, p, b: flash(q, k, v, False),
             "cudnn": lambda q, k, v, p, b: cudnn(q, k, v, False)}
    causal = {"flash": lambda q, k, v, p, b: flash(q, k, v, True),
              "cudnn": lambda q, k, v, p, b: cudnn(q, k, v, True)}
    shapes = [(16, 16, 1024, 64), (4, 16, 4096, 64), (4, 16, 4096, 128), (1, 16, 16384, 64),
              (1, 16, 16384, 128)]
    for both in (False, True):
        for shape in shapes:
            yield Line("dot", "dot", shape, both, bar=1.0, against="flash"), {}, plain, False
            yield (Line("dot", "dot, causal", shape, both, True, bar=1.0, against="flash"), {},
                   causal, False)
        for shape in shapes[:3]:
            yield (Line("key bias", "dot with key_bias", shape, both,
                        bar=1.5 if both else 1.0, against="flex"), {},
                   {"flex": lambda q, k, v, p, b: flex(q, k, v, b, False)}, True)
        for shape in shapes[:3]:
            yield (Line("metrics", "layer-change", shape, both, bar=1 / 1.06, against="our dot"),
                   {"metric": "layer-change"},
                   {"our dot": ours(), "eager": lambda q, k, v, p, b: eager_diagonal(q, k, v, p)},
                   False)
            covariance = {"metric": "key-covariance", "prior": float(shape[3])}
            yield (Line("metrics", "key-covariance", shape, both, bar=1 / 1.2, against="our dot"),
                   covariance,
                   {"our dot": ours(), "eager": lambda q, k, v, p, b: eager_covariance(q, k, v)},
                   False)
            yield (Line("metrics", "key-covariance along the prefix", shape, both, True,
                        bar=1 / 1.8, against="our causal dot"), {"metric": "key-covariance"},
                   {"our causal dot": ours(is_causal=True)}, False)
        yield (Line("metrics", "layer-change", (256, 3, 197, 64), both, bar=1.1, against="flash"),
               {"metric": "layer-change"}, plain, False)
        for weighting in ("relu2", "identity", "linear"):
            yield (Line("weightings", weighting, (4, 16, 4096, 64), both),
                   {"weighting": weighting}, {"our dot": ours()}, False)
        yield (Line("weightings", "decay", (4, 16, 4096, 64), both, True),
               {"weighting": "decay", "content": True}, {"our causal dot": ours(is_causal=True)},
               False)


def long_sequence():
    """One head of a million tokens, D = 64: it runs, and how much memory it takes."""
    q, k, v, _ = draw(1, 1, 1 << 20, 64)
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    o = foci.attend(q, k, v)
    torch.cuda.synchronize()
    return {"group": "memory", "name": "one head of 1,048,576 tokens, forward", "shape":
            [1, 1, 1 << 20, 64], "pass": "forward", "causal": False,
            "ms": 1e3 * (time.perf_counter() - begin), "finite": bool(o.isfinite().all()),
            "peak_bytes": torch.cuda.max_memory_allocated(), "peers": {}, "lost": {}}


def shown(row):
    peers = "  ".join(f"{n} {x['tflops']:.0f}" for n, x in row["peers"].items())
    ratio = f"{row['ratio']:.2f} of {row['bar']:.2f}" if "ratio" in row else ""
    error = f"error {row['error']:.1e} of {row['tolerance']:.1e}" if "error" in row else ""
    speed = f"{row['tflops']:.0f}" if row.get("tflops") else "-"
    lost = "; ".join(f"{n}: {why[:60]}" for n, why in row["lost"].items())
    return f"{row['name']:34s} {row['pass']:8s} {str(row['shape']):22s} {speed:>4s} TF  {peers}  " \
           f"{ratio}  {error} {lost}"


def main():
    parser = argparse.ArgumentParser(description="Times the CUDA backend beside torch's attention.")
    parser.add_argument("--results", default="bench/results")
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--commit", help="default: git describe")
    parser.add_argument("--only", default="", help="lines whose group and name hold this regex")
    parser.add_argument("--limit", type=float, default=600, help="begin nothing after SECONDS")
    options = parser.parse_args()
    commit = options.commit or subprocess.run(["git", "describe", "--always", "--dirty"],
                                              capture_output=True, text=True).stdout.strip()
    began, rows = time.monotonic(), []
    for line, how, peers, bias in plan():
        if not re.search(options.only, f"{line.group}: {line.name}"):
            continue
        if time.monotonic() - began > options.limit:
            print("stopped by --limit")
            break
        try:
            rows.append(measure(line, how, peers, bias))
        except Exception as error:  # noqa: BLE001: one line must not cost the others
            rows.append({**row_of(line, {}, {"ours": str(error).splitlines()[0][:200]}, {})})
        print(shown(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    if re.search(options.only, "memory"):
        rows.append(long_sequence())
        print(rows[-1], flush=True)
    path = os.path.join(options.results, options.machine, "gpu.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump({"schema": 1, "suite": "gpu", "machine": options.machine, "commit": commit,
                   "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                   "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
                   "lines": rows}, file, indent=1)
        file.write("\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
