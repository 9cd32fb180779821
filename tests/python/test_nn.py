# SPDX-License-Identifier: Apache-2.0
"""foci.nn: layers against foci.attend and the formulas, scopes, learned metrics, checkpoints."""
import copy
import io

import foci
import pytest
import torch
from draws import apart
from foci.nn import Attention, Block, Cache

METRICS = [
    "dot",
    "layer-change",
    "flat",
    "jacobian",
    "key-covariance",
    "random",
    "learned",
    "learned-full",
]
ESTIMATED = METRICS[1:5]
SIZE = dict(dim=8, heads=4, kv_heads=2)


def make(metric="dot", dim=8, heads=4, kv_heads=2, weights=0, **how):
    torch.manual_seed(weights)
    return Attention(dim, heads, kv_heads=kv_heads, metric=metric, **how).double()


def batch(seed=1, B=2, N=5):
    torch.manual_seed(seed)
    x = torch.randn(B, N, 8, dtype=torch.float64)
    return x, torch.randn(B, 2, N, 2, dtype=torch.float64)


def projected(layer, x):
    q, k, v = layer.qkv(x).split([8, 4, 4], dim=2)
    return [t.unflatten(2, (-1, 2)).transpose(1, 2) for t in (q, k, v)]


def by_hand(layer, x, **how):
    """The layer's output by foci.attend."""
    o = foci.attend(*projected(layer, x), enable_gqa=True, **how)
    return layer.proj(o.transpose(1, 2).flatten(2))


def near(a, b, to=1e-12):
    return apart(a, b) <= to


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("metric", ["dot", "layer-change", "flat", "jacobian", "key-covariance"])
def test_a_layer_is_attend_between_two_projections(metric, causal):
    layer = make(metric, causal=causal)
    x, below = batch()
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    bias = torch.randn(2, 4, 5, dtype=torch.float64)
    y, v = layer(x, below, mask, bias)
    how = dict(metric=metric, is_causal=causal, key_mask=mask, key_bias=bias)
    if metric in ("layer-change", "flat"):
        how["v_prev"] = below
    if metric == "key-covariance":
        how.update(prior=2.0, scale=2**-0.5)
    assert near(y, by_hand(layer, x, **how))
    assert torch.equal(v, projected(layer, x)[2]) and v.shape == (2, 2, 5, 2)


