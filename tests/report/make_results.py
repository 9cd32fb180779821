#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Made results of a comparison, for tests of its page: make_results.py FILE [--seeds N] [--state S].
# The numbers are drawn, the same every time; names hold what would break a page that escapes
# nothing. Nothing here was measured.
import argparse
import base64
import json
import math
import random

NASTY = "<script>document.title='broken'</script>"
MECHANISMS = [
    ("dot", "plain attention", {"metric": "dot"}),
    ("flat", "layer-change's temperature without its shape", {"metric": "flat"}),
    ("random", "a metric drawn once: the control", {"metric": "random"}),
    ("layer-change", "how values move from layer to layer", {"metric": "layer-change"}),
    ("key-covariance", "the keys' own covariance", {"metric": "key-covariance", "prior": "64"}),
]
MEASURES = [  # name, title, group, unit, better, mean of dot, step to the next mechanism, noise
    ("top1", "Clean accuracy", "accuracy", "share", "higher", 0.861, 0.002, 0.005),
    ("top5", "Among the first five", "accuracy", "share", "higher", 0.992, 0.0004, 0.001),
    ("robust", "Robust accuracy, 2/255", "robustness", "share", "higher", 0.42, 0.02, 0.02),
    ("corrupted", "Accuracy on corrupted data", "corruption", "share", "higher", 0.63, -0.01, 0.01),
    ("concentration", "Concentration", "concentration", "", "neither", 0.61, 0.05, 0.01),
    ("cosine", "Cosine of tokens", "collapse", "", "lower", 0.52, -0.03, 0.02),
    ("rate", "Training speed", "speed", "images/s", "higher", 812.0, -45.0, 6.0),
    ("memory", "Peak memory", "memory", "bytes", "lower", 3.1e8, 1.2e7, 1e5),
]
MASKING = {"name": "gradient-masking", "means": "the attack may have been blind",
           "do": "look at --suite adaptive"}
CORRUPTIONS = ["gaussian_noise", "motion_blur", "fog", "contrast", "jpeg_compression"]
LAYERS, HEADS, GRID = 4, 2, 7


def rounded(value, places=6):
    return None if value is None else round(value, places)


def mean(values):
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None


def deviation(values):
    there = [value for value in values if value is not None]
    if len(there) < 2:
        return None
    middle = sum(there) / len(there)
    return math.sqrt(sum((value - middle) ** 2 for value in there) / (len(there) - 1))


def against(values, base, better):
    pairs = [a - b for a, b in zip(values, base) if a is not None and b is not None]
    if len(pairs) < 2:
        return {"difference": rounded(mean(pairs)), "low": None, "high": None, "seeds": len(pairs),
                "verdict": "unknown", "words": "too few seeds to say"}
    difference, half = mean(pairs), 1.4 * deviation(pairs)
    low, high = difference - half, difference + half
    verdict = "same"
    if low > 0 or high < 0:
        verdict = "better" if (difference > 0) == (better == "higher") else "worse"
        if better == "neither":
            verdict = "different"
    words = {"same": "no difference shown"}.get(verdict, verdict)
    return {"difference": rounded(difference), "low": rounded(low), "high": rounded(high),
            "seeds": len(pairs), "verdict": verdict, "words": words, "p": 0.03, "p_holm": 0.24,
            "holds": False}


def measures(draw, names, seeds, missing):
    made = []
    for name, title, group, unit, better, start, step, noise in MEASURES:
        values = {}
        for i, mechanism in enumerate(names):
            values[mechanism] = [
                None if (mechanism, seed) in missing else rounded(start + i * step +
                                                                  draw.gauss(0, noise))
                for seed in range(seeds)]
        base = values[names[0]]
        made.append({
            "name": name, "title": title, "group": group, "unit": unit, "better": better,
            "about": f"{title} of every model on the same samples.", "n": 10000, "values": values,
            "decides": group in ("accuracy", "robustness", "corruption"),
            "mean": {m: rounded(mean(v)) for m, v in values.items()},
            "deviation": {m: rounded(deviation(v)) for m, v in values.items()},
            "against": {m: against(v, base, better) for m, v in values.items() if m != names[0]},
            "flags": [MASKING] if name == "robust" else [],
            "flagged": {m: [["gradient-masking"] if (m, seed) == ("random", 1) else []
                            for seed in range(seeds)] for m in names}
            if name == "robust" else {}})
    return made


