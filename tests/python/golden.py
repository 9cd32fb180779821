# SPDX-License-Identifier: Apache-2.0
"""Reads tests/golden/*.safetensors: inputs with float64 answers, and the settings between them."""
import json
import struct
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "I64": torch.int64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
}
ANSWERS = ("o", "lse", "concentration", "effective_keys", "entropy", "metric")
INPUTS = ("q", "k", "v", "v_prev", "key_mask", "key_bias")


def files():
    return sorted((ROOT / "tests" / "golden").glob("*.safetensors"))


def read(path):
    """The tensors by name, and the options of the metadata."""
    raw = Path(path).read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        dtype = TYPES["U8" if entry["dtype"] == "BOOL" else entry["dtype"]]
        data = bytearray(raw[begin:end])
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        tensor = flat.reshape(entry["shape"]).clone()
        tensors[name] = tensor.bool() if entry["dtype"] == "BOOL" else tensor
    return tensors, json.loads(metadata["options"])


def call(tensors, options):
    """Keywords of foci.attend."""
    how = {name.replace("-", "_"): value for name, value in options.items()}
    how["is_causal"] = how.pop("causal", False)
    how["causal_align"] = "bottom-right"
    how["enable_gqa"] = True
    how.update({n: tensors[n] for n in INPUTS[3:] if n in tensors})
    return how