def test_names_and_shapes_are_torchs():
    layer = Attention(8, 4, kv_heads=2, head_dim=6)
    shapes = {name: tuple(t.shape) for name, t in layer.state_dict().items() if name != "mechanism"}
    assert shapes == {
        "qkv.weight": (48, 8),
        "qkv.bias": (48,),
        "proj.weight": (8, 24),
        "proj.bias": (8,),
    }
    bare = Attention(8, 2, qkv_bias=False, proj_bias=False).state_dict()
    assert set(bare) == {"qkv.weight", "proj.weight", "mechanism"}
    block = Block(8, 2, metric="learned")
    names = {name.rsplit(".", 1)[0] for name in block.state_dict()}
    assert names == {"norm1", "norm2", "attn", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"}
    assert block.norm1.eps == 1e-6 and block.mlp.fc1.weight.shape == (32, 8)


def test_a_block_is_pre_norm():
    torch.manual_seed(0)
    block = Block(8, 4, kv_heads=2, mlp_ratio=2).double()
    x, _ = batch()
    y, v = block(x)
    middle = x + block.attn(block.norm1(x))[0]
    hidden = torch.nn.functional.gelu(block.mlp.fc1(block.norm2(middle)))
    assert near(y, middle + block.mlp.fc2(hidden)) and v.shape == (2, 2, 5, 2)


def test_values_travel_up_a_stack():
    torch.manual_seed(0)
    blocks = [Block(8, 4, metric="layer-change", lowest=i == 0, causal=True) for i in range(3)]
    x, v = torch.randn(2, 5, 8, requires_grad=True), None
    y = x
    for block in blocks:
        y, v = block(y, v)
    y.sum().backward()
    assert x.grad.abs().sum() > 0
    assert blocks[0].attn.metric == "dot" and blocks[1].attn.metric == "layer-change"


@pytest.mark.parametrize("metric", ["layer-change", "flat"])
def test_the_lowest_layer_is_dot(metric):
    lowest, dot = make(metric, lowest=True, normalize="mean", causal=True), make("dot", causal=True)
    x, _ = batch()
    assert torch.equal(lowest(x)[0], dot(x)[0])
    assert lowest.how.text == dot.how.text
    running = make(metric, lowest=True, scope="running", momentum=0.5, causal=True)
    assert running.how.text == dot.how.text and "running_m" not in running.state_dict()


def test_other_metrics_ignore_the_layer_below():
    x, below = batch()
    for metric in ("dot", "jacobian", "key-covariance", "random", "learned"):
        layer = make(metric)
        assert torch.equal(layer(x)[0], layer(x, below)[0])


# ---- learned and random ------------------------------------------------------------------------


def test_learned_metrics_begin_where_they_are_told():
    x, below = batch()
    assert near(make("learned")(x)[0], make("dot")(x)[0], 1e-6)  # the parameter was made in f32
    full = make("learned-full")
    assert near(full(x)[0], by_hand(full, x, form="distance", scale=2**-0.5), 1e-12)
    for metric in ("learned", "learned-full"):
        one, other = (make(metric, init="random", weights=s).given_metric() for s in (0, 1))
        assert not near(one, other, 1e-3)


def test_learned_begins_at_the_first_batchs_estimate():
    x, below = batch()
    mask = torch.ones(2, 5, dtype=torch.bool)
    mask[0, 0] = False
    layer = make("learned", init="estimate")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    y, _ = layer(x, below, mask)
    q, k, v = projected(layer, x)
    change = (v - below).abs() * mask[:, None, :, None]
    raw = change.sum(dim=(0, 2)) / mask.sum()
    m = (raw / raw.amax(-1, keepdim=True)).detach()
    assert near(layer.given_metric(), m[None, :, None], 1e-9)
    assert near(y, by_hand(layer, x, metric=m[None, :, None], key_mask=mask), 1e-9)
    y.sum().backward()
    optimizer.step()
    moved = layer.given_metric().detach()
    layer(2 * x, below)  # no second estimate
    assert torch.equal(layer.given_metric(), moved) and not near(moved, m[None, :, None], 1e-9)


def test_learned_full_begins_at_the_first_batchs_estimate():
    x, _ = batch(N=20)
    layer = make("learned-full", init="estimate")
    y, _ = layer(x)
    k = projected(layer, x)[1].transpose(0, 1).reshape(2, 40, 2)
    centred = k - k.mean(1, keepdim=True)
    S = centred.transpose(1, 2) @ centred / 39
    eye = torch.eye(2, dtype=torch.float64)
    P = torch.linalg.inv((40 * S + 2 * eye) / 42 + 1e-6 * eye)
    assert near(layer.given_metric()[0], P, 1e-9)
    assert near(y, by_hand(layer, x, metric=P[None].detach(), extent="full", scale=2**-0.5), 1e-9)


def test_learned_metrics_learn():
    for metric in ("learned", "learned-full"):
        layer = make(metric)
        x, _ = batch()
        layer(x)[0].square().sum().backward()
        name = "metric_raw" if metric == "learned" else "metric_factor"
        assert getattr(layer, name).grad.abs().sum() > 0


def test_random_is_drawn_once_and_stored():
    x, _ = batch()
    layer = make("random")
    drawn = layer.state_dict()["metric_drawn"]
    assert drawn.shape == (2, 2) and near(drawn.amax(-1), torch.ones(2)) and (drawn >= 0.1).all()
    assert near(layer(x)[0], by_hand(layer, x, metric=drawn[None, :, None]))
    assert near(layer(x)[0], by_hand(layer, x, metric="random"), 1e-6)
    others = [
        Attention(8, 4, kv_heads=2, metric="random", **how) for how in (dict(seed=1), dict(layer=1))
    ]
    assert not any(near(o.metric_drawn, drawn, 1e-3) for o in others)


# ---- scope running -----------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("metric", ["layer-change", "flat", "jacobian"])
def test_running_averages_the_batches_before(metric, causal):
    layer = make(metric, scope="running", momentum=0.9, causal=causal, normalize="mean")
    heads = 4 if metric == "jacobian" else 2
    average, weight = torch.zeros(heads, 2, dtype=torch.float64), 0.0
    for step in range(4):
        x, below = batch(seed=step)
        mask = torch.ones(2, 5, dtype=torch.bool)
        mask[step % 2, :step] = False
        m = average / weight if weight else torch.ones_like(average)
        m = m / m.mean(-1, keepdim=True)
        m = m.mean(-1, keepdim=True).expand_as(m) if metric == "flat" else m
        right = by_hand(layer, x, metric=m[None, :, None].clone(), key_mask=mask, is_causal=causal)
        assert near(layer(x, below, mask)[0], right), step
        q, k, v = projected(layer, x)
        if metric == "jacobian":
            how = dict(metric="jacobian", normalize="none", scope="sequence", enable_gqa=True)
            if causal:
                how.update(is_causal=True, allow_leak=True)
            each = foci.measure(q, k, v, key_mask=mask, **how).metric[:, :, 0]
            raw = (each * mask.sum(1)[:, None, None]).sum(0) / mask.sum()
        else:
            raw = ((v - below).abs() * mask[:, None, :, None]).sum(dim=(0, 2)) / mask.sum()
        average = 0.9 * average + 0.1 * raw.detach()
        weight = 0.9 * weight + 0.1
    assert layer.running_steps.item() == 4 and near(layer.running_m, average)


@pytest.mark.parametrize("causal", [False, True])
def test_running_covariance(causal):
    layer = make("key-covariance", scope="running", momentum=0.5, causal=causal, ridge=0.01)
    eye = torch.eye(2, dtype=torch.float64)
    mean, scatter, weight = torch.zeros(2, 2).double(), torch.zeros(2, 2, 2).double(), 0.0
    for step in range(3):
        x, _ = batch(seed=step)
        mask = torch.ones(2, 5, dtype=torch.bool)
        mask[0, :step] = False
        S = scatter / weight if weight else eye.expand(2, 2, 2)
        P = torch.linalg.inv(S + 0.01 * eye)[None]
        how = dict(metric=P, extent="full", scale=2**-0.5, key_mask=mask, is_causal=causal)
        assert near(layer(x, None, mask)[0], by_hand(layer, x, **how), 1e-10), step
        k = projected(layer, x)[1].detach().transpose(0, 1)[:, mask]  # (G,n,D)
        centred = k - k.mean(1, keepdim=True)
        mean = 0.5 * mean + 0.5 * k.mean(1)
        scatter = 0.5 * scatter + 0.5 * centred.transpose(1, 2) @ centred / (k.size(1) - 1)
        weight = 0.5 * weight + 0.5
    assert near(layer.running_mean, mean) and near(layer.running_scatter, scatter)


@pytest.mark.parametrize("metric", ESTIMATED)
def test_running_is_fixed_at_evaluation(metric):
    layer = make(metric, scope="running")
    x, below = batch()
    layer(x, below)
    layer.eval()
    state = copy.deepcopy(layer.state_dict())
    y, _ = layer(x)  # needs no layer below
    assert torch.equal(layer(x, below)[0], y)
    assert all(torch.equal(t, state[name]) for name, t in layer.state_dict().items())
    alone = layer(x[:1])[0]
    assert near(alone, y[:1])  # no estimate from the batch


def test_running_does_not_move_on_an_empty_batch():
    layer = make("layer-change", scope="running")
    x, below = batch()
    layer(x, below, torch.zeros(2, 5, dtype=torch.bool))
    assert layer.running_steps.item() == 0 and not layer.running_m.any()


def test_averages_stay_wide():
    for metric in ("layer-change", "key-covariance"):
        layer = Attention(8, 2, metric=metric, scope="running").bfloat16()
        kept = [t.dtype for name, t in layer.state_dict().items() if name.startswith("running_")]
        assert set(kept) == {torch.float32, torch.int64}
        x = torch.randn(1, 4, 8, dtype=torch.bfloat16)
        y, _ = layer(x, torch.randn(1, 2, 4, 4, dtype=torch.bfloat16))
        assert y.dtype == torch.bfloat16
    for metric in ("learned", "learned-full", "random"):
        y, _ = Attention(8, 2, metric=metric).bfloat16()(x)
        assert y.dtype == torch.bfloat16


@pytest.mark.parametrize("metric", METRICS)
def test_autocast_narrows_attention_but_not_the_metric(metric):
    torch.manual_seed(0)
    layer = Attention(8, 2, metric=metric, init="random" if "learned" in metric else "identity")
    x, below = torch.randn(2, 5, 8), torch.randn(2, 2, 5, 4)
    right = layer(x, below)[0]
    outside = layer.given_metric()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, v = layer(x, below.bfloat16())
        inside = layer.given_metric()
    assert y.dtype == v.dtype == torch.bfloat16 and apart(y, right) <= 0.1
    assert outside is None or torch.equal(inside, outside)


# ---- scope prefix and the cache ----------------------------------------------------------------


@pytest.mark.parametrize("pairs", [None, "halves", "neighbours"])
@pytest.mark.parametrize("metric", METRICS)
def test_a_later_token_changes_nothing_before_it(metric, pairs):
    own = dict(period=2) if metric == "key-covariance" else {}
    layer = make(metric, causal=True, rotary_pairs=pairs, **own)
    x, below = batch(N=7)
    y, _ = layer(x, below)
    x2, below2 = x.clone(), below.clone()
    x2[:, 5:], below2[:, :, 5:] = 3.0, -2.0
    y2, _ = layer(x2, below2)
    assert torch.equal(y[:, :5], y2[:, :5]) and not near(y[:, 5:], y2[:, 5:], 1e-3)


SCOPES = [(m, s) for m in METRICS for s in ((None, "running") if m in ESTIMATED else (None,))]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("pairs", [None, "halves", "neighbours"])
@pytest.mark.parametrize("metric,scope", SCOPES)
def test_decoding_with_a_cache_is_the_full_pass(metric, scope, pairs, masked):
    own = dict(period=2) if metric == "key-covariance" and scope is None else {}
    layer = make(metric, causal=True, scope=scope, rotary_pairs=pairs, **own)
    x, below = batch(N=9)
    mask = torch.ones(2, 9, dtype=torch.bool)
    if masked:
        mask[0, :2], mask[1, 4:6] = False, False
    layer(x, below, mask)
    layer.eval()
    with torch.no_grad():
        y, v = layer(x, below, mask)
        cache, steps = Cache(), []
        for a, b in ((0, 3), (3, 4), (4, 7), (7, 8), (8, 9)):
            now = mask[:, a:b] if masked else None
            part, v_part = layer(x[:, a:b], below[:, :, a:b], now, cache=cache)
            assert torch.equal(v_part, v[:, :, a:b]) or near(v_part, v[:, :, a:b])
            steps.append(part)
            assert len(cache) == b
    assert near(torch.cat(steps, 1), y)


@pytest.mark.parametrize("weighting", ["relu2", "identity", "linear", "decay"])
def test_decoding_under_other_weightings(weighting):
    layer = make(
        "layer-change" if weighting != "decay" else "dot", causal=True, weighting=weighting
    )
    x, below = batch(N=6)
    with torch.no_grad():
        y, _ = layer(x, below)
        cache = Cache()
        steps = [layer(x[:, i : i + 1], below[:, :, i : i + 1], cache=cache)[0] for i in range(6)]
    assert near(torch.cat(steps, 1), y)


def test_a_cache_can_be_cleared_and_its_rows_chosen():
    for metric in ("layer-change", "jacobian"):
        layer = make(metric, causal=True)
        x, below = batch(N=4)
        mask = torch.tensor([[False, True, True, True], [True] * 4])
        with torch.no_grad():
            cache = Cache()
            layer(x[:, :3], below[:, :, :3], mask[:, :3], cache=cache)
            cache.reorder(torch.tensor([1, 1]))
            y, _ = layer(
                x[1:, 3:].expand(2, 1, 8), below[1:, :, 3:].expand(2, 2, 1, 2), cache=cache
            )
            full, _ = layer(x, below, mask)
            assert near(y[0], full[1, 3:]) and near(y[1], full[1, 3:])
            assert repr(cache) == "Cache(length=4)"
            cache.reset()
            first, _ = layer(x[:, :1], below[:, :, :1], mask[:, :1], cache=cache)
            assert near(first, full[:, :1]) and len(cache) == 1


def test_a_mask_may_come_late():
    layer = make(causal=True)
    x, _ = batch(N=3)
    with torch.no_grad():
        cache = Cache()
        layer(x[:, :2], cache=cache)
        late = torch.tensor([[False], [True]])
        y, _ = layer(x[:, 2:], None, late, cache=cache)
        mask = torch.tensor([[True, True, False], [True] * 3])
        assert near(y, layer(x, None, mask)[0][:, 2:])


# ---- rotary positions --------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
def test_rotary_scores_depend_on_distance_alone(pairs):
    from foci.nn import rotated

    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    m = torch.rand(4, dtype=torch.float64)
    m = torch.cat([m, m]) if pairs == "halves" else m.repeat_interleave(2)

    def score(at_q, at_k):
        a, b = rotated(q, at_q, pairs, 10000.0), rotated(k, at_k, pairs, 10000.0)
        return (m * a * b).sum()

    assert near(score(3, 1), score(103, 101), 1e-9) and not near(score(3, 1), score(4, 1), 1e-3)
    assert torch.equal(rotated(q, 0, pairs, 10000.0), q)


# ---- checkpoints -------------------------------------------------------------------------------


def told(layer):
    return bytes(layer.state_dict()["mechanism"].tolist()).decode()


def words_of(layer):
    return dict(word.split("=") for word in told(layer).split())


def test_the_mechanism_is_stored_in_words():
    layer = Attention(8, 2, metric="layer-change", normalize="mean", causal=True)
    assert layer.state_dict()["mechanism"].dtype == torch.uint8
    words = words_of(layer)
    assert words["metric"] == "layer-change" and words["scope"] == "prefix"
    assert words["normalize"] == "mean" and words["causal"] == "true"
    assert told(layer) in repr(layer)
    words = words_of(Attention(8, 2, metric="key-covariance"))
    assert float(words["prior"]) == 4 and float(words["scale"]) == 0.5
    words = words_of(Attention(8, 2, metric="learned", init="random"))
    assert words["metric"] == "learned" and words["init"] == "random"
    layer = Attention(8, 2, metric="flat", scope="running", momentum=0.5)
    words = words_of(layer)
    assert words["scope"] == "running" and float(words["momentum"]) == 0.5


def test_the_words_are_those_of_cpp():
    """tests/nn has the same texts: state dicts go both ways."""
    sizes = "head_dim=4 heads=2"
    layer = Attention(8, 2, metric="layer-change", causal=True)
    end = "metric_grad=detached normalize=max reduce=mean scale=0.5 scope=prefix"
    begin = "metric=layer-change weighting=softmax allow_leak=false causal=true form=product"
    assert told(layer) == f"{begin} {sizes} kv_heads=2 {end}"
    layer = Attention(8, 2, metric="learned", init="estimate", weighting="relu2")
    end = "init=estimate kv_heads=2 rescale=length scale=0.5"
    assert told(layer) == f"metric=learned weighting=relu2 causal=false form=product {sizes} {end}"
    layer = Attention(8, 2, metric="key-covariance", scope="running")
    end = "kv_heads=2 momentum=0.99 ridge=1e-06 scale=0.5 scope=running"
    assert told(layer) == f"metric=key-covariance weighting=softmax causal=false {sizes} {end}"


ALIKE = [
    dict(metric="dot"),
    dict(metric="layer-change", normalize="mean"),
    dict(metric="flat", scope="running"),
    dict(metric="jacobian", scope="running"),
    dict(metric="key-covariance", scope="running"),
    dict(metric="key-covariance", ridge=0.1),
    dict(metric="random", seed=4),
    dict(metric="learned", init="estimate"),
    dict(metric="learned-full", init="estimate"),
    dict(metric="layer-change", rotary_pairs="halves"),
    dict(weighting="decay", rate=0.5, causal=True),
]


@pytest.mark.parametrize("how", ALIKE, ids=lambda how: " ".join(map(str, how.values())))
def test_a_checkpoint_brings_everything_back(how):
    x, below = batch()
    one, other = make(**how), make(**how, weights=1)
    one(x, below)
    stored = io.BytesIO()
    torch.save(one.state_dict(), stored)
    stored.seek(0)
    assert other.load_state_dict(torch.load(stored)).missing_keys == []
    for layer in (one, other):
        layer.eval()
    assert torch.equal(one(x, below)[0], other(x, below)[0])
    other.train()
    other(x, below)
    if "learned" in how.get("metric", ""):  # no second estimate
        assert torch.equal(one.given_metric(), other.given_metric())


DIFFERENT = [
    (dict(metric="dot"), dict(metric="jacobian")),
    (dict(metric="layer-change"), dict(metric="flat")),
    (dict(metric="layer-change"), dict(metric="layer-change", normalize="mean")),
    (dict(metric="key-covariance"), dict(metric="key-covariance", prior=1.0)),
    (dict(metric="key-covariance"), dict(metric="key-covariance", scale=1.0)),
    (dict(weighting="softmax"), dict(weighting="relu2")),
    (dict(causal=True), dict(causal=False)),
    (dict(heads=4), dict(heads=2, kv_heads=1)),
    (dict(metric="random"), dict(metric="random", layer=1)),
    (dict(), dict(rotary_pairs="halves")),
    (dict(rotary_pairs="neighbours"), dict(rotary_pairs="halves")),
]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("a,b", DIFFERENT)
def test_another_mechanism_is_refused(a, b, strict):
    one, other = torch.nn.Sequential(make(**a)), torch.nn.Sequential(make(**b, weights=1))
    for source, target in ((one, other), (other, one)):
        with pytest.raises(RuntimeError) as caught:
            target.load_state_dict(source.state_dict(), strict=strict)
        message = str(caught.value)
        assert "0.mechanism" in message and "build the layer with" in message
        assert source[0].how.text in message and target[0].how.text in message


TRAINED = [
    (dict(metric="layer-change"), dict(metric="layer-change", metric_grad="through")),
    (dict(metric="learned"), dict(metric="learned", init="random")),
    (dict(metric="flat", scope="running"), dict(metric="flat", scope="running", momentum=0.5)),
    (dict(metric="dot"), dict(metric="dot", scale=2**-0.5)),  # the default, said aloud
]


@pytest.mark.parametrize("a,b", TRAINED)
def test_how_a_layer_is_trained_is_not_compared(a, b):
    one, other = make(**a), make(**b, weights=1)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.qkv.weight, one.qkv.weight)


