# SPDX-License-Identifier: Apache-2.0
"""foci.attend beside plain torch: the same numbers, whatever the masks, heads and alignment."""
import foci
import pytest
import torch
from draws import Rule, apart, draw, plain, visible

BOTH = pytest.mark.parametrize("align", ["bottom-right", "top-left"])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def near(a, b, to=1e-12):
    return apart(a, b) <= to


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [(2, 2), (4, 2), (4, 1)])
def test_the_defaults_are_plain_attention(heads, causal):
    H, G = heads
    q, k, v, _ = draw(H=H, G=G, E=3)
    o = foci.attend(q, k, v, is_causal=causal, enable_gqa=H != G)
    assert o.shape == (2, H, 5, 3)
    assert near(o, plain(q, k, v, visible(q, k, causal)))


def test_the_same_line_as_torchs_own():
    sdpa = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    if sdpa is None:
        pytest.skip("torch 1.13 has no scaled_dot_product_attention")
    q, k, v, _ = draw(N=4, M=6)
    for how in (dict(), dict(scale=0.3), dict(is_causal=True, causal_align="top-left")):
        theirs = {n: x for n, x in how.items() if n != "causal_align"}
        assert near(foci.attend(q, k, v, **how), sdpa(q, k, v, **theirs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_narrow_types_keep_the_tolerance_rule(dtype):
    rule = Rule()
    for seed in range(5):
        q, k, v, _ = draw(N=33, M=41, D=16, E=16, dtype=dtype, seed=seed)
        exact = plain(q.double(), k.double(), v.double(), visible(q, k))
        rule.add(foci.attend(q, k, v), foci.attend(q, k, v, backend="ref"), exact)
    assert rule.holds(), rule


@BOTH
@pytest.mark.parametrize("sizes", [(3, 5), (5, 3), (1, 4), (4, 1), (4, 4)])
def test_both_alignments(sizes, align):
    N, M = sizes
    q, k, v, _ = draw(N=N, M=M)
    mask = torch.ones(2, M, dtype=torch.bool)
    mask[1, 0] = False
    bias = draw(N=1, D=M)[0][:, :, 0]
    leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]
    how = dict(is_causal=True, causal_align=align, key_mask=mask)
    o = foci.attend(*leaves[:3], key_bias=leaves[3], **how)
    same = [x.clone().requires_grad_() for x in (q, k, v, bias)]
    ok = visible(q, k, True, mask, top_left=align == "top-left")
    right = plain(*same[:3], ok, bias=same[3])
    assert near(o, right)
    weight = torch.linspace(-1, 1, o.numel(), dtype=o.dtype).reshape(o.shape)
    (o * weight).sum().backward()
    (torch.nan_to_num(right) * weight).sum().backward()
    for mine, theirs in zip(leaves, same):
        assert near(mine.grad, torch.nan_to_num(theirs.grad))


@BOTH
def test_alignment_says_nothing_without_a_causal_mask(align):
    q, k, v, _ = draw(N=3, M=5)
    assert torch.equal(foci.attend(q, k, v, causal_align=align), foci.attend(q, k, v))


@pytest.mark.parametrize("metric", ["layer-change", "key-covariance"])
def test_top_left_estimates_see_what_a_query_sees(metric):
    q, k, v, v_prev = draw(N=3, M=5)
    how = dict(metric=metric, is_causal=True, causal_align="top-left")
    below = dict(v_prev=v_prev) if metric == "layer-change" else dict(period=1)
    cut = dict(v_prev=v_prev[:, :, :3]) if metric == "layer-change" else below
    o = foci.attend(q, k, v, **how, **below)
    assert torch.equal(o, foci.attend(q, k[:, :, :3], v[:, :, :3], **how, **cut))
    longer = draw(N=5, M=5)[0]
    o = foci.attend(longer, k[:, :, :3], v[:, :, :3], **how, **cut)
    assert near(o[:, :, :3], foci.attend(longer[:, :, :3], k[:, :, :3], v[:, :, :3], **how, **cut))


def test_a_mask_leaves_keys_out():
    q, k, v, _ = draw()
    mask = torch.tensor([[True, True, False, True, False], [False] * 5])
    o = foci.attend(q, k, v, key_mask=mask)
    assert near(o[0], foci.attend(q[:1], k[:1, :, mask[0]], v[:1, :, mask[0]])[0])
    assert not o[1].any()
    four = mask[:, None, None, :]
    assert torch.equal(o, foci.attend(q, k, v, attn_mask=four))
    one = foci.attend(q, k, v, attn_mask=four[:1])
    assert torch.equal(one, foci.attend(q, k, v, key_mask=mask[:1].expand(2, 5)))


def test_what_is_masked_may_hold_anything():
    q, k, v, v_prev = draw()
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[:, 2] = False
    for how in (dict(), dict(rotary_pairs="halves")):
        right = foci.attend(q, k, v, metric="layer-change", v_prev=v_prev, key_mask=mask, **how)
        k2, v2, below = k.clone(), v.clone(), v_prev.clone()
        k2[:, :, 2], v2[:, :, 2], below[:, :, 2] = float("nan"), float("inf"), float("nan")
        o = foci.attend(q, k2, v2, metric="layer-change", v_prev=below, key_mask=mask, **how)
        assert torch.equal(o, right)


@pytest.mark.parametrize("rows", [2, 4])
def test_a_bias_per_key(rows):
    q, k, v, _ = draw(H=4, G=2)
    bias = draw(H=rows, N=1, D=5)[0][:, :, 0]
    o = foci.attend(q, k, v, key_bias=bias, enable_gqa=True)
    assert near(o, plain(q, k, v, visible(q, k), bias=bias))


def test_packed_sequences():
    q, k, v, _ = draw(B=1, N=7, M=7)
    offsets = torch.tensor([0, 3, 7])
    o = foci.attend(q, k, v, is_causal=True, q_offsets=offsets, k_offsets=offsets)
    for a, b in ((0, 3), (3, 7)):
        part = foci.attend(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], is_causal=True)
        assert near(o[:, :, a:b], part)


