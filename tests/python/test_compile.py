# SPDX-License-Identifier: Apache-2.0
"""torch 2: opcheck of every operator, torch.compile without graph breaks, torch.export."""
import foci
import pytest
import torch
from draws import apart, draw

pytestmark = pytest.mark.skipif(
    not hasattr(torch, "compile") or not hasattr(torch.library, "opcheck"),
    reason=f"opcheck, compile and export need torch 2.4; this is {torch.__version__}",
)

METRICS = {
    "dot": dict(),
    "dot-distance": dict(form="distance"),
    "layer-change": dict(metric="layer-change"),
    "layer-change-through": dict(metric="layer-change", metric_grad="through"),
    "flat": dict(metric="flat"),
    "jacobian": dict(metric="jacobian"),
    "key-covariance": dict(metric="key-covariance", prior=4.0),
    "random": dict(metric="random"),
    "relu2": dict(weighting="relu2"),
    "linear": dict(weighting="linear"),
    "decay": dict(weighting="decay", is_causal=True),
    "causal": dict(metric="layer-change", is_causal=True),
}


def scene(how, requires_grad=True, **sizes):
    q, k, v, v_prev = (x.requires_grad_(requires_grad) for x in draw(dtype=torch.float32, **sizes))
    below = v_prev if how.get("metric") in ("layer-change", "flat") else None
    return q, k, v, below


def arguments(name, requires_grad=True):
    """What the operator takes, positionally."""
    how = METRICS[name]
    q, k, v, below = scene(how, requires_grad)
    words = dict(how)
    words["causal"] = words.pop("is_causal", False)
    text = " ".join(f"{n}={str(x).lower() if isinstance(x, bool) else x}" for n, x in words.items())
    mask = torch.tensor([[True] * 4 + [False], [True] * 5])
    return (q, k, v, below, mask, None, None, None, None, text)


@pytest.mark.parametrize("name", METRICS)
def test_opcheck_attend(name):
    torch.library.opcheck(torch.ops.foci.attend.default, arguments(name))


def test_opcheck_attend_with_a_bias_and_a_given_metric():
    q, k, v, _, mask, *_ = arguments("dot")
    bias = torch.randn(2, 2, 5, requires_grad=True)
    m = torch.rand(1, 2, 1, 4).requires_grad_()
    torch.library.opcheck(
        torch.ops.foci.attend.default,
        (q, k, v, None, mask, bias, m, None, None, "metric=given"),
    )
    at = torch.tensor([0, 2, 5])
    one = [x[:1].detach() for x in (q, k, v)]
    torch.library.opcheck(
        torch.ops.foci.attend.default, (*one, None, None, None, None, at, at, "causal=true")
    )


@pytest.mark.parametrize("name", METRICS)
def test_opcheck_attend_backward(name):
    call = arguments(name, requires_grad=False)
    o, lse = torch.ops.foci.attend(*call)
    wanted = [True, True, True, call[3] is not None, False, False]
    torch.library.opcheck(
        torch.ops.foci.attend_backward.default,
        (torch.randn_like(o), *call[:-1], o, lse, call[-1], wanted),
    )


@pytest.mark.parametrize("name", METRICS)
def test_opcheck_measure(name):
    torch.library.opcheck(torch.ops.foci.measure.default, arguments(name, requires_grad=False))


def gradients(call, x):
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in x]
    o = call(*leaves)
    o.square().sum().backward()
    return [o.detach()] + [t.grad for t in leaves if t is not None and t.grad is not None]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", METRICS)
def test_compiled_without_graph_breaks(name, dynamic):
    torch._dynamo.reset()
    how = METRICS[name]

    def call(q, k, v, below):
        return foci.attend(q, k, v, v_prev=below, **how) * 2

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for sizes in (dict(), dict(N=7, M=7)):
        x = scene(how, **sizes)
        for mine, eager in zip(gradients(compiled, x), gradients(call, x)):
            assert torch.equal(mine, eager)


