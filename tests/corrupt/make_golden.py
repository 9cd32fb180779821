# SPDX-License-Identifier: Apache-2.0
"""Answers for corrupt_test.cpp: the eight corruptions without chance, written down a second time in
NumPy and PIL from the formulas of SciPy, scikit-image and OpenCV that the benchmark calls.

python3 make_golden.py > golden.txt: a line each, "name set severity" and the bytes in hexadecimal.
"""

import colorsys
import io

import numpy as np
from PIL import Image

HEIGHT, WIDTH = 24, 28
SETS = {32: 0, 64: 1, 224: 2}


def picture():
    """The image that the test makes too."""
    y, x, c = np.meshgrid(range(HEIGHT), range(WIDTH), range(3), indexing="ij")
    return ((y * 37 + x * 59 + c * 83 + y * x * 11) % 251).astype(np.uint8)


def to_bytes(x):
    return (np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)


def gaussian_blur(x, sigma):
    reach = int(4 * sigma + 0.5)
    k = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    k /= k.sum()
    for axis in (0, 1):
        pad = [(reach, reach) if a == axis else (0, 0) for a in range(3)]
        wide = np.pad(x, pad, mode="edge")
        take = lambda i: np.take(wide, range(i, i + x.shape[axis]), axis)
        x = sum(w * take(i) for i, w in enumerate(k))
    return x


def correlate(x, kernel):
    h, w = kernel.shape
    wide = np.pad(x, [(h // 2, h // 2), (w // 2, w // 2)] + [(0, 0)] * (x.ndim - 2), mode="reflect")
    return sum(
        kernel[i, j] * wide[i : i + x.shape[0], j : j + x.shape[1]]
        for i in range(h)
        for j in range(w)
    )


def defocus_blur(x, lens):
    radius, soft = lens
    reach, taps = (8, 1) if radius <= 8 else (radius, 2)
    i = np.arange(-reach, reach + 1)
    disk = (i[:, None] ** 2 + i**2 <= radius**2).astype(float)
    k = np.exp(-(np.arange(-taps, taps + 1) ** 2) / (2 * soft**2))
    k /= k.sum()
    return correlate(x, correlate(disk / disk.sum(), np.outer(k, k)))


def line(size, factor):
    """Which places of a line SciPy's zoom of its middle looks at."""
    part = int(np.ceil(size / factor))
    large = int(round(part * factor))
    places = (size - part) // 2 + np.arange(large) * (part - 1) / (large - 1)
    trim = (large - size) // 2
    return places[trim : trim + size]


def zoomed(x, factor):
    for axis, size in enumerate(x.shape[:2]):
        at = line(size, factor)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, size - 1)
        share = (at - low).reshape([-1, 1, 1] if axis == 0 else [1, -1, 1])
        x = (1 - share) * np.take(x, low, axis) + share * np.take(x, high, axis)
    return x


def zoom_blur(x, arange):
    factors = np.arange(*arange)
    return (x + sum(zoomed(x, f) for f in factors)) / (len(factors) + 1)


def hsv(x, change):
    to = np.empty_like(x)
    for place in np.ndindex(x.shape[:2]):
        to[place] = colorsys.hsv_to_rgb(*change(*colorsys.rgb_to_hsv(*x[place])))
    return to


def brightness(x, add):
    return hsv(x, lambda h, s, v: (h, s, min(v + add, 1)))


def saturate(x, how):
    return hsv(x, lambda h, s, v: (h, min(max(s * how[0] + how[1], 0), 1), v))


def contrast(x, share):
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * share + mean


def pixelate(x, share):
    image = Image.fromarray(to_bytes(x))
    small = image.resize((int(WIDTH * share), int(HEIGHT * share)), Image.BOX)
    return np.array(small.resize((WIDTH, HEIGHT), Image.BOX)) / 255.0


def jpeg_compression(x, quality):
    stored = io.BytesIO()
    Image.fromarray(to_bytes(x)).save(stored, "JPEG", quality=quality)
    return np.array(Image.open(stored)) / 255.0


CASES = [
    (gaussian_blur, 32, 5, 1.0),
    (gaussian_blur, 224, 2, 2.0),
    (defocus_blur, 32, 3, (0.5, 0.6)),
    (defocus_blur, 64, 5, (3, 0.1)),
    (defocus_blur, 224, 5, (10, 0.5)),
    (zoom_blur, 64, 4, (1, 1.21, 0.01)),
    (zoom_blur, 224, 1, (1, 1.11, 0.01)),
    (brightness, 32, 5, 0.3),
    (contrast, 64, 3, 0.2),
    (saturate, 32, 4, (2, 0.1)),
    (saturate, 224, 1, (0.3, 0)),
    (pixelate, 32, 5, 0.65),
    (pixelate, 224, 5, 0.25),
    (jpeg_compression, 32, 5, 40),
    (jpeg_compression, 224, 3, 15),
]

for corruption, pixels, severity, parameter in CASES:
    answer = to_bytes(corruption(picture() / 255.0, parameter))
    print(corruption.__name__, SETS[pixels], severity, answer.tobytes().hex())
