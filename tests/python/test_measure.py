# SPDX-License-Identifier: Apache-2.0
"""foci.measure beside the weights written out, and how its answer reads."""
import foci
import pytest
import torch
from draws import apart, draw, visible


def weights(q, k, ok):
    s = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    a = s.masked_fill(~ok, float("-inf")).softmax(-1)
    return torch.where(ok.any(-1, keepdim=True), a, torch.zeros_like(a))


@pytest.mark.parametrize("causal", [False, True])
def test_statistics_are_those_of_the_weights(causal):
    q, k, v, _ = draw()
    mask = torch.tensor([[True, True, False, True, True], [False, True, True, True, True]])
    ok = visible(q, k, causal, mask)
    a, n = weights(q, k, ok), ok.sum(-1).double()
    stats = foci.measure(q, k, v, key_mask=mask, is_causal=causal)
    squares = (n * (a * a).sum(-1)).sqrt()
    S = torch.where(squares > 0, a.sum(-1) / squares, torch.zeros_like(squares))
    entropy = -torch.special.xlogy(a, a).sum(-1)
    right = dict(concentration=S, effective_keys=n * S * S, entropy=entropy, largest=a.amax(-1))
    for name, x in right.items():
        assert apart(getattr(stats, name), x) <= 1e-12, name
    seen = ok.any(-1).expand_as(stats.largest_at)
    assert torch.equal(stats.largest_at[seen], a.argmax(-1)[seen])
    assert (stats.largest_at[~seen] == -1).all() and bool((~seen).any()) == causal
    assert torch.isneginf(stats.lse[~seen]).all()


def test_absent_where_a_mechanism_has_none():
    q, k, v, v_prev = draw()
    stats = foci.measure(q, k, v)
    assert stats.metric is None and stats.lse is not None and stats.entropy is not None
    stats = foci.measure(q, k, v, weighting="relu2", metric="layer-change", v_prev=v_prev)
    assert stats.metric.shape == (2, 2, 1, 4) and stats.lse is None and stats.entropy is None
    stats = foci.measure(q, k, v, metric="key-covariance", is_causal=True, period=2)
    assert stats.metric.shape == (2, 2, 3, 4, 4)


def test_it_is_a_tuple_without_gradients():
    q, k, v, _ = draw(dtype=torch.float32)
    stats = foci.measure(q.requires_grad_(), k, v)
    assert isinstance(stats, tuple) and stats._fields[0] == "o" and len(stats) == 8
    assert not any(x is not None and x.requires_grad for x in stats)
    assert stats.largest_at.dtype == torch.int64 and stats.concentration.dtype == torch.float32


def test_the_metric_it_shows_can_be_given_back():
    q, k, v, v_prev = draw()
    for how in (
        dict(metric="layer-change", v_prev=v_prev),
        dict(metric="jacobian"),
        dict(metric="random"),
    ):
        stats = foci.measure(q, k, v, **how)
        again = foci.attend(q, k, v, metric=stats.metric)
        assert torch.equal(again, stats.o)


def test_rows_and_means_read_well():
    q, k, v, _ = draw(B=2, H=3, G=3, N=4, M=4)
    q = torch.zeros_like(q)  # every row spreads evenly over its keys
    stats = foci.measure(q, k, v)
    lines = stats.summary().splitlines()
    assert lines[0].split() == ["head", "concentration", "effective", "keys", "entropy", "largest"]
    assert len(lines) == 1 + 3 + 1
    assert lines[1].split() == ["0", "1", "4", "1.386", "0.25"]
    assert lines[-1].split() == ["mean", "1", "4", "1.386", "0.25"]
    assert repr(stats) == (
        "Statistics(batch=2, heads=3, rows=4, concentration=1, effective_keys=4, entropy=1.386, "
        "largest=0.25)"
    )


def test_means_leave_out_rows_that_see_nothing():
    q, k, v, _ = draw(B=1, N=4, M=2)
    q = torch.zeros_like(q)
    stats = foci.measure(q, k, v, is_causal=True, causal_align="bottom-right", weighting="identity")
    assert (stats.largest_at[:, :, :2] == -1).all()
    stats = foci.measure(q, k, v, is_causal=True, causal_align="bottom-right")
    assert stats.summary().splitlines()[-1].split()[2] == "1.5"  # rows of one key and of two
    none = foci.measure(
        q,
        k,
        v,
        key_mask=torch.zeros(1, 2, dtype=torch.bool),
        metric=torch.ones(1, 2, 1, 4).double(),
    )
    assert repr(none) == "Statistics(batch=1, heads=2, rows=4, metric=(1, 2, 1, 4))"
    assert none.summary().splitlines()[-1].split()[1] == "0"


def test_rows_of_nan_are_left_out_and_counted():
    q, k, v, _ = draw()
    q[0, 0, :2] = float("nan")
    stats = foci.measure(q, k, v)
    finite = stats.concentration.isfinite()
    mean = stats.concentration[finite].mean().item()
    assert int((~finite).sum()) == 2
    assert f"concentration={mean:.4g}" in repr(stats)
    last, note = stats.summary().splitlines()[-2:]
    assert last.split()[:2] == ["mean", f"{mean:.4g}"]
    assert note == f"left out: 2 of {finite.numel()} rows, not finite"
