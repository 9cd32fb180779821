#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tools/concentration.py [FILE]: prints docs/concentration.md, made of what bench/concentration.py
# found alone; tools/draw_concentration draws its pictures of the same file.
import json
import math
import os
import sys

FILE = "bench/results/epyc-2core/concentration.json"
FEW_SEEDS = 3
INTRODUCTION = """# Can attention concentrate, and what does a geometry do to it?

<!-- made by tools/concentration.py from bench/results; `make docs` makes it again -->

Attention gives every key a weight. How many keys count? $S = E|a|/\\sqrt{E[a^2]}$ says it: 1
when all weigh the same, $1/\\sqrt n$ when one of $n$ has all, and $nS^2$ keys count
([the forms](theory.md), [how it is measured](measure.md)). A metric changes the scores and with
them the weights. This page follows that from closed forms over simulation to trained models. Every
number on it was written by a program.
"""
CURVES = """## In closed form

![Concentration against the spread of the scores: softmax, identity and relu2.](PICTURES/curves.svg)

Scores $x = \\beta + \\gamma\\varepsilon$, many keys. Softmax can be as sharp as it likes:
$S = e^{-\\gamma^2/2}$ goes to 0 as scores spread. Weights that are a power of the score cannot:
identity and relu2 depend on $\\beta/\\gamma$ alone and level off, so spreading the scores further
changes nothing. relu2 grows sharp only where nearly all scores are negative.

A diagonal metric enters through $\\gamma$: $\\gamma^2 = c^2 (m \\circ q)^\\top C (m \\circ q)$. As
$m$ is at most 1 after normalisation, it makes $\\gamma$ smaller and attention **wider**, unless
training makes up for it; its mean does most of that, which is what *flat* is there to tell. The
claims behind the metrics, one by one, are the experiments of [the page of theory](theory.md).

The same by drawing keys, $DRAWS of them:
"""
FULL = """## A full metric

![Concentration against the size of the head at four temperatures.](PICTURES/full.svg)

Under the inverse covariance of the keys every direction counts alike, and distances between a query
and its keys grow with the size of the head $D$: $S$ falls exponentially in it, and only a
temperature that grows with $D$ keeps it (the models' `scale` is $1/\\sqrt D$). Of $KEYS keys, a
query at their mean sees, as $nS^2$ (a number below 1 means: one):
"""
NAMES = {"concentration": "concentration", "effective_keys": "effective keys",
         "cosine": "cosine after the top", "effective_rank": "effective rank after the top"}


def mean_of(values):
    return sum(values) / len(values)


def deviation_of(values):
    if len(values) < 2:
        return None
    mean = mean_of(values)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))


def number(x):
    return f"{x:.2e}" if 0 < abs(x) < 1e-3 else f"{x:.4f}" if abs(x) < 10 else f"{x:.2f}"


def cell(values, digits=3):
    deviation = deviation_of(values)
    mean = f"{mean_of(values):.{digits}f}"
    return mean if deviation is None else f"{mean} ± {deviation:.{digits}f}"


def theory_table(found):
    text = ["| flags of `foci theory` | closed form | drawn | standard errors apart |",
            "|---|---:|---:|---:|"]
    for one in found["theory"]:
        error = one["standard_error"]
        off = abs(one["simulated"] - one["concentration"])
        apart = f"{off / error:.1f}" if error else "exact"
        text.append(f"| `{one['flags']}` | {number(one['concentration'])} | "
                    f"{number(one['simulated'])} | {apart} |")
    return text


def full_table(found):
    rows = found["full"]
    temperatures = sorted({one["temperature"] for one in rows})
    text = ["| D | " + " | ".join(f"τ = {t:g}" for t in temperatures) + " |",
            "|---:|" + "---:|" * len(temperatures)]
    for size in sorted({one["dim"] for one in rows}):
        cells = [next(number(one["effective_keys"]) for one in rows
                      if one["dim"] == size and one["temperature"] == t) for t in temperatures]
        text.append(f"| {size} | " + " | ".join(cells) + " |")
    return text


def number_of(run, name):
    """One number of a run: the mean over layers, or what the top one gives."""
    if name in ("cosine", "effective_rank"):
        return run["layers"][-1]["tokens"][name]
    return mean_of([layer["rows"][name] for layer in run["layers"]])


def by_metric(runs):
    groups = {}
    for run in runs:
        groups.setdefault(run["metric"], []).append(run)
    return groups


def runs_table(groups):
    scored = all(run["top1"] is not None for runs in groups.values() for run in runs)
    text = ["| | seeds | " + ("top-1, % | " if scored else "") +
            " | ".join(NAMES.values()) + " |",
            "|---|---:|" + "---:|" * (len(NAMES) + scored)]
    for metric, runs in groups.items():
        cells = [cell([100 * run["top1"] for run in runs], 2)] if scored else []
        cells += [cell([number_of(run, name) for run in runs], 1 if name == "effective_keys" else 3)
                  for name in NAMES]
        mark = "" if len(runs) >= FEW_SEEDS else " (too few)"
        text.append(f"| {metric} | {len(runs)}{mark} | " + " | ".join(cells) + " |")
    return text


