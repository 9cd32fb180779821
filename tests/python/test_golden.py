# SPDX-License-Identifier: Apache-2.0
"""Every golden file through foci.attend and foci.measure: in double against the stored answers, in
float32 by the tolerance rule, outputs and gradients."""
import foci
import golden
import pytest
import torch
from draws import Rule, apart

FILES = golden.files()
GRADIENTS = {"dq": "q", "dk": "k", "dv": "v", "dv_prev": "v_prev", "dkey_bias": "key_bias"}


def run(tensors, options, dtype, backend):
    """Outputs and gradients by their names in the file."""
    of_type = {n: t.to(dtype) if t.is_floating_point() else t for n, t in tensors.items()}
    inputs = {n: of_type[n] for n in golden.INPUTS if n in of_type}
    wanted = [name for name, of in GRADIENTS.items() if name in tensors and of in inputs]
    for name in wanted:
        inputs[GRADIENTS[name]] = inputs[GRADIENTS[name]].clone().requires_grad_()
    how = golden.call(inputs, options)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    o, stats = foci.attend(q, k, v, return_stats=True, backend=backend, **how)
    found = {n: getattr(stats, n) for n in golden.ANSWERS}
    found["o"] = o.detach()
    if wanted:
        o.backward(of_type["do"])
        for name in wanted:
            gradient = inputs[GRADIENTS[name]].grad
            found[name] = (
                torch.zeros_like(inputs[GRADIENTS[name]]) if gradient is None else gradient
            )
    return {name: x for name, x in found.items() if x is not None}


def nudged(tensors, seed):
    """The same numbers, each moved a little: another draw of the roundings."""
    source = torch.Generator().manual_seed(seed)

    def move(x):
        return x * (1 + 2.0**-10 * torch.randn(x.shape, generator=source, dtype=x.dtype))

    moved = golden.INPUTS[:4] + ("do",)
    return {n: move(t) if n in moved and t.is_floating_point() else t for n, t in tensors.items()}


def test_there_are_files():
    assert len(FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_double_gives_the_stored_answers(path):
    tensors, options = golden.read(path)
    found = run(tensors, options, torch.float64, "auto")
    known = [n for n in tensors if n in found and n not in golden.INPUTS]
    assert {"o", "concentration", "effective_keys"} <= set(known)
    assert ("dq" in known) == ("dq" in tensors)
    for name in known:
        largest = tensors[name][tensors[name].isfinite()].abs()
        allowed = 1e-10 * max(1e-30, largest.max().item() if largest.numel() else 0.0)
        assert apart(found[name], tensors[name]) <= allowed, name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_float_keeps_the_tolerance_rule(path):
    tensors, options = golden.read(path)
    rules = {}
    for seed in range(5):
        one = tensors if seed == 0 else nudged(tensors, seed)
        one = {n: t.float().double() if t.is_floating_point() else t for n, t in one.items()}
        exact = run(one, options, torch.float64, "ref")
        ours = run(one, options, torch.float32, "auto")
        naive = run(one, options, torch.float32, "ref")
        assert set(ours) == set(naive) == set(exact)
        for name in exact:
            rules.setdefault(name, Rule()).add(ours[name], naive[name], exact[name])
    assert "o" in rules
    for name, rule in rules.items():
        assert rule.holds(), f"{name}: {rule}"