def spread(draw, names, seeds, missing, points, value, noise):
    """mean and values ([per seed] per point) of value(mechanism's place, point's place)."""
    values, means = {}, {}
    for i, name in enumerate(names):
        rows = [[None if (name, seed) in missing else rounded(value(i, j) + draw.gauss(0, noise))
                 for seed in range(seeds)] for j in range(points)]
        values[name], means[name] = rows, [rounded(mean(row)) for row in rows]
    return {"mean": means, "values": values}


def by_seed(curve, seeds):
    """Values as a list of points for each seed, null where there are none."""
    turned = {}
    for name, rows in curve["values"].items():
        lists = [[row[seed] for row in rows] for seed in range(seeds)]
        turned[name] = [None if None in points else points for points in lists]
    return {**curve, "values": turned}


def curves(draw, names, seeds, missing):
    def spreads(*rest):
        return spread(draw, names, seeds, missing, *rest)
    steps = list(range(0, 300, 10))
    training = {name: [{"seed": seed, "step": steps, "loss": [
        rounded(0.4 + 1.9 * math.exp(-step / (60 + 8 * i)) + draw.gauss(0, 0.02))
        for step in steps]} for seed in range(seeds)] for i, name in enumerate(names)}
    attacks = [{"attack": attack, "norm": "linf", "eps": [0, 1, 2, 4], "unit": "/255",
                **spreads(4, lambda i, j: 0.86 * math.exp(-(0.5 - 0.03 * i) * j), 0.015)}
               for attack in ("apgd-ce", "square")]
    harmed = [{"name": name, "severity": [1, 3, 5],
               **spreads(3, lambda i, j: 0.8 - 0.01 * i - (0.1 + 0.02 * k) * j, 0.01)}
              for k, name in enumerate(CORRUPTIONS)]
    return {"training": training, "robustness": attacks, "corruptions": harmed}


def weights(draw, tokens, sharp):
    data = bytearray()
    for _ in range(LAYERS * HEADS):
        centre = draw.uniform(0, GRID), draw.uniform(0, GRID)
        for query in range(tokens):
            y, x = divmod(max(0, query - 1), GRID)
            row = []
            for key in range(tokens):
                ky, kx = divmod(max(0, key - 1), GRID)
                d = ((kx - 0.6 * x - 0.4 * centre[0]) ** 2 +
                     (ky - 0.6 * y - 0.4 * centre[1]) ** 2)
                row.append(math.exp(-sharp * d) * draw.uniform(0.7, 1))
            largest = max(row)
            data.extend(round(255 * value / largest) for value in row)
    largest = [[rounded(draw.uniform(0.05, 0.4)) for _ in range(HEADS)] for _ in range(LAYERS)]
    return {"layers": LAYERS, "heads": HEADS, "largest": largest,
            "data": base64.b64encode(bytes(data)).decode()}


def maps(draw, names):
    made = []
    for image, label in enumerate(["ankle boot", NASTY]):
        side = 28
        pixels = bytes(int(255 * max(0.0, 1 - math.hypot(x - 14 - 4 * image, 1.5 * (y - 14)) / 12))
                       for y in range(side) for x in range(side))
        tokens = GRID * GRID + 1
        made.append({"image": image, "label": label, "side": side, "channels": 1,
                     "pixels": base64.b64encode(pixels).decode(), "tokens": tokens, "grid": GRID,
                     "prefix": 1, "weights": {name: weights(draw, tokens, 0.05 + 0.06 * i)
                                              for i, name in enumerate(names)}})
    return made