def difference(mine, base):
    """Of two means, and its standard error; nothing where one has a single seed."""
    if len(mine) < 2 or len(base) < 2:
        return None
    error = math.sqrt(deviation_of(mine) ** 2 / len(mine) + deviation_of(base) ** 2 / len(base))
    return mean_of(mine) - mean_of(base), error


def verdict(mine, base, words):
    """words: what more and less are called."""
    found = difference(mine, base)
    if found is None:
        return "one seed says nothing"
    off, error = found
    if abs(off) <= 2 * error:
        return f"no difference shown ({off:+.3f} ± {error:.3f})"
    return f"{words[off < 0]} ({off:+.3f} ± {error:.3f})"


def sentences(groups):
    base = groups.get("dot")
    if base is None:
        return []
    text = ["Against dot, the difference of the means with its standard error. Below twice that",
            "it says nothing, and with few seeds and several comparisons twice is a weak bar:", ""]
    for metric, runs in groups.items():
        if metric == "dot":
            continue
        parts = [("attention", "concentration", ("wider", "narrower")),
                 ("tokens after the top layer", "cosine", ("more alike", "less alike"))]
        said = []
        for what, name, words in parts:
            mine, plain = ([number_of(run, name) for run in some] for some in (runs, base))
            said.append(f"{what} {verdict(mine, plain, words)}")
        text.append(f"- **{metric}**: {'; '.join(said)}.")
    return text


def trained(found):
    groups = by_metric(found["runs"])
    if not groups:
        return "## In trained models\n\nNothing has been measured yet.\n"
    words = ", ".join(f"{name} {word}" for name, word in found["words"].items() if word)
    text = ["## In trained models", "",
            f"The same model on {found['data']} with one metric or another, all else the same:",
            f"{words}. Means over {found['samples']} judged images,",
            f"effective rank over {found['closely']} of them; ± is the deviation over seeds.",
            "Concentration and effective keys are means over layers.", ""]
    text += runs_table(groups)
    text += ["", *sentences(groups), "",
             "![Mean concentration by layer for each mechanism.](PICTURES/concentration.svg)", "",
             "Do tokens become alike on their way up? The mean cosine of pairs and the effective",
             "rank, before the first block and after each:", "",
             "![Mean cosine of pairs of tokens by layer.](PICTURES/collapse.svg)", "",
             "![Effective rank of the tokens by layer.](PICTURES/rank.svg)", ""]
    return "\n".join(text)


def looked_at(found):
    pictures = found["pictures"]
    if not pictures:
        return ""
    first = pictures[0]
    heads = "the mean over heads" if first["head"] < 0 else f"head {first['head']}"
    heats = ["## What a query looks at", "",
             f"Weights of one query, layer {first['layer']}, {heads}, of models trained with each",
             "metric; each picture has its own scale, from 0 to the number below it.",
             "[How to draw them](heatmaps.md).", "",
             "![Weights over images, a mechanism a column.](PICTURES/heat.png)", "",
             "The keys of that query in the plane that its metric sees most of. Where scores are",
             "products, as dot's and those of diagonal metrics are by default, keys of equal score",
             "lie on straight lines; where they are distances, on ellipses around the query.", "",
             "![Keys of one query in a plane, for each mechanism.](PICTURES/ellipse.svg)", ""]
    return "\n".join(heats)


def ending(found, machine):
    return "\n".join(["## How it was measured", "",
                      f"On {machine}, commit `{found['commit']}`, {found['date']}, by "
                      "`bench/concentration.py`, which runs", "",
                      "```sh", f"foci theory FLAGS --simulate {found['draws']} --seed 1 --json",
                      f"foci measure RUN --samples {found['samples']} "
                      f"--closely {found['closely']} --json",
                      "foci measure RUN --pictures FOLDER --sample K", "```", "",
                      "The pictures are drawn of its file by `tools/draw_concentration.cpp`."])


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else FILE
    with open(path) as file:
        found = json.load(file)
    parts = [INTRODUCTION, CURVES.replace("$DRAWS", f"{found['draws']:,}"),
             "\n".join(theory_table(found)) + "\n",
             FULL.replace("$KEYS", f"{found['keys']:,}"), "\n".join(full_table(found)) + "\n",
             trained(found), looked_at(found),
             ending(found, os.path.basename(os.path.dirname(os.path.abspath(path))))]
    page = "\n".join(part for part in parts if part)
    print(page.replace("(PICTURES/", "(concentration/"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