def test_a_refused_checkpoint_leaves_the_layer_as_it_was():
    layer = make("layer-change")
    before = layer.qkv.weight.clone()
    with pytest.raises(RuntimeError, match="made under"):
        layer.load_state_dict(make("flat", weights=1).state_dict(), strict=False)
    assert torch.equal(layer.qkv.weight, before)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("metric", ["layer-change", "key-covariance"])
def test_a_batch_computed_twice_counts_once(metric, reentrant):
    """Activation checkpointing computes a layer again on the way back."""
    from torch.utils.checkpoint import checkpoint

    plain = make(metric, scope="running")
    twice = copy.deepcopy(plain)
    for seed in (1, 2, 3):
        x, below = batch(seed)
        for layer in (plain, twice):
            layer.zero_grad()
        plain(x, below)[0].pow(2).sum().backward()
        x = x.requires_grad_()
        y, _ = checkpoint(twice, x, below, use_reentrant=reentrant)
        y.pow(2).sum().backward()
        assert torch.equal(twice.qkv.weight.grad, plain.qkv.weight.grad)
        assert twice.running_steps == plain.running_steps == seed
        assert torch.equal(twice.given_metric(), plain.given_metric())


def test_a_metric_that_nobody_looks_at_has_no_gradient():
    layer = make("learned", weighting="decay", causal=True)
    layer(batch()[0])[0].sum().backward()
    assert torch.equal(layer.metric_raw.grad, torch.zeros_like(layer.metric_raw))


