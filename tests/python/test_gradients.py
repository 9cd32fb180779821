# SPDX-License-Identifier: Apache-2.0
"""gradcheck in double: every metric with every weighting it goes with, through the estimate and
detached (then against the same call with the metric frozen as a given one); the layers' metrics."""
import foci
import pytest
import torch
from draws import apart, draw
from torch.autograd import gradcheck

try:
    from torch.func import functional_call
except ImportError:  # torch 1.13
    from torch.nn.utils.stateless import functional_call

WEIGHTINGS = {
    "softmax": dict(weighting="softmax"),
    "relu2": dict(weighting="relu2"),
    "relu2-l2": dict(weighting="relu2", rescale="l2"),
    "identity": dict(weighting="identity"),
    "identity-l1": dict(weighting="identity", rescale="l1"),
    "linear-elu1": dict(weighting="linear"),
    "linear-exp": dict(weighting="linear", feature="exp"),
    "decay": dict(weighting="decay", rate=0.8),
    "decay-content": dict(weighting="decay", rate=0.8, content=True),
}
# Metrics and their own settings; a full metric or a distance has no relu2 and no linear.
PRODUCTS = {
    "dot": dict(metric="dot"),
    "layer-change": dict(metric="layer-change"),
    "layer-change-mean": dict(metric="layer-change", normalize="mean"),
    "flat": dict(metric="flat"),
    "jacobian": dict(metric="jacobian"),
    "random": dict(metric="random", seed=3, layer=1),
    "given": dict(metric="given"),
}
DISTANCES = {
    "dot-distance": dict(metric="dot", form="distance"),
    "layer-change-distance": dict(metric="layer-change", form="distance"),
    "flat-distance": dict(metric="flat", form="distance"),
    "jacobian-distance": dict(metric="jacobian", form="distance"),
    "random-distance": dict(metric="random", form="distance"),
    "given-distance": dict(metric="given", form="distance"),
    "key-covariance": dict(metric="key-covariance", ridge=0.1, prior=2.0),
    "given-full": dict(metric="given", extent="full", scale=0.5),
}
METRICS = {**PRODUCTS, **DISTANCES}
ESTIMATED = ("layer-change", "flat", "jacobian", "key-covariance")
OF_ESTIMATES = ("metric", "metric_grad", "ridge", "prior", "period", "normalize")
PLACES = ("plain", "causal", "shared")


def fits(metric, weighting):
    if weighting == "decay":  # looks at positions alone: the metric is ignored
        return metric == "dot"
    return metric in PRODUCTS or not weighting.startswith(("relu2", "linear"))


PAIRS = [(m, w) for m in METRICS for w in WEIGHTINGS if fits(m, w)]


def scene(metric, weighting, place, seed=0):
    """Tensors that may have a gradient, and the keywords of the call."""
    how = {**METRICS[metric], **WEIGHTINGS[weighting]}
    causal = place == "causal" or weighting.startswith("decay")
    shared = place == "shared"
    N, M = (3, 4) if place == "causal" else (4, 4)
    q, k, v, v_prev = draw(
        B=2 if shared else 1, H=2, G=1 if shared else 2, N=N, M=M, D=2, E=2, seed=seed
    )
    x = dict(q=q, k=k, v=v)
    if causal:
        how.update(is_causal=True, causal_align="bottom-right")
        if how["metric"] == "key-covariance":
            how["period"] = 2
    if shared:
        how["enable_gqa"] = True
        how["key_mask"] = torch.tensor([[True, False, True, True], [True, True, True, False]])
        if weighting not in ("decay", "linear-elu1", "linear-exp"):
            x["key_bias"] = draw(B=2, H=2, N=1, M=4, D=4, seed=seed + 1)[0][:, :, 0]
    if how["metric"] in ("layer-change", "flat"):
        x["v_prev"] = v_prev
    if how.get("extent") == "full":
        x["factor"] = torch.eye(2, dtype=torch.float64) + 0.3 * draw(B=1, H=k.size(1), N=2, D=2)[0]
    elif how["metric"] == "given":
        x["metric_tensor"] = 0.2 + draw(B=1, H=k.size(1), N=1, D=2, seed=7)[0].abs()
    return x, how


def call(x, how):
    x = dict(x)
    if "factor" in x:  # symmetric whatever the factor is
        lower = x.pop("factor").tril()
        x["metric_tensor"] = lower @ lower.transpose(-2, -1)
    return foci.attend(x.pop("q"), x.pop("k"), x.pop("v"), **x, **how)


def check(x, how):
    names = list(x)
    inputs = [x[name].clone().requires_grad_() for name in names]
    return gradcheck(lambda *tensors: call(dict(zip(names, tensors)), how), inputs)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("metric,weighting", PAIRS)
