#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/counters.py [--results DIR] [--machine NAME] [--commit NAME] [--only REGEX]: what Nsight
# Compute's counters say of the kernels behind bench/gpu.py's lines, one call each, clocks left as
# they are. Runs itself again under ncu (`--inside`), where a kernel of torch's stands between two
# lines. Writes <results>/<machine>/counters.json; tools/performance.py makes a table of it.
import argparse
import csv
import datetime
import io
import json
import os
import re
import subprocess
import sys

# Of a word the first counter that this chip has.
COUNTERS = {
    "us": ["gpu__time_duration.sum"],
    "tensor": ["sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
               "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
               "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"],
    "exp": ["sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"],
    "fma": ["sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active",
            "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"],
    "issue": ["sm__inst_issued.avg.pct_of_peak_sustained_active",
              "sm__inst_issued.avg.pct_of_peak_sustained_elapsed",
              "smsp__issue_active.avg.pct_of_peak_sustained_active",
              "sm__instruction_throughput.avg.pct_of_peak_sustained_active"],
    "l1": ["l1tex__throughput.avg.pct_of_peak_sustained_active",
           "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed"],
    "l2": ["lts__throughput.avg.pct_of_peak_sustained_elapsed"],
    "dram": ["dram__throughput.avg.pct_of_peak_sustained_elapsed",
             "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"],
    "warps": ["sm__warps_active.avg.pct_of_peak_sustained_active"],
}
SECTIONS = ["SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "Occupancy"]
UNITS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}
MARK = "spin_kernel"  # torch.cuda._sleep
LONG, WIDE = (4, 16, 4096, 64), (4, 16, 4096, 128)
LINES = [
    ("dot", LONG, {}), ("dot", WIDE, {}),
    ("layer-change", (16, 16, 1024, 64), {"metric": "layer-change"}),
    ("layer-change", LONG, {"metric": "layer-change"}),
    ("layer-change", WIDE, {"metric": "layer-change"}),
    ("layer-change", (256, 3, 197, 64), {"metric": "layer-change"}),
    ("layer-change along the prefix", (96, 8, 256, 16),
     {"metric": "layer-change", "is_causal": True}),
    ("key-covariance", LONG, {"metric": "key-covariance", "prior": 64.0}),
    ("key-covariance", WIDE, {"metric": "key-covariance", "prior": 128.0}),
    ("key-covariance along the prefix", LONG, {"metric": "key-covariance", "is_causal": True}),
    ("key-covariance along the prefix", WIDE, {"metric": "key-covariance", "is_causal": True}),
    ("relu2", LONG, {"weighting": "relu2"}),
]


def lines_of(only):
    return [line for line in LINES if re.search(only, f"{line[0]} {line[1]}")]


def run_inside(only):
    """Under ncu: every line once warm, then once between two marks, both ways."""
    import foci
    import torch

    for _, shape, how in lines_of(only):
        source = torch.Generator("cuda").manual_seed(0)
        q, k, v, v_prev = (torch.randn(shape, generator=source, device="cuda",
                                       dtype=torch.bfloat16) for _ in range(4))
        leaves = [x.requires_grad_() for x in (q, k, v)]
        below = v_prev if how.get("metric") == "layer-change" else None
        for turn in range(2):
            if turn == 1:
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                torch.cuda._sleep(1)
            o = foci.attend(*leaves, v_prev=below, **how)
            if turn == 1:
                torch.cuda._sleep(1)
            o.backward(q.detach())
        torch.cuda._sleep(1)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
    return 0


def rows_of(text):
    """ncu's table, a dictionary a kernel: its first line after the names has the units."""
    begin = text.index('"ID"')
    table = list(csv.DictReader(io.StringIO(text[begin:])))
    units = table[0]
    for row in table[1:]:
        name = re.sub(r"(\(anonymous namespace\)|<unnamed>)::", "", row["Kernel Name"])
        found = {"name": re.split(r"[<(]", name)[0].split("::")[-1].split(" ")[-1]}
        for name, counters in COUNTERS.items():
            counter = next((x for x in counters if row.get(x, "n/a") not in ("", "n/a")), None)
            if counter is None:
                continue
            found[name] = float(row[counter].replace(",", ""))
            if name == "us":
                found[name] *= UNITS[units[counter]]
        yield found


def parts_of(rows):
    """The kernels between marks."""
    parts = []
    for row in rows:
        if MARK in row["name"]:
            parts.append([])
        elif parts:
            parts[-1].append(row)
    return parts


def parse(text, only, commit):
    parts, found = parts_of(rows_of(text)), []
    for index, (name, shape, _) in enumerate(lines_of(only)):
        for half, word in enumerate(("forward", "backward")):
            at = 3 * index + half  # the third mark ends the line
            kernels = parts[at] if at < len(parts) else []
            found.append({"name": name, "shape": list(shape), "pass": word, "commit": commit,
                          "us": sum(kernel.get("us", 0) for kernel in kernels),
                          "kernels": kernels})
    return found


def kept(path, result):
    """Lines of earlier runs that this one did not measure again."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        before = json.load(file)
    again = {(line["name"], tuple(line["shape"])) for line in result["lines"]}
    return [{"commit": before["commit"], **line} for line in before["lines"]
            if (line["name"], tuple(line["shape"])) not in again]


def main():
    parser = argparse.ArgumentParser(description="Reads counters of the CUDA backend's kernels.")
    parser.add_argument("--results", default="bench/results")
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--commit", help="default: git describe")
    parser.add_argument("--only", default="",
                        help="lines whose name and shape hold this regex; others are kept")
    parser.add_argument("--inside", action="store_true", help="what runs under ncu")
    options = parser.parse_args()
    if options.inside:
        return run_inside(options.only)
    sections = [word for section in SECTIONS for word in ("--section", section)]
    ran = subprocess.run(
        ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
         *sections, sys.executable, __file__, "--inside", "--only", options.only],
        capture_output=True, text=True)
    if os.environ.get("OUT"):
        with open(os.path.join(os.environ["OUT"], "ncu.csv"), "w") as file:
            file.write(ran.stdout)
    folder = os.path.join(options.results, options.machine)
    os.makedirs(folder, exist_ok=True)
    if ran.returncode or '"ID"' not in ran.stdout:
        sys.exit(f"counters: ncu ended with {ran.returncode}: {(ran.stdout + ran.stderr)[-2000:]}")
    commit = options.commit or subprocess.run(["git", "describe", "--always", "--dirty"],
                                              capture_output=True, text=True).stdout.strip()
    version = subprocess.run(["ncu", "--version"], capture_output=True, text=True).stdout
    result = {"schema": 1, "suite": "counters", "machine": options.machine, "commit": commit,
              "ncu": version.strip().splitlines()[-1].split(" ")[1],
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
              "counters": COUNTERS,
              "lines": parse(ran.stdout, options.only, commit)}
    path = os.path.join(folder, "counters.json")
    result["lines"] = kept(path, result) + result["lines"]
    with open(path, "w") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    for line in result["lines"]:
        print(f"{line['name']} {line['shape']} {line['pass']}: {line['us']:.0f} us")
        for kernel in sorted(line["kernels"], key=lambda x: -x.get("us", 0))[:5]:
            print("   ", " ".join(f"{name} {value:.0f}" if name != "name" else f"{value:34s}"
                                  for name, value in kernel.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
