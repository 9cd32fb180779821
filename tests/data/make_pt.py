# SPDX-License-Identifier: Apache-2.0
# Writes the checkpoints of tests/data/golden that convert_test.cpp reads, with Debian's torch 1.13:
#   /usr/bin/python3 tests/data/make_pt.py
import pathlib

import torch

golden = pathlib.Path(__file__).parent / "golden"


def ramp(*shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return torch.arange(count).reshape(shape).to(dtype)


def types():
    """Every type; a transposed view, a slice, one number repeated, a scalar, nothing at all."""
    whole = ramp(4, 6)
    return {
        "f64": ramp(2, 2, dtype=torch.float64) / 3,
        "f32": ramp(2, 3),
        "f16": ramp(3, dtype=torch.float16) / 2,
        "bf16": ramp(3, dtype=torch.bfloat16) / 2,
        "i64": torch.tensor([1 << 62, -5]),
        "i32": torch.tensor([1 << 30, -5], dtype=torch.int32),
        "u8": torch.tensor([0, 255], dtype=torch.uint8),
        "bool": torch.tensor([True, False, True]),
        "transposed": whole.t(),
        "slice": whole[1:3, 2:5],
        "repeated": torch.tensor([7.0]).expand(2, 3),
        "scalar": torch.tensor(4),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(ramp(2)),
    }


def training():
    """What a training loop saves, after one step of Adam."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            p.copy_(ramp(*p.shape) + 10 * i)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    model(ramp(2, 2)).sum().backward()
    optimizer.step()
    model[1].reset_running_stats()
    return {
        "epoch": 3,
        "best": 0.5,
        "name": "tiny",
        "optimizer": optimizer.state_dict(),
        "model": {"module." + name: value for name, value in model.state_dict().items()},
    }


torch.save(types(), golden / "types.pt")
torch.save(types(), golden / "early.pt", _use_new_zipfile_serialization=False)
torch.save(training(), golden / "training.pth")
torch.save(torch.nn.Linear(2, 1).state_dict(), golden / "protocol4.pt", pickle_protocol=4)
torch.save({"a": {"w": ramp(2)}, "b": {"w": ramp(3)}}, golden / "two.pt")
