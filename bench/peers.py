#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Times the attention of torch on the CPU: its fused scaled_dot_product_attention (torch-sdpa, torch
# 2 and later) and softmax(q k' / sqrt(D)) v written out (torch-eager).
#
#   python3 bench/peers.py --shape 1,8,1024,64 --dtype bf16 --threads 16 --pass forward
#
# prints a table, or with --json an object. `foci bench` runs it with --serve: one line of JSON says
# which peers there are, then every line read, a peer's name, is answered with the seconds of one
# run, until the input ends.
import argparse
import ctypes
import json
import os
import struct
import sys
import time

SAFETENSORS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
DTYPES = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}
LEAST_TURNS, ENOUGH_SECONDS = 9, 2.0


def arguments():
    parser = argparse.ArgumentParser(description="Times torch's attention on the CPU.")
    parser.add_argument("--shape", default="1,8,1024,64", help="B,H,N,D")
    parser.add_argument("--kv-heads", type=int, help="key heads G (default: H)")
    parser.add_argument("--keys", type=int, help="keys M (default: N)")
    parser.add_argument("--values", type=int, help="value size E (default: D)")
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pass", dest="passes", choices=["forward", "backward", "both"],
                        default="forward")
    parser.add_argument("--causal", action="store_true", help="query i stands at i + M - N")
    parser.add_argument("--peers", default="torch-sdpa,torch-eager", help="which, with commas")
    parser.add_argument("--json", action="store_true", help="an object instead of a table")
    parser.add_argument("--tensors", help="safetensors file with q, k, v, do to use")
    parser.add_argument("--answers", help="folder to write each peer's o, dq, dk, dv into")
    parser.add_argument("--serve", action="store_true", help="answer lines on standard input")
    options = parser.parse_args()
    sizes = options.shape.split(",")
    if len(sizes) != 4 or not all(size.isdigit() and int(size) > 0 for size in sizes):
        parser.error(f"--shape {options.shape} is not B,H,N,D")
    options.B, options.H, options.N, options.D = (int(size) for size in sizes)
    options.G = options.kv_heads or options.H
    options.M = options.keys or options.N
    options.E = options.values or options.D
    if options.H % options.G != 0:
        parser.error(f"--kv-heads {options.G} does not divide the {options.H} query heads")
    if options.threads < 1:
        parser.error(f"--threads {options.threads} is not 1 or more")
    return options


