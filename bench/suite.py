#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Measures every speed and memory line that foci promises, one `foci bench` after the other, and
# writes bench/results/<machine>/cpu.json: what was asked, what was measured, and the JSON behind
# it. `make bench` runs it; tools/performance.py makes docs/performance.md of the results.
# The file is written after every line, so that an interruption keeps what was measured.
import argparse
import datetime
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import time

SIZES = (197, 1024, 4096)
SHARE = {("forward", False): 0.83, ("forward", True): 0.90,
         ("backward", False): 0.86, ("backward", True): 0.92}


class Line:
    """One number: from which run, how it is read off, and what it should be."""

    def __init__(self, group, name, flags, measures, bar=None, wants="at least"):
        self.group, self.name, self.flags = group, name, flags
        self.measures, self.bar, self.wants = measures, bar, wants


def share_of_sgemm(raw):
    return raw["of_sgemm"]


def faster_than(peer):
    def ratio(raw):
        return raw["peers"][peer]["seconds"] / raw["seconds"] if peer in raw["peers"] else None
    return ratio


def times_the_time(raw):
    return raw["versus"]["ratio"]


def times_as_fast(raw):
    return 1 / raw["versus"]["ratio"]


def resident(raw):
    peak = raw["peak_rss_bytes"]
    return None if peak is None else peak / 1e6


MEASURES = {share_of_sgemm: "of sgemm's rate", times_the_time: "times the time",
            times_as_fast: "times as fast", resident: "MB resident"}


def plural(threads):
    return f"{threads} thread" + ("" if threads == 1 else "s")


def shape(n, heads=8, size=64):
    return ["--shape", f"1,{heads},{n},{size}"]


def softmax_lines(cores, has):
    """Of sgemm's rate and against torch, from the same runs."""
    lines = []
    for threads in sorted({1, cores}):
        for passes in ("forward", "backward"):
            for n in SIZES:
                where = f"{passes}, N = {n}, {plural(threads)}"
                peers = ["sgemm"] * ("sgemm" in has)
                torch = "torch-sdpa" if "torch-sdpa" in has else "torch-eager"
                peers += [torch] * (torch in has)
                flags = shape(n) + ["--pass", passes, "--threads", str(threads),
                                    "--peers", ",".join(peers) or "none"]
                if "sgemm" in has:
                    bar = SHARE[passes, n >= 1024] if threads <= 2 else None
                    lines.append(Line("softmax, f32: share of sgemm", where, flags,
                                      share_of_sgemm, bar))
                if torch == "torch-sdpa" and torch in has:
                    lines.append(Line("softmax, f32: against torch's fused attention", where, flags,
                                      faster_than(torch), 1.2))
                    flags = shape(n) + ["--pass", passes, "--threads", str(threads), "--dtype",
                                        "bf16", "--peers", torch]
                    lines.append(Line("softmax, bf16: against torch's fused attention", where,
                                      flags, faster_than(torch), 1.0))
                elif torch in has:
                    lines.append(Line("softmax, f32: against torch's eager attention", where, flags,
                                      faster_than(torch), 5.0))
    return lines


def thread_lines(cores):
    lines = []
    for threads in sorted({2, cores} if cores > 1 else {}):
        for passes in ("forward", "backward"):
            for n in SIZES:
                flags = shape(n) + ["--pass", passes, "--threads", str(threads), "--versus",
                                    "threads=1", "--peers", "none"]
                lines.append(Line("softmax, f32: threads against one",
                                  f"{passes}, N = {n}, {plural(threads)}", flags, times_as_fast,
                                  1.9 if threads == 2 else None))
    return lines


def cost_lines():
    """What a mechanism or an extra costs beside the same call without it; one thread."""
    costs = (
        ("layer-change, estimate included, against dot", ["--metric", "layer-change"],
         "metric=dot", 1.03, ("forward", "backward")),
        ("key-covariance, estimate included, against dot", ["--metric", "key-covariance"],
         "metric=dot", 1.15, ("forward", "backward")),
        ("key-covariance along the prefix against causal dot",
         ["--metric", "key-covariance", "--causal"], "metric=dot", 1.7, ("forward", "backward")),
        ("row statistics", ["--stats"], "stats=false", 1.04, ("forward",)),
        ("key_bias", ["--key-bias"], "key-bias=false", 1.03, ("forward", "backward")),
    )
    lines = []
    for name, flags, versus, bar, passes in costs:
        for one in passes:
            lines.append(Line("what a metric or an extra costs", f"{name}, {one}",
                              shape(1024) + flags + ["--pass", one, "--threads", "1", "--versus",
                                                     versus, "--peers", "none"],
                              times_the_time, bar, "at most"))
    return lines