def test_a_refused_step_leaves_the_cache_as_it_was():
    layer, cache = make("layer-change", causal=True), Cache()
    x, below = batch(N=6)
    with torch.no_grad():
        full = layer(x, below)[0]
        layer(x[:, :4], below[:, :, :4], cache=cache)
        new = x[:, 4:], below[:, :, 4:]
        for wrong, says in [
            (dict(v_prev=below), "v_prev is torch.float64 of shape .*new tokens alone"),
            (dict(v_prev=new[1].float()), "v_prev is torch.float32"),
            (dict(key_mask=torch.ones(2, 6).bool()), "key_mask has shape .2, 6.*new tokens"),
            (dict(key_bias=torch.ones(2, 4, 3)), "key_bias has shape"),
        ]:
            with pytest.raises(ValueError, match=says):
                layer(new[0], **{"v_prev": new[1], **wrong}, cache=cache)
            assert len(cache) == 4
        assert near(layer(*new, cache=cache)[0], full[:, 4:])


def test_a_cache_belongs_to_one_layer():
    cache = Cache()
    with torch.no_grad():
        make(causal=True)(batch()[0], cache=cache)
        with pytest.raises(ValueError, match="give each layer a Cache of its own"):
            make(causal=True)(batch()[0], cache=cache)


def test_the_backend_is_no_part_of_a_mechanism():
    one, other = make(backend="ref"), make(weights=1)
    other.load_state_dict(one.state_dict())
    one.load_state_dict(other.state_dict())
    assert "backend" not in told(one)