@pytest.mark.parametrize("dynamic", [None, False, True])
def test_numbers_may_change_between_calls(dynamic):
    torch._dynamo.reset()

    def call(q, k, v, scale, period):
        how = dict(metric="key-covariance", is_causal=True, period=period)
        return foci.attend(q, k, v, scale=scale, **how)

    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    q, k, v, _ = (x.detach() for x in draw(dtype=torch.float32))
    for scale, period in ((0.5, 2), (0.25, 3), (0.125, 2), (1, 4)):
        assert torch.equal(compiled(q, k, v, scale, period), call(q, k, v, scale, period))


def test_compiled_by_inductor():
    torch._dynamo.reset()

    def call(q, k, v, below):
        o = foci.attend(torch.sin(q), k, v, metric="layer-change", v_prev=below, is_causal=True)
        return torch.relu(o)

    try:
        compiled = torch.compile(call, fullgraph=True)
        found = gradients(compiled, scene(METRICS["layer-change"]))
    except Exception as error:
        if "compiler" in str(error).lower() and "not found" in str(error).lower():
            pytest.skip("inductor has no C++ compiler here")
        raise
    for mine, eager in zip(found, gradients(call, scene(METRICS["layer-change"]))):
        assert apart(mine, eager) <= 1e-5


def test_compiled_statistics():
    torch._dynamo.reset()

    def call(q, k, v):
        o, lse, stats = foci.attend(q, k, v, return_lse=True, return_stats=True)
        return o, lse, stats.effective_keys

    q, k, v, _ = (x.detach() for x in draw(dtype=torch.float32))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for mine, eager in zip(compiled(q, k, v), call(q, k, v)):
        assert torch.equal(mine, eager)


LAYERS = {
    "dot": dict(),
    "layer-change": dict(metric="layer-change", causal=True),
    "rotary": dict(metric="layer-change", causal=True, rotary_pairs="halves"),
    "jacobian": dict(metric="jacobian"),
    "key-covariance": dict(metric="key-covariance", causal=True),
    "random": dict(metric="random"),
    "learned": dict(metric="learned"),
    "learned-full": dict(metric="learned-full"),
    "running": dict(metric="layer-change", scope="running"),
}


def layer_of(name):
    torch.manual_seed(0)
    return foci.nn.Attention(8, 2, **LAYERS[name])


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compile_without_graph_breaks(name):
    torch._dynamo.reset()
    layer = layer_of(name)
    other = layer_of(name)
    compiled = torch.compile(other, fullgraph=True, backend="aot_eager")
    x, below = torch.randn(2, 6, 8), torch.randn(2, 2, 6, 4)
    for _ in range(2):  # training steps: an average moves on
        for one in (layer, compiled):
            one.zero_grad()
            one(x, below)[0].square().sum().backward()
    assert torch.equal(compiled(x, below)[0], layer(x, below)[0])
    for mine, eager in zip(other.parameters(), layer.parameters()):
        assert apart(mine.grad, eager.grad) <= 1e-6
    for mine, eager in zip(other.buffers(), layer.buffers()):
        assert apart(mine, eager) <= 1e-6


class Call(torch.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, q, k, v, below):
        return foci.attend(q, k, v, v_prev=below, **self.how)


@pytest.mark.parametrize("name", METRICS)
def test_exported_calls(name):
    q, k, v, below = scene(METRICS[name], requires_grad=False)
    exported = torch.export.export(Call(METRICS[name]), (q, k, v, below))
    nodes = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert any("foci" in target for target in nodes), nodes
    assert torch.equal(exported.module()(q, k, v, below), Call(METRICS[name])(q, k, v, below))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "running"])
def test_exported_layers(name):
    layer = layer_of(name).eval()
    x, below = torch.randn(2, 6, 8), torch.randn(2, 2, 6, 4)
    tokens = torch.export.Dim("tokens", min=2, max=64)
    exported = torch.export.export(
        layer, (x, below), dynamic_shapes=({1: tokens}, {2: tokens}), strict=False
    )
    for length in (6, 9):
        x, below = torch.randn(2, length, 8), torch.randn(2, 2, length, 4)
        mine, eager = exported.module()(x, below), layer(x, below)
        assert torch.equal(mine[0], eager[0]) and torch.equal(mine[1], eager[1])
