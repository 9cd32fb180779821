#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tools/reliability.py [RESULTS]: prints docs/reliability.md, made of
# bench/results/*/reliability.json alone, which bench/fuzz.py and bench/soak.py add to.
import json
import os
import sys

ASKED = 10 ** 7
INTRODUCTION = """# Reliability

<!-- made by tools/reliability.py from bench/results; `make docs` makes it again -->

What was thrown at the places where bytes come from outside, and what was done to runs that train.
`bench/fuzz.py` and `bench/soak.py` count, call after call; every number here is theirs.
"""
FUZZ = """### Readers under hostile bytes

libFuzzer with the address and undefined sanitizers ([how](testing.md#fuzzing)), grown from the
inputs in `tests/fuzz/corpus`, which every turn begins with. An input is refused with one line, or
what was read of it holds. Asked: {asked:,} inputs for every reader. A finding is a turn that ended
with a sanitizer's word, a broken promise, an exception nobody promised, 20 seconds or 4 GiB; such a
turn counts no inputs.
"""
SOAK = """### Training that is killed

A tiny model on made images, everything random in it switched on (with two processes all but
`--drop-path`), saving every third step, killed at random moments (`kill -9`, now and then SIGTERM)
and taken up again. After every death the last
checkpoint and the curve up to it are held against a run that nobody disturbed, to the bit; at the
end of a run all of the curve and the weights. With two processes (Gloo, `foci launch`) a random
rank is the victim, and all of the job must end within a minute.
"""
COUNTS = {"deaths": "killed", "terms": "told to stop", "at_once": "within 1.5 s of the start",
          "saved_checked": "checkpoints compared", "steps_done_again": "steps done again",
          "runs": "runs to their end"}


def names(values):
    return ", ".join(f"`{value}`" for value in values)


def in_order(values):
    """Each once."""
    return list(dict.fromkeys(values))


def by_reader(entries):
    """(fuzzer, reader) to inputs in all and at the last commit."""
    last = entries[-1]["commit"]
    counts = {}
    for one in entries:
        alone = {one["fuzzer"]: one["runs"]} if one["runs"] else {}
        for reader, runs in (one["readers"] or alone).items():
            both = counts.setdefault((one["fuzzer"], reader), [0, 0])
            both[0] += runs
            both[1] += runs if one["commit"] == last else 0
    return counts


def fuzz_of(entries):
    counts = by_reader(entries)
    reached = sum(runs >= ASKED for runs, _ in counts.values())
    commits = in_order(one["commit"] for one in entries)
    hours = sum(one["seconds"] for one in entries) / 3600
    text = [FUZZ.format(asked=ASKED),
            f"{reached} of {len(counts)} readers had them so far, in {hours:.1f} hours on the "
            f"clock; until {max(one['date'] for one in entries)}, at commits {names(commits)}.", "",
            f"| fuzzer | reader | inputs | at `{commits[-1]}` | reached |",
            "|---|---|---:|---:|---|"]
    for (fuzzer, reader), (runs, late) in sorted(counts.items()):
        mark = "yes" if runs >= ASKED else f"**no**: {100 * runs / ASKED:.2g} %"
        text.append(f"| {fuzzer} | {reader} | {runs:,} | {late:,} | {mark} |")
    text += ["", "| fuzzer | inputs | a second | findings | at the last commit it ran at |",
             "|---|---:|---:|---:|---:|"]
    for fuzzer in sorted({one["fuzzer"] for one in entries}):
        mine = [one for one in entries if one["fuzzer"] == fuzzer]
        runs, seconds = (sum(one[name] for one in mine) for name in ("runs", "seconds"))
        text.append(f"| {fuzzer} | {runs:,} | {runs / max(seconds, 1e-9):,.0f} | "
                    f"{sum(len(one['findings']) for one in mine)} | {len(mine[-1]['findings'])} |")
    found = [(one["fuzzer"], one["commit"], finding["said"])
             for one in entries for finding in one["findings"]]
    if found:
        text += ["", "What was found:", ""]
        text += [f"- {fuzzer}, `{commit}`: {said}" for fuzzer, commit, said in found]
    return "\n".join(text)


def soak_of(entries):
    failures = [(one, said) for one in entries for said in one["failures"]]
    text = [SOAK, "| processes | commit | " + " | ".join(COUNTS.values()) +
            " | longest end | lost |", "|---:|---|" + "---:|" * (len(COUNTS) + 2)]
    for one in entries:
        cells = " | ".join(f"{one[name]:,}" for name in COUNTS)
        text.append(f"| {one['processes']} | `{one['commit']}` | {cells} | "
                    f"{one['longest_end_seconds']:.1f} s | {len(one['failures'])} |")
    text += ["", "What a process of an undisturbed run had in its second quarter and in its last "
             "(medians):", "",
             "| processes | commit | steps | memory, MiB | later | open files | later |",
             "|---:|---|---:|---:|---:|---:|---:|"]
    for one in entries:
        if one["used"]:
            used = one["used"]
            text.append(f"| {one['processes']} | `{one['commit']}` | {used['steps']} | "
                        f"{used['early_mebibytes']:.1f} | "
                        f"{used['late_mebibytes']:.1f} | {used['early_files']} | "
                        f"{used['late_files']} |")
    text += ["", *(f"- Failed with {one['processes']} at `{one['commit']}`: {said}."
                   for one, said in failures)] if failures else []
    return "\n".join(text)


def page_of(result):
    parts = [f"## {result['machine']}\n\n{result['processor']}."]
    if result["fuzz"]:
        parts.append(fuzz_of(result["fuzz"]))
    if result["soak"]:
        parts.append(soak_of(result["soak"]))
    return "\n\n".join(parts)


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "bench/results"
    pages = []
    for machine in sorted(os.listdir(folder)):
        path = os.path.join(folder, machine, "reliability.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                pages.append(page_of(json.load(file)))
    print("\n\n".join([INTRODUCTION.rstrip()] + (pages or ["Nothing has been measured yet."])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
