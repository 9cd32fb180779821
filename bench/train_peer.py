#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/train_peer.py FOCI DATA [--turns N] [--steps N] [--threads N]: images a second of the micro
# vision transformer in training, by `foci train` with dot and with layer-change and by the same
# model written in torch (eager, the torch of this python). All take turns; the best turn of each
# counts. foci reads and augments DATA; the peer's batches lie ready; the peer runs as it comes and
# with foci's surroundings: threads that sleep as soon (GOMP_SPINCOUNT), freed memory that is kept
# (MALLOC_...). What layer-change adds is measured apart, by two processes of bench/deit_step in
# turns of three steps: the median of neighbouring turns' ratios, of time and of processor time.
# Prints JSON and, given --results DIR, writes DIR/<machine>/micro.json, of which
# tools/performance.py makes a table.
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn

from suite import machine_name, text_of

BATCH, IMAGE, PATCH, DIM, DEPTH, HEADS, MLP, CLASSES = 128, 28, 4, 64, 4, 4, 2, 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(DIM, eps=1e-6)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.norm2 = nn.LayerNorm(DIM, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(DIM, MLP * DIM), nn.Linear(MLP * DIM, DIM)

    def forward(self, x):
        B, N, _ = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(B, N, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = (q @ k.transpose(-2, -1) * (DIM // HEADS) ** -0.5).softmax(dim=-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(B, N, DIM))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(1, DIM, PATCH, PATCH)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos_embed = nn.Parameter(torch.randn(1, 1 + (IMAGE // PATCH) ** 2, DIM) * 0.02)
        self.blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])
        self.norm, self.head = nn.LayerNorm(DIM, eps=1e-6), nn.Linear(DIM, CLASSES)

    def forward(self, images):
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def peer(steps):
    torch.manual_seed(0)
    model = Vit()
    matrices = [p for p in model.parameters() if p.dim() == 2 or p.dim() == 4]
    others = [p for p in model.parameters() if p.dim() != 2 and p.dim() != 4]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.05},
                                   {"params": others, "weight_decay": 0}], lr=1e-3)
    images = torch.randn(BATCH, 1, IMAGE, IMAGE)
    targets = torch.full((BATCH, CLASSES), 0.01)
    targets[torch.arange(BATCH), torch.arange(BATCH) % CLASSES] = 0.91
    begin = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), targets)
        loss.item()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
    return steps * BATCH / (time.perf_counter() - begin)


def ours(args, metric):
    with tempfile.TemporaryDirectory() as folder:
        words = [args.foci, "train", "images", "--data", args.data, "--run", folder + "/run",
                 "--metric", metric, "--batch", str(BATCH), "--steps", str(args.steps),
                 "--clip", "1", "--threads", str(args.threads), "--json"]
        words += ["--evaluate-every", str(10**9), "--save-every", str(10**9)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)["images_per_second"]


def alone(args, more):
    """The peer in a process of its own: libgomp reads its environment once."""
    words = [sys.executable, __file__, args.foci, args.data, "--peer", "--steps", str(args.steps),
             "--threads", str(args.threads)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True,
                                env={**os.environ, **more}).stdout)


SURROUNDINGS = {"GOMP_SPINCOUNT": "2000", "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
                "MALLOC_TRIM_THRESHOLD_": str(1 << 31), "MALLOC_TOP_PAD_": str(1 << 26)}


class Stepper:
    """bench/deit_step on a batch of the same shape, a few steps when it is told."""

    def __init__(self, args, metric):
        words = [os.path.join(os.path.dirname(args.foci), "bench", "deit_step"), "vit_micro",
                 metric, "cpu", str(BATCH)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **SURROUNDINGS, "OMP_NUM_THREADS": str(args.threads)})
        self.process.stdout.readline()
        self.turn(3)

    def spent(self):
        """Processor time of all its threads so far, in seconds."""
        tasks = f"/proc/{self.process.pid}/task"
        return sum(int(open(f"{tasks}/{task}/schedstat").read().split()[0])
                   for task in os.listdir(tasks)) * 1e-9

    def turn(self, steps):
        begin = self.spent()
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline()), self.spent() - begin

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def shares(args):
    """What layer-change adds to a step: by time, by processor time."""
    dot, change = Stepper(args, "dot"), Stepper(args, "layer-change")
    pairs = [(change.turn(3), dot.turn(3)) for _ in range(args.pairs)]
    dot.end()
    change.end()
    return [statistics.median(ours[i] / plain[i] for ours, plain in pairs) - 1 for i in (0, 1)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("foci")
    parser.add_argument("data")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pairs", type=int, default=40, help="turns of three steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--results", help="folder of the results; nothing is written without it")
    parser.add_argument("--peer", action="store_true", help="time the peer alone and print that")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peer:
        print(peer(args.steps))
        return
    best = {"dot": 0.0, "layer-change": 0.0, "torch": 0.0, "torch_settled": 0.0}
    for _ in range(args.turns):
        for metric in ("dot", "layer-change"):
            best[metric] = max(best[metric], ours(args, metric))
        for name, more in (("torch", {}), ("torch_settled", SURROUNDINGS)):
            best[name] = max(best[name], alone(args, more))
    share, processor_share = shares(args)
    info = json.loads(text_of(args.foci, "info", "--json"))
    result = {"schema": 1, "suite": "micro", "machine": args.machine or machine_name(info),
              "processor": info["machine"]["model"], "commit": info["commit"],
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
              "images_per_second": best, "torch": torch.__version__,
              "threads": args.threads, "turns": args.turns, "steps": args.steps,
              "pairs": args.pairs,
              "ours_over_torch": best["layer-change"] / best["torch"],
              "ours_over_settled": best["layer-change"] / best["torch_settled"],
              "layer_change_share": share, "layer_change_processor_share": processor_share}
    print(json.dumps(result, indent=2))
    if args.results:
        folder = os.path.join(args.results, result["machine"])
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "micro.json"), "w") as file:
            file.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
