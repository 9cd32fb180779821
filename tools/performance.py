#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tools/performance.py [RESULTS]: prints docs/performance.md, made of bench/results/*/*.json alone.
# Where a line missed its bar, bench/results/notes.json may say why: an object of machines, each an
# object from a line's name to a sentence, or from its group's to what stands below the table; the
# machine "*" stands for all.
import json
import os
import sys

from beyond import beyond_of

INTRODUCTION = """# Performance

<!-- made by tools/performance.py from bench/results; `make docs` makes it again -->

Every number here comes from `foci bench`, which checks a result against the reference before it
times it. What is compared is timed in one run, in turn, nine turns each unless a line's command
says fewer, and the best run of each counts: whatever slows the machine slows both sides.
`make bench` measures all of it again on your machine
([what the flags mean](command_line.md#timing)); the JSON behind a table lies in `bench/results`,
with the command of every line.

- *sgemm* is OpenBLAS multiplying two 2048 x 2048 matrices with as many threads; GFLOP/s of
  attention count 4 N M D a head forward, 2.5 times that backward, half of it when causal.
- Shapes are B = 1, H = 8, D = 64 unless a line says otherwise.
- A line with a bar is a promise: it says what was asked and whether it was reached, and why not.
"""


def number(value):
    if value is None:
        return "–"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3f}"


def seconds(value):
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def why_not(notes, machine, key):
    return notes.get(machine, {}).get(key) or notes.get("*", {}).get(key) or ""


def mark_of(line, note):
    if line["reached"] is None:
        return line["failed"] or ""
    return "yes" if line["reached"] else "**no**" + (f": {note}" if note else "")


def row_of(result, line, notes):
    raw = result["runs"][line["run"]]
    failed = "failed" in raw
    time = "–" if failed else seconds(raw["seconds"])
    rate = "–" if failed else f"{raw['gflops']:.0f}"
    asked = "" if line["bar"] is None else \
        ("≥ " if line["wants"] == "at least" else "≤ ") + f"{line['bar']:g}"
    mark = mark_of(line, why_not(notes, result["machine"], line["name"]) or line["failed"])
    return f"| {line['name']} | {time} | {rate} | {number(line['value'])} | {asked} | {mark} |"


def groups_of(result):
    groups = {}
    for line in result["lines"]:
        groups.setdefault(line["group"], []).append(line)
    return groups


def page_of(result, notes):
    barred = [line for line in result["lines"] if line["bar"] is not None]
    reached = sum(bool(line["reached"]) for line in barred)
    text = [f"## {result['machine']}", "",
            f"{result['processor']}; kernels for {result['isa']} (of {', '.join(result['isas'])}); "
            f"commit `{result['commit']}`, {result['date']}.",
            f"{reached} of {len(barred)} bars reached.", ""]
    if result["busy"] > 0.3:
        text += [f"**The machine was busy** ({result['busy']:g} cores): not to be trusted.", ""]
    text += [f"- {name}: {what}" for name, what in result["peers"].items()]
    for group, lines in groups_of(result).items():
        text += ["", f"### {group[0].upper() + group[1:]}", "",
                 f"| | time | GFLOP/s | {lines[0]['unit']} | asked | reached |",
                 "|---|---:|---:|---:|---:|---|"]
        text += [row_of(result, line, notes) for line in lines]
        why = why_not(notes, result["machine"], group)
        if why and any(line["reached"] is False for line in lines):
            text += ["", why]
    return "\n".join(text)


def torch_page_of(result, notes):
    """nn.json: what the call through torch adds, the median difference within a turn."""
    text = [f"## {result['machine']}: nn::attend beside the core call it makes", "",
            f"{result['processor']}; commit `{result['commit']}`, {result['date']}. One thread, "
            "microseconds; *added* is the median of what it took more than the core call of its "
            f"turn, in 3000 turns of one run; asked: at most {result['bar_us']:g}. *Recorded*: "
            "with a gradient to come.", "",
            "| shape | metric | core | added | added, recorded | reached |",
            "|---|---|---:|---:|---:|---|"]
    for line in result["lines"]:
        plain, recorded = line["added_us"], line["added_recorded_us"]
        reached = max(plain, recorded) <= result["bar_us"]
        text.append(f"| {', '.join(map(str, line['shape']))} | {line['metric']} | "
                    f"{line['core_us']:.1f} | {plain:.1f} | {recorded:.1f} | "
                    f"{'yes' if reached else '**no**'} |")
    why = why_not(notes, result["machine"], "nn")
    return "\n".join(text + (["", why] if why else []))


