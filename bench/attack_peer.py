#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/attack_peer.py RUN... --upstream DIR [--foci build/foci] [--images N] [--eps E]
# [--attacks A,B] [--threads K] [--results DIR]: attacks the same weights, images and balls by
# `foci attack` and by the original AutoAttack (DIR holds its package; it is no part of this
# repository), and prints robust accuracy and seconds of both; an attack may be `standard`, the
# whole suite. RUN is a run of `foci train images` on IDX files or CIFAR's binaries; DIR's side of
# it is the same model in torch, whose attention above dot is foci's Python package. With --results
# a line is added to <results>/<machine>/attack.json as each attack ends, and lines that are there
# are left alone; tools/performance.py makes a table of it.
import argparse
import datetime
import gzip
import json
import os
import resource
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


def cifar(folder):
    """The test images of CIFAR's binaries, (N,C,H,W) and (N) of bytes; nothing where there are
    none."""
    for name, labels in (("test.bin", 2), ("cifar-10-batches-bin/test_batch.bin", 1),
                         ("test_batch.bin", 1)):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            body = np.fromfile(path, np.uint8).reshape(-1, labels + 3 * 32 * 32)
            return body[:, labels:].reshape(-1, 3, 32, 32), body[:, labels - 1]
    return None


def samples_of(run, count):
    """The images that foci attack takes: evenly over the test set."""
    with open(os.path.join(run, "config.json")) as file:
        data = json.load(file)["flags"]["data"]
    data = data if os.path.isdir(data) else os.path.join("data", data)
    images, labels = cifar(data) or (idx(data, "t10k-images-idx3-ubyte")[:, None],
                                     idx(data, "t10k-labels-idx1-ubyte"))
    taken = np.arange(count) * len(labels) // count
    x = torch.from_numpy(images[taken].astype(np.float32) / 255)
    return x, torch.from_numpy(labels[taken].astype(np.int64))


def spent(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def ours(options, run, attack):
    """In a process of its own, whose start and reading count, too."""
    out = os.path.join(run, "attack-peer")
    shutil.rmtree(out, ignore_errors=True)
    what = ["--suite", attack] if attack == "standard" else ["--attack", attack]
    words = [options.foci, "attack", run, *what, "--eps", str(options.eps), "--count",
             str(options.images), "--batch", str(options.batch), "--check", "0", "--sheet", "1",
             "--device", options.device, "--threads", str(options.threads), "--out", out, "--json"]
    begin, before = time.perf_counter(), spent(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    seconds, cpu = time.perf_counter() - begin, spent(resource.RUSAGE_CHILDREN) - before
    result = json.loads(done.stdout)
    shutil.rmtree(out, ignore_errors=True)
    return {"clean": result["clean"], "robust": result["curve"][0]["robust"], "seconds": seconds,
            "cpu_seconds": cpu}


def theirs(options, model, x, y, attack):
    sys.path.insert(0, options.upstream)
    from autoattack import AutoAttack
    suite = AutoAttack(model, norm="Linf", eps=options.eps / 255, version="standard", seed=0,
                       device=options.device, verbose=False)
    if attack != "standard":
        suite.attacks_to_run = [attack]
    begin, before = time.perf_counter(), spent(resource.RUSAGE_SELF)
    found = suite.run_standard_evaluation(x, y, bs=options.batch)
    seconds, cpu = time.perf_counter() - begin, spent(resource.RUSAGE_SELF) - before
    with torch.no_grad():
        right = torch.cat([model(part).argmax(1) for part in found.split(options.batch)]) == y
        clean = torch.cat([model(part).argmax(1) for part in x.split(options.batch)]) == y
    return {"clean": clean.float().mean().item(), "robust": right.float().mean().item(),
            "seconds": seconds, "cpu_seconds": cpu}


class Results:
    """attack.json, written after every line."""

    def __init__(self, options):
        info = json.loads(text_of(options.foci, "info", "--json"))
        self.commit = options.commit or info["commit"]
        self.path, self.result = None, {
            "schema": 1, "suite": "attack", "machine": options.machine or machine_name(info),
            "processor": info["machine"]["model"], "torch": torch.__version__, "lines": []}
        if options.results:
            self.path = os.path.join(options.results, self.result["machine"], "attack.json")
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        if self.path and os.path.exists(self.path):
            with open(self.path) as file:
                self.result = json.load(file)

    def has(self, line):
        return any(all(there[key] == value for key, value in line.items())
                   for there in self.result["lines"])

    def add(self, line):
        line.update(commit=self.commit, date=datetime.date.today().isoformat())
        self.result["lines"].append(line)
        if self.path:
            with open(self.path + ".part", "w") as file:
                file.write(json.dumps(self.result, indent=1) + "\n")
            os.replace(self.path + ".part", self.path)


def said(line):
    return f"{line['run']}, {line['attack']} at {line['eps']:g}/255: " + ", ".join(
        f"{who} {100 * line[who]['clean']:.1f} -> {100 * line[who]['robust']:.1f} % in "
        f"{line[who]['seconds']:.1f} s ({line[who]['cpu_seconds']:.1f} s of processor)"
        for who in ("ours", "theirs"))


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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--attacks", default="apgd-ce,apgd-t,square")
    parser.add_argument("--machine")
    parser.add_argument("--commit", help="where foci does not know it")
    parser.add_argument("--results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = Results(options)
    for run in options.runs:
        model = Model(run, options.heads).to(options.device).eval()
        x, y = (t.to(options.device) for t in samples_of(run, options.images))
        for attack in options.attacks.split(","):
            line = {"run": os.path.basename(os.path.normpath(run)), "metric": model.metric,
                    "attack": attack, "eps": options.eps, "images": options.images,
                    "batch": options.batch, "threads": options.threads, "device": options.device}
            if results.has(line):
                continue
            line["ours"] = ours(options, run, attack)
            line["theirs"] = theirs(options, model, x, y, attack)
            results.add(line)
            print(said(line), flush=True)


if __name__ == "__main__":
    main()
