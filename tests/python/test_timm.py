# SPDX-License-Identifier: Apache-2.0
"""foci.timm: timm's vision transformers with a metric, against timm's own attention."""
import copy

import pytest
import torch

timm = pytest.importorskip("timm", reason="timm is not installed")
import foci  # noqa: E402
import foci.timm  # noqa: E402
from held import attend, hold, layer_change, normalise  # noqa: E402

has_compile = pytest.mark.skipif(not hasattr(torch, "compile"), reason="torch 1 has no compile")


def small(seed=0, **more):
    """Three blocks of 2 heads of 16, 17 tokens, weights large enough that attention is not flat."""
    torch.manual_seed(seed)
    settings = dict(img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2, num_classes=10)
    model = timm.models.VisionTransformer(**{**settings, **more})
    for name, weight in model.named_parameters():
        if "qkv" in name or "proj.weight" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


def images(count=4, size=32, seed=1):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [weight.grad.clone() for weight in model.parameters()]


def by_definition(model, x):
    """The model's forward with layer-change written out: every block but the lowest."""
    x = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(x))))
    below = None
    for block in model.blocks:
        attn, y = block.attn, block.norm1(x)
        B, N, _ = y.shape
        q, k, v = attn.qkv(y).reshape(B, N, 3, attn.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        kept = torch.ones(B, N, dtype=torch.bool)
        m = None if below is None else normalise(layer_change(v, below, kept, None)).detach()
        o = attend(q, k, v, m, kept, False, attn.scale)
        x = x + attn.proj(o.transpose(1, 2).reshape(B, N, -1))
        x = x + block.mlp(block.norm2(x))
        below = v
    return model.forward_head(model.norm(x))


@pytest.mark.parametrize("more", [{}, {"qk_norm": True, "scale_attn_norm": True}])
def test_dot_is_timms_own(more):
    theirs = small(**more)
    ours = foci.timm.enable(copy.deepcopy(theirs), metric="dot")
    exact = copy.deepcopy(theirs).double()
    xs = [images(seed=seed) for seed in range(4)]
    with torch.no_grad():
        hold(
            [ours(x) for x in xs],
            [theirs(x) for x in xs],
            [exact(x.double()) for x in xs],
            "logits",
        )
    hold(
        gradients(ours, xs[0]), gradients(theirs, xs[0]), gradients(exact, xs[0].double()), "grads"
    )


def test_dot_in_deit_tiny_is_timms_own():
    torch.manual_seed(0)
    theirs = timm.create_model("deit_tiny_patch16_224", pretrained=False).eval()
    ours = foci.timm.enable(copy.deepcopy(theirs), metric="dot")
    exact = copy.deepcopy(theirs).double()
    x = images(2, 224)
    with torch.no_grad():
        hold(ours(x), theirs(x), exact(x.double()), "logits")
    hold(gradients(ours, x), gradients(theirs, x), gradients(exact, x.double()), "gradients")


def test_layer_change_is_the_definition():
    model = small()
    ours = foci.timm.enable(copy.deepcopy(model))
    exact = copy.deepcopy(model).double()
    xs = [images(seed=seed) for seed in range(3)]
    with torch.no_grad():
        mine = [ours(x) for x in xs]
        hold(
            mine,
            [by_definition(model, x) for x in xs],
            [by_definition(exact, x.double()) for x in xs],
        )
        assert (mine[0] - model(xs[0])).abs().max() > 1e-3  # and not dot
        assert torch.equal(ours.forward_head(ours.forward_features(xs[0])), mine[0])


@pytest.mark.parametrize("metric", ["flat", "jacobian", "key-covariance", "random"])
def test_every_metric_runs_and_differs_from_dot(metric):
    model = small()
    x = images()
    own = foci.timm.enable(copy.deepcopy(model), metric=metric, layers=":")
    with torch.no_grad():
        assert torch.isfinite(own(x)).all()
        assert (own(x) - model(x)).abs().max() > 1e-4
    assert all(torch.isfinite(g).all() for g in gradients(own, x))


def test_layers_chooses():
    model = small(depth=4)
    x = images()
    with torch.no_grad():
        plain = model(x)
        for layers, lowest in (("1:", 1), ("3", 3), ([-1], 3), ("2:4", 2)):
            own = foci.timm.enable(copy.deepcopy(model), metric="random", layers=layers)
            metrics = [block.attn._foci.metric for block in own.blocks]
            assert metrics.index("random") == lowest
            assert (own(x) - plain).abs().max() > 1e-4
        own = foci.timm.enable(copy.deepcopy(model), metric="layer-change", layers=":")
        assert [b.attn._foci.metric for b in own.blocks] == ["dot"] + ["layer-change"] * 3
    for wrong in ("one", "1:2:0", "9:", 7, []):
        with pytest.raises(ValueError, match="layers"):
            foci.timm.enable(copy.deepcopy(model), layers=wrong)


def test_weights_keep_their_names_and_load_strictly():
    plain = small()
    names = set(plain.state_dict())
    own = foci.timm.enable(copy.deepcopy(plain))
    assert {n for n in own.state_dict() if not n.endswith("attn.mechanism")} == names
    assert [n for n, _ in own.named_parameters()] == [n for n, _ in plain.named_parameters()]
    other = small(seed=5)
    own.load_state_dict(other.state_dict(), strict=True)
    x = images()
    with torch.no_grad():
        assert torch.equal(own(x), foci.timm.enable(copy.deepcopy(other))(x))


def test_a_checkpoint_does_not_load_under_another_metric():
    own = foci.timm.enable(small())
    saved = own.state_dict()
    again = foci.timm.enable(small(seed=3))
    again.load_state_dict(saved, strict=True)
    x = images()
    with torch.no_grad():
        assert torch.equal(own(x), again(x))
    for settings in ({"metric": "random"}, {"normalize": "mean"}, {"layers": "2:"}):
        other = foci.timm.enable(small(), **settings)
        with pytest.raises(RuntimeError, match="blocks.1.attn.mechanism"):
            other.load_state_dict(saved, strict=True)
    with pytest.raises(RuntimeError, match="mechanism"):
        small().load_state_dict(saved, strict=True)


def test_attn_layer_then_link():
    made = small(attn_layer=foci.timm.EllipticalAttention)
    x = images()
    with pytest.raises(RuntimeError, match="foci.timm.link"):
        made(x)
    plain = small()
    made.load_state_dict(plain.state_dict(), strict=True)
    foci.timm.link(made, metric="layer-change")
    with torch.no_grad():
        assert torch.equal(made(x), foci.timm.enable(plain)(x))


def test_link_minds_a_checkpoint_that_was_loaded_before():
    saved = foci.timm.enable(small()).state_dict()
    made = small(attn_layer=foci.timm.EllipticalAttention)
    made.load_state_dict(saved, strict=True)
    with pytest.raises(ValueError, match="layer-change"):
        foci.timm.link(made, metric="random")
    foci.timm.link(made)
    with torch.no_grad():
        assert torch.isfinite(made(images())).all()


def test_disable_brings_timms_attention_back():
    model = small()
    x = images()
    with torch.no_grad():
        before = model(x)
        foci.timm.disable(foci.timm.enable(model))
        assert torch.equal(model(x), before)
    assert all(type(b.attn).__module__.startswith("timm") for b in model.blocks)


def test_copies_do_not_share_values():
    one = foci.timm.enable(small())
    two = copy.deepcopy(one)
    assert one.blocks[0].attn._foci.stack is one.blocks[1].attn._foci.stack
    assert two.blocks[0].attn._foci.stack is two.blocks[1].attn._foci.stack
    assert two.blocks[0].attn._foci.stack is not one.blocks[0].attn._foci.stack
    x = images()
    with torch.no_grad():
        assert torch.equal(one(x), two(x))
    assert not one.blocks[0].attn._foci.stack.values  # nothing is left behind


def test_checkpointing_gives_the_same_gradients():
    model = foci.timm.enable(small()).train()
    x = images()
    plain = gradients(model, x)
    model.set_grad_checkpointing(True)
    for a, b in zip(gradients(model, x), plain):
        assert torch.equal(a, b)


def test_masked_tokens_do_not_count():
    model = foci.timm.enable(small())
    torch.manual_seed(0)
    x = torch.randn(2, 9, 32)
    kept = torch.ones(2, 9, dtype=torch.bool)
    kept[:, 6:] = False

    def run(x, mask):
        for block in model.blocks:
            x = block(x, attn_mask=mask) if mask is not None else block(x)
        return x

    with torch.no_grad():
        short = run(x[:, :6], None)
        exact = copy.deepcopy(model).double()
        exact = [run_on(exact, x[:, :6].double())]
        for mask in (kept, kept.view(2, 1, 1, 9)):
            hold(run(x, mask)[:, :6], short, exact)


def run_on(model, x):
    for block in model.blocks:
        x = block(x)
    return x


def test_causal_blocks_do_not_look_ahead():
    model = foci.timm.enable(small())
    torch.manual_seed(0)
    x = torch.randn(1, 9, 32)
    y = x.clone()
    y[:, 6:] += 1

    def run(x):
        for block in model.blocks:
            x = block(x, is_causal=True)
        return x

    with torch.no_grad():
        assert torch.equal(run(x)[:, :6], run(y)[:, :6])
        assert not torch.equal(run(x)[:, 6:], run(y)[:, 6:])


def test_refusals():
    model = foci.timm.enable(small(attn_drop_rate=0.1))
    with torch.no_grad():
        model(images())  # evaluation drops nothing
    with pytest.raises(NotImplementedError, match="attn_drop=0.1.*attn_drop_rate=0"):
        model.train()(images())
    block = foci.timm.enable(small()).blocks[0]
    x = torch.randn(2, 5, 32)
    for mask in (torch.ones(2, 1, 5, 5, dtype=torch.bool), torch.zeros(2, 1, 1, 5)):
        with pytest.raises(NotImplementedError, match="attn_mask.*true = keep"):
            block(x, attn_mask=mask)
    with pytest.raises(NotImplementedError, match="learned.*foci.nn"):
        foci.timm.enable(small(), metric="learned")
    with pytest.raises(NotImplementedError, match="running.*foci.nn"):
        foci.timm.enable(small(), scope="running")
    with pytest.raises(ValueError, match="metric is 'euclid'"):
        foci.timm.enable(small(), metric="euclid")
    with pytest.raises(TypeError, match="normalize"):
        foci.timm.enable(small(), normalise="max")
    with pytest.raises(ValueError):
        foci.timm.enable(small(), metric="random", ridge=1e-3)
    with pytest.raises(ValueError, match="no Attention"):
        foci.timm.enable(torch.nn.Linear(3, 3))
    parallel = small(block_fn=timm.models.vision_transformer.ParallelThingsBlock)
    with pytest.raises(NotImplementedError, match="one attention a block"):
        foci.timm.enable(parallel)
    upper = foci.timm.enable(small()).blocks[1]
    with pytest.raises(RuntimeError, match="layer 1 needs the values of layer 0"):
        upper(x)


def test_rotary_attention_is_refused():
    model = timm.create_model("eva02_tiny_patch14_224", pretrained=False)
    with pytest.raises(NotImplementedError, match="Eva|Rope"):
        foci.timm.enable(model)


def test_a_refused_model_is_left_as_it_was():
    model = small()
    with pytest.raises(ValueError):
        foci.timm.enable(model, metric="euclid")
    assert all(type(b.attn).__module__.startswith("timm") for b in model.blocks)


@has_compile
@pytest.mark.parametrize("metric", ["dot", "layer-change", "key-covariance"])
def test_compiles_into_one_graph(metric):
    model = foci.timm.enable(small(), metric=metric)
    exact = copy.deepcopy(model).double()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for x in (images(), images(seed=2)):
            hold(compiled(x), model(x), exact(x.double()))
    compiled.train()
    wanted = gradients(model, x)
    hold(gradients(compiled, x), wanted, gradients(exact, x.double()))


@has_compile
def test_models_of_other_sizes_compile_too():
    torch._dynamo.reset()
    for heads in (2, 4, 1):
        model = foci.timm.enable(small(num_heads=heads), metric="key-covariance")
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            for x in (images(4), images(3)):
                hold(compiled(x), model(x), copy.deepcopy(model).double()(x.double()))


@has_compile
def test_compiles_with_inductor():
    model = foci.timm.enable(small())
    exact = copy.deepcopy(model).double()
    x = images()
    torch._dynamo.reset()
    with torch.no_grad():
        hold(torch.compile(model, fullgraph=True)(x), model(x), exact(x.double()))


def test_five_lines_measure_a_model():
    model = foci.timm.enable(small(), metric="layer-change")
    report = foci.measure_model(model, images(), grid=(1, 4, 4))
    assert len(report.layers) == 3 and report.samples == 4
    for layer in report.layers:
        assert 1 <= layer.rows["effective_keys"].mean <= 17 and layer.rows["distance"].mean > 0
        assert layer.tokens["effective_rank"].n == 4
    assert report.layers[0].metric is None and report.layers[1].metric["most"] == 1
    plain = foci.timm.enable(small(), metric="dot", layers=":")
    assert foci.measure_model(plain, images()).layers[1].metric is None
    with pytest.raises(ValueError, match="foci.timm.enable"):
        foci.measure_model(small(), images())