def length_lines(cores):
    long = ["--peers", "none", "--pass", "both"]
    lines = [Line("long sequences", "softmax, one head, N = 65536, both passes, memory",
                  shape(65536, 1) + long + ["--threads", str(min(cores, 16)), "--turns", "1"],
                  resident, 200, "at most")]
    for name, flags in (("linear", ["--weighting", "linear"]),
                        ("linear, causal", ["--weighting", "linear", "--causal"]),
                        ("decay", ["--weighting", "decay", "--causal"]),
                        ("decay with content", ["--weighting", "decay", "--content", "--causal"])):
        lines.append(Line("long sequences", f"{name}: N = 65536 against 4096, both passes",
                          shape(65536, 1) + flags + long + ["--threads", "1", "--versus",
                                                            "shape=1,1,4096,64"],
                          times_the_time, 17, "at most"))
        lines.append(Line("long sequences", f"{name}: one head of 65536 against 16 of 4096, both",
                          shape(65536, 1) + flags + long + ["--threads", "1", "--versus",
                                                            "shape=1,16,4096,64"],
                          times_the_time))
    return lines


def more_lines(has):
    """Without a bar: what else a reader wants to know."""
    if "sgemm" not in has:
        return []
    one = ["--threads", "1", "--peers", "sgemm"]
    lines = []
    for n in (16, 64, 128, 256):
        for size in (16, 32, 64):
            for passes in ("forward", "backward"):
                if passes == "backward" and n != 64 and size != 64:
                    continue
                lines.append(Line("small sequences: share of sgemm",
                                  f"{passes}, N = {n}, D = {size}",
                                  shape(n, 8, size) + one + ["--pass", passes, "--turns", "5"],
                                  share_of_sgemm))
    for name, flags in (("causal, forward", ["--causal"]),
                        ("causal, backward", ["--causal", "--pass", "backward"]),
                        ("bf16, forward", ["--dtype", "bf16"]),
                        ("bf16, backward", ["--dtype", "bf16", "--pass", "backward"]),
                        ("f16, forward", ["--dtype", "f16"]),
                        ("D = 128, forward", ["--shape", "1,8,1024,128"]),
                        ("relu2, forward", ["--weighting", "relu2"])):
        lines.append(Line("other calls, N = 1024: share of sgemm", name,
                          shape(1024) + flags + one + ["--turns", "5"], share_of_sgemm))
    return lines


