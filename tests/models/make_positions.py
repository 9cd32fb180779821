#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# tests/models/make_positions.py FILE: positions of a small vision transformer for 5 x 5 patches,
# and what torch's own interpolate makes of them for 8 x 8 and 3 x 3 as timm's
# resample_abs_pos_embed calls it, for tests/models/vit_test.cpp. Needs torch.
import sys

import torch

from make_gpt2 import write


def resampled(positions, side):
    before = int((positions.shape[1] - 1) ** 0.5)
    grid = positions[:, 1:].reshape(1, before, before, -1).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, size=(side, side), mode="bicubic", antialias=True)
    return torch.cat([positions[:, :1], grid.permute(0, 2, 3, 1).reshape(1, side * side, -1)], 1)


def main():
    torch.manual_seed(0)
    five = torch.randn(1, 26, 16)
    write(sys.argv[1], {"5": five, "8": resampled(five, 8), "3": resampled(five, 3)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
