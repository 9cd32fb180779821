#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tools/roofline.py [RESULT]: prints docs/roofline.svg, made of a gpu.json alone. Speed
# against what a mechanism computes a byte that it must read and write; the roof is what the same
# run measured of a large matrix product and a copy. Mechanisms that cost O(N D^2) are left out.
import json
import math
import sys

LEFT, RIGHT, TOP, BOTTOM = 70, 470, 40, 320
X, Y = (16, 32768), (1, 1024)  # FLOP a byte, TFLOP/s
COLOURS = {"foci, dot": "#0969da", "foci, key bias": "#8250df", "foci, metrics": "#bf3989",
           "foci, relu2": "#1a7f37", "SDPA flash": "#9a6700", "SDPA cuDNN": "#57606a"}


def along(value, span, begin, end):
    share = math.log(value / span[0]) / math.log(span[1] / span[0])
    return begin + (end - begin) * min(max(share, 0.0), 1.0)


def place(intensity, speed):
    return along(intensity, X, LEFT, RIGHT), along(speed, Y, BOTTOM, TOP)


def bytes_of(line):
    """q, k, v, o once; both passes read them again with do and write three gradients."""
    B, H, N, D = line["shape"]
    tensors = 4 + (8 if line["pass"] == "both" else 0)
    return B * H * N * (2 * D * tensors + 4)


def points_of(result):
    """(name, FLOP a byte, TFLOP/s) of everything that looks at every pair."""
    for line in result["lines"]:
        group = "relu2" if line["name"].startswith("relu2") else line["group"]
        if not line.get("tflops") or f"foci, {group}" not in COLOURS:
            continue
        intensity = line["tflops"] * 1e9 * line["ms"] / bytes_of(line)
        yield f"foci, {group}", intensity, line["tflops"]
        for peer, name in (("flash", "SDPA flash"), ("cudnn", "SDPA cuDNN")):
            if peer in line["peers"]:
                yield name, intensity, line["peers"][peer]["tflops"]


def text(x, y, words, anchor="middle"):
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#1f2328" text-anchor="{anchor}">{words}</text>'


def stroke(x1, y1, x2, y2, colour, width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" ' \
           f'stroke-width="{width}"/>'


def axes():
    parts = []
    for x in (16, 64, 256, 1024, 4096, 16384):
        at = place(x, 1)[0]
        parts += [stroke(at, BOTTOM, at, BOTTOM + 5, "#8c959f"), text(at, BOTTOM + 19, f"{x}")]
    for y in (1, 4, 16, 64, 256, 1024):
        at = place(16, y)[1]
        parts += [stroke(LEFT, at, RIGHT, at, "#eaeef2"), text(LEFT - 7, at + 4, f"{y}", "end")]
    return parts + [text((LEFT + RIGHT) / 2, BOTTOM + 40, "FLOP a byte (log)"),
                    text(LEFT, TOP - 14, "TFLOP/s (log)")]


def roof_of(result):
    if "roofs" not in result:
        return []
    product, copy = result["roofs"]["matmul_tflops"], result["roofs"]["copy_tbs"]
    ridge = product / copy
    begin = max(X[0], Y[0] / copy)
    parts = [stroke(*place(begin, begin * copy), *place(ridge, product), "#1f2328", 1.5),
             stroke(*place(ridge, product), *place(X[1], product), "#1f2328", 1.5)]
    x, y = place(ridge, product)
    words = f"matrix product {product:.0f} TFLOP/s, copy {copy:.1f} TB/s"
    return parts + [text(x + 6, y - 6, words, "start")]


def main():
    path = sys.argv[1] if len(sys.argv) > 1 else "bench/results/h200/gpu.json"
    with open(path) as file:
        result = json.load(file)
    words = f"Speed of attention on one {result['device']}, bf16, against FLOP a byte, by mechanism"
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 380" width="680" '
             'height="380" role="img" aria-labelledby="title description" '
             'font-family="system-ui, \'DejaVu Sans\', sans-serif" font-size="13">',
             '<title id="title">roofline</title>', f'<desc id="description">{words}.</desc>',
             '<rect x=".5" y=".5" width="679" height="379" rx="8" fill="#fff" stroke="#d0d7de"/>']
    parts += axes() + roof_of(result)
    for name, intensity, speed in points_of(result):
        x, y = place(intensity, speed)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{COLOURS[name]}" '
                     f'fill-opacity=".75"><title>{name}: {speed:.0f} TFLOP/s</title></circle>')
    for row, (name, colour) in enumerate(COLOURS.items()):
        y = TOP + 40 + 22 * row
        parts += [f'<circle cx="{RIGHT + 30}" cy="{y}" r="4" fill="{colour}"/>',
                  text(RIGHT + 42, y + 4, name, "start")]
    print("\n".join(parts + ["</svg>"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
