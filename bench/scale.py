#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# bench/scale.py [--write docs/scale.md]: what training over long sequences and many GPUs would cost
# by a model of FLOPs, bytes and network, and a simulation of the ring, event by event, that the
# model is checked against. Prints the tables of docs/scale.md, or writes them into it.
import argparse
import heapq
import sys

# A GPU and its network, as makers and papers state them; what is reached of a peak is ours on one
# H200 (docs/performance.md), rounded down.
GPU = {"flops": 989e12, "reached": 0.5, "memory": 141e9}
LINKS = {"NVLink": 450e9, "400 Gb/s": 50e9, "100 Gb/s": 12.5e9}
LATENCY = 10e-6
HEADS, SIZE, LAYERS, WIDTH = 12, 64, 12, 768  # GPT-2's
BYTES = 2  # bf16
BUCKET = 25 * 2**20
OVER = 1.02  # a simulation may be this much above the model


def parameters():
    return LAYERS * 12 * WIDTH**2 + 50257 * WIDTH


# ---- the model


def attention_flops(queries, keys, causal):
    """Forward and backward of a layer: 4 and 2.5 times that, N M D a head."""
    return 3.5 * 4 * HEADS * queries * keys * SIZE * (0.5 if causal else 1)


def other_flops(tokens):
    """Forward and backward of the products with weights, a layer."""
    return 3 * 2 * 12 * WIDTH**2 * tokens


def block_bytes(tokens):
    """Keys, values and a bias a head; on the way back their gradients too."""
    return HEADS * tokens * (2 * SIZE + 1) * BYTES


def ring(tokens, ranks, rate, link, causal):
    """A layer's seconds, forward and backward, of the slowest rank. Forward hides the way of a
    block behind the work on the one before; backward sends gradients when they are made."""
    own = tokens / ranks
    work = attention_flops(own, own, False) / rate
    forward, backward = work / 3.5, work * 2.5 / 3.5
    hop = LATENCY + block_bytes(own) / link
    both = LATENCY + 2 * block_bytes(own) / link
    ways = ranks - 1
    # The last rank of a causal ring works on every block, as all do without.
    seconds = forward + ways * max(forward, hop) + ranks * backward + ranks * both * (ranks > 1)
    return seconds, work * (ranks + 1) / 2 if causal else work * ranks


def memory(tokens, ranks, jacobian=False):
    """Bytes a rank and layer of a call: q, k, v, o, their gradients, two blocks on their way, a
    tile of 128 queries; jacobian's D x E a token in f64."""
    own = tokens / ranks
    held = HEADS * own * SIZE * 4 * 2 * BYTES + 4 * block_bytes(own) + 3 * HEADS * 128 * own * 4
    return held + (HEADS * own * SIZE * SIZE * 8 if jacobian else 0)


