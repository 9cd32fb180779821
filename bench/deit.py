#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/deit.py [--build DIR] [--device cuda] [--batch N] [--results DIR] [--commit NAME]: images a
# second of DeiT in training on a batch that lies ready: foci's loop (DIR/bench/deit_step) with
# layer-change and dot beside timm's model in eager torch, bf16 autocast and AdamW in all. They take
# turns; the median turn counts. Writes <results>/<machine>/deit.json after every model.
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time

import timm
import torch

from suite import text_of

MODELS = ("deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224")
BAR, TURNS, ENOUGH = 1.3, 5, 0.35  # times timm's; turns; seconds a turn


class Ours:
    """A process that trains as many steps as it is told."""

    def __init__(self, options, model, metric):
        words = [os.path.join(options.build, "bench", "deit_step"), model, metric, options.device,
                 str(options.batch)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def answer(self):
        line = self.process.stdout.readline()
        return float(line) if line else sys.exit("deit: deit_step ended")

    def begin(self):
        self.answer()  # to its first step

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Timm:
    def __init__(self, options, model):
        torch.manual_seed(0)
        self.device = options.device
        self.model = timm.create_model(model, num_classes=1000).to(self.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.05)
        self.images = torch.randn(options.batch, 3, 224, 224, device=self.device)
        self.labels = torch.randint(1000, (options.batch,), device=self.device)

    def begin(self):
        self.steps(1)

    def wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def steps(self, count):
        self.wait()
        begin = time.perf_counter()
        for _ in range(count):
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                logits = self.model(self.images)
                loss = torch.nn.functional.cross_entropy(logits, self.labels)
            loss.backward()
            self.optimizer.step()
        self.wait()
        return time.perf_counter() - begin

    def end(self):
        del self.model, self.optimizer, self.images
        if self.device == "cuda":
            torch.cuda.empty_cache()


def contest(runs, batch):
    """Images a second of each, the median of turns."""
    counts, rates = {}, {name: [] for name in runs}
    for run in runs.values():
        run.begin()
    for name, run in runs.items():
        run.steps(3)
        counts[name] = max(2, round(ENOUGH / (run.steps(3) / 3)))
    for _ in range(TURNS):
        for name, run in runs.items():
            rates[name].append(counts[name] * batch / run.steps(counts[name]))
    for run in runs.values():
        run.end()
    return {name: {"images_per_second": statistics.median(all_), "least": min(all_),
                   "most": max(all_)} for name, all_ in rates.items()}


def main():
    parser = argparse.ArgumentParser(description="DeiT's training step beside timm's.")
    parser.add_argument("--build", default="build", help="the folder that foci was built in")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--commit", help="default: git describe")
    parser.add_argument("--results", default="bench/results")
    options = parser.parse_args()
    path = os.path.join(options.results, options.machine, "deit.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    result = {"schema": 1, "suite": "deit", "machine": options.machine, "device": device,
              "commit": options.commit or
              text_of("git", "describe", "--always", "--dirty", "--tags"),
              "torch": torch.__version__, "timm": timm.__version__, "batch": options.batch,
              "bar": BAR, "turns": TURNS,
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
              "lines": []}
    for model in options.models.split(","):
        found = contest({"layer-change": Ours(options, model, "layer-change"),
                         "dot": Ours(options, model, "dot"),
                         "timm eager": Timm(options, model)}, options.batch)
        result["lines"].append({"model": model, "runs": found})
        with open(path, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
        print(model, {name: round(x["images_per_second"]) for name, x in found.items()},
              flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
