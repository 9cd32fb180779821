#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/train.py TASK PRESET [--name NAME] [--metrics ...] [--seeds ...] [--jobs K] [-- FLAGS]:
# trains the same model with several metrics and seeds and the same budget, and adds the Records to
# bench/results/<machine>/train-<name>.jsonl, from which tools/results.py makes docs/results.md.
# Runs whose Records are there already are left alone, so that runs may accumulate; each is written
# when it ends.
import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys

from suite import machine_name, text_of

# A metric that compares layers has nothing below the first: that one is plain, in its controls too.
FROM_THE_SECOND = {"layer-change", "flat", "random"}


def command_of(options, metric, seed, folder):
    layers = ["--metric-layers", "1:"] if metric in FROM_THE_SECOND else []
    return [options.foci, "train", options.task, "--preset", options.preset, "--metric", metric,
            *layers, "--seed", str(seed), "--run", folder, "--json", *options.flags]


def records_in(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def is_done(records, metric, seed):
    return any(record["model"].split(", ")[1] == metric and record["seed"] == seed
               for record in records)


def train(options, metric, seed):
    """One run; gives its Records, or nothing and a line that says why."""
    folder = os.path.join(options.runs, options.name, f"{metric}-{seed}")
    command = command_of(options, metric, seed, folder)
    if os.path.isdir(folder):
        command.append("--resume")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        print(f"{metric}, seed {seed}: {why}", file=sys.stderr)
        return []
    result = json.loads(done.stdout)
    if not result["finished"]:
        print(f"{metric}, seed {seed}: stopped at step {result['steps']}", file=sys.stderr)
        return []
    scores = ", ".join(f"{record['name']} {record['value']:.4g}" for record in result["records"])
    print(f"{metric}, seed {seed}: {result['seconds']:.0f} s, {scores}", flush=True)
    if not options.keep:
        shutil.rmtree(os.path.join(folder, "checkpoints"), ignore_errors=True)
    return result["records"]


def main():
    parser = argparse.ArgumentParser(description="Trains metrics side by side, as Records.")
    parser.add_argument("task", help="images, text, sequences or segments")
    parser.add_argument("preset")
    parser.add_argument("--name", help="what to call the results (default: the preset)")
    parser.add_argument("--metrics", default="dot,layer-change,flat,random")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--foci", default="build/foci")
    parser.add_argument("--runs", default="runs", help="folder of the runs")
    parser.add_argument("--keep", action="store_true", help="keep checkpoints")
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--results", default="bench/results")
    parser.epilog = "Behind -- stand flags of foci train for every run."
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.flags = words[cut + 1:]
    options.name = options.name or options.preset
    info = json.loads(text_of(options.foci, "info", "--json") or
                      sys.exit("train: no command " + options.foci))
    machine = options.machine or machine_name(info)
    path = os.path.join(options.results, machine, f"train-{options.name}.jsonl")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    there = records_in(path)
    wanted = [(metric, int(seed)) for seed in options.seeds.split(",")
              for metric in options.metrics.split(",")
              if not is_done(there, metric, int(seed))]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(train, options, *one) for one in wanted]
        for run in concurrent.futures.as_completed(runs):
            records = run.result()
            failed += not records
            with open(path, "a") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)
    print(f"{len(wanted) - failed} runs added, {failed} failed: {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