def all_reduce(size, ranks, link):
    """A ring's two rounds over each bucket."""
    buckets = -(-size // BUCKET)
    return 2 * (ranks - 1) / ranks * size / link + buckets * 2 * (ranks - 1) * LATENCY


# ---- the simulation


def simulate(tokens, ranks, rate, link, causal, backward):
    """Seconds until the last rank has worked on every block, message by message: a block arrives,
    is worked on once the one before is done, and is sent on when its turn begins (forward) or when
    its gradients are made (backward); a link carries one message at a time."""
    own = tokens / ranks
    work = attention_flops(own, own, False) / rate * (2.5 if backward else 1) / 3.5
    way = (2 if backward else 1) * block_bytes(own) / link
    free, link_free, done_turns, here = [0.0] * ranks, [0.0] * ranks, [0] * ranks, {}
    events = [(0.0, rank, 0) for rank in range(ranks)]
    heapq.heapify(events)
    last = 0.0
    while events:
        now, rank, turn = heapq.heappop(events)
        here[rank, turn] = now
        while (rank, done_turns[rank]) in here:
            turn = done_turns[rank]
            begin = max(here[rank, turn], free[rank])
            seen = not causal or (rank - turn) % ranks <= rank
            end = begin + (work if seen else 0)
            free[rank] = end
            done_turns[rank] += 1
            last = max(last, end)
            goes_on = turn + 1 < ranks or (backward and ranks > 1)
            if not goes_on:
                continue
            leaves = max(end if backward else begin, link_free[rank])
            arrives = leaves + way
            link_free[rank] = arrives
            arrives += LATENCY
            if turn + 1 < ranks:
                heapq.heappush(events, (arrives, (rank + 1) % ranks, turn + 1))
            last = max(last, arrives)
    return last


def compared(tokens, ranks, rate, link, causal):
    """The model's seconds and the simulation's, forward and backward."""
    said, _ = ring(tokens, ranks, rate, link, causal)
    found = sum(simulate(tokens, ranks, rate, link, causal, backward) for backward in (False, True))
    return said, found


# ---- the tables


def seconds_text(x):
    return f"{1000 * x:.1f} ms" if x < 1 else f"{x:.2f} s"


def check_table():
    rate = GPU["flops"] * GPU["reached"]
    rows = ["| tokens | ranks | link | model | simulation | off |", "|---|---|---|---|---|---|"]
    worst = 0.0
    for tokens, ranks in ((65536, 4), (262144, 8), (1048576, 8), (1048576, 64), (1048576, 250),
                          (1048576, 1000)):
        for name, link in LINKS.items():
            if ranks > 100 and name != "400 Gb/s":  # a million messages each
                continue
            said, found = compared(tokens, ranks, rate, link, False)
            off = found / said - 1
            worst = max(worst, abs(off))
            if ranks <= 100:
                causal_said, causal_found = compared(tokens, ranks, rate, link, True)
                worst = max(worst, causal_found / causal_said - 1)
            rows.append(f"| {tokens:,} | {ranks} | {name} | {seconds_text(said)} | "
                        f"{seconds_text(found)} | {100 * abs(off):.1f} % |")
    return rows, worst


def million_table():
    rate = GPU["flops"] * GPU["reached"]
    rows = ["| ranks | tokens a rank | link | attention, a step | of it work | other products | "
            "memory a layer | with jacobian |", "|---|---|---|---|---|---|---|---|"]
    for ranks in (8, 64, 250, 1000):
        for name, link in LINKS.items():
            tokens = 2**20
            layer, _ = ring(tokens, ranks, rate, link, False)
            work = attention_flops(tokens / ranks, tokens, False) / rate
            rest = LAYERS * other_flops(tokens / ranks) / rate
            rows.append(f"| {ranks} | {tokens // ranks:,} | {name} | "
                        f"{seconds_text(LAYERS * layer)} | {100 * work / layer:.0f} % | "
                        f"{seconds_text(rest)} | {memory(tokens, ranks) / 1e9:.2f} GB | "
                        f"{memory(tokens, ranks, True) / 1e9:.2f} GB |")
    return rows


def reduce_table():
    rows = ["| ranks | link | all-reduce of the gradients | "
            "samples of 1,024 tokens a rank that hide it |", "|---|---|---|---|"]
    rate = GPU["flops"] * GPU["reached"]
    backward = LAYERS * (other_flops(1024) * 2 / 3 + attention_flops(1024, 1024, True) * 2.5 / 3.5)
    for ranks in (8, 64, 1000):
        for name, link in LINKS.items():
            spent = all_reduce(4 * parameters(), ranks, link)
            rows.append(f"| {ranks} | {name} | {seconds_text(spent)} | "
                        f"{spent / (backward / rate):.0f} |")
    return rows


def main():
    parser = argparse.ArgumentParser(description="The cost of many GPUs, modelled and simulated.")
    parser.add_argument("--write", help="the page whose tables are replaced")
    parser.add_argument("--check", help="the page whose tables must be these")
    options = parser.parse_args()
    checked, worst = check_table()
    tables = {"ring": checked, "million": million_table(), "reduce": reduce_table()}
    if worst > OVER - 1:
        sys.exit(f"the simulation is {100 * worst:.1f} % off the model")
    if not options.write and not options.check:
        print("\n\n".join("\n".join(rows) for rows in tables.values()))
        return
    path = options.write or options.check
    with open(path, encoding="utf-8") as file:
        before = page = file.read()
    for name, rows in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        first, last = page.index(begin) + len(begin), page.index(end)
        page = page[:first] + "\n".join(rows) + "\n" + page[last:]
    if options.check:
        sys.exit(0 if page == before else f"{path}: python3 bench/scale.py --write {path}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


if __name__ == "__main__":
    main()
