# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors: every mechanism follows the definition by the tolerance rule, both ways; streams,
graphs, packed sequences; opcheck and torch.compile on the GPU."""
import foci
import pytest
import torch
from draws import Rule, draw

if not torch.cuda.is_available():
    pytest.skip("no GPU here", allow_module_level=True)

METRICS = {
    "dot": dict(),
    "dot-distance": dict(form="distance"),
    "layer-change": dict(metric="layer-change"),
    "layer-change-through": dict(metric="layer-change", metric_grad="through"),
    "flat": dict(metric="flat"),
    "jacobian": dict(metric="jacobian"),
    "key-covariance": dict(metric="key-covariance", prior=16.0),
    "random": dict(metric="random"),
    "prefix": dict(metric="key-covariance", is_causal=True),
    "causal": dict(metric="layer-change", is_causal=True),
}
WEIGHTINGS = {
    "softmax": dict(),
    "relu2": dict(weighting="relu2"),
    "identity": dict(weighting="identity"),
    "linear": dict(weighting="linear"),
    "decay": dict(weighting="decay", is_causal=True, content=True),
}
REFUSED = {("dot-distance", "relu2"), ("dot-distance", "linear"), ("key-covariance", "relu2"),
           ("key-covariance", "linear"), ("prefix", "relu2"), ("prefix", "linear"),
           ("jacobian", "decay"), ("key-covariance", "decay"), ("layer-change", "decay"),
           ("layer-change-through", "decay"), ("flat", "decay")}


def answers(tensors, how, device, dtype):
    """o and the gradients of q, k, v, v_prev and key_bias."""
    leaves = [x.to(device=device, dtype=dtype).requires_grad_() for x in tensors[:4]]
    bias = None
    if how.get("weighting") != "linear":
        bias = tensors[4].to(device=device, dtype=torch.promote_types(dtype, torch.float32))
        bias.requires_grad_()
    below = leaves[3] if how.get("metric") in ("layer-change", "flat") else None
    o = foci.attend(*leaves[:3], v_prev=below, key_bias=bias, enable_gqa=True, **how)
    (o * tensors[5].to(device=device, dtype=dtype)).sum().backward()
    grads = [x.grad for x in (*leaves, bias) if x is not None and x.grad is not None]
    return [x.detach().cpu() for x in (o, *grads)]


def scene(seed, sizes, dtype):
    q, k, v, v_prev = (x.to(dtype) for x in draw(seed=seed, **sizes))
    source = torch.Generator().manual_seed(100 + seed)
    bias = torch.randn(q.size(0), q.size(1), k.size(2), generator=source)
    d_o = torch.randn(q.size(0), q.size(1), q.size(2), v.size(3), generator=source).to(dtype)
    return q, k, v, v_prev, bias, d_o


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_the_gpu_follows_the_definition(metric, weighting, dtype):
    if (metric, weighting) in REFUSED:
        pytest.skip("refused, or nothing to see")
    how = {**METRICS[metric], **WEIGHTINGS[weighting]}
    sizes = dict(B=2, H=4, G=2, N=70, M=70, D=16, E=16)
    rules = {}
    for seed in range(4):
        given = scene(seed, sizes, dtype)
        exact = answers(given, {**how, "backend": "ref"}, "cpu", torch.float64)
        naive = answers(given, {**how, "backend": "ref"}, "cpu", dtype)
        ours = answers(given, how, "cuda", dtype)
        for index, triple in enumerate(zip(ours, naive, exact)):
            rules.setdefault(index, Rule()).add(*triple)
    for index, rule in rules.items():
        assert rule.holds(), (index, rule)


def test_calls_run_on_the_current_stream():
    q, k, v, _ = (x.cuda() for x in draw(B=1, H=2, N=64, M=64, D=16, E=16, dtype=torch.float32))
    right = foci.attend(q, k, v)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        late = q * 1
        o = foci.attend(late, k, v)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(o, right)


def test_a_graph_can_be_captured():
    q, k, v, v_prev = (x.cuda() for x in draw(N=48, M=48, D=16, E=16, dtype=torch.float32))
    how = dict(metric="key-covariance", prior=16.0)
    right = foci.attend(q, k, v, **how)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = foci.attend(q, k, v, **how)
    o.zero_()
    graph.replay()
    assert torch.equal(o, right)


def test_packed_sequences_equal_each_alone():
    q, k, v, _ = (x.cuda() for x in draw(B=1, N=30, M=30, D=16, E=16, dtype=torch.float32))
    at = torch.tensor([0, 11, 30])
    for device in ("cpu", "cuda"):
        o = foci.attend(q, k, v, q_offsets=at.to(device), k_offsets=at.to(device))
        for a, b in ((0, 11), (11, 30)):
            alone = foci.attend(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b])
            assert torch.equal(o[:, :, a:b], alone)


def test_mixed_devices_are_named():
    q, k, v, _ = draw(dtype=torch.float32)
    with pytest.raises(ValueError, match="k is on cpu and q on cuda:0"):
        foci.attend(q.cuda(), k, v.cuda())
    with pytest.raises(NotImplementedError, match="takes no f64"):
        foci.attend(q.double().cuda(), k.double().cuda(), v.double().cuda())
    with pytest.raises(ValueError, match="q is on a GPU"):
        foci.attend(q.cuda(), k.cuda(), v.cuda(), backend="cpu")


def test_measure():
    q, k, v, _ = draw(N=40, M=40, D=16, E=16, dtype=torch.float32)
    here, there = foci.measure(q, k, v), foci.measure(q.cuda(), k.cuda(), v.cuda())
    assert torch.allclose(here.entropy, there.entropy.cpu(), rtol=1e-5, atol=1e-5)
    assert torch.equal(here.largest_at, there.largest_at.cpu())


@pytest.mark.parametrize("name", ["dot", "layer-change", "key-covariance"])
def test_opcheck_and_compile(name):
    how = METRICS[name]
    q, k, v, v_prev = (x.cuda().requires_grad_() for x in draw(dtype=torch.float32))
    below = v_prev if name == "layer-change" else None
    words = " ".join(f"{n}={x}" for n, x in how.items())
    torch.library.opcheck(torch.ops.foci.attend.default,
                          (q, k, v, below, None, None, None, None, None, words))

    def model(q, k, v):
        return foci.attend(q, k, v, v_prev=below, **how).square().sum()

    compiled = torch.compile(model, fullgraph=True)
    loss, plain = compiled(q, k, v), model(q, k, v)
    assert torch.allclose(loss, plain)
    assert torch.allclose(torch.autograd.grad(loss, q)[0], torch.autograd.grad(plain, q)[0])
