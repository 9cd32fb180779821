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
GPU = {"flops": 989e12, "flops64": 67e12, "reached": 0.5, "memory": 141e9}
LINKS = {"NVLink": 450e9, "400 Gb/s": 50e9, "100 Gb/s": 12.5e9}
LATENCY = 10e-6
HEADS, SIZE, LAYERS, WIDTH = 12, 64, 12, 768  # GPT-2's
BYTES = 2  # bf16
BUCKET = 25 * 2**20
TILE = 128  # queries at a time
PERIOD = 64  # key-covariance along the prefix: keys between two estimates, and so a tile's queries
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
    # The last rank of a causal ring works on every block, as all do without.
    seconds = rounds(ranks, forward, hop) + ranks * (backward + both * (ranks > 1))
    return seconds, work * (ranks + 1) / 2 if causal else work * ranks


def rounds(ranks, work, hop):
    """A ring that hides the way of a block behind the work on the one before."""
    return work + (ranks - 1) * max(work, hop)


def jacobian_turns(tokens, ranks, link):
    """Work and way of a turn in the two rings before jacobian's attention, forward alone, in f64:
    attention to keys and values at once, then the products k v' of every key, which each tile of
    queries makes anew and multiplies with its weights."""
    own, rate = tokens / ranks, GPU["flops64"] * GPU["reached"]
    pairs = HEADS * own * own
    seen = (2 * SIZE + 2 * 2 * SIZE) * pairs / rate
    products = (2 * SIZE + 2 * SIZE**2 + SIZE**2 / TILE) * pairs / rate
    return ((seen, HEADS * own * (3 * SIZE + 1) * 8 / link),
            (products, HEADS * own * (2 * SIZE + 1) * 8 / link))


def jacobian(tokens, ranks, link):
    """Seconds a layer beyond those of dot."""
    return sum(rounds(ranks, work, LATENCY + way)
               for work, way in jacobian_turns(tokens, ranks, link))


def prefix_covariance(tokens, ranks, rate, link):
    """Seconds a layer of key-covariance along the prefix: each tile multiplies all keys by its own
    P, 2 D D a key, on the way back once more and for P's gradient."""
    own = tokens / ranks
    forward = attention_flops(own, own, False) / 3.5 / rate
    more = HEADS * (own / PERIOD) * 2 * own * SIZE**2 / rate
    hop, both = (LATENCY + times * block_bytes(own) / link for times in (1, 2))
    backward = 2.5 * forward + 2 * more
    return rounds(ranks, forward + more, hop) + ranks * (backward + both * (ranks > 1))


def memory(tokens, ranks, jacobian=False):
    """Bytes a rank and layer of a call: q, k, v, o, their gradients, two blocks on their way, a
    tile of 128 queries; jacobian's D x E a token in f64."""
    own = tokens / ranks
    held = HEADS * own * SIZE * 4 * 2 * BYTES + 4 * block_bytes(own) + 3 * HEADS * TILE * own * 4
    return held + (HEADS * own * SIZE * SIZE * 8 if jacobian else 0)


def all_reduce(size, ranks, link):
    """A ring's two rounds over each bucket."""
    buckets = -(-size // BUCKET)
    return 2 * (ranks - 1) / ranks * size / link + buckets * 2 * (ranks - 1) * LATENCY


# ---- the simulation


def simulate(ranks, work, way, causal, backward):
    """Seconds until the last rank has worked on every block, message by message: a block arrives,
    is worked on once the one before is done, and is sent on when its turn begins (forward) or when
    its gradients are made (backward); a link carries one message at a time."""
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
    own = tokens / ranks
    work, way = attention_flops(own, own, False) / rate / 3.5, block_bytes(own) / link
    found = simulate(ranks, work, way, causal, False)
    return said, found + simulate(ranks, 2.5 * work, 2 * way, causal, True)


def compared_jacobian(tokens, ranks, link):
    return jacobian(tokens, ranks, link), sum(simulate(ranks, work, way, False, False)
                                              for work, way in jacobian_turns(tokens, ranks, link))


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
                jacobian_said, jacobian_found = compared_jacobian(tokens, ranks, link)
                worst = max(worst, abs(jacobian_found / jacobian_said - 1))
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


def metrics_table():
    rate = GPU["flops"] * GPU["reached"]
    rows = ["| ranks | link | dot | key-covariance, prefix | jacobian |", "|---|---|---|---|---|"]
    for ranks in (8, 64, 1000):
        for name, link in LINKS.items():
            tokens = 2**20
            dot, _ = ring(tokens, ranks, rate, link, False)
            prefix = prefix_covariance(tokens, ranks, rate, link)
            more = jacobian(tokens, ranks, link)
            rows.append(f"| {ranks} | {name} | " +
                        " | ".join(seconds_text(LAYERS * layer)
                                   for layer in (dot, prefix, dot + more)) + " |")
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
    tables = {"ring": checked, "million": million_table(), "metrics": metrics_table(),
              "reduce": reduce_table()}
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