def test_without_a_mechanism_only_when_told():
    state = make().state_dict()
    del state["mechanism"]
    with pytest.raises(RuntimeError, match="mechanism"):
        make(weights=1).load_state_dict(state)
    found = make(weights=1).load_state_dict(state, strict=False)
    assert found.missing_keys == ["mechanism"]


def test_an_estimate_that_never_came_is_still_awaited():
    x, below = batch()
    one, other = make("learned", init="estimate"), make("learned", init="estimate", weights=1)
    other.load_state_dict(one.state_dict())
    other(x, below)
    assert not near(other.given_metric(), one.given_metric(), 1e-3)


def test_copies_and_pickles():
    layer = make("layer-change", causal=True)
    x, below = batch()
    y, _ = layer(x, below)
    assert torch.equal(copy.deepcopy(layer)(x, below)[0], y)
    stored = io.BytesIO()
    torch.save(layer, stored)
    stored.seek(0)
    how = {} if torch.__version__ < "2" else {"weights_only": False}
    assert torch.equal(torch.load(stored, **how)(x, below)[0], y)


def test_device_and_dtype():
    layer = Attention(8, 2, metric="random", dtype=torch.float64, device="cpu")
    assert {p.dtype for p in layer.parameters()} == {torch.float64}
    block = Block(8, 2, dtype=torch.float64)
    assert {p.dtype for p in block.parameters()} == {torch.float64}


