# SPDX-License-Identifier: Apache-2.0
"""What foci.hf and foci.timm share: which layers, whose values, and m of rotary models."""
import copy
import pickle

import pytest
import torch

import foci  # noqa: F401
from foci import _stack
from held import attend, halves, layer_change, normalise


def tensors(B=2, H=4, G=2, N=5, M=9, D=8, seed=0):
    torch.manual_seed(seed)
    shapes = ((B, H, N, D), (B, G, M, D), (B, G, M, D), (B, G, M, D))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def masked(B=2, M=9):
    kept = torch.ones(B, M, dtype=torch.bool)
    kept[0, :3] = False
    kept[1, 4] = False
    return kept


def links(metric="layer-change", count=3, layers="1:", **settings):
    return _stack.make_links(count, metric, layers, settings)


@pytest.mark.parametrize(
    "layers, count, wanted",
    [
        ("1:", 4, {1, 2, 3}),
        (":", 3, {0, 1, 2}),
        ("all", 2, {0, 1}),
        ("::2", 4, {0, 2}),
        ("2:8:2", 12, {2, 4, 6}),
        ("1, 3,-1", 6, {1, 3, 5}),
        (4, 6, {4}),
        ((0, -2), 6, {0, 4}),
        ("3:", 3, set()),
    ],
)
def test_layers_are_chosen(layers, count, wanted):
    assert _stack.choose(layers, count) == wanted


@pytest.mark.parametrize("wrong", ["", "one", "1-3", "1:2:0", "1:2:3:4"])
def test_layers_that_mean_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="layers"):
        _stack.choose(wrong, 4)


def test_values_go_up_one_layer_and_leave_nothing_behind():
    stack = links()
    assert [x.metric for x in stack] == ["dot", "layer-change", "layer-change"]
    assert [x.above for x in stack] == [True, True, False]
    values = [torch.randn(1, 1, 2, 4, requires_grad=True) for _ in stack]
    stack[0].leave(values[0])
    below = stack[1].take(values[1], keep=False)
    assert torch.equal(below, values[0]) and not below.requires_grad
    stack[1].leave(values[1])
    assert torch.equal(stack[2].take(values[2], keep=True), values[1])
    stack[2].leave(values[2])
    assert list(stack[0].stack.values) == [1]
    with pytest.raises(RuntimeError, match="layer 1 needs the values of layer 0"):
        stack[1].take(values[1], keep=False)
    with pytest.raises(ValueError, match="shape"):
        stack[2].take(torch.randn(1, 1, 3, 4), keep=True)


def test_the_scale_is_the_calls():
    q, k, v, _ = tensors()
    link = links("dot")[0]
    made = []
    for usual in (None, 0.4, 0.3):
        link.expect(usual)
        made.append(_stack.attend(link, q, k, v, None, False, 0.4, False))
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])
    asked = links("dot", layers=":", scale=0.4)[0]
    assert torch.equal(_stack.attend(asked, q, k, v, None, False, 0.1, False), made[0])


def test_copies_share_nothing():
    stack = links(metric_grad="through")
    stack[0].leave(torch.randn(1, 1, 2, 4, requires_grad=True) * 2)
    for again in (copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))):
        assert again[0].stack is again[2].stack is not stack[0].stack
        assert not again[0].stack.values


def test_through_needs_the_graph_of_the_layer_below():
    stack = links(metric_grad="through")
    v = torch.randn(1, 1, 2, 4, requires_grad=True)
    with torch.no_grad():
        stack[0].leave(v)
    with pytest.raises(RuntimeError, match="use_reentrant"):
        stack[1].take(v, keep=True)


def test_a_metric_in_the_middle_of_the_stack():
    stack = links(metric="random", count=5, layers="2,3", seed=7)
    assert [x.metric for x in stack] == ["dot", "dot", "random", "random", "dot"]
    assert "layer=2" in stack[2].own and "layer=3" in stack[3].own and "seed=7" in stack[3].own
    assert not any(x.above for x in stack)


def test_refusals():
    with pytest.raises(NotImplementedError, match="learned-full.*foci.nn"):
        links("learned-full")
    with pytest.raises(NotImplementedError, match="running"):
        links(scope="running")
    with pytest.raises(ValueError, match="given"):
        links("given")
    with pytest.raises(ValueError, match="layer is not yours"):
        links("random", layer=3)


@pytest.mark.parametrize("metric", ["layer-change", "flat"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, masked()])
@pytest.mark.parametrize("normalize", ["max", "mean", "none"])
def test_m_without_pairs_is_the_cores(metric, causal, mask, normalize):
    """A pair of one coordinate with itself: the rotary path must give what the core gives."""
    q, k, v, below = tensors()
    one, two = links(metric, normalize=normalize)[1:], links(metric, normalize=normalize)[1:]
    two[0].pairs = ("halves", 0.0)
    made = []
    for link in (one[0], two[0]):
        link.stack.values[0] = (below, True)
        made.append(_stack.attend(link, q, k, v, mask, causal, 0.4, False))
    torch.testing.assert_close(made[1], made[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("metric", ["jacobian", "random"])
@pytest.mark.parametrize("causal", [False, True])
def test_m_of_the_core_is_averaged(metric, causal):
    q, k, v, _ = tensors(N=9)
    plain, trivial, paired = (links(metric, layers=":")[1] for _ in range(3))
    trivial.pairs, paired.pairs = ("halves", 0.0), ("halves", 1.0)
    three = (plain, trivial, paired)
    made = [_stack.attend(link, q, k, v, masked(), causal, 0.4, False) for link in three]
    torch.testing.assert_close(made[1], made[0], rtol=1e-6, atol=1e-6)
    assert (made[2] - made[0]).abs().max() > 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_rotary_layer_change_is_the_definition(causal):
    q, k, v, below = tensors()
    kept = masked()
    link = links()[1]
    link.pairs = ("halves", 1.0)
    link.stack.values[0] = (below, True)
    m = normalise(halves(layer_change(v, below, kept, 5 if causal else None)))
    made = _stack.attend(link, q, k, v, kept, causal, 0.4, False)
    wanted = attend(q, k, v, m, kept, causal, 0.4)
    torch.testing.assert_close(made, wanted, rtol=1e-11, atol=1e-11)


def test_a_cache_holds_no_queries_for_the_jacobian():
    q, k, v, _ = tensors()
    link = links("jacobian")[1]
    with pytest.raises(NotImplementedError, match="use_cache=False"):
        _stack.attend(link, q, k, v, None, True, 0.4, False)
    _stack.attend(link, q, k, v, None, False, 0.4, False)


def test_pairs():
    m = torch.arange(8.0)
    halves = _stack.average_pairs(m, ("halves", 1.0)).tolist()
    assert halves == [2.0, 3.0, 4.0, 5.0, 2.0, 3.0, 4.0, 5.0]
    apart = _stack.average_pairs(m, ("neighbours", 1.0)).tolist()
    assert apart == [0.5, 0.5, 2.5, 2.5, 4.5, 4.5, 6.5, 6.5]
    part = _stack.average_pairs(m, ("halves", 0.5)).tolist()
    assert part == [1.0, 2.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0]


def test_through_has_the_right_gradient():
    q, k, v, below = (x.requires_grad_() for x in tensors(B=1, H=2, G=2, N=4, M=4, D=4))

    def run(q, k, v, below):
        link = links(metric_grad="through")[1]
        link.pairs = ("halves", 1.0)
        link.stack.values[0] = (below, True)
        return _stack.attend(link, q, k, v, None, True, 0.5, False)

    assert torch.autograd.gradcheck(run, (q, k, v, below))
