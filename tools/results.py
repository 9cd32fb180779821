#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tools/results.py [RESULTS]: prints docs/results.md, made of the Records in
# bench/results/*/train-*.jsonl, attack-*.jsonl and eval-*.jsonl alone (bench/train.py and
# bench/judge.py write them).
import json
import math
import os
import sys

INTRODUCTION = """# Results

<!-- made by tools/results.py from bench/results; `make docs` makes it again -->

What models with one metric or another reach when all else is the same: data, model, steps, seeds.
Every number is a Record that `foci train`, `foci attack` or `foci eval` wrote when it ended;
`bench/train.py` trains a table, `bench/judge.py` attacks and harms it
([how](training.md#side-by-side)). Mean ± standard deviation over seeds. *flat* and *random* are
controls: layer-change's m replaced by its mean, and an m drawn once. *Against dot* is the
difference of the means with its standard error; below twice that error it says nothing.
"""
NAMES = {"top1": "top-1, %", "top5": "top-5, %", "accuracy": "accuracy, %", "miou": "mIoU, %",
         "pixel_accuracy": "pixels right, %", "mean_accuracy": "mean over classes, %",
         "perplexity": "perplexity", "ema_perplexity": "perplexity of the average",
         "bits_per_byte": "bits a byte", "valid_loss": "loss"}
LEAD = {"attack": """## Under attack: {name} on {machine}

Percent that are still classified rightly when an adversary may change every pixel by eps: the worst
case for each image over `--suite {suite}` ([what that is](attack.md)). Mean ± standard deviation
over runs that differ in their seed.""",
        "eval": """## Harmed images: {name} on {machine}

Percent of errors under the corruptions of ImageNet-C ([which](corrupt.md)), the mean of the
severities. Mean ± standard deviation over runs that differ in their seed."""}
ORDER = ("dot", "layer-change", "flat", "random", "key-covariance", "jacobian")
CONTROLS = ("flat", "random")
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


def run_of(record):
    return record["command"].split()[2]


def by_run(records):
    """Mechanism to run to name to value."""
    groups = {}
    for record in records:
        groups.setdefault(mechanism_of(record), {}).setdefault(run_of(record), {})[
            record["name"]] = record["value"]
    return groups


def values_of(runs, name):
    return [scores[name] for scores in runs.values() if name in scores]


def compared(mine, base, n):
    """The difference of two shares and its error: over runs, else that of shares of n images."""
    if not mine or not base:
        return None
    pairs = [(deviation_of(v) ** 2 / len(v) if len(v) > 1 else v[0] * (1 - v[0]) / n)
             for v in (mine, base)]
    return mean_of(mine) - mean_of(base), math.sqrt(sum(pairs))


def eps_of(name):
    """"linf 2/255" of "robust linf 2/255", nothing of what has more words."""
    words = name.split()
    return " ".join(words[1:]) if words[0] == "robust" and len(words) == 3 else None


def size_of(eps):
    above, _, below = eps.split()[1].partition("/")
    return float(above) / float(below or 1)


def differences(groups, mechanism, other, sizes, n):
    """Of one against another: what is said where they differ by twice the error, and the eps where
    nothing is shown."""
    found, none = [], []
    for eps in sizes:
        name = "robust " + eps
        pair = compared(values_of(groups[mechanism], name), values_of(groups.get(other, {}), name),
                        n)
        if pair and abs(pair[0]) > 2 * pair[1]:
            found.append(f"withstands {'more' if pair[0] > 0 else 'less'} than {other} at {eps} "
                         f"({100 * pair[0]:+.1f} ± {100 * pair[1]:.1f})")
        elif pair:
            none.append(eps)
    return found, none


def against_dot(groups, mechanism, sizes, n):
    """One sentence about a proposed metric; nothing without a dot beside it."""
    found, none = differences(groups, mechanism, "dot", sizes, n)
    if not found:
        return f"Between {mechanism} and dot no difference is shown." if none else ""
    rest = f", and no difference is shown at {', '.join(none)}" if none else ""
    return f"{mechanism} {', '.join(found)}{rest}."


def sentence_of(groups, sizes, n):
    """What is shown of each proposed metric against dot, then who differs from a control, by twice
    the error."""
    proposed = [m for m in groups if m not in ("dot", *CONTROLS)]
    sentences = [against_dot(groups, mechanism, sizes, n) for mechanism in proposed]
    found = []
    for mechanism in groups:
        others = ["dot"] if mechanism in CONTROLS else CONTROLS if mechanism != "dot" else []
        for other in others:
            found += [f"{mechanism} {part}" for part in
                      differences(groups, mechanism, other, sizes, n)[0]]
    if found:
        sentences.append("Controls: " + "; ".join(found) + ".")
    elif any(control in groups for control in CONTROLS):
        sentences.append("No difference from a control is shown.")
    said = " ".join(sentence for sentence in sentences if sentence)
    return f"{said} A difference is shown where it is more than twice its error." if said else ""