def import_torch(threads):
    """Libraries under torch look at these once, when they are loaded."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    import torch

    torch.set_num_threads(threads)
    return torch


def what(torch):
    """The version, and the library that multiplies matrices for it."""
    blas = "MKL" if torch.backends.mkl.is_available() else "unknown BLAS"
    with open("/proc/self/maps") as maps:
        if "openblas" in maps.read():
            blas = "OpenBLAS"
    return f"torch {torch.__version__} with {blas}"


def read_safetensors(torch, path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        dtype = getattr(torch, SAFETENSORS[entry["dtype"]])
        tensors[name] = torch.frombuffer(data[begin:end], dtype=dtype).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    names = {dtype: name for name, dtype in SAFETENSORS.items()}
    header, pieces, at = {}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[str(tensor.dtype).replace("torch.", "")],
                        "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        pieces.append(ctypes.string_at(tensor.data_ptr(), size))
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(pieces))


class Attention:
    """q (B,H,N,D), k (B,H,M,D), v (B,H,M,E): grouped heads are spread out before the clock."""

    def __init__(self, torch, options):
        self.torch, self.options = torch, options
        self.scale = options.D ** -0.5
        given = read_safetensors(torch, options.tensors) if options.tensors else self.made()
        spread = options.H // options.G
        self.q = given["q"].requires_grad_()
        self.k = given["k"].repeat_interleave(spread, dim=1).requires_grad_()
        self.v = given["v"].repeat_interleave(spread, dim=1).requires_grad_()
        self.do = given.get("do")
        self.hidden = None
        if options.causal:
            ones = torch.ones(options.N, options.M, dtype=torch.bool)
            self.hidden = ones.triu(options.M - options.N + 1)

    def made(self):
        torch, o = self.torch, self.options
        torch.manual_seed(0)
        shapes = {"q": (o.B, o.H, o.N, o.D), "k": (o.B, o.G, o.M, o.D), "v": (o.B, o.G, o.M, o.E),
                  "do": (o.B, o.H, o.N, o.E)}
        dtype = getattr(torch, DTYPES[o.dtype])
        return {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}

    def forward(self, name):
        if name == "torch-eager":
            scores = self.q @ self.k.transpose(-2, -1) * self.scale
            if self.hidden is not None:
                scores = scores.masked_fill(self.hidden, float("-inf"))
            return scores.softmax(-1) @ self.v
        attend = self.torch.nn.functional.scaled_dot_product_attention
        if self.hidden is None or self.options.N == self.options.M:
            return attend(self.q, self.k, self.v, is_causal=self.options.causal)
        return attend(self.q, self.k, self.v, attn_mask=~self.hidden)

    def seconds(self, name):
        torch, passes = self.torch, self.options.passes
        if passes == "forward":
            with torch.no_grad():
                begin = time.perf_counter()
                self.forward(name)
                return time.perf_counter() - begin
        begin = time.perf_counter()
        o = self.forward(name)
        if passes == "backward":
            begin = time.perf_counter()
        torch.autograd.grad(o, (self.q, self.k, self.v), self.do)
        return time.perf_counter() - begin

    def answers(self, name):
        o = self.forward(name)
        if self.options.passes == "forward":
            return {"o": o}
        dq, dk, dv = self.torch.autograd.grad(o, (self.q, self.k, self.v), self.do)
        grouped = (self.options.B, self.options.G, -1, self.options.M)
        dk = dk.reshape(*grouped, self.options.D).sum(2)
        dv = dv.reshape(*grouped, self.options.E).sum(2)
        return {"o": o, "dq": dq, "dk": dk, "dv": dv}

    def why_not(self, name):
        """Empty when this torch can run the peer here."""
        o = self.options
        if name not in ("torch-sdpa", "torch-eager"):
            return f"there is no peer {name}"
        if name == "torch-sdpa" and not hasattr(self.torch.nn.functional,
                                                "scaled_dot_product_attention"):
            return f"torch {self.torch.__version__} has no scaled_dot_product_attention"
        if o.causal and o.N > o.M:
            return "torch makes NaN of a row that sees no key"
        matrices = 6 * o.B * o.H * o.N * o.M * self.q.element_size()
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")
        if name == "torch-eager" and matrices > memory:
            return "its N x M matrices do not fit in memory"
        return ""


def ready(attention, options):
    """Runs each peer once; those that cannot say why."""
    answers = {}
    for name in options.peers.split(","):
        why = attention.why_not(name)
        if not why:
            try:
                result = attention.answers(name)
                if options.answers:
                    write_safetensors(os.path.join(options.answers, name), result)
            except RuntimeError as error:
                why = str(error).splitlines()[0]
        answers[name] = {"why_not": why} if why else {"what": what(attention.torch)}
    return answers


def flops(options):
    forward = 2 * options.B * options.H * options.N * options.M * (options.D + options.E)
    times = {"forward": 1, "backward": 2.5, "both": 3.5}[options.passes]
    return forward * times * (0.5 if options.causal else 1)


def measure(attention, options, answers):
    """Peers in turn, best of at least nine."""
    times = {name: [] for name, answer in answers.items() if "what" in answer}
    spent, turns = 0.0, 0
    while times and (turns < LEAST_TURNS or (spent < ENOUGH_SECONDS and turns < 100)):
        for name, seconds in times.items():
            seconds.append(attention.seconds(name))
            spent += seconds[-1]
        turns += 1
    for name, seconds in times.items():
        answers[name].update(seconds=min(seconds), repetitions=len(seconds),
                             gflops=flops(options) / min(seconds) / 1e9)
    return answers


def print_table(options, answers):
    print(f"shape {options.shape}, {options.dtype}, {options.passes}, {options.threads} threads"
          + (", causal" if options.causal else ""))
    for name, answer in answers.items():
        if "why_not" in answer:
            print(f"{name:<12} absent: {answer['why_not']}")
        else:
            print(f"{name:<12} {answer['seconds'] * 1e3:10.3f} ms {answer['gflops']:9.1f} GFLOP/s"
                  f"  {answer['what']}")


def main():
    options = arguments()
    try:
        torch = import_torch(options.threads)
    except ImportError as error:
        print(json.dumps({"error": f"no torch: {error}"}) if options.serve or options.json
              else f"peers.py: no torch: {error}", flush=True)
        return 1
    attention = Attention(torch, options)
    answers = ready(attention, options)
    if not options.serve:
        answers = measure(attention, options, answers)
        print(json.dumps(answers, indent=2)) if options.json else print_table(options, answers)
        return 0
    print(json.dumps(answers), flush=True)
    for line in sys.stdin:
        try:
            print(json.dumps({"seconds": attention.seconds(line.strip())}), flush=True)
        except RuntimeError as error:
            print(json.dumps({"error": str(error).splitlines()[0]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
