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

from gpu_check import check, statistics_by_matrix

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


def measure(line, how, peers, bias=False):
    B, H, N, D = line.shape
    q, k, v, v_prev = draw(*line.shape)
    b = torch.randn(B, H, N, device="cuda") if bias else None
    d_o = torch.randn_like(q)
    leaves = [q, k, v] + ([b] if bias else [])
    for leaf in leaves:
        leaf.requires_grad_(line.both)
    below = v_prev if how.get("metric") == "layer-change" else None

    def call():
        return foci.attend(q, k, v, v_prev=below, key_bias=b, is_causal=line.causal, **how)

    answers = {"o": call()}
    if line.both:
        answers["o"].backward(d_o)
        answers.update(dq=q.grad, dk=k.grad, dv=v.grad)
    answers = {name: x.detach() for name, x in answers.items()}
    found = check(line, how, {"heads": (q, k, v, v_prev), "bias": b}, d_o, answers)
    del answers
    runs = {"ours": runner(call, leaves, d_o, line.both)}
    for name, peer in peers.items():
        runs[name] = runner(lambda peer=peer: peer(q, k, v, v_prev, b), leaves, d_o, line.both)
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
                   {"flex": lambda q, k, v, p, b: flex(q, k, v, b, False), "our dot": ours(),
                    "cudnn": plain["cudnn"]}, True)
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
        for heads in (3, 12):
            yield (Line("metrics", "layer-change", (256, heads, 197, 64), both, bar=1.1,
                        against="flash"), {"metric": "layer-change"}, plain, False)
        yield (Line("metrics", "layer-change along the prefix", (96, 8, 256, 16), both, True),
               {"metric": "layer-change"}, causal, False)
        for weighting in ("relu2", "identity", "linear"):
            yield (Line("weightings", weighting, (4, 16, 4096, 64), both),
                   {"weighting": weighting}, {"our dot": ours()}, False)
        for weighting, rescale in (("relu2", "length"), ("relu2", "l1"), ("identity", "l2")):
            yield (Line("weightings", f"{weighting} by {rescale}", (4, 16, 4096, 128), both),
                   {"weighting": weighting, "rescale": rescale}, {"our dot": ours()}, False)
        for shape in ((4, 16, 4096, 64), (1, 96, 8192, 128)):
            yield (Line("weightings", "decay", shape, both, True),
                   {"weighting": "decay", "content": True},
                   {"our causal dot": ours(is_causal=True)}, False)


def long_sequence():
    """One head of a million tokens, D = 64: it runs, and how much memory it takes."""
    q, k, v, _ = draw(1, 1, 1 << 20, 64)
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    o = foci.attend(q, k, v, enable_gqa=True)
    torch.cuda.synchronize()
    return {"group": "memory", "name": "one head of 1,048,576 tokens, forward", "shape":
            [1, 1, 1 << 20, 64], "pass": "forward", "causal": False,
            "ms": 1e3 * (time.perf_counter() - begin), "finite": bool(o.isfinite().all()),
            "peak_bytes": torch.cuda.max_memory_allocated(), "peers": {}, "lost": {}}


def statistics_line(N, B=1, H=16, D=64):
    """All row statistics in the same pass, beside the pass without them. Every head's rows are held
    to the matrix up to 2,048 tokens, beyond that 512 rows of one."""
    q, k, v = draw(B, H, N, D)[:3]
    with torch.no_grad():
        _, found = foci.attend(q, k, v, return_stats=True)
        ms, lost = contest({"ours": lambda: foci.attend(q, k, v, return_stats=True),
                            "our dot": lambda: foci.attend(q, k, v)})
    worst, misplaced = None, 0
    for head in range(H if N <= 2048 else 1):
        rows = slice(0, N if N <= 2048 else 512)
        of_head = q[0, head, rows], k[0, head]
        exact, leads = statistics_by_matrix(*of_head, torch.float64)
        naive, _ = statistics_by_matrix(*of_head, torch.float32)
        for name, x in exact.items():
            error = (getattr(found, name)[0, head, rows].double() - x).abs().max().item()
            of_naive = (naive[name] - x).abs().max().item()
            allowed = 2 * of_naive + 2.0**-23 * x.abs().max().item()
            if worst is None or error / allowed > worst["error"] / worst["tolerance"]:
                worst = {"error": error, "naive_error": of_naive, "tolerance": allowed,
                         "of": name}
        places = found.largest_at[0, head, rows, None]
        misplaced += int((~leads.gather(-1, places)).sum())
    passed = worst["error"] <= worst["tolerance"] and misplaced == 0
    row = row_of(Line("statistics", "dot with all row statistics", (B, H, N, D), False,
                      bar=1 / 1.08, against="our dot"), ms, lost, worst)
    return {**row, "misplaced": misplaced, "passed": passed}