def run(foci, flags):
    """The JSON that `foci bench` prints, or {"failed": why}."""
    done = subprocess.run([foci, "bench", *flags, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[0]
        return {"failed": said}
    return json.loads(done.stdout)


def text_of(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


class Others:
    """How many cores other programs keep busy while a measurement runs."""

    def __init__(self):
        self.begin, self.before = time.monotonic(), self.seconds()

    @staticmethod
    def seconds():
        """Of all cores, less those of the programs that this one has started and seen end."""
        with open("/proc/stat") as file:
            ticks = [int(tick) for tick in file.readline().split()[1:9]]
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = sum(ticks) - ticks[3] - ticks[4]
        return busy / os.sysconf("SC_CLK_TCK") - ours.ru_utime - ours.ru_stime

    def busy(self):
        spent = time.monotonic() - self.begin
        return max(0.0, (self.seconds() - self.before) / spent) if spent > 0.1 else 0.0


def machine_name(info):
    """"epyc-2core": a word of the processor's name and the cores."""
    model = info["machine"]["model"].lower()
    known = re.search(r"epyc|xeon|ryzen|threadripper|core|neoverse|graviton", model)
    return f"{known.group() if known else 'machine'}-{info['machine']['cores']}core"


class Results:
    def __init__(self, path, head):
        self.path, self.head, self.lines, self.runs, self.kept = path, head, [], {}, {}

    def keep(self):
        """What was measured before of the same commit on the same machine: parts add up."""
        if not os.path.exists(self.path):
            return
        with open(self.path) as file:
            before = json.load(file)
        if all(before.get(key) == self.head[key] for key in ("schema", "machine", "commit", "isa")):
            self.lines, self.kept = before["lines"], before["runs"]

    def run(self, foci, flags):
        """Runs what has not run yet."""
        command = "foci bench " + shlex.join(flags)
        if command not in self.runs:
            others = Others()
            raw = run(foci, flags)
            self.runs[command] = {**raw, "busy": round(others.busy(), 2)}
            every = [raw["busy"] for raw in self.runs.values()]
            self.head["busy"] = round(sum(every) / len(every), 2)
        return command

    def add(self, line, command):
        raw = self.runs[command]
        value = None if "failed" in raw else line.measures(raw)
        reached = None
        if line.bar is not None:
            good = value is not None and (value >= line.bar if line.wants == "at least"
                                          else value <= line.bar)
            reached = bool(good)
        self.lines = [old for old in self.lines
                      if (old["group"], old["name"]) != (line.group, line.name)]
        self.lines.append({"group": line.group, "name": line.name, "run": command,
                           "unit": MEASURES.get(line.measures, "times as fast"), "bar": line.bar,
                           "wants": line.wants, "value": value, "reached": reached,
                           "failed": raw.get("failed")})
        self.write()
        return self.lines[-1]

    def write(self):
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        rows = ",\n  ".join(json.dumps(line) for line in self.lines)
        runs = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(raw)}"
                            for name, raw in {**self.kept, **self.runs}.items())
        head = json.dumps(self.head, indent=1)[1:-2].rstrip()
        with open(self.path + ".part", "w") as file:
            file.write(f'{{{head},\n "lines": [\n  {rows}\n ],\n "runs": {{\n  {runs}\n }}\n}}\n')
        os.replace(self.path + ".part", self.path)


def row_text(line):
    if line["failed"]:
        return f"{line['group']}: {line['name']}: failed: {line['failed']}"
    value = "-" if line["value"] is None else f"{line['value']:.3f}"
    asked = "" if line["bar"] is None else f", {line['wants']} {line['bar']:g}"
    mark = {None: " ", True: "+", False: "MISSED"}[line["reached"]]
    return f"{mark:<6} {value:>8} {line['unit']}{asked}  | {line['group']}: {line['name']}"


def arguments():
    parser = argparse.ArgumentParser(description="Measures what foci promises.")
    parser.add_argument("--foci", default="build/foci", help="the command to measure")
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--results", default="bench/results", help="folder for <machine>/cpu.json")
    parser.add_argument("--commit", help="default: git describe, or what the command says")
    parser.add_argument("--only", default="",
                        help="lines whose group and name hold this regex; what was measured of the "
                        "others at this commit stays")
    parser.add_argument("--limit", type=float, default=3600, help="begin nothing after SECONDS")
    parser.add_argument("--turns", type=int, help="turns of each contestant (default: 9 or fewer)")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    return parser.parse_args()


def lines_for(cores, has, only):
    lines = softmax_lines(cores, has) + cost_lines() + thread_lines(cores)
    lines += length_lines(cores) + more_lines(has)
    return [line for line in lines if re.search(only, f"{line.group}: {line.name}")]


def main():
    options = arguments()
    begin = time.monotonic()
    info = json.loads(text_of(options.foci, "info", "--json") or sys.exit("suite: no " +
                                                                           options.foci))
    found = run(options.foci, ["--shape", "1,1,16,16", "--turns", "1"])
    if "failed" in found:
        sys.exit("suite: " + found["failed"])
    for name, why in found["absent_peers"].items():
        print(f"without {name}: {why}")
    cores = info["machine"]["cores"]
    lines = lines_for(cores, set(found["peers"]), options.only)
    commands = [line.flags + (["--turns", str(options.turns)] if options.turns else [])
                for line in lines]
    if options.list:
        print("\n".join(dict.fromkeys("foci bench " + shlex.join(flags) for flags in commands)))
        return 0
    machine = options.machine or machine_name(info)
    commit = options.commit or text_of("git", "describe", "--always", "--dirty", "--tags")
    peers = {name: peer["what"] for name, peer in found["peers"].items()}
    head = {"schema": 1, "suite": "cpu", "machine": machine, "processor": found["machine"],
            "isas": info["isas"], "isa": ", ".join(dict.fromkeys(info["isa"].values())),
            "peers": peers, "commit": commit or info["commit"],
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
            "busy": 0.0}
    results = Results(os.path.join(options.results, machine, "cpu.json"), head)
    if options.only:
        results.keep()
    skipped = 0
    for line, flags in zip(lines, commands):
        command = "foci bench " + shlex.join(flags)
        if command not in results.runs and time.monotonic() - begin > options.limit:
            skipped += 1
            continue
        print(row_text(results.add(line, results.run(options.foci, flags))), flush=True)
    if head["busy"] > 0.3:
        print(f"the machine was busy ({head['busy']:g} cores): these numbers are not fair")
    barred = [line for line in results.lines if line["bar"] is not None]
    reached = sum(line["reached"] for line in barred)
    print(f"{reached} of {len(barred)} lines with a bar reached, {len(results.lines)} lines in "
          f"{time.monotonic() - begin:.0f} s, {skipped} left out: {results.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