def flag_lines(records):
    """Every flag once: who carries it and what it says."""
    flags = {}
    for record in records:
        for flag in record["flags"]:
            carried = flags.setdefault(flag["name"], ([], flag))[0]
            if mechanism_of(record) not in carried:
                carried.append(mechanism_of(record))
    return [f"- `{name}` ({', '.join(carried)}): {flag['means']}; {flag['do']}."
            for name, (carried, flag) in sorted(flags.items())]


def arms_of(groups):
    """The words behind an eps that are no attack: detached, through, plain, own."""
    arms = []
    for runs in groups.values():
        for scores in runs.values():
            for name in scores:
                words = name.split()
                if words[0] == "robust" and len(words) == 4 and words[3] not in arms:
                    arms.append(words[3])
    return arms


def attack_section_of(machine, name, records):
    groups = by_run(records)
    sizes = sorted({eps_of(record["name"]) for record in records} - {None}, key=size_of)
    n, head = records[0]["n"], records[0]
    suite = "adaptive" if "--suite adaptive" in head["command"] else "standard"
    text = [LEAD["attack"].format(name=name, machine=machine, suite=suite), "",
            f"{head['model'].split(', ')[0]}; {head['machine']}; commit "
            f"{', '.join(sorted({'`' + r['commit'] + '`' for r in records}))}; {n} images.", "",
            "| | runs | clean | " + " | ".join(sizes) + " |",
            "|---|---:|---:|" + "---:|" * len(sizes)]
    for mechanism, runs in groups.items():
        cells = [cell_of(values_of(runs, score), 100)
                 for score in ["clean", *("robust " + eps for eps in sizes)]]
        mark = "" if len(runs) >= FEW_SEEDS else " (too few)"
        text.append(f"| {mechanism} | {len(runs)}{mark} | {' | '.join(cells)} |")
    text += ["", sentence_of(groups, sizes, n), ""]
    arms = arms_of(groups)
    if arms:
        text += ["Each way to differentiate alone, and gradients from the plain model:", "",
                 "| | eps | " + " | ".join(arms) + " |", "|---|---|" + "---:|" * len(arms)]
        for mechanism, runs in groups.items():
            for eps in sizes:
                found = [values_of(runs, f"robust {eps} {arm}") for arm in arms]
                text.append(f"| {mechanism} | {eps} | " + " | ".join(
                    cell_of(values, 100) if values else "–" for values in found) + " |")
        text.append("")
    doubts = flag_lines(records)
    text += ["Doubts that the attack itself raised:", "", *doubts, ""] if doubts else []
    return "\n".join(text + ["```sh", head["command"], "```"])


def harm_section_of(machine, name, records):
    """One row a corruption, one column a mechanism; the mean corruption error first."""
    groups, head = by_run(records), records[0]
    titles = {"mce_baseline": "mCE against dot's errors, %",
              "relative_mce_baseline": "relative mCE, %", "mce_alexnet": "mCE of AlexNet's, %"}
    rows = [score for score in titles if any(values_of(r, score) for r in groups.values())]
    rows += sorted({r["name"] for r in records if r["name"].startswith("error_")
                    and not r["name"][-1].isdigit()})
    text = [LEAD["eval"].format(name=name, machine=machine), "",
            f"{head['model'].split(', ')[0]}; {head['machine']}; commit "
            f"{', '.join(sorted({'`' + r['commit'] + '`' for r in records}))}; {head['n']} images.",
            "", "| | " + " | ".join(f"{m}, {len(runs)}" for m, runs in groups.items()) + " |",
            "|---|" + "---:|" * len(groups)]
    for score in rows:
        scale = 1 if score in titles else 100
        cells = [cell_of(values_of(runs, score), scale) if values_of(runs, score) else "–"
                 for runs in groups.values()]
        text.append(f"| {titles.get(score, score[len('error_'):].replace('_', ' '))} | "
                    f"{' | '.join(cells)} |")
    doubts = flag_lines(records)
    text += ["", *doubts] if doubts else []
    return "\n".join(text + ["", "```sh", head["command"], "```"])


def files_of(results, kind):
    """Every file of a kind: machine, name, Records."""
    for machine in sorted(os.listdir(results)):
        folder = os.path.join(results, machine)
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if name.startswith(kind + "-") and name.endswith(".jsonl"):
                with open(os.path.join(folder, name)) as file:
                    records = sorted((json.loads(line) for line in file), key=place_of)
                if records:
                    yield machine, name[len(kind) + 1:-len(".jsonl")], records


def main():
    results = sys.argv[1] if len(sys.argv) > 1 else "bench/results"
    sections = [section_of(*found) for found in files_of(results, "train")]
    sections += [attack_section_of(*found) for found in files_of(results, "attack")]
    sections += [harm_section_of(*found) for found in files_of(results, "eval")]
    print("\n\n".join([INTRODUCTION.rstrip(), *sections]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
