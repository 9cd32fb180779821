#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tests/models/make_gpt2.py FILE: weights, tokens and logits of a small GPT-2, for
# tests/models/language_files_test.cpp. Where transformers is installed, the logits are its; else
# this computes them in plain torch as its modeling_gpt2 defines them: Conv1D weights (in, out),
# gelu_new (tanh), LayerNorm eps 1e-5, masked softmax attention scaled by 1/sqrt(D), the head tied
# to wte. The file's metadata says which of the two it was; tests/python/test_gpt2.py holds the
# stored logits to transformers where that is installed.
import json
import math
import struct
import sys

import torch

SIZES = dict(vocab_size=61, n_positions=24, n_embd=16, n_layer=3, n_head=2)


def weights():
    torch.manual_seed(0)
    d = SIZES["n_embd"]
    shapes = {"wte.weight": (SIZES["vocab_size"], d), "wpe.weight": (SIZES["n_positions"], d)}
    for i in range(SIZES["n_layer"]):
        for name, shape in {"attn.c_attn": (d, 3 * d), "attn.c_proj": (d, d),
                            "mlp.c_fc": (d, 4 * d), "mlp.c_proj": (4 * d, d)}.items():
            shapes[f"h.{i}.{name}.weight"] = shape
            shapes[f"h.{i}.{name}.bias"] = shape[1:]
    made = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    norms = [f"h.{i}.ln_{j}" for i in range(SIZES["n_layer"]) for j in (1, 2)] + ["ln_f"]
    for name in norms:
        made[f"{name}.weight"] = 1 + 0.3 * torch.randn(d)
        made[f"{name}.bias"] = 0.3 * torch.randn(d)
    return made


def by_definition(w, tokens):
    batch, n = tokens.shape
    d, heads = SIZES["n_embd"], SIZES["n_head"]

    def conv1d(x, name):
        return x @ w[name + ".weight"] + w[name + ".bias"]

    def norm(x, name):
        return torch.nn.functional.layer_norm(x, (d,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def gelu_new(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

    mask = torch.ones(n, n).tril().bool()
    x = w["wte.weight"][tokens] + w["wpe.weight"][:n]
    for i in range(SIZES["n_layer"]):
        h = f"h.{i}."
        parts = conv1d(norm(x, h + "ln_1"), h + "attn.c_attn").split(d, dim=2)
        q, k, v = (t.view(batch, n, heads, d // heads).transpose(1, 2) for t in parts)
        scores = (q @ k.transpose(2, 3)) / math.sqrt(d // heads)
        a = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        x = x + conv1d((a @ v).transpose(1, 2).reshape(batch, n, d), h + "attn.c_proj")
        x = x + conv1d(gelu_new(conv1d(norm(x, h + "ln_2"), h + "mlp.c_fc")), h + "mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].t()


def by_transformers(w, tokens):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(**SIZES)).eval()
    wrong = model.transformer.load_state_dict(w, strict=False)
    masks = (".attn.bias", ".attn.masked_bias")  # buffers of older versions
    assert not wrong.unexpected_keys and all(name.endswith(masks) for name in wrong.missing_keys)
    with torch.no_grad():
        return model(tokens).logits


def write(path, tensors, metadata=None):
    """A safetensors file; the widest elements first, so that all are aligned."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        raw = tensor.contiguous().numpy().tobytes()
        dtype = {4: "F32", 8: "I64", 1: "U8"}[tensor.element_size()]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """What write() wrote."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    types = {"F32": torch.float32, "I64": torch.int64, "U8": torch.uint8}
    tensors = {}
    for name, facts in header.items():
        where = dict(offset=facts["data_offsets"][0], count=math.prod(facts["shape"]))
        flat = torch.frombuffer(data, dtype=types[facts["dtype"]], **where)
        tensors[name] = flat.reshape(facts["shape"])
    return tensors


def main():
    w = weights()
    tokens = torch.randint(0, SIZES["vocab_size"], (2, 20))
    try:
        logits, by = by_transformers(w, tokens), "transformers"
    except ImportError:
        logits = by_definition({name: tensor.double() for name, tensor in w.items()}, tokens)
        by = "make_gpt2.py's own formula in plain torch, in double"
    write(sys.argv[1], {**w, "tokens": tokens, "logits": logits.float()}, {"logits by": by})
    return 0


if __name__ == "__main__":
    sys.exit(main())
