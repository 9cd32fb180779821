#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tools/ptxas.py LOG [--machine NAME] [--commit NAME] [--strict]: what ptxas says of every kernel in
# a build's output, as JSON: registers, stack, spills. Exits 1, with a line for each, when a kernel
# of Hopper's warpgroups spills or has its products one after the other; --strict: when any tuned
# kernel spills, which the tensor-core passes for heads of up to 128 numbers are.
import argparse
import json
import re
import subprocess
import sys

TUNED, HOPPER = re.compile(r"(softmax|weights)_mma"), re.compile(r"_wgmma")
SERIALIZED = re.compile(r"wgmma.* serialized")
WIDTH = re.compile(r"\(foci::DType\)\d+, (\d+)")


def readable(names):
    """Demangled, without the arguments and the names of namespaces."""
    words = "\n".join(names)
    done = subprocess.run(["c++filt"], input=words, capture_output=True, text=True, check=True)
    spaces = r"foci::cuda::(\(anonymous namespace\)::|[a-z]+::)*|^void "
    return [re.sub(r"\([A-Z][A-Za-z, *]*\)$", "", re.sub(spaces, "", name)).replace("> >", ">>")
            for name in done.stdout.splitlines()]


def kernels_of(log):
    found, source, now = [], "", None
    for line in log:
        if match := re.search(r"Building CUDA object .*/([a-z0-9_]+)\.cu\.o", line):
            source = match[1]
        elif match := re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line):
            now = {"source": source, "kernel": match[1], "arch": match[2]}
        elif now and (match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                                         r"(\d+) bytes spill loads", line)):
            now.update(stack=int(match[1]), spills=int(match[2]) + int(match[3]))
        elif now and (match := re.search(r"Used (\d+) registers", line)):
            found.append({**now, "registers": int(match[1])})
            now = None
    for kernel, name in zip(found, readable([kernel["kernel"] for kernel in found])):
        kernel["kernel"] = name
    return found


def tuned(kernel):
    """Whether its speed is promised."""
    width = WIDTH.search(kernel["kernel"])
    return TUNED.search(kernel["source"]) and (not width or int(width[1]) <= 128)


def main():
    parser = argparse.ArgumentParser(description="What ptxas says of every kernel, as JSON.")
    parser.add_argument("log", help="the output of a build")
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--commit", default="")
    parser.add_argument("--strict", action="store_true")
    options = parser.parse_args()
    with open(options.log, errors="replace") as log:
        lines = log.readlines()
    kernels = kernels_of(lines)
    rows = ",\n  ".join(json.dumps(kernel) for kernel in kernels)
    head = json.dumps({"schema": 1, "suite": "ptxas", "machine": options.machine,
                       "commit": options.commit})[:-1]
    print(f'{head}, "kernels": [\n  {rows}\n]}}')
    wrong = [f"{kernel['kernel']} ({kernel['arch']}) spills {kernel['spills']} bytes"
             for kernel in kernels if kernel["spills"] and
             (HOPPER.search(kernel["source"]) or (options.strict and tuned(kernel)))]
    wrong += [line.strip() for line in lines if SERIALIZED.search(line)]
    for text in wrong:
        print(f"ptxas: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
