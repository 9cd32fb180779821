#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tests/models/make_llama2c.py FILE: a small model as llama2.c stores it (the bytes of its .bin),
# tokens and logits, for tests/models/language_test.cpp. The logits are computed here in double, as
# llama2.c's forward defines them: RMSNorm eps 1e-5, rotary positions on neighbours, grouped heads,
# SwiGLU, a head of its own.
import math
import struct
import sys

import torch

from make_gpt2 import write

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, VOCABULARY, CONTEXT = 16, 24, 3, 4, 2, 29, 20
D = DIM // HEADS
SHAPES = {
    "embed": (VOCABULARY, DIM), "norm1": (LAYERS, DIM), "q": (LAYERS, DIM, DIM),
    "k": (LAYERS, KV_HEADS * D, DIM), "v": (LAYERS, KV_HEADS * D, DIM),
    "proj": (LAYERS, DIM, DIM), "norm2": (LAYERS, DIM), "w1": (LAYERS, HIDDEN, DIM),
    "w2": (LAYERS, DIM, HIDDEN), "w3": (LAYERS, HIDDEN, DIM), "norm": (DIM,),
    "cos": (CONTEXT, D // 2), "sin": (CONTEXT, D // 2), "head": (VOCABULARY, DIM),
}


def rms_norm(x, weight):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight


def rotated(x):
    """x (heads, tokens, D): pair i of the token at p turns by p / 10000^(2i/D)."""
    turned = x.clone()
    for p in range(x.size(1)):
        for i in range(0, D, 2):
            angle = p / 10000 ** (i / D)
            a, b = x[:, p, i], x[:, p, i + 1]
            turned[:, p, i] = a * math.cos(angle) - b * math.sin(angle)
            turned[:, p, i + 1] = a * math.sin(angle) + b * math.cos(angle)
    return turned


def logits_of(w, tokens):
    x = w["embed"][tokens]
    n = len(tokens)
    mask = torch.ones(n, n).tril().bool()
    for i in range(LAYERS):
        normed = rms_norm(x, w["norm1"][i])
        q, k, v = ((normed @ w[name][i].t()).view(n, -1, D).transpose(0, 1) for name in "qkv")
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 0) for t in (rotated(k), v))
        scores = rotated(q) @ k.transpose(1, 2) / math.sqrt(D)
        a = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + (a @ v).transpose(0, 1).reshape(n, DIM) @ w["proj"][i].t()
        normed = rms_norm(x, w["norm2"][i])
        gate = torch.nn.functional.silu(normed @ w["w1"][i].t())
        x = x + (gate * (normed @ w["w3"][i].t())) @ w["w2"][i].t()
    return rms_norm(x, w["norm"]) @ w["head"].t()


def main():
    torch.manual_seed(1)
    w = {name: 0.4 * torch.randn(shape) for name, shape in SHAPES.items()}
    sizes = (DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, -VOCABULARY, CONTEXT)
    raw = struct.pack("<7i", *sizes) + b"".join(t.numpy().tobytes() for t in w.values())
    tokens = torch.randint(0, VOCABULARY, (CONTEXT,))
    logits = logits_of({name: t.double() for name, t in w.items()}, tokens)
    model = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    write(sys.argv[1], {"model": model, "tokens": tokens, "logits": logits.float()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
