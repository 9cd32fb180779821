#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/dist.py [--turns 5]: weak scaling of `foci train` from one process to two, a thread each and
# as many images a process, in turns; and a step whose gradients travel while backward goes on, as a
# picture. Writes bench/results/<machine>/dist.json and, with --picture, docs/overlap.svg.
# Quiet machines only: two processes need two cores that nobody else wants.
import argparse
import datetime
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

from suite import machine_name

EACH = 128  # images a process and step
MODEL = ["--image", "28", "--patch", "4", "--dim", "192", "--depth", "4", "--heads", "3",
         "--metric", "layer-change", "--metric-layers", "1:", "--augment", "none", "--threads",
         "1"]


def spent():
    """User seconds of ended children."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime


def train(options, processes, data, folder):
    """Images a second of a run, and its processors' seconds a step."""
    shutil.rmtree(folder, ignore_errors=True)
    before = spent()
    command = [options.foci, "launch", "-n", str(processes), "--", "train", "images",
               "--data", data, "--run", folder, "--batch", str(EACH * processes),
               "--steps", str(options.steps), "--json", *MODEL]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return {"images_per_second": json.loads(done.stdout)["images_per_second"],
            "user_seconds": spent() - before}


def weak_scaling(options, room):
    data = os.path.join(room, "images")
    subprocess.run([options.foci, "data", "make", "images", "--out", data, "--count", "2048",
                    "--seed", "1"], check=True, capture_output=True)
    turns = {1: [], 2: []}
    for _ in range(options.turns):
        for processes, seen in turns.items():
            seen.append(train(options, processes, data, os.path.join(room, "run")))
            print(f"{processes}: {seen[-1]['images_per_second']:.0f} images/s, "
                  f"{seen[-1]['user_seconds']:.1f} s of processors", flush=True)
    best = {k: max(turn["images_per_second"] for turn in seen) for k, seen in turns.items()}
    return {"images_a_process": EACH, "steps": options.steps, "model": " ".join(MODEL),
            "turns": {str(k): seen for k, seen in turns.items()}, "best": best,
            "times": best[2] / best[1],
            "median_times": statistics.median(t["images_per_second"] for t in turns[2]) /
            statistics.median(t["images_per_second"] for t in turns[1])}


def free_port():
    with socket.socket() as at:
        at.bind(("127.0.0.1", 0))
        return at.getsockname()[1]


def overlap(options):
    port = str(free_port())
    ranks = [subprocess.Popen([options.overlap], stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                                   "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                                   "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                                   "OPENBLAS_NUM_THREADS": "1"}) for rank in range(2)]
    texts = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("overlap failed")
    return json.loads(texts[0])


def picture(step):
    """Backward as a bar, below it each bucket's way."""
    left, wide, high = 150, 640, 18
    top = 34
    whole = step["whole"]
    rows = [("backward", 0, step["backward"], "#4269d0")]
    for number, bucket in enumerate(step["buckets"]):
        rows.append((f"bucket {number}, {bucket['bytes'] / 2**20:.1f} MiB", bucket["begun"],
                     bucket["done"], "#ff725c"))
    height = top + len(rows) * (high + 6) + 34
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + wide + 20} {height}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{left + wide + 20}" height="{height}" fill="white"/>',
           f'<text x="{left}" y="18">One step of rank 0 of {step["ranks"]}: gradients are summed '
           'while backward goes on</text>']
    for row, (name, begin, end, colour) in enumerate(rows):
        y = top + row * (high + 6)
        x, width = left + begin / whole * wide, max((end - begin) / whole * wide, 1)
        out.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        out.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{high}" '
                   f'fill="{colour}"/>')
    y = top + len(rows) * (high + 6) + 14
    for part in range(5):
        x = left + part / 4 * wide
        out.append(f'<text x="{x:.0f}" y="{y}" text-anchor="middle">'
                   f'{1000 * whole * part / 4:.0f} ms</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Weak scaling, and sums during backward.")
    parser.add_argument("--foci", default="build/foci")
    parser.add_argument("--overlap", default="build/bench/overlap")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--machine", help="what to call this machine (default: from its processor)")
    parser.add_argument("--results", default="bench/results")
    parser.add_argument("--picture", help="an SVG of the step")
    options = parser.parse_args()
    begin = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as room:
        scaling = weak_scaling(options, room)
    step = overlap(options)
    info = json.loads(subprocess.run([options.foci, "info", "--json"], check=True,
                                     capture_output=True, text=True).stdout)
    result = {"suite": "dist", "machine": options.machine or machine_name(info),
              "processor": info["machine"]["model"], "commit": info["commit"],
              "date": datetime.date.today().isoformat(), "load_before": begin,
              "weak_scaling": scaling, "overlap": step}
    path = os.path.join(options.results, result["machine"], "dist.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    os.replace(path + ".part", path)
    if options.picture:
        with open(options.picture, "w", encoding="utf-8") as file:
            file.write(picture(step))
    print(f"1 to 2 processes: {scaling['times']:.2f} times; a step {1000 * step['whole']:.1f} ms, "
          f"summed afterwards {1000 * step['afterwards']:.1f} ms; {path}")


if __name__ == "__main__":
    main()
