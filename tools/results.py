#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tools/results.py [RESULTS]: prints docs/results.md, made of the Records in
# bench/results/*/train-*.jsonl alone (bench/train.py writes them).
import json
import math
import os
import sys

INTRODUCTION = """# Results

<!-- made by tools/results.py from bench/results; `make docs` makes it again -->

What models with one metric or another reach when all else is the same: data, model, steps, seeds.
Every number is a Record that `foci train` wrote when a run ended; `bench/train.py` runs a table
([how](training.md#side-by-side)). Mean ± standard deviation over seeds. *flat* and *random* are
controls: layer-change's m replaced by its mean, and an m drawn once. *Against dot* is the
difference of the means with its standard error; below twice that error it says nothing.
"""
NAMES = {"top1": "top-1, %", "top5": "top-5, %", "accuracy": "accuracy, %", "miou": "mIoU, %",
         "pixel_accuracy": "pixels right, %", "mean_accuracy": "mean over classes, %",
         "perplexity": "perplexity", "ema_perplexity": "perplexity of the average",
         "bits_per_byte": "bits a byte", "valid_loss": "loss"}
ORDER = ("dot", "layer-change", "flat", "random", "key-covariance", "jacobian")
FEW_SEEDS = 3


def mean_of(values):
    return sum(values) / len(values)


def deviation_of(values):
    if len(values) < 2:
        return None
    mean = mean_of(values)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))


def cell_of(values, scale):
    deviation = deviation_of(values)
    mean = f"{scale * mean_of(values):.2f}"
    return mean if deviation is None else f"{mean} ± {scale * deviation:.2f}"


def against(values, base, scale):
    """The difference of two means and its standard error."""
    if values is base or len(values) < 2 or len(base) < 2:
        return ""
    error = math.sqrt(deviation_of(values) ** 2 / len(values) + deviation_of(base) ** 2 / len(base))
    return f"{scale * (mean_of(values) - mean_of(base)):+.2f} ± {scale * error:.2f}"


def mechanism_of(record):
    """"layer-change", and the weighting where it is not softmax."""
    _, metric, weighting = record["model"].split(", ")
    return metric if weighting == "softmax" else f"{metric}, {weighting}"


def place_of(record):
    """Dot first, whatever run ended first."""
    mechanism = mechanism_of(record)
    metric = mechanism.split(", ")[0]
    return ORDER.index(metric) if metric in ORDER else len(ORDER), mechanism, record["seed"]


def table_of(records):
    """One table: mechanisms down, scores across; the first score also against dot."""
    scores, groups = [], {}
    for record in records:
        if record["name"] in NAMES and record["name"] not in scores:
            scores.append(record["name"])
        groups.setdefault(mechanism_of(record), {}).setdefault(record["name"], {})[
            record["seed"]] = record["value"]
    scores.sort(key=list(NAMES).index)
    scale = {record["name"]: 100 if record["unit"] == "share" else 1 for record in records}
    text = ["| | seeds | " + " | ".join(NAMES[name] for name in scores) + " | against dot |",
            "|---|---:|" + "---:|" * (len(scores) + 1)]
    first = scores[0]
    base = list(groups.get("dot", {}).get(first, {}).values())
    for mechanism, found in groups.items():
        cells = [cell_of(list(found[name].values()), scale[name]) if name in found else "–"
                 for name in scores]
        mine = list(found[first].values())
        difference = "" if mechanism == "dot" else against(mine, base, scale[first])
        seeds = len(found[first])
        mark = "" if seeds >= FEW_SEEDS else " (too few)"
        text.append(f"| {mechanism} | {seeds}{mark} | {' | '.join(cells)} | {difference} |")
    return text


def section_of(machine, preset, records):
    head = records[0]
    commits = sorted({record["commit"] for record in records})
    flags = sorted({flag["means"] for record in records for flag in record["flags"]})
    text = [f"## {preset} on {machine}", "",
            f"{head['model'].split(', ')[0]}; {head['machine']}; commit "
            f"{', '.join(f'`{commit}`' for commit in commits)}; judged on {head['n']} samples.", ""]
    text += table_of(records)
    text += ["", *(f"Beware: {flag}." for flag in flags), *([""] if flags else []),
             "```sh", head["command"], "```"]
    return "\n".join(text)


def main():
    results = sys.argv[1] if len(sys.argv) > 1 else "bench/results"
    sections = []
    for machine in sorted(os.listdir(results)):
        folder = os.path.join(results, machine)
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if name.startswith("train-") and name.endswith(".jsonl"):
                with open(os.path.join(folder, name)) as file:
                    records = sorted((json.loads(line) for line in file), key=place_of)
                preset = name[len("train-"):-len(".jsonl")]
                sections += [section_of(machine, preset, records)] if records else []
    print("\n\n".join([INTRODUCTION.rstrip(), *sections]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
