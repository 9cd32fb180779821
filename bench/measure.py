#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/measure.py [--build DIR] [--images N] [--machine NAME] [--commit NAME] [--results DIR]: what
# measuring DeiT-tiny costs beside evaluating it. Runs DIR/bench/measure_cost and writes
# <results>/<machine>/measure.json.
import argparse
import datetime
import json
import os
import subprocess
import sys

from suite import machine_name, text_of


def main():
    parser = argparse.ArgumentParser(description="Measures what foci::measure adds to a pass.")
    parser.add_argument("--build", default="build", help="the folder that foci was built in")
    parser.add_argument("--images", default="1000")
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--commit", help="default: git describe")
    parser.add_argument("--results", default="bench/results")
    options = parser.parse_args()
    info = json.loads(text_of(os.path.join(options.build, "foci"), "info", "--json") or
                      sys.exit("measure: no foci in " + options.build))
    done = subprocess.run([os.path.join(options.build, "bench", "measure_cost"), options.images],
                          capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    machine = options.machine or machine_name(info)
    commit = options.commit or text_of("git", "describe", "--always", "--dirty", "--tags")
    path = os.path.join(options.results, machine, "measure.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        json.dump({"schema": 1, "suite": "measure", "machine": machine, "commit": commit,
                   "processor": info["machine"]["model"], "bar_ratio": 1.3,
                   "load": os.getloadavg()[0],
                   "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
                   "lines": lines}, file, indent=1)
        file.write("\n")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