# ---- messages ----------------------------------------------------------------------------------

REFUSED = [
    (dict(dim=9), ValueError, "dim 9 is no multiple of 4 heads: set head_dim"),
    (dict(kv_heads=3), ValueError, "4 heads is no multiple of kv_heads 3"),
    (dict(metric="given"), ValueError, "metric given has no tensor here: use foci.attend"),
    (dict(metric="dots"), ValueError, "metric is 'dots'"),
    (dict(scope="prefix"), ValueError, "scope prefix belongs to metrics that are estimated"),
    (dict(metric="flat", scope="all"), ValueError, "scope is 'all'; it must be sequence, prefix"),
    (dict(metric="flat", scope="sequence", causal=True), ValueError, "scope sequence in a causal"),
    (dict(metric="learned", init="zero"), ValueError, "init is 'zero'; it must be identity"),
    (dict(init="random"), ValueError, "init random belongs to learned metrics, not to dot"),
    (dict(momentum=0.5), ValueError, "momentum belongs to scope running"),
    (
        dict(metric="flat", scope="running", momentum=1.0),
        ValueError,
        "momentum is 1.0; it must lie",
    ),
    (dict(metric="learned", metric_grad="detached"), ValueError, "leave out metric_grad"),
    (dict(metric="learned", normalize="max"), ValueError, "normalize belongs to metric"),
    (
        dict(metric="flat", scope="running", metric_grad="through"),
        ValueError,
        "averages the past: it has no metric_grad through",
    ),
    (dict(metric="flat", scope="running", reduce="median"), ValueError, "use reduce mean"),
    (
        dict(metric="key-covariance", scope="running", prior=1.0),
        ValueError,
        "prior has no place under scope running",
    ),
    (dict(rotary_pairs="thirds"), ValueError, "rotary_pairs is 'thirds'; it must be halves"),
    (dict(rotary_pairs="halves", head_dim=3), ValueError, "rotary_pairs needs an even head size"),
    (dict(rotary_base=2.0), ValueError, "rotary_base belongs to rotary_pairs"),
    (
        dict(metric="jacobian", rotary_pairs="halves", metric_grad="through"),
        NotImplementedError,
        "jacobian with rotary_pairs has no metric_grad through",
    ),
    (
        dict(metrc="dot"),
        TypeError,
        "nn.Attention.. got an unexpected.*'metrc'; did you mean metric",
    ),
    (dict(is_causal=True), TypeError, "'is_causal'; did you mean causal"),
    (dict(sliding_window=3), NotImplementedError, "sliding_window is not supported"),
    (dict(weighting="decay"), ValueError, "causal"),
    (dict(backend="gpu"), ValueError, "backend is 'gpu'"),
]


