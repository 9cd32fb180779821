#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/fuzz.py [--to 10000000] [--seconds S] [--only REGEX]: runs the fuzzers of build-fuzz
# (`make fuzz` builds them) in turns of some minutes, until each of their readers has had so many
# inputs, those of earlier calls counted, or until the time is up. What it counted goes into
# bench/results/<machine>/reliability.json after every turn: inputs by fuzzer, commit and reader,
# seconds, findings. A turn that ends with a finding counts no inputs; the input that fails stays in
# the build folder.
import argparse
import glob
import hashlib
import os
import re
import subprocess
import sys
import time

import reliability

ENVIRONMENT = {"ASAN_OPTIONS": "allocator_may_return_null=0:quarantine_size_mb=16",
               "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}
SAID = r"^(?:does not hold: .*|SUMMARY: .*|  what\(\): .*|==\d+== ?ERROR: .*|.*runtime error.*)"
# Entropy of features would cost more than most readers do.
LIMITS = ["-timeout=20", "-rss_limit_mb=4096", "-max_len=4096", "-entropic=0"]


def names_in(build):
    found = glob.glob(os.path.join(build, "*_fuzz"))
    return sorted(os.path.basename(path)[:-len("_fuzz")] for path in found)


def turn(options, name, reader, most):
    """One run of libFuzzer: inputs, inputs by reader, and what it found. All inputs go to one
    reader where one is named by its number."""
    build, seed = options.build, time.time_ns() % 2 ** 31 + 1
    grown = os.path.join(build, "fuzz", name if reader is None else f"{name}-{reader}")
    os.makedirs(grown, exist_ok=True)
    environment = {**os.environ, **ENVIRONMENT}
    if reader is not None:
        environment["FOCI_FUZZ_READER"] = str(reader)
    command = [os.path.join(build, name + "_fuzz"), *LIMITS, f"-seed={seed}", f"-runs={most}",
               f"-max_total_time={options.turn}", "-print_final_stats=1", "-print_funcs=0",
               "-verbosity=0", f"-artifact_prefix={grown}-", grown,
               os.path.join("tests", "fuzz", "corpus", name)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                          env=environment)
    if done.returncode != 0:
        said = re.findall(SAID, done.stderr, re.MULTILINE)
        wrote = re.findall(r"Test unit written to (\S+)", done.stderr)
        with open(f"{grown}.log", "w", encoding="utf-8") as file:
            file.write(done.stderr)
        return 0, {}, {"said": said[0].strip() if said else f"status {done.returncode}",
                       "input": wrote[-1] if wrote else None}
    units = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    readers = {reader: int(count)
               for reader, count in re.findall(r"^reader (.*): (\d+)$", done.stderr, re.MULTILINE)}
    return int(units.group(1)), readers, None


def add(path, now, name, units, readers, seconds, found):
    with reliability.figures(path) as figures:
        one = reliability.entry(figures["fuzz"], fuzzer=name, commit=now)
        one["sanitizers"] = "address, undefined"
        one["runs"] = one.get("runs", 0) + units
        one["seconds"] = round(one.get("seconds", 0) + seconds, 1)
        counts = one.setdefault("readers", {})
        for reader, count in readers.items():
            counts[reader] = counts.get(reader, 0) + count
        one.setdefault("findings", [])
        if found is not None:
            one["findings"].append(found)
        one["date"] = reliability.today()
        return figures["fuzz"]


def poorest(entries, name, now, to):
    """The reader of a fuzzer that has had the fewest inputs, all commits counted, by its number and
    name, and how many are missing. No number: it has no others, or they are not known yet."""
    mine = [one for one in entries if one["fuzzer"] == name]
    readers = next((list(one["readers"]) for one in mine if one["commit"] == now), [])
    if not readers:
        runs = sum(one["runs"] for one in mine if not one["readers"])
        return None, name, max(0, to - runs)
    counts = [sum(one["readers"].get(reader, 0) for one in mine) for reader in readers]
    number = counts.index(min(counts))
    return number, readers[number], max(0, to - counts[number])


def told(found):
    """What stands in the results: the input by its sum, its place is this machine's business."""
    path = found["input"]
    sum_ = None
    if path and os.path.exists(path):
        with open(path, "rb") as file:
            sum_ = hashlib.sha256(file.read()).hexdigest()
    said = re.sub(r"^==\d+== ?", "", found["said"]).replace(os.getcwd() + "/", "")
    return {"said": said[:200], "input_sha256": sum_}


def main():
    parser = argparse.ArgumentParser(description="Runs the fuzzers and adds up what they did.")
    parser.add_argument("--build", default="build-fuzz")
    parser.add_argument("--to", type=int, default=10 ** 7, help="inputs for each reader")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin nothing after")
    parser.add_argument("--turn", type=int, default=120, help="seconds of a fuzzer at once")
    parser.add_argument("--only", default="", help="fuzzers whose name holds this regex")
    reliability.add_flags(parser)
    options = parser.parse_args()
    now, path = options.commit or reliability.commit(), reliability.path_of(options)
    names = [name for name in names_in(options.build) if re.search(options.only, name)]
    if not names:
        sys.exit(f"fuzz: no fuzzers in {options.build}; make fuzz builds them")
    with reliability.figures(path) as figures:
        missing = {name: poorest(figures["fuzz"], name, now, options.to) for name in names}
    began, failed = time.monotonic(), set()
    while any(missing[name][2] for name in names if name not in failed):
        for name in names:
            number, reader, most = missing[name]
            if not most or name in failed:
                continue
            if time.monotonic() - began > options.seconds:
                return 1 if failed else 0
            start = time.monotonic()
            units, readers, found = turn(options, name, number, most)
            took = time.monotonic() - start
            entries = add(path, now, name, units, readers, took, told(found) if found else None)
            missing[name] = poorest(entries, name, now, options.to)
            if found:
                failed.add(name)
            what = f"FOUND {found['said']}: {found['input']}" if found else \
                f"{units} inputs, {units / took:.0f}/s, {max(0, most - units)} to go"
            print(f"{name}: {reader}: {what}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
