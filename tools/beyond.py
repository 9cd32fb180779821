# SPDX-License-Identifier: Apache-2.0
# What is asked of the GPU beyond the bars of its lines, mostly beside cuDNN's plain attention: a
# table for tools/performance.py, made of a gpu.json alone.


def lines_like(result, name, both=False, causal=None, width=None, least=1, most=1 << 30):
    return [line for line in result["lines"]
            if line["name"] == name and (line["pass"] == "both") == both and
            causal in (None, line["causal"]) and width in (None, line["shape"][3]) and
            least <= line["shape"][2] <= most]


# What is asked beyond the bars of the tables: words, lines, a peer of theirs, times its speed.
BEYOND = [
    ("dot forward, D = 128, N from 4096 on", {"name": "dot", "width": 128, "least": 4096}, "cudnn",
     1.08),
    ("the same, causal", {"name": "dot, causal", "width": 128, "least": 4096}, "cudnn", 1.15),
    ("dot forward, D = 64, N from 4096 on", {"name": "dot", "width": 64, "least": 4096}, "cudnn",
     1.15),
    ("the same, causal", {"name": "dot, causal", "width": 64, "least": 4096}, "cudnn", 1.15),
    ("key bias forward, D = 128, N from 4096 on",
     {"name": "dot with key_bias", "width": 128, "least": 4096}, "cudnn", 1.05),
    ("key bias forward, D = 64, N from 4096 on",
     {"name": "dot with key_bias", "width": 64, "least": 4096}, "cudnn", 1.10),
    ("dot forward, N = 1024", {"name": "dot", "most": 1024}, "cudnn", 1.0),
    ("the same, causal", {"name": "dot, causal", "most": 1024}, "cudnn", 1.0),
    ("key bias forward, N = 1024", {"name": "dot with key_bias", "most": 1024}, "cudnn", 1.0),
    ("dot both ways, D = 64", {"name": "dot", "both": True, "width": 64}, "cudnn", 1.08),
    ("dot both ways, D = 128", {"name": "dot", "both": True, "width": 128}, "cudnn", 1.02),
    ("key bias both ways", {"name": "dot with key_bias", "both": True}, "our dot", 1 / 1.05),
    ("key bias both ways", {"name": "dot with key_bias", "both": True}, "flex", 1.8),
    ("layer-change forward, N from 1024 on", {"name": "layer-change", "least": 1024}, "our dot",
     1 / 1.04),
    ("layer-change both ways, N from 1024 on",
     {"name": "layer-change", "both": True, "least": 1024}, "our dot", 1 / 1.04),
    ("key-covariance both ways, N from 4096 on",
     {"name": "key-covariance", "both": True, "least": 4096}, "our dot", 1 / 1.12),
    ("layer-change both ways, N = 197", {"name": "layer-change", "both": True, "most": 197},
     "cudnn", 1.3),
    ("layer-change along the prefix both ways, (96, 8, 256, 16)",
     {"name": "layer-change along the prefix", "both": True}, "cudnn", 1.5),
    ("relu2 forward, D = 64", {"name": "relu2", "width": 64}, "our dot", 1.25),
]


def beyond_of(result):
    """Plain attention of others as the measure: the worst of each row's lines counts."""
    rows = []
    for words, which, peer, bar in BEYOND:
        ratios = [line["peers"][peer]["ms"] / line["ms"] for line in lines_like(result, **which)
                  if peer in line["peers"]]
        if ratios:
            least, most = min(ratios), max(ratios)
            rows.append(f"| {words} | {peer} | {least:.2f} to {most:.2f} | ≥ {bar:.2f} "
                        f"| {'yes' if least >= bar else '**no**'} |")
    for line in lines_like(result, "decay", width=128):
        rows.append(f"| decay with content forward, {tuple(line['shape'])} | | {line['ms']:.2f} ms "
                    f"| ≤ 0.40 ms | {'yes' if line['ms'] <= 0.4 else '**no**'} |")
    return rows
