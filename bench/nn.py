#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/nn.py [--build DIR] [--machine NAME] [--commit NAME] [--results DIR]: what nn::attend adds
# to the core call it makes. Runs DIR/bench/nn_cost and writes <results>/<machine>/nn.json;
# tools/performance.py makes a table of it.
import argparse
import datetime
import json
import os
import subprocess
import sys

from suite import machine_name, text_of


def main():
    parser = argparse.ArgumentParser(description="Measures what nn::attend adds to the core call.")
    parser.add_argument("--build", default="build", help="the folder that foci was built in")
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--commit", help="default: git describe")
    parser.add_argument("--results", default="bench/results")
    options = parser.parse_args()
    info = json.loads(text_of(os.path.join(options.build, "foci"), "info", "--json") or
                      sys.exit("nn: no foci in " + options.build))
    done = subprocess.run([os.path.join(options.build, "bench", "nn_cost")], capture_output=True,
                          text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [line for line in lines if not line["same_bits"]]
    if wrong:
        sys.exit(f"nn: not the core's bits, so not timed: {wrong[0]['shape']} {wrong[0]['metric']}")
    machine = options.machine or machine_name(info)
    commit = options.commit or text_of("git", "describe", "--always", "--dirty", "--tags")
    path = os.path.join(options.results, machine, "nn.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump({"schema": 1, "suite": "nn", "machine": machine, "commit": commit,
                   "processor": info["machine"]["model"], "bar_us": 15,
                   "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
                   "lines": lines}, file, indent=1)
        file.write("\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
