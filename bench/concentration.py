#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/concentration.py RUN ... [--pictures-of RUN ...]: what docs/concentration.md is made of.
# Closed forms beside their simulation (`foci theory`), every run's layers (`foci measure`), and
# one sample's pictures of some runs, into bench/results/<machine>/concentration.json.
# Runs of one metric and several seeds count together.
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile

from suite import machine_name, text_of

DRAWS, KEYS = 1000000, 10000
FORMS = ["--weighting softmax --beta 0 --gamma 0.5", "--weighting softmax --beta 0 --gamma 1",
         "--weighting softmax --beta 0 --gamma 2", "--weighting identity --beta 0 --gamma 1",
         "--weighting identity --beta 1 --gamma 1", "--weighting relu2 --beta -1 --gamma 1",
         "--weighting relu2 --beta 0 --gamma 1", "--weighting relu2 --beta 1 --gamma 1",
         "--weighting decay --rate 0.9 --keys 50",
         "--metric key-covariance --dim 8 --distance2 0 --temperature 1",
         "--metric key-covariance --dim 16 --distance2 0 --temperature 4",
         "--metric key-covariance --dim 64 --distance2 0 --temperature 8"]
ROWS = ("concentration", "effective_keys", "entropy", "largest", "distance")
TOKENS = ("cosine", "residual", "effective_rank", "stable_rank")


def asked(foci, *words):
    done = subprocess.run([foci, *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"concentration: foci {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def theory_of(foci):
    found = []
    for form in FORMS:
        words = ["theory", *form.split(), "--simulate", str(DRAWS), "--seed", "1", "--json"]
        said = asked(foci, *words)
        found.append({"flags": form, "concentration": said["concentration"],
                      "simulated": said["simulated"], "standard_error": said["standard_error"]})
    return found


def full_of(foci):
    """How many of KEYS keys count to a query at their mean, under a full metric."""
    found = []
    for temperature in (1, 2, 4, 8):
        for size in (4, 16, 64, 256):
            said = asked(foci, "theory", "--metric", "key-covariance", "--dim", str(size),
                         "--distance2", "0", "--temperature", str(temperature), "--keys", str(KEYS),
                         "--json")
            found.append({"dim": size, "temperature": temperature,
                          "effective_keys": said["effective_keys"]})
    return found


def means(values, names):
    return {name: round(values[name]["mean"], 6) for name in names if values.get(name)}


def config_of(run):
    with open(os.path.join(run, "config.json")) as file:
        return json.load(file)


def score_of(run):
    """The last accuracy that training told; nothing where there is none."""
    path, score = os.path.join(run, "records.jsonl"), None
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                record = json.loads(line)
                score = record["value"] if record["name"] == "top1" else score
    return score


def run_of(options, run):
    words = config_of(run)["flags"]
    said = asked(options.foci, "measure", run, "--samples", str(options.samples), "--closely",
                 str(options.closely), "--json")["measured"][0]
    layers = [{"rows": means(layer, ROWS), "tokens": means(layer["tokens"], TOKENS)}
              for layer in said["layers"]]
    return {"metric": words.get("metric", "dot"), "seed": int(words.get("seed", 0)),
            "model": words.get("model", ""), "samples": said["samples"], "top1": score_of(run),
            "embedded": means(said["embedded"], TOKENS), "layers": layers}


def pictures_of(options, run):
    found = []
    for sample in options.sample_numbers:
        with tempfile.TemporaryDirectory() as folder:
            layer = ["--in-layer", str(options.layer)] if options.layer >= 0 else []
            asked(options.foci, "measure", run, "--samples", "1", "--pictures", folder, "--sample",
                  str(sample), *layer, "--out", folder, "--json")
            with open(os.path.join(folder, "pictures.json")) as file:
                found.append(json.load(file, parse_float=lambda x: float(f"{float(x):.5g}")))
    return found


def words_of(flags):
    """What to know of the training; where steps were asked for, epochs say nothing."""
    names = ["model", "dim", "depth", "heads", "batch", "steps", "learning-rate"]
    if not flags.get("steps"):
        names[names.index("steps")] = "epochs"
    return {name: flags[name] for name in names if flags.get(name)}


def text_of_all(found):
    """JSON with a line for each entry of a list: one that can be read and compared."""
    parts = []
    for name, value in found.items():
        said = json.dumps(value)
        if isinstance(value, list):
            said = "[\n" + ",\n".join("  " + json.dumps(one) for one in value) + "\n ]"
        parts.append(f" {json.dumps(name)}: {said}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def place_of(run):
    order = ("dot", "flat", "random", "layer-change", "key-covariance", "jacobian")
    metric = run["metric"]
    return order.index(metric) if metric in order else len(order), metric, run["seed"]


def main():
    parser = argparse.ArgumentParser(description="Measures trained runs for docs/concentration.md.")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--pictures-of", nargs="*", default=[], help="runs to look at")
    parser.add_argument("--sample-numbers", type=int, nargs="*", default=[0], help="of their set")
    parser.add_argument("--layer", type=int, default=-1)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--closely", type=int, default=64)
    parser.add_argument("--name", default="", help="of the data, in the page's words")
    parser.add_argument("--foci", default="build/foci")
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--results", default="bench/results")
    options = parser.parse_args()
    info = json.loads(text_of(options.foci, "info", "--json") or
                      sys.exit("concentration: no command " + options.foci))
    path = os.path.join(options.results, options.machine or machine_name(info),
                        "concentration.json")
    found = {"commit": info["commit"], "date": datetime.date.today().isoformat(),
             "data": options.name, "draws": DRAWS,
             "words": words_of(config_of(options.runs[0])["flags"]),
             "samples": options.samples, "closely": options.closely,
             "theory": theory_of(options.foci), "keys": KEYS, "full": full_of(options.foci),
             "runs": sorted((run_of(options, run) for run in options.runs), key=place_of),
             "pictures": [one for run in options.pictures_of for one in pictures_of(options, run)]}
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text_of_all(found))
    print(f"{len(found['runs'])} runs, {len(found['pictures'])} pictures: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