def decode_line(B=8, H=32, G=8, M=16384, D=128):
    """One query a head over a long cache, four query heads a key head: how fast keys and values are
    read, beside torch's flash kernel."""
    q = draw(B, H, 1, D)[0]
    k, v = draw(B, G, M, D, 1)[:2]

    def flash():
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    with torch.no_grad():
        o = foci.attend(q, k, v, enable_gqa=True)
        ms, lost = contest({"ours": lambda: foci.attend(q, k, v, enable_gqa=True),
                            "flash": flash})

    def by_formula(wide, narrow):
        one, keys, values = (x[:1, :1].to(wide) for x in (q, k, v))
        a = torch.softmax(one @ keys.transpose(-2, -1) * D**-0.5, -1)
        return (a.to(narrow).to(wide) @ values).to(narrow).double()

    exact = by_formula(torch.float64, torch.float64)
    naive = by_formula(torch.float32, torch.bfloat16)
    error = (o[:1, :1].double() - exact).abs().max().item()
    allowed = 2 * (naive - exact).abs().max().item() + 2.0**-7 * exact.abs().max().item()
    read = 2 * k.numel() * k.element_size() / 1e6  # MB: times 1 / ms it is GB/s
    flops = 4.0 * B * H * M * D / 1e9
    row = {"group": "decode", "name": f"one query over {M} keys, {H // G} heads a key head",
           "shape": [B, H, M, D], "pass": "forward", "causal": False, "ms": ms["ours"],
           "tflops": flops / ms["ours"], "gbs": read / ms["ours"],
           "share_of_4.8_tbs": read / ms["ours"] / 4800, "lost": lost,
           "peers": {n: {"ms": x, "tflops": flops / x, "gbs": read / x}
                     for n, x in ms.items() if n != "ours"},
           "error": error, "tolerance": allowed, "passed": error <= allowed}
    if "flash" in ms:
        row.update(against="flash", bar=1.0, ratio=ms["flash"] / ms["ours"])
    return row


def roofs():
    """What this GPU does at best: a large matrix product, and a copy."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    x = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    y = torch.empty_like(x)
    ms, _ = contest({"product": lambda: a @ a, "copy": lambda: y.copy_(x)})
    return {"matmul_tflops": 2 * 8192**3 / ms["product"] / 1e9,
            "copy_tbs": 2 * x.numel() / ms["copy"] / 1e9}


def shown(row):
    peers = "  ".join(f"{n} {x['tflops']:.0f}" for n, x in row["peers"].items())
    ratio = f"{row['ratio']:.2f} of {row['bar']:.2f}" if "ratio" in row else ""
    error = f"error {row['error']:.1e} of {row['tolerance']:.1e}" if "error" in row else ""
    speed = f"{row['tflops']:.0f}" if row.get("tflops") else "-"
    lost = "; ".join(f"{n}: {why[:60]}" for n, why in row["lost"].items())
    return f"{row['name']:34s} {row['pass']:8s} {str(row['shape']):22s} {speed:>4s} TF  {peers}  " \
           f"{ratio}  {error} {lost}"


def keep(path, result, row):
    """Shows a line and writes the file anew."""
    print(shown(row) if row.get("tflops") or row["lost"] else row, flush=True)
    result["lines"].append(row)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")


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
    result = {"schema": 1, "suite": "gpu", "machine": options.machine, "commit": commit,
              "device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
              "roofs": roofs(), "lines": []}
    print(result["roofs"], flush=True)
    path = os.path.join(options.results, options.machine, "gpu.json")
    began = time.monotonic()
    for line, how, peers, bias in plan():
        if not re.search(options.only, f"{line.group}: {line.name}"):
            continue
        if time.monotonic() - began > options.limit:
            print("stopped by --limit")
            break
        try:
            keep(path, result, measure(line, how, peers, bias))
        except Exception as error:  # noqa: BLE001: one line must not cost those before it
            why = {"ours": str(error).splitlines()[0][:200]}
            keep(path, result, row_of(line, {}, why, {}))
        torch.cuda.empty_cache()
    for word, run in (("statistics", lambda: statistics_line(2048)),
                      ("statistics", lambda: statistics_line(16384)), ("decode", decode_line),
                      ("memory", long_sequence)):
        if re.search(options.only, word):
            keep(path, result, run())
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
