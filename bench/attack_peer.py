#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/attack_peer.py RUN... --upstream DIR [--foci build/foci] [--images N] [--eps E]
# [--attacks A,B] [--results DIR]: attacks the same weights, images and balls by `foci attack` and
# by the original AutoAttack (DIR holds its package; it is no part of this repository), and prints
# robust accuracy and samples a second of both. RUN is a run of `foci train images` on IDX files;
# DIR's side of it is the same model in torch, whose attention above dot is foci's Python package.
# Writes <results>/<machine>/attack.json.
import argparse
import datetime
import gzip
import json
import os
import shutil
import struct
import subprocess
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from suite import machine_name, text_of

TYPES = {"F32": np.float32, "I64": np.int64, "U8": np.uint8, "I8": np.int8}


def weights_of(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        head, body = json.loads(file.read(size)), file.read()
    head.pop("__metadata__", None)
    return {name: torch.from_numpy(np.frombuffer(
        body[entry["data_offsets"][0]:entry["data_offsets"][1]],
        TYPES[entry["dtype"]]).reshape(entry["shape"]).copy()) for name, entry in head.items()}


class Model(nn.Module):
    """A run's vision transformer over pixels in [0,1], from its weights' names and shapes."""

    def __init__(self, run, heads):
        super().__init__()
        with open(os.path.join(run, "config.json")) as file:
            config = json.load(file)
        folder = os.path.join(run, "checkpoints")
        last = max(os.listdir(folder), key=lambda name: int(name.split("-")[1]))
        weights = weights_of(os.path.join(folder, last, "model.safetensors"))
        self.metric, self.heads = config["flags"]["metric"], heads
        self.first = int(config["flags"]["metric-layers"].split(":")[0])
        self.depth = 1 + max(int(n.split(".")[1]) for n in weights if n.startswith("blocks."))
        column = [torch.tensor(config["data"][name]).view(1, -1, 1, 1)
                  for name in ("mean", "deviation")]
        self.register_buffer("mean", column[0])
        self.register_buffer("deviation", column[1])
        self.names = {}
        for name, tensor in weights.items():
            if not name.endswith(".mechanism"):
                self.names[name] = name.replace(".", "_")
                self.register_buffer(self.names[name], tensor)

    def of(self, name):
        return getattr(self, self.names[name])

    def linear(self, x, name):
        return F.linear(x, self.of(name + ".weight"), self.of(name + ".bias"))

    def norm(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.of(name + ".weight"), self.of(name + ".bias"),
                            1e-6)

    def attended(self, q, k, v, below, layer):
        if self.metric == "dot" or layer < self.first:
            return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v
        import foci
        return foci.attend(q, k, v, v_prev=below, metric=self.metric)

    def forward(self, images):
        x = (images - self.mean) / self.deviation
        patch = self.of("patch_embed.proj.weight")
        x = F.conv2d(x, patch, self.of("patch_embed.proj.bias"), stride=patch.shape[-1])
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([self.of("cls_token").expand(x.shape[0], -1, -1), x], 1)
        x = x + self.of("pos_embed")
        B, N, D = x.shape
        below = None
        for layer in range(self.depth):
            at = f"blocks.{layer}."
            qkv = self.linear(self.norm(x, at + "norm1"), at + "attn.qkv")
            q, k, v = qkv.reshape(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            o = self.attended(q, k, v, below, layer)
            x = x + self.linear(o.transpose(1, 2).reshape(B, N, D), at + "attn.proj")
            hidden = F.gelu(self.linear(self.norm(x, at + "norm2"), at + "mlp.fc1"))
            x, below = x + self.linear(hidden, at + "mlp.fc2"), v
        return self.linear(self.norm(x, "norm")[:, 0], "head")


def idx(folder, name):
    for suffix, opened in (("", open), (".gz", gzip.open)):
        path = os.path.join(folder, name + suffix)
        if os.path.exists(path):
            with opened(path, "rb") as file:
                body = file.read()
            sizes = struct.unpack(">" + "I" * body[3], body[4:4 + 4 * body[3]])
            return np.frombuffer(body[4 + 4 * body[3]:], np.uint8).reshape(sizes)
    sys.exit(f"attack_peer: {folder} has no {name}")


def samples_of(run, count):
    """The images that foci attack takes: evenly over the test set."""
    with open(os.path.join(run, "config.json")) as file:
        data = json.load(file)["flags"]["data"]
    images, labels = idx(data, "t10k-images-idx3-ubyte"), idx(data, "t10k-labels-idx1-ubyte")
    taken = np.arange(count) * len(labels) // count
    x = torch.from_numpy(images[taken].astype(np.float32) / 255).unsqueeze(1)
    return x, torch.from_numpy(labels[taken].astype(np.int64))


def ours(options, run, attack):
    out = os.path.join(run, "attack-peer")
    shutil.rmtree(out, ignore_errors=True)
    words = [options.foci, "attack", run, "--attack", attack, "--eps", str(options.eps), "--count",
             str(options.images), "--batch", str(options.batch), "--check", "0", "--sheet", "1",
             "--device", options.device, "--out", out, "--json"]
    begin = time.perf_counter()
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    result = json.loads(done.stdout)
    shutil.rmtree(out, ignore_errors=True)
    return {"clean": result["clean"], "robust": result["curve"][0]["robust"], "seconds": seconds}


def theirs(options, model, x, y, attack):
    sys.path.insert(0, options.upstream)
    from autoattack import AutoAttack
    suite = AutoAttack(model, norm="Linf", eps=options.eps / 255, version="standard", seed=0,
                       device=options.device, verbose=False)
    suite.attacks_to_run = [attack]
    begin = time.perf_counter()
    found = suite.run_standard_evaluation(x, y, bs=options.batch)
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        right = torch.cat([model(part).argmax(1) for part in found.split(options.batch)]) == y
        clean = torch.cat([model(part).argmax(1) for part in x.split(options.batch)]) == y
    return {"clean": clean.float().mean().item(), "robust": right.float().mean().item(),
            "seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description="foci attack beside the original AutoAttack.")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--upstream", required=True, help="folder with the package autoattack")
    parser.add_argument("--foci", default="build/foci")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--heads", type=int, default=4, help="of the runs' model")
    parser.add_argument("--eps", type=float, default=8, help="in 1/255")
    parser.add_argument("--batch", type=int, default=250)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--attacks", default="apgd-ce,apgd-t,square")
    parser.add_argument("--machine")
    parser.add_argument("--commit", help="where the folder is no checkout")
    parser.add_argument("--results")
    options = parser.parse_args()
    lines = []
    for run in options.runs:
        model = Model(run, options.heads).to(options.device).eval()
        x, y = (t.to(options.device) for t in samples_of(run, options.images))
        for attack in options.attacks.split(","):
            sides = {"ours": ours(options, run, attack),
                     "theirs": theirs(options, model, x, y, attack)}
            lines.append({"metric": model.metric, "attack": attack, **sides})
            print(model.metric, attack, ", ".join(
                f"{who} {100 * side['clean']:.1f} -> {100 * side['robust']:.1f} % in "
                f"{side['seconds']:.1f} s" for who, side in sides.items()), flush=True)
    info = json.loads(text_of(options.foci, "info", "--json"))
    result = {"schema": 1, "suite": "attack", "machine": options.machine or machine_name(info),
              "commit": options.commit or text_of("git", "rev-parse", "--short", "HEAD"),
              "date": datetime.date.today().isoformat(), "torch": torch.__version__,
              "images": options.images, "eps": options.eps, "lines": lines}
    if options.results:
        folder = os.path.join(options.results, result["machine"])
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "attack.json"), "w") as file:
            file.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
