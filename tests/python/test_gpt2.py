# SPDX-License-Identifier: Apache-2.0
"""tests/models/gpt2.safetensors, to which foci holds its GPT-2, against Hugging Face's model."""
import os
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
MODELS = os.path.join(os.environ["FOCI_SOURCE_DIR"], "tests", "models")
sys.path.insert(0, MODELS)
import make_gpt2  # noqa: E402


def test_the_stored_logits_are_transformers():
    tensors = make_gpt2.read(os.path.join(MODELS, "gpt2.safetensors"))
    tokens, logits = tensors.pop("tokens"), tensors.pop("logits")
    found = make_gpt2.by_transformers(tensors, tokens)
    assert found.shape == logits.shape
    assert torch.allclose(found, logits, rtol=0, atol=1e-4)