def test_strided_tensors_are_taken_as_they_are():
    x = torch.randn(2, 5, 3, 2, 4, dtype=torch.float64)  # (B,N,3,H,D): one projection
    q, k, v = (x[:, :, i].transpose(1, 2) for i in range(3))
    assert torch.equal(
        foci.attend(q, k, v), foci.attend(q.contiguous(), k.contiguous(), v.contiguous())
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("form", ["product", "distance"])
def test_a_metric_of_ones_is_dot_to_the_bit(form, dtype):
    q, k, v, _ = draw(dtype=dtype)
    ones = torch.ones(1, 2, 1, 4, dtype=dtype)
    dot = foci.attend(q, k, v, form=form)
    assert torch.equal(foci.attend(q, k, v, metric=ones, form=form), dot)
    named = foci.attend(q, k, v, metric="given", metric_tensor=ones, form=form)
    assert torch.equal(named, dot)


def test_a_full_metric_of_your_own():
    q, k, v, _ = draw()
    eye = torch.eye(4, dtype=torch.float64).expand(1, 2, 4, 4)
    o = foci.attend(q, k, v, metric=eye, extent="full", scale=0.5)
    assert near(o, foci.attend(q, k, v, form="distance", scale=0.5))


def test_lse_and_statistics_on_request():
    q, k, v, _ = draw()
    o = foci.attend(q, k, v)
    with_lse, lse = foci.attend(q, k, v, return_lse=True)
    scores = q @ k.transpose(-2, -1) / 2
    assert torch.equal(with_lse, o) and near(lse, scores.logsumexp(-1))
    with_stats, stats = foci.attend(q, k, v, return_stats=True)
    a = scores.softmax(-1)
    assert near(with_stats, o) and near(stats.entropy, -(a * a.log()).sum(-1))
    all_o, all_lse, all_stats = foci.attend(q, k, v, return_lse=True, return_stats=True)
    assert near(all_o, o) and near(all_lse, lse) and near(all_stats.largest, a.amax(-1))


def test_statistics_leave_the_gradient_alone():
    q, k, v, _ = draw()
    q.requires_grad_()
    o, stats = foci.attend(q, k, v, return_stats=True)
    assert o.requires_grad and not any(x is not None and x.requires_grad for x in stats)
    o.sum().backward()
    with_stats = q.grad.clone()
    q.grad = None
    foci.attend(q, k, v).sum().backward()
    assert torch.equal(q.grad, with_stats)


@pytest.mark.parametrize("deterministic", [True, False, None])
def test_the_same_bits_each_time(deterministic):
    q, k, v, _ = draw(N=65, M=65, D=32, E=32, dtype=torch.float32)
    assert torch.equal(foci.attend(q, k, v, deterministic=deterministic), foci.attend(q, k, v))


def test_what_is_switched_off_may_be_named():
    q, k, v, _ = draw()
    off = dict(
        window_size=(-1, -1), sliding_window=None, softcap=0.0, alibi_slopes=None, sinks=None
    )
    off.update(dropout_p=0.0, attn_mask=None)
    assert torch.equal(foci.attend(q, k, v, **off), foci.attend(q, k, v))


def test_settings_reach_the_operator():
    q, k, v, v_prev = draw()
    base = foci.attend(q, k, v, metric="layer-change", v_prev=v_prev)
    for how in (
        dict(normalize="mean"),
        dict(reduce="median"),
        dict(form="distance"),
        dict(scale=2),
    ):
        assert not near(foci.attend(q, k, v, metric="layer-change", v_prev=v_prev, **how), base)
    leak = dict(metric="layer-change", v_prev=v_prev, is_causal=True)
    prefix = foci.attend(q, k, v, **leak)
    assert not near(foci.attend(q, k, v, scope="sequence", allow_leak=True, **leak), prefix)
    for a, b in (
        (dict(seed=1), dict(seed=2)),
        (dict(layer=0), dict(layer=1)),
        (dict(floor=0.5), {}),
    ):
        one, other = (foci.attend(q, k, v, metric="random", **how) for how in (a, b))
        assert not near(one, other)
    for a, b in ((dict(ridge=1.0), {}), (dict(prior=5.0), {}), (dict(scale="auto"), {})):
        one, other = (foci.attend(q, k, v, metric="key-covariance", **how) for how in (a, b))
        assert not near(one, other)


def test_autocast_takes_mixed_types():
    q, k, v, _ = draw(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = foci.attend(q, k.bfloat16(), v)
    assert o.dtype == torch.bfloat16
    right = foci.attend(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert torch.equal(o, right)


def test_shapes_without_numbers():
    q, k, v, _ = (x.to("meta") for x in draw(H=4, G=2, E=3, dtype=torch.float32))
    o, lse = foci.attend(q, k, v, enable_gqa=True, return_lse=True)
    assert o.device.type == "meta" and o.shape == (2, 4, 5, 3) and lse.shape == (2, 4, 5)


PAIRS = {"halves": [0, 1, 0, 1], "neighbours": [0, 0, 1, 1]}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("metric", ["layer-change", "flat", "jacobian", "random"])
def test_rotary_pairs_share_their_metric(metric, pairs, causal):
    q, k, v, v_prev = draw(H=4, G=2, N=4, M=6)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 1] = False
    how = dict(metric=metric, enable_gqa=True, key_mask=mask, is_causal=causal)
    how.update(causal_align="bottom-right")
    if metric in ("layer-change", "flat"):
        how["v_prev"] = v_prev
    raw = foci.measure(q, k, v, normalize="none", **how).metric
    if metric == "flat":
        raw = foci.measure(q, k, v, normalize="none", **{**how, "metric": "layer-change"}).metric
    of = torch.tensor(PAIRS[pairs])
    mean = torch.stack([raw[..., of == i].mean(-1) for i in (0, 1)], -1)[..., of]
    m = mean / mean.amax(-1, keepdim=True)
    m = m.mean(-1, keepdim=True).expand_as(m) if metric == "flat" else m
    found = foci.measure(q, k, v, rotary_pairs=pairs, **how)
    assert near(found.metric.expand_as(m), m)
    rest = dict(enable_gqa=True, key_mask=mask, is_causal=causal, causal_align="bottom-right")
    assert near(found.o, foci.attend(q, k, v, metric=m, **rest))


@pytest.mark.parametrize("reduce", ["mean", "median"])
def test_torchs_estimate_is_the_operators(reduce):
    """Averaging within pairs that are equal already changes nothing."""
    q, k, v, v_prev = draw(D=2, E=2, M=6, N=6)
    double = [torch.cat([x, x], -1) for x in (q, k, v, v_prev)]
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, :3] = False
    how = dict(metric="layer-change", v_prev=double[3], key_mask=mask, reduce=reduce)
    o = foci.attend(*double[:3], **how)
    assert near(foci.attend(*double[:3], rotary_pairs="halves", **how), o)


@pytest.mark.parametrize("metric", ["dot", "key-covariance"])
def test_rotary_pairs_leave_other_metrics_alone(metric):
    q, k, v, _ = draw()
    o = foci.attend(q, k, v, metric=metric)
    assert torch.equal(foci.attend(q, k, v, metric=metric, rotary_pairs="halves"), o)