def ellipses(draw, names):
    metrics = [[[1, 0], [0, 1]], [[0.6, 0], [0, 0.6]], [[0.9, 0], [0, 0.4]], [[1, 0], [0, 0.15]],
               [[1.4, -0.6], [-0.6, 0.8]]]
    made = []
    for layer, name, metric in ((1 + i // len(names), name, metric)
                                for i, (name, metric) in enumerate(2 * list(zip(names, metrics)))):
        keys = [[rounded(draw.gauss(0, 1)), rounded(draw.gauss(0, 0.5))] for _ in range(30)]
        (a, b), (_, d) = metric
        if name == "key-covariance":
            scores = [math.exp(-0.5 * (a * x * x + 2 * b * x * y + d * y * y))
                      for x, y in ((x - 0.5, y - 0.3) for x, y in keys)]
        else:
            scores = [math.exp(2 * (a * 0.5 * x + d * 0.3 * y)) for x, y in keys]
        made.append({"mechanism": name, "layer": layer, "head": 0, "axes": [3, 11], "keys": keys,
                     "query": [0.5, 0.3], "metric": metric,
                     "weights": [rounded(s / sum(scores)) for s in scores]})
    return made


def runs(names, seeds, missing, state):
    made = []
    for name in names:
        for seed in range(seeds):
            failed = state == "failed" and (name, seed) in missing
            waiting = (name, seed) in missing
            first = state == "running" and made and all(run["state"] == "done" for run in made)
            made.append({
                "mechanism": name, "seed": seed, "folder": f"runs/{name}-{seed}-1f2e3d",
                "state": "failed" if failed else "running" if waiting and first else
                "waiting" if waiting else "done",
                "step": 120 if waiting else 300, "steps": 300, "per_second": 812.0,
                "seconds": 40.1, "stage": "training" if waiting else "",
                "error": "the loss is not a number" if failed else ""})
    return made


def results(seeds, state):
    draw = random.Random(7)
    names = [name for name, _, _ in MECHANISMS]
    missing = {(name, seed) for name in names[3:] for seed in range(seeds)} \
        if state in ("running", "stopped") else \
        {("key-covariance", seeds - 1)} if state == "failed" else set()
    layers = [{"name": name, "title": title, "better": "neither",
               **by_seed(spread(draw, names, seeds, missing, LAYERS, value, 0.01), seeds)}
              for name, title, value in [
                  ("concentration", "Concentration by layer",
                   lambda i, j: 0.85 - 0.12 * j + 0.03 * i),
                  ("cosine", "Mean cosine of two tokens by layer",
                   lambda i, j: 0.2 + 0.15 * j - 0.02 * i),
                  ("effective_rank", "Effective rank of the tokens by layer",
                   lambda i, j: 30 - 4 * j + i)]]
    return {
        "schema": 1, "title": "dot, flat, random, layer-change, key-covariance on made numbers",
        "task": "images", "state": state if state in ("running", "stopped") else "done",
        "demonstration": True,
        "demonstration_because": "3 seeds, where 10 are the least (--seeds 10)",
        "steps": 300, "epochs": 0.32, "seconds": 431.2, "peak_bytes": 1234567890,
        "budget_seconds": 480,
        "command": "foci compare --out compare", "commit": "0123abc", "machine": "made",
        "environment": {"foci": "0.1.0", "note": NASTY},
        "data": {"name": "made", "path": "data/made", "sha256": "00ff", "made": True,
                 "train": 60000, "judged": 10000, "attacked": 64, "classes": 10,
                 "class_names": ["boot", NASTY]},
        "model": {"name": "vit_micro", "parameters": 123456, "multiply_adds": 1e7, "words": {}},
        "plan": {"task": "images", "seeds": list(range(seeds)), "note": NASTY,
                 "budget": "8m", "steps": 300, "train": {"model": "vit_micro", "patch": 7}},
        "seeds": list(range(seeds)),
        "mechanisms": [{"name": name, "about": about, "baseline": name == "dot",
                        "control": name in ("flat", "random"), "words": words}
                       for name, about, words in MECHANISMS],
        "runs": runs(names, seeds, missing, state),
        "measures": measures(draw, names, seeds, missing),
        "verdict": {"headline": "No mechanism beat dot on this budget.",
                    "sentences": ["layer-change withstood attacks a little better, and key-"
                                  "covariance was slower.", NASTY], "comparisons": 32},
        "curves": curves(draw, names, seeds, missing), "layers": layers,
        "maps": maps(draw, names), "ellipses": ellipses(draw, names),
        "figures": [{"file": "figures/robustness.svg", "title": "Robustness"},
                    {"file": "../secret", "title": "left out"}],
        "flags": [{"name": "few-samples", "means": "64 images were attacked",
                   "do": "attack 1000"},
                  {**MASKING, "measures": ["Robust accuracy, 2/255"]}],
        "reproduce": "foci compare --plan compare/plan.json --out again",
        "reproduce_flags": f"foci compare --note '{NASTY}' --steps 300 --out again"}


def main():
    words = argparse.ArgumentParser()
    words.add_argument("file")
    words.add_argument("--seeds", type=int, default=3)
    words.add_argument("--state", choices=["done", "running", "stopped", "failed"], default="done")
    said = words.parse_args()
    with open(said.file, "w", encoding="utf-8") as file:
        json.dump(results(said.seeds, said.state), file, separators=(",", ":"))


if __name__ == "__main__":
    main()
