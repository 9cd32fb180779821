# SPDX-License-Identifier: Apache-2.0
"""bench/attack_peer.py takes the images that foci attack takes: evenly over IDX files and CIFAR."""
import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import attack_peer  # noqa: E402


def run_over(folder, data):
    (folder / "config.json").write_text(json.dumps({"flags": {"data": str(data)}}))
    return str(folder)


@pytest.mark.parametrize("name, before", [("cifar-10-batches-bin/test_batch.bin", 0),
                                          ("test_batch.bin", 0), ("test.bin", 1)])
def test_cifar(tmp_path, name, before):
    """`before`: bytes before the label that counts."""
    path = tmp_path / "data" / name
    path.parent.mkdir(parents=True)
    planes = np.arange(6 * 3 * 32 * 32).reshape(6, 3, 32, 32) // 7 % 251
    records = [bytes([9] * before + [i]) + planes[i].astype(np.uint8).tobytes() for i in range(6)]
    path.write_bytes(b"".join(records))
    x, y = attack_peer.samples_of(run_over(tmp_path, tmp_path / "data"), 3)
    assert y.tolist() == [0, 2, 4]
    assert x.shape == (3, 3, 32, 32)
    assert np.allclose(x.numpy(), planes[[0, 2, 4]] / 255)


def test_idx(tmp_path):
    pixels = np.arange(4 * 5 * 5, dtype=np.uint8).reshape(4, 5, 5)
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 0x803, 4, 5, 5) + pixels.tobytes())
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(
        struct.pack(">II", 0x801, 4) + bytes([3, 2, 1, 0]))
    x, y = attack_peer.samples_of(run_over(tmp_path, tmp_path), 2)
    assert y.tolist() == [3, 1]
    assert x.shape == (2, 1, 5, 5)
    assert np.allclose(x.numpy()[:, 0], pixels[[0, 2]] / 255)