def test_gradients_follow_the_whole_call(metric, weighting, place):
    x, how = scene(metric, weighting, place)
    if how["metric"] in ESTIMATED:
        how["metric_grad"] = "through"
    assert check(x, how)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    "metric,weighting", [p for p in PAIRS if METRICS[p[0]]["metric"] in ESTIMATED]
)
def test_detached_is_the_gradient_with_the_metric_frozen(metric, weighting, place):
    x, how = scene(metric, weighting, place)
    how["metric_grad"] = "detached"
    if "period" in how:
        how["period"] = 8  # one chunk, so that its P can be given
    frozen = foci.measure(
        *(x[n] for n in "qkv"), **{n: t for n, t in x.items() if n not in "qkv"}, **how
    )
    ours = gradients(x, how)
    given = {n: x for n, x in how.items() if n not in OF_ESTIMATES}
    if frozen.metric.dim() == 5:
        given.update(metric_tensor=frozen.metric[:, :, 0], extent="full")
    elif how["metric"] == "key-covariance":
        given.update(metric_tensor=frozen.metric, extent="full")
    else:
        given.update(metric_tensor=frozen.metric)
    theirs = gradients({n: t for n, t in x.items() if n != "v_prev"}, {"metric": "given", **given})
    for name, gradient in theirs.items():
        assert apart(ours[name], gradient) <= 1e-12, name
    assert "v_prev" not in x or not ours["v_prev"].any()
    assert all(ours[name].abs().max() > 0 for name in "v")


def gradients(x, how):
    leaves = {name: t.clone().requires_grad_() for name, t in x.items()}
    o = call(leaves, how)
    o.backward(torch.linspace(-1, 2, o.numel(), dtype=o.dtype).reshape(o.shape))
    return {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in leaves.items()}


@pytest.mark.parametrize("metric", ESTIMATED)
def test_the_default_is_as_specified(metric):
    x, how = scene(metric, "softmax", "plain")
    right = "through" if metric == "key-covariance" else "detached"
    default = gradients(x, how)
    for metric_grad in ("detached", "through"):
        found = gradients(x, {**how, "metric_grad": metric_grad})
        same = all(apart(default[name], found[name]) == 0 for name in x)
        assert same == (metric_grad == right)


@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("metric", ["layer-change", "flat"])
@pytest.mark.parametrize("place", PLACES)
def test_gradients_through_rotary_pairs(metric, place, pairs):
    x, how = scene(metric, "softmax", place)
    assert check(x, {**how, "metric_grad": "through", "rotary_pairs": pairs})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["product", "distance"])
def test_a_metric_per_query_and_head(form, causal):
    x, how = scene("given", "softmax", "plain")
    x["metric_tensor"] = 0.1 + draw(B=1, H=2, N=4, D=2, seed=9)[0].abs()
    assert check(x, {**how, "form": form, "is_causal": causal})


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("weighting", ["softmax", "identity", "linear", "relu2"])
@pytest.mark.parametrize("metric", ["learned", "learned-full"])
def test_learned_metrics(metric, weighting, causal):
    if metric == "learned-full" and weighting in ("linear", "relu2"):
        pytest.skip("a full metric does not go with these")
    torch.manual_seed(0)
    layer = foci.nn.Attention(
        4, 2, kv_heads=1, metric=metric, weighting=weighting, init="random", causal=causal
    ).double()
    name = "metric_raw" if metric == "learned" else "metric_factor"
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    parameter = getattr(layer, name).detach().clone().requires_grad_()

    def run(parameter, x):
        return functional_call(layer, {name: parameter}, (x, None, mask))[0]

    assert gradcheck(run, (parameter, x))


@pytest.mark.parametrize("scope", ["sequence", "prefix", "running"])
@pytest.mark.parametrize("metric", ESTIMATED)
def test_layers_that_estimate(metric, scope):
    torch.manual_seed(0)
    causal = scope == "prefix"
    through = {} if scope == "running" else {"metric_grad": "through"}
    layer = foci.nn.Attention(4, 2, metric=metric, scope=scope, causal=causal, **through).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    below = torch.randn(2, 2, 3, 2, dtype=torch.float64, requires_grad=True)
    if scope == "running":
        layer(x.detach(), below.detach())
        layer.eval()
    assert gradcheck(lambda x, below: layer(x, below)[0], (x, below))


def test_second_derivatives_are_refused():
    x, how = scene("dot", "softmax", "plain")
    q = x["q"].clone().requires_grad_()
    o = foci.attend(q, x["k"], x["v"], **how)
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError):
        torch.autograd.grad(dq.sum(), q)