def gpu_row_of(line):
    peers = ", ".join(f"{name} {number(x['tflops'])}" for name, x in line["peers"].items())
    ratio, asked, reached = "", "", ""
    if "ratio" in line:
        ratio, asked = f"{line['ratio']:.2f} × {line['against']}", f"≥ {line['bar']:.2f}"
        reached = "yes" if line["ratio"] >= line["bar"] else "**no**"
    error = "finite" if line.get("finite") else "–"
    if "error" in line:
        error = f"{line['error']:.1e} of {line['tolerance']:.1e}"
    name = line["name"] + (f" (`{line['commit']}`)" if "commit" in line else "")
    shape, rate = ", ".join(map(str, line["shape"])), number(line.get("tflops"))
    if "gbs" in line:
        rate += f", {line['gbs']:.0f} GB/s: {line['share_of_4.8_tbs']:.0%} of 4.8 TB/s"
    return (f"| {name} | {shape} | {line['pass']} | {seconds(line['ms'] / 1e3)} | {rate} | "
            f"{peers or '–'} | {error} | {ratio} | {asked} | {reached} |")


def gpu_page_of(result, notes):
    """gpu.json: the CUDA backend through its torch operators."""
    barred = [line for line in result["lines"] if "ratio" in line]
    reached = sum(line["ratio"] >= line["bar"] for line in barred)
    text = [f"## {result['machine']}: the CUDA backend", "",
            f"{result['device']}, torch {result['torch']}; commit `{result['commit']}`, "
            f"{result['date']}. bf16; medians of CUDA events, all contestants of a line in turn in "
            "one run; TFLOP/s count 4 N M D a head forward, 3.5 times that for both passes, half "
            "when causal (linear, identity and decay do less than they are counted for). *Error*: "
            "of o against float64, and what the tolerance rule allows; long sequences are looked "
            "at for NaN alone.", f"{reached} of {len(barred)} bars reached."]
    text += ["", "![Speed against FLOP a byte, below what a matrix product and a copy "
                 "reach](roofline.svg)"]
    for group, lines in groups_of(result).items():
        text += ["", f"### {group[0].upper() + group[1:]} on the GPU", "",
                 "| | B, H, N, D | pass | time | TFLOP/s | peers | error | ratio | asked | reached "
                 "|",
                 "|---|---|---|---:|---:|---|---|---|---:|---|"]
        text += [gpu_row_of(line) for line in lines]
        why = why_not(notes, result["machine"], group)
        text += ["", why] if why else []
    beyond = beyond_of(result)
    if beyond:
        text += ["", "### Beside cuDNN's plain attention", "",
                 "From the lines above, the least and the greatest of each row: how many times as "
                 "fast as the peer.", "",
                 "| | peer | times as fast | asked | reached |", "|---|---|---:|---:|---|", *beyond]
        why = why_not(notes, result["machine"], "beyond")
        text += ["", why] if why else []
    return "\n".join(text)


