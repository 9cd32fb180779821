#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/judge.py VERB NAME RUN... [--jobs K] [-- FLAGS]: `foci VERB RUN FLAGS` (attack, eval) for
# every run of a table, K at once, and adds the Records to <results>/<machine>/VERB-<name>.jsonl,
# from which tools/results.py makes docs/results.md. {seed} in a flag is what follows the last dash
# of the run, as in --plain runs/table/dot-{seed}. Runs whose Records are there are left alone; what
# an attack found before a kill is taken up again from its folder.
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

from suite import machine_name, text_of
from train import records_in


def run_of(record):
    """The run that a Record's command names."""
    return record["command"].split()[2]


def judge(options, run):
    flags = [flag.replace("{seed}", run.rstrip("/").rsplit("-", 1)[-1]) for flag in options.flags]
    words = [options.foci, options.verb, run, *flags, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        print(f"{run}: {why}", file=sys.stderr)
        return []
    return json.loads(done.stdout)["records"]


def main():
    parser = argparse.ArgumentParser(description="Attacks or evaluates runs, as Records.")
    parser.add_argument("verb", choices=("attack", "eval"))
    parser.add_argument("name", help="what to call the results")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--foci", default="build/foci")
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--results", default="bench/results")
    parser.epilog = "Behind -- stand flags of the verb for every run."
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.flags = words[cut + 1:]
    info = json.loads(text_of(options.foci, "info", "--json") or
                      sys.exit("judge: no command " + options.foci))
    folder = os.path.join(options.results, options.machine or machine_name(info))
    path = os.path.join(folder, f"{options.verb}-{options.name}.jsonl")
    os.makedirs(folder, exist_ok=True)
    there, failed = {run_of(record) for record in records_in(path)}, 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        ended = {pool.submit(judge, options, run): run for run in options.runs if run not in there}
        for future in concurrent.futures.as_completed(ended):
            records = future.result()
            failed += not records
            with open(path, "a") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)
            print(f"{ended[future]}: {len(records)} Records", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
