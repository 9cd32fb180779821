#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/soak.py [--minutes 10] [--processes 1,2]: trains a tiny model on made images, kills it at
# random moments (kill -9; SIGTERM one time in six), takes it up again, until it ends; then another
# run. With two processes they are started by `foci launch`, and a random rank is the victim. After
# every death: no checkpoint that was whole is gone, the last one and the curve up to it are those
# of a run that nobody disturbed, to the bit. At the end of a run: all of the curve and the weights,
# and no file more. What it counted goes into bench/results/<machine>/reliability.json.
import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import reliability

STEPS = 120
LONGER = 1200  # for what a process uses
MODEL = ["--dim", "16", "--depth", "2", "--heads", "2", "--patch", "14", "--metric", "layer-change",
         "--batch", "20", "--steps", str(STEPS), "--save-every", "3", "--evaluate-every", "40",
         "--ema", "0.9", "--drop-path", "0.2", "--augment", "deit", "--mixup", "0.8",
         "--accumulate", "2", "--clip", "1", "--seed", "5", "--workers", "2", "--threads", "1",
         "--quiet", "--resume"]
TOGETHER = ["--drop-path", "0"]  # its draws hang on the number of processes
PATIENCE = 60  # seconds in which all of a job must have ended
LAST = "training.safetensors"


class Lost(Exception):
    """What was saved is not there, or not what it was."""


def command_of(options, processes, run):
    train = ["train", "images", "--data", options.data, "--run", run, *MODEL]
    if processes == 1:
        return [options.foci, *train]
    return [options.foci, "launch", "-n", str(processes), "--", *train, *TOGETHER]


def lines_of(run):
    """Whole lines of the curve, without what no two runs share."""
    path = os.path.join(run, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        text = file.read()
    lines = [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]
    for line in lines:
        for name in ("time", "per_second", "memory"):
            line.pop(name, None)
    return lines


def saved_steps(run):
    """Whole checkpoints."""
    folder = os.path.join(run, "checkpoints")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(name[len("step-"):]) for name in names
                  if os.path.exists(os.path.join(folder, name, LAST)))


def bytes_of(run, step):
    folder = os.path.join(run, "checkpoints", f"step-{step}")
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            found[name] = file.read()
    return found


def files_in(run):
    return sorted(os.path.relpath(os.path.join(at, name), run)
                  for at, _, names in os.walk(run) for name in names)


def children_of(process):
    try:
        with open(f"/proc/{process}/task/{process}/children", encoding="utf-8") as file:
            return list(map(int, file.read().split()))
    except OSError:
        return []


def usage_of(process):
    """Resident MiB and open files; nothing of one that has ended."""
    try:
        with open(f"/proc/{process}/statm", encoding="utf-8") as file:
            resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2 ** 20
        return resident, len(os.listdir(f"/proc/{process}/fd"))
    except (OSError, IndexError):
        return None