@pytest.mark.parametrize("how,error,says", REFUSED)
def test_settings_that_do_not_fit(how, error, says):
    with pytest.raises(error, match=says):
        Attention(**{**SIZE, **how})


def test_calls_that_do_not_fit():
    x, below = batch()
    with pytest.raises(ValueError, match=r"x has shape \(2, 8\); it must be \(batch, tokens, 8\)"):
        make()(x[:, 0])
    with pytest.raises(ValueError, match="v_prev is missing .on the lowest layer set lowest=True"):
        make("layer-change")(x)
    with pytest.raises(ValueError, match="v_prev came, but lowest=True"):
        make("layer-change", lowest=True)(x, below)
    with pytest.raises(ValueError, match="v_prev is missing"):
        make("flat", scope="running")(x)
    with pytest.raises(ValueError, match="the first batch needs v_prev"):
        make("learned", init="estimate")(x)
    with pytest.raises(ValueError, match="key_mask has torch.int64.*key_mask.bool"):
        make()(x, None, torch.ones(2, 5).long())
    with pytest.raises(ValueError, match="a cache needs a causal layer"):
        make()(x, cache=Cache())
    with pytest.raises(RuntimeError, match="decode under torch.no_grad"):
        make(causal=True)(x, cache=Cache())
    with torch.no_grad():
        layer, cache = make("layer-change", causal=True), Cache()
        layer(x, below, cache=cache)
        with pytest.raises(ValueError, match="it holds 2 sequences and 1 came"):
            layer(x[:1], below[:1], cache=cache)
        with pytest.raises(ValueError, match="x has type torch.int64"):
            layer(x.long(), below)


def test_a_covariance_that_cannot_be_factored():
    layer = make("key-covariance", scope="running").eval()
    layer.running_steps.fill_(1)
    layer.running_scatter.copy_(-2 * torch.eye(2).expand(2, 2, 2))
    with pytest.raises(RuntimeError, match="cannot be factored, not with a ridge of 1 either"):
        layer(batch()[0])
    layer.running_scatter.copy_(-1e-4 * torch.eye(2).expand(2, 2, 2))
    assert layer(batch()[0])[0].isfinite().all()  # the ridge was raised


@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 3, 8)])
def test_no_tokens_give_no_tokens(shape):
    y, v = foci.nn.Attention(8, 2)(torch.randn(shape))
    assert y.shape == shape and v.shape == (shape[0], 2, shape[1], 4)


def test_an_unknown_metric_is_told_the_known_ones():
    with pytest.raises(ValueError, match="it must be one of dot, .*learned, learned-full$"):
        foci.nn.Attention(8, 2, metric="foo")
