# SPDX-License-Identifier: Apache-2.0
"""foci.measure_model beside numbers that are known of one matrix and beside weights written out."""
import math

import foci
import pytest
import torch
from foci import _tokens, _weights
from foci.model_statistics import ROWS, TOKENS, WHOLE

KNOWN = torch.tensor([[1.0, 0, 2], [0, 1, 1], [1, 1, 0], [2, -1, 1]])


class Stack(torch.nn.Module):
    """Blocks over tokens (B,N,12): a class token and a grid of 2 x 3."""

    def __init__(self, metric="layer-change", depth=3, **how):
        super().__init__()
        torch.manual_seed(2)
        self.blocks = torch.nn.ModuleList(
            foci.nn.Block(12, 3, metric=metric, lowest=i == 0, **how) for i in range(depth)
        )

    def forward(self, x, key_mask=None):
        v = None
        for block in self.blocks:
            x, v = block(x, v, key_mask)
        return x


def tokens(batch=5):
    torch.manual_seed(7)
    return torch.randn(batch, 7, 12)


def test_a_known_matrix():
    right = dict(cosine=0.41127583, high_low=0.904534, residual=0.649519, dirichlet=1.6875)
    found = _tokens.likeness(KNOWN)
    for name, number in right.items():
        assert found[name] == pytest.approx(number, abs=1e-6), name
    right = dict(effective_rank=2.793788, effective_rank_squares=2.319348, stable_rank=1.489376)
    found = _tokens.spectrum(KNOWN)
    for name, number in dict(right, participation=1.956522).items():
        assert found[name] == pytest.approx(number, abs=1e-6), name


def heard(model, *inputs):
    """Every call of a pass."""
    calls = []
    foci._watch.listeners.append(calls.append)
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        foci._watch.listeners.clear()
    return calls