class Soak:
    """Rounds of one number of processes, in one folder."""

    def __init__(self, options, processes, room):
        self.options, self.processes = options, processes
        self.whole, self.run = (os.path.join(room, f"{name}-{processes}")
                                for name in ("whole", "run"))
        self.random = random.Random(options.seed + processes)
        self.before = -1  # the last checkpoint that was seen whole
        self.count = {"deaths": 0, "terms": 0, "at_once": 0, "runs": 0, "saved_checked": 0,
                      "steps_done_again": 0, "longest_end_seconds": 0.0}

    def start(self, run, *more):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with open(run + ".log", "ab") as log:
            return subprocess.Popen([*command_of(self.options, self.processes, run), *more],
                                    stdout=log, stderr=log, env=environment)

    def undisturbed(self):
        """The run that others are held against: a checkpoint after every step, and all of them
        stay, for SIGTERM may save at any step."""
        status = self.start(self.whole, "--save-every", "1", "--keep", str(STEPS)).wait()
        if status != 0:
            raise Lost(f"the undisturbed run ended with {status}")

    def used(self):
        """What a process of a longer run has in its second quarter and in its last, the medians:
        while it saves it has more."""
        run = self.run + "-longer"
        child, seen = self.start(run, "--steps", str(LONGER)), []
        while child.poll() is None:
            time.sleep(0.2)
            ranks = children_of(child.pid) if self.processes > 1 else [child.pid]
            used = usage_of(ranks[0]) if ranks else None
            if used:
                seen.append((len(lines_of(run)), *used))
        if child.returncode != 0:
            raise Lost(f"a longer run ended with {child.returncode}")
        shutil.rmtree(run)
        early = [one for one in seen if LONGER // 4 <= one[0] < LONGER // 2]
        late = [one for one in seen if one[0] >= 3 * LONGER // 4]
        if not early or not late:
            return {}
        return {"steps": LONGER,
                "early_mebibytes": round(statistics.median(one[1] for one in early), 1),
                "late_mebibytes": round(statistics.median(one[1] for one in late), 1),
                "early_files": statistics.median_low(one[2] for one in early),
                "late_files": statistics.median_low(one[2] for one in late)}

    def wait_for_moment(self, child):
        """Some die before they have done anything, the others a few steps later."""
        if self.random.random() < 0.2:
            time.sleep(self.random.uniform(0, 1.5))
            self.count["at_once"] += 1
            return
        wanted = max(self.before, 0) + self.random.randint(1, 16)
        while child.poll() is None and len(lines_of(self.run)) < wanted:
            time.sleep(0.005)
        time.sleep(self.random.uniform(0, 0.08))

    def end(self, child):
        """Kills one, waits for all."""
        said = signal.SIGTERM if self.random.random() < 1 / 6 else signal.SIGKILL
        ranks = children_of(child.pid) if self.processes > 1 else []
        victim = self.random.choice(ranks) if ranks else child.pid
        if child.poll() is not None:
            return child.returncode
        try:
            os.kill(victim, said)
        except ProcessLookupError:
            pass
        began = time.monotonic()
        try:
            status = child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise Lost(f"not ended {PATIENCE} s after a rank was killed") from None
        took = time.monotonic() - began
        self.count["longest_end_seconds"] = max(self.count["longest_end_seconds"], round(took, 1))
        self.count["deaths"] += said == signal.SIGKILL
        self.count["terms"] += said == signal.SIGTERM
        return status

    def check(self):
        """What was saved is there, and is what the undisturbed run had."""
        saved = saved_steps(self.run)
        last = saved[-1] if saved else -1
        if last < self.before:
            raise Lost(f"step {self.before} was saved; the last checkpoint is {last}")
        if last >= 0:
            if bytes_of(self.run, last) != bytes_of(self.whole, last):
                raise Lost(f"the checkpoint of step {last} is another than the undisturbed one")
            self.count["saved_checked"] += 1
        lines = lines_of(self.run)
        whole = lines_of(self.whole)
        if lines != whole[:len(lines)] or len(lines) < last:
            raise Lost(f"the curve up to step {len(lines)} is another than the undisturbed one")
        self.count["steps_done_again"] += len(lines) - max(last, 0)
        self.before = last

    def finished(self):
        """The end of a run: everything, and nothing beside it."""
        if saved_steps(self.run)[-1] != STEPS or lines_of(self.run) != lines_of(self.whole):
            raise Lost("the run ended with another curve than the undisturbed one")
        strays = [name for name in files_in(self.run) if name.endswith(".part")]
        kept = saved_steps(self.run)
        if strays or len(kept) > 2:
            raise Lost(f"left behind: {strays or kept}")
        self.count["runs"] += 1
        shutil.rmtree(self.run)
        os.remove(self.run + ".log")
        self.before = -1

    def round(self):
        child = self.start(self.run)
        self.wait_for_moment(child)
        status = self.end(child)
        self.check()
        if status == 0 and saved_steps(self.run)[-1:] == [STEPS]:
            self.finished()


def add(path, options, soak, used, seconds, failure):
    with reliability.figures(path) as figures:
        one = reliability.entry(figures["soak"], processes=soak.processes,
                                commit=options.commit or reliability.commit())
        for name, value in soak.count.items():
            both = (one.get(name, 0), value)
            one[name] = max(both) if name == "longest_end_seconds" else sum(both)
        one["seconds"] = round(one.get("seconds", 0) + seconds, 1)
        one["used"] = used or one.get("used", {})
        one.setdefault("failures", [])
        if failure:
            one["failures"].append(failure)
        one["date"] = reliability.today()
        soak.count = {name: 0.0 if name == "longest_end_seconds" else 0 for name in soak.count}
        return one


def main():
    parser = argparse.ArgumentParser(description="Kills training and looks at what is left.")
    parser.add_argument("--foci", default="build/foci")
    parser.add_argument("--minutes", type=float, default=10, help="for each number of processes")
    parser.add_argument("--rounds", type=int, default=10 ** 9, help="at most so many of each")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    reliability.add_flags(parser)
    options = parser.parse_args()
    options.foci = os.path.abspath(options.foci)
    path, failed = reliability.path_of(options), False
    room = tempfile.mkdtemp(prefix="foci-soak-")
    options.data = os.path.join(room, "images")
    subprocess.run([options.foci, "data", "make", "images", "--out", options.data, "--count", "240",
                    "--seed", "1"], check=True, capture_output=True)
    for processes in map(int, options.processes.split(",")):
        soak, began, failure, used = Soak(options, processes, room), time.monotonic(), None, {}
        try:
            soak.undisturbed()
            used = soak.used()
            rounds = 0
            while rounds < options.rounds and time.monotonic() - began < 60 * options.minutes:
                soak.round()
                rounds += 1
        except Lost as lost:
            failure, failed = str(lost), True
        one = add(path, options, soak, used, time.monotonic() - began, failure)
        print(f"{processes}: {json.dumps(one)}", flush=True)
    if failed:
        print(f"soak: what is left of it is in {room}", file=sys.stderr)
        return 1
    shutil.rmtree(room)
    return 0


if __name__ == "__main__":
    sys.exit(main())