def counters_page_of(result, notes):
    """counters.json: what Nsight Compute says of the kernels that take longest."""
    text = [f"## {result['machine']}: what bounds the kernels", "",
            f"Nsight Compute {result['ncu']}, commit `{result['commit']}`, {result['date']} "
            "(`bench/counters.py`): one call a line, clocks left as they are; of each, kernels "
            "that take a tenth of it or more. Per cent of the most there is: tensor cores, "
            "exponentials (XU), float arithmetic (FMA), instructions issued, shared memory and "
            "L1, L2, device memory.", "",
            "| | B, H, N, D | pass | kernel | time | tensor | exp | FMA | issue | L1 | L2 | DRAM |",
            "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for line in result["lines"]:
        commit = line.get("commit", result["commit"])
        name = line["name"] + ("" if commit == result["commit"] else f" (`{commit}`)")
        for kernel in sorted(line["kernels"], key=lambda x: -x.get("us", 0)):
            if kernel.get("us", 0) < line["us"] / 10:
                continue
            shares = " | ".join(f"{kernel[name]:.0f}" if name in kernel else "–" for name in
                                ("tensor", "exp", "fma", "issue", "l1", "l2", "dram"))
            text.append(f"| {name} | {', '.join(map(str, line['shape']))} | {line['pass']} "
                        f"| {kernel['name']} | {seconds(kernel['us'] / 1e6)} | {shares} |")
    why = why_not(notes, result["machine"], "counters")
    return "\n".join(text + (["", why] if why else []))


def ptxas_page_of(result, notes):
    """ptxas.json: registers and spills of every kernel."""
    sources = {}
    for kernel in result["kernels"]:
        sources.setdefault((kernel["source"], kernel["arch"]), []).append(kernel)
    text = [f"## {result['machine']}: what ptxas says of the kernels", "",
            f"Commit `{result['commit']}`; spills in bytes stored and loaded again.", "",
            "| source | architecture | kernels | most registers | that spill | most bytes |",
            "|---|---|---:|---:|---:|---:|"]
    for (source, arch), kernels in sorted(sources.items()):
        spills = [kernel["spills"] for kernel in kernels if kernel["spills"]]
        text.append(f"| {source}.cu | {arch} | {len(kernels)} | "
                    f"{max(kernel['registers'] for kernel in kernels)} | {len(spills)} | "
                    f"{max(spills, default=0)} |")
    why = why_not(notes, result["machine"], "ptxas")
    return "\n".join(text + (["", why] if why else []))


def deit_page_of(result, notes):
    """deit.json: DeiT's training step beside timm's."""
    text = [f"## {result['machine']}: DeiT in training", "",
            f"{result['device']}, torch {result['torch']}, timm {result['timm']}; commit "
            f"`{result['commit']}`, {result['date']}. Images a second of whole training steps "
            f"(`bench/deit.py`): {result['batch']} images that lie ready, bf16 autocast, AdamW; "
            f"medians of {result['turns']} turns in one run. Ours waits for the GPU twice a step, "
            "to look at the loss and at the gradients' length; timm's model is plain attention in "
            "eager torch and never waits.", "",
            "| | layer-change | dot | timm eager | layer-change / timm | asked | reached |",
            "|---|---:|---:|---:|---:|---:|---|"]
    for line in result["lines"]:
        rates = {name: run["images_per_second"] for name, run in line["runs"].items()}
        ratio = rates["layer-change"] / rates["timm eager"]
        text.append(f"| {line['model']} | {rates['layer-change']:.0f} | {rates['dot']:.0f} | "
                    f"{rates['timm eager']:.0f} | {ratio:.2f} | ≥ {result['bar']:g} | "
                    f"{'yes' if ratio >= result['bar'] else '**no**'} |")
    why = why_not(notes, result["machine"], "deit")
    return "\n".join(text + (["", why] if why else []))


def micro_page_of(result, notes):
    """micro.json: the micro vision transformer's training step beside the same model in torch."""
    rates, share = result["images_per_second"], result["layer_change_share"]
    text = [f"## {result['machine']}: the micro vision transformer in training", "",
            f"{result['processor']}, {result['threads']} threads, torch {result['torch']}; commit "
            f"`{result['commit']}`, {result['date']}. Images a second of `foci train images`, "
            "reading and augmenting included, beside the same model in eager torch, whose batch "
            f"lies ready (`bench/train_peer.py`): the best of {result['turns']} turns of "
            f"{result['steps']} steps. What layer-change adds: the median of {result['pairs']} "
            "ratios of neighbouring turns of three steps.", "",
            "| | images/s | asked | reached |", "|---|---:|---|---|",
            f"| torch, dot | {rates['torch']:.0f} | | |",
            "| torch, dot, with foci's surroundings: threads that sleep soon, freed memory kept | "
            f"{rates['torch_settled']:.0f} | | |",
            f"| dot | {rates['dot']:.0f} | | |",
            f"| layer-change, {result['ours_over_torch']:.2f} × torch | "
            f"{rates['layer-change']:.0f} | ≥ 1.3 × torch | "
            f"{'yes' if result['ours_over_torch'] >= 1.3 else '**no**'} |",
            f"| layer-change, {result['ours_over_settled']:.2f} × torch with foci's surroundings "
            "| | | |",
            f"| what layer-change adds to a step | {share:.1%} | ≤ 5 % | "
            f"{'yes' if share <= 0.05 else '**no**'} |",
            f"| the same in processor time | {result['layer_change_processor_share']:.1%} | | |"]
    why = why_not(notes, result["machine"], "micro")
    return "\n".join(text + (["", why] if why else []))


def attack_page_of(result, notes):
    """attack.json: robust accuracy and speed beside the original AutoAttack."""
    commits = sorted({f"`{line['commit']}`" for line in result["lines"]})
    dates = sorted({line["date"] for line in result["lines"]})
    text = [f"## {result['machine']}: attacks beside the original AutoAttack", "",
            f"{result['processor']}, torch {result['torch']}; commit {', '.join(commits)}, "
            f"{' to '.join(dates[:1] + dates[1:][-1:])}. The same trained weights, images, balls "
            "and settings by `foci attack` and by the upstream package, one after the other in one "
            "run (`bench/attack_peer.py`); the original's model is eager torch for dot, and calls "
            "foci's operator for layer-change. Robust accuracy in percent, asked: within one point "
            "at 1,000 images; images a second of *processor time* on one thread (the machine had "
            "other work, which changes that less than a clock), asked of `standard`: 1.5 times the "
            "original's.", "",
            "| | attack | eps | images | clean | ours | original | points apart | ours, images/s | "
            "original, images/s | times as fast | reached |",
            "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    for line in result["lines"]:
        ours, theirs = line["ours"], line["theirs"]
        apart = 100 * (ours["robust"] - theirs["robust"])
        ratio = theirs["cpu_seconds"] / ours["cpu_seconds"]
        reached = ratio >= 1.5 if line["attack"] == "standard" else abs(apart) <= 1
        text.append(f"| {line['metric']} | {line['attack']} | {line['eps']:g}/255 | "
                    f"{line['images']} | {100 * ours['clean']:.1f} | {100 * ours['robust']:.1f} | "
                    f"{100 * theirs['robust']:.1f} | {apart:+.1f} | "
                    f"{line['images'] / ours['cpu_seconds']:.2f} | "
                    f"{line['images'] / theirs['cpu_seconds']:.2f} | {ratio:.2f} | "
                    f"{'yes' if reached else '**no**'} |")
    why = why_not(notes, result["machine"], "attack")
    return "\n".join(text + (["", why] if why else []))


def dist_page_of(result, _):
    """dist.json: from one process to two, and gradients on their way during backward."""
    scaling, step = result["weak_scaling"], result["overlap"]
    best = scaling["best"]
    seconds = {k: min(turn["user_seconds"] for turn in seen)
               for k, seen in scaling["turns"].items()}
    rows = [["processes", "images/s, the best turn", "seconds of processors, the least"]]
    rows += [["---"] * 3]
    rows += [[k, f"{best[k]:.0f}", f"{seconds[k]:.1f}"] for k in best]
    hidden = step["afterwards"] - step["whole"]
    return "\n".join([
        f"## Two processes, {result['machine']}", "",
        f"`bench/dist.py` on {result['processor']}, commit {result['commit']}, {result['date']}; "
        f"the machine's load before was {result['load_before']:.1f}. `foci train` with a thread a "
        f"process and {scaling['images_a_process']} images a process and step:", "",
        *("| " + " | ".join(row) + " |" for row in rows), "",
        f"Two processes are {scaling['times']:.2f} times as fast as one, and cost "
        f"{seconds['2'] / seconds['1'] / 2:.2f} times the processor time an image. A step whose "
        f"{len(step['buckets'])} buckets of gradients travel during backward takes "
        f"{1000 * step['whole']:.0f} ms, one that sends them afterwards {1000 * hidden:.0f} ms "
        "more:", "", "![gradients on their way](overlap.svg)"])


def measure_page_of(result, notes):
    """measure.json: what measuring a model costs beside evaluating it."""
    text = [f"## {result['machine']}: measuring a model beside evaluating it", "",
            f"{result['processor']}; commit `{result['commit']}`, {result['date']}. Every batch of "
            "made images once plainly and once under `measure::Meter`, in turns, by processor time "
            "(`bench/measure.py`): row statistics and the likeness of tokens of all, weights and "
            f"spectra of 16. Asked: at most {result['bar_ratio']:g} times the plain pass.", "",
            "| model | metric | images | threads | plain | measured | ratio | reached |",
            "|---|---|---:|---:|---:|---:|---:|---|"]
    for line in result["lines"]:
        text.append(f"| {line['model']} | {line['metric']} | {line['images']} | {line['threads']} "
                    f"| {seconds(line['plain_seconds'])} | {seconds(line['measured_seconds'])} | "
                    f"{line['ratio']:.2f} | "
                    f"{'yes' if line['ratio'] <= result['bar_ratio'] else '**no**'} |")
    why = why_not(notes, result["machine"], "measure")
    return "\n".join(text + (["", why] if why else []))


PAGES = {"nn": torch_page_of, "gpu": gpu_page_of, "counters": counters_page_of,
         "ptxas": ptxas_page_of, "deit": deit_page_of, "micro": micro_page_of,
         "attack": attack_page_of, "dist": dist_page_of, "measure": measure_page_of}


def read(path):
    with open(path) as file:
        return json.load(file)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "bench/results"
    notes_path = os.path.join(folder, "notes.json")
    notes = read(notes_path) if os.path.exists(notes_path) else {}
    paths = sorted(os.path.join(at, name) for at, _, names in os.walk(folder)
                   for name in names if name.endswith(".json") and at != folder)
    pages = [PAGES.get(result.get("suite"), page_of)(result, notes) for result in map(read, paths)
             if "suite" in result or "lines" in result]  # others are not about speed
    print("\n\n".join([INTRODUCTION.rstrip()] + (pages or ["Nothing has been measured yet."])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