def test_its_numbers_are_those_of_the_weights():
    model, x = Stack(), tokens()
    report = foci.measure_model(model, x, closely=5, top=2, grid=(1, 2, 3))
    calls = heard(model, x)
    assert report.samples == 5 and len(report.layers) == 3
    call, layer = calls[2], report.layers[2]
    a = _weights.columns(call, 0, 7).double()
    assert torch.allclose(a @ call.v.double(), call.statistics[0].double(), atol=1e-5)
    place = torch.tensor([[i // 3, i % 3] for i in range(6)]).double()
    far = torch.cdist(place, place)
    patches = a[:, :, 1:, 1:]
    distance = ((patches * far).sum(-1) / patches.sum(-1)).mean()
    apart = [(a[:, h] - a[:, g]).flatten(1).norm(dim=1) for h in range(3) for g in range(h)]
    rolled = torch.eye(7, dtype=torch.float64)
    for one in calls:
        mixed = _weights.columns(one, 0, 7).double().mean(1) + torch.eye(7)
        rolled = mixed / mixed.sum(-1, keepdim=True) @ rolled
    k, below = calls[2].k.double(), calls[1].k.double()
    right = dict(
        concentration=call.statistics[2].mean(),
        entropy=-torch.special.xlogy(a, a).sum(-1).mean(),
        distance=distance,
        top_mass=a.topk(2).values.sum(-1).mean(),
        head_distance=torch.stack(apart).mean(),
        rollout_keys=(1 / rolled.square().sum(-1)).mean(),
        key_change=((k - below).abs().sum((1, 2, 3)) / below.abs().sum((1, 2, 3))).mean(),
    )
    for name, number in right.items():
        assert layer.rows[name].mean == pytest.approx(float(number), rel=1e-5), name
        assert layer.rows[name].n == 5
    head = layer.by_head[1]["effective_keys"].mean
    assert head == pytest.approx(float(call.statistics[3][:, 1].mean()), rel=1e-5)
    m = call.statistics[7]
    assert layer.metric["least"] == pytest.approx(float(m.min()), rel=1e-6)
    assert layer.metric["drift"] > 0 and report.layers[0].metric is None
    assert report.embedded["cosine"].mean == pytest.approx(
        sum(_tokens.likeness(one)["cosine"] for one in x) / 5
    )
    assert "layer 2" in report.summary() and report.summary().count("\n\n") == 2


@pytest.mark.parametrize(
    "how",
    [
        dict(metric="key-covariance"),
        dict(metric="key-covariance", causal=True, period=2),
        dict(metric="jacobian", weighting="relu2"),
        dict(metric="random", weighting="linear"),
        dict(metric="layer-change", form="distance", causal=True),
        dict(metric="dot", weighting="decay", causal=True, rate=0.5),
    ],
)
def test_columns_are_the_weights_of_every_mechanism(how):
    for call in heard(Stack(**how), tokens(2)):
        a = torch.cat([_weights.columns(call, 0, 4), _weights.columns(call, 4, 3)], -1)
        assert torch.allclose(a @ call.v, call.statistics[0], atol=1e-5)


def test_batches_add_up_and_the_model_is_left_alone():
    model, x = Stack(), tokens()
    model.train()
    one = foci.measure_model(model, x, closely=3)
    parts = foci.measure_model(model, over=[x[:2], (x[2:],)], closely=3)
    assert model.training and not model.blocks[0]._forward_hooks
    for a, b in zip(one.layers, parts.layers):
        for name in (*ROWS, *WHOLE):
            x, y = a.rows[name], b.rows[name]
            assert (x is None) == (y is None) == (name == "key_change" and a is one.layers[0])
            if x is not None:
                assert x == pytest.approx(y, rel=1e-5, abs=1e-7), name
        for name in TOKENS:
            assert a.tokens[name] == pytest.approx(b.tokens[name], rel=1e-5, abs=1e-7), name
    assert one.layers[1].tokens["effective_rank"].n == 3 and one.layers[1].tokens["cosine"].n == 5


def test_padding_does_not_count():
    model, x = Stack(), tokens()
    keep = torch.ones(5, 7, dtype=torch.bool)
    keep[:, 5:] = False
    padded = x.clone()
    padded[:, 5:] = 1e3
    with_mask = foci.measure_model(model, padded, keep, closely=5)
    alone = foci.measure_model(model, x[:, :5], closely=5)
    for a, b in zip(with_mask.layers, alone.layers):
        for name in ("concentration", "distance", "top_mass"):
            assert a.rows[name].mean == pytest.approx(b.rows[name].mean, rel=1e-4), name
        for name in TOKENS:
            assert a.tokens[name].mean == pytest.approx(b.tokens[name].mean, rel=1e-4), name


def test_nothing_to_divide_by():
    for x, some in ((torch.zeros(4, 3), 0.0), (torch.ones(4, 3), 1.0), (torch.ones(1, 3), 1.0)):
        found = {**_tokens.likeness(x), **_tokens.spectrum(x)}
        assert found["effective_rank"] == pytest.approx(some)
        assert found["cosine"] == pytest.approx(some) and found["high_low"] == 0
        assert all(math.isfinite(number) for number in found.values())
    report = foci.measure_model(Stack(metric="key-covariance"), tokens()[:, :1])
    for layer in report.layers:
        assert layer.rows["effective_keys"].mean == pytest.approx(1)
        assert layer.rows["distance"].mean == 0
        assert all(math.isfinite(number) for number in layer.metric.values())


def test_a_metric_has_its_own_samples_and_errors():
    model, x = Stack(metric="key-covariance"), tokens()
    for parts in ([x], [x[:2], x[2:]], list(x.split(1))):
        layer = foci.measure_model(model, over=parts, closely=3).layers[1]
        assert layer.metric_samples == 3
        P = heard(model, x)[1].statistics[7][:3]
        each = torch.tensor([_tokens.health(one, True)["anisotropy"] for one in P.split(1)])
        assert layer.metric["anisotropy"] == pytest.approx(float(each.mean()), rel=1e-5)
        error = float(each.std()) / 3**0.5
        assert layer.metric_error["anisotropy"] == pytest.approx(error, rel=1e-3)
        assert "most" not in layer.metric_error and "drift" not in layer.metric_error
    drawn = foci.measure_model(Stack(metric="random"), x, closely=3).layers[1]
    assert drawn.metric_samples == 5


def test_what_is_not_finite_is_left_out():
    model, x = Stack(), tokens()
    broken = torch.cat([x, torch.full((1, 7, 12), float("nan"))])
    one, other = (foci.measure_model(model, y, closely=len(y)) for y in (x, broken))
    for a, b in zip(one.layers, other.layers):
        for name in (*ROWS, "head_distance", "rollout_keys"):
            assert a.rows[name] == pytest.approx(b.rows[name], rel=1e-5), name
        for name in TOKENS:
            assert a.tokens[name] == pytest.approx(b.tokens[name], rel=1e-5), name
        assert (a.metric or {}) == pytest.approx(b.metric or {}, rel=1e-5)


def test_what_it_cannot_measure_is_said():
    with pytest.raises(ValueError, match="calls no attention of foci's"):
        foci.measure_model(torch.nn.Linear(3, 3), torch.ones(2, 3))
    with pytest.raises(ValueError, match="grid 1 leading tokens and 3 x 3 others"):
        foci.measure_model(Stack(), tokens(), grid=(1, 3, 3))
    with pytest.raises(ValueError, match="top 0"):
        foci.measure_model(Stack(), tokens(), top=0)
    model = Stack()

    def sometimes(x):
        return model(x) if len(x) > 2 else model.blocks[0](x)

    class Sometimes(torch.nn.Module):
        def forward(self, x):
            return sometimes(x)

    with pytest.raises(ValueError, match="a pass had 1 calls of attention and the first one 3"):
        foci.measure_model(Sometimes(), over=[tokens(), tokens()[:1]])
    assert not foci._watch.listeners
