#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/results/<machine>/reliability.json: figures of bench/fuzz.py and bench/soak.py that add up
# over calls, commit by commit. One call writes at a time, the file whole or not at all.
import contextlib
import datetime
import fcntl
import json
import os
import subprocess

from suite import machine_name


def today():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")


def commit():
    return subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                          text=True, check=True).stdout.strip()


def processor():
    """As foci info has it, where there may be no foci yet."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return names[0] if names else "a processor"


def path_of(options):
    info = {"machine": {"model": processor(), "cores": os.cpu_count()}}
    return os.path.join(options.results, options.machine or machine_name(info), "reliability.json")


def add_flags(parser):
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--results", default="bench/results")
    parser.add_argument("--commit", help="default: git describe")


@contextlib.contextmanager
def figures(path):
    """What the file holds, to be changed; written when the block ends well."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        found = {"machine": os.path.basename(os.path.dirname(os.path.abspath(path))),
                 "processor": processor(), "fuzz": [], "soak": []}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                found = json.load(file)
        yield found
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
        os.replace(path + ".part", path)
    finally:
        os.close(folder)


def entry(entries, **named):
    """The one of these names; a fresh one where there is none."""
    for one in entries:
        if all(one.get(name) == value for name, value in named.items()):
            return one
    entries.append(dict(named))
    return entries[-1]
