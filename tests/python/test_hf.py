# SPDX-License-Identifier: Apache-2.0
"""foci.hf: Hugging Face models with a metric, against their own attention and the definition."""
import copy
import json

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
import foci  # noqa: E402
import foci.hf  # noqa: E402
from held import attend, halves, hold, layer_change, normalise  # noqa: E402
from transformers import (  # noqa: E402
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    BartConfig,
    BartModel,
    BertConfig,
    BertModel,
    CohereConfig,
    CohereForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.masking_utils import AttentionMaskInterface, eager_mask  # noqa: E402

WORDS = 97
ATTENTION = dict(vocab_size=WORDS, initializer_range=0.2, pad_token_id=0)


def gpt2(**more):
    off = dict(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2)
    size = dict(n_positions=64, n_embd=64, n_layer=3, n_head=4)
    return GPT2LMHeadModel(GPT2Config(**{**ATTENTION, **off, **size, **more}))


def llama(kind=LlamaForCausalLM, config=LlamaConfig, **more):
    heads = dict(num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    size = dict(hidden_size=64, intermediate_size=96, max_position_embeddings=64)
    return kind(config(**{**ATTENTION, **heads, **size, **more}))


def vit(**more):
    size = dict(image_size=32, patch_size=8, hidden_size=48, num_hidden_layers=3)
    rest = dict(num_attention_heads=3, intermediate_size=96, num_labels=7, initializer_range=0.2)
    return ViTForImageClassification(ViTConfig(**{**size, **rest, **more}))


def bert(**more):
    size = dict(hidden_size=48, num_hidden_layers=3, num_attention_heads=3, intermediate_size=96)
    off = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return BertModel(BertConfig(**{**ATTENTION, **size, **off, **more}))


MAKE = {"gpt2": gpt2, "llama": llama, "vit": vit, "bert": bert}
LANGUAGE = ["gpt2", "llama"]


def make(name, seed=0, **more):
    torch.manual_seed(seed)
    model = MAKE[name](**more).eval()
    if model.can_generate():
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return model


def inputs(name, seed=1, count=3, length=11):
    generator = torch.Generator().manual_seed(seed)
    if name == "vit":
        return torch.randn(count, 3, 32, 32, generator=generator)
    return torch.randint(3, WORDS, (count, length), generator=generator)


def run(model, x, **more):
    x = x.to(next(model.parameters()).dtype) if x.is_floating_point() else x
    out = model(x, **more)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def gradients(model, x):
    model.zero_grad()
    run(model, x).square().mean().backward()
    return collected(model)


def collected(model):
    """Gradients of all parameters; a compiled graph gives zeros to those that are not used."""
    weights = model.parameters()
    return [torch.zeros_like(w) if w.grad is None else w.grad.clone() for w in weights]


_below = []


def _written_out(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """layer-change by its definition; _below holds the values of the layers so far."""
    B, M, N = key.shape[0], key.shape[2], query.shape[2]
    causal = getattr(module, "is_causal", True)
    kept = torch.ones(B, M, dtype=torch.bool)
    if attention_mask is not None:
        kept = attention_mask[:, 0, -1] == 0
    m = None
    if _below:
        m = layer_change(value, _below[-1], kept, N if causal else None).detach()
        m = normalise(halves(m) if hasattr(module.config, "rope_parameters") else m)
    _below.append(value)
    return attend(query, key, value, m, kept, causal, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register("written-out", _written_out)
AttentionMaskInterface.register("written-out", eager_mask)


def by_definition(model, x, **more):
    model = copy.deepcopy(model)
    model.set_attn_implementation("written-out")
    _below.clear()
    return run(model, x, **more)


def pad(rows, side):
    """Rows of different lengths in one batch: (ids, mask, position_ids)."""
    longest = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, row in enumerate(rows):
        at = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
        ids[i, at], mask[i, at] = row, 1
    return ids, mask, (mask.cumsum(-1) - 1).clamp(min=0)


def test_layers_are_found_in_order():
    for name, path in (
        ("gpt2", "transformer.h.{}.attn"),
        ("llama", "model.layers.{}.self_attn"),
        ("vit", "vit.layers.{}.attention"),
    ):
        model = foci.hf.enable(make(name))
        for i in range(3):
            link = model.get_submodule(path.format(i))._foci
            assert link.index == i and link.metric == ("dot" if i == 0 else "layer-change")
            assert link.pairs == (("halves", 1.0) if name == "llama" and i else None)
    foci.hf.enable(make("bert"))


@pytest.mark.parametrize("name", sorted(MAKE))
def test_dot_is_their_own_sdpa(name):
    theirs = make(name)
    theirs.set_attn_implementation("sdpa")
    ours = foci.hf.enable(copy.deepcopy(theirs), metric="dot")
    exact = copy.deepcopy(theirs).double()
    assert theirs.config._attn_implementation == "sdpa" != ours.config._attn_implementation
    xs = [inputs(name, seed) for seed in range(4)]
    with torch.no_grad():
        hold([run(ours, x) for x in xs], [run(theirs, x) for x in xs], [run(exact, x) for x in xs])
    x = xs[0]
    hold(gradients(ours, x), gradients(theirs, x), gradients(exact, x), "gradients")


@pytest.mark.parametrize("name", sorted(MAKE))
def test_layer_change_is_the_definition(name):
    model = make(name)
    ours = foci.hf.enable(copy.deepcopy(model))
    exact = copy.deepcopy(model).double()
    xs = [inputs(name, seed) for seed in range(3)]
    with torch.no_grad():
        mine = [run(ours, x) for x in xs]
        hold(mine, [by_definition(model, x) for x in xs], [by_definition(exact, x) for x in xs])
        assert (mine[0] - run(model, xs[0])).abs().max() > 1e-3  # and not dot


@pytest.mark.parametrize("name", sorted(MAKE))
@pytest.mark.parametrize("metric", ["flat", "jacobian", "key-covariance", "random"])
def test_every_metric_runs_and_differs_from_dot(name, metric):
    model = make(name)
    ours = foci.hf.enable(copy.deepcopy(model), metric=metric, layers=":")
    x = inputs(name)
    with torch.no_grad():
        y = run(ours, x)
        assert torch.isfinite(y).all() and (y - run(model, x)).abs().max() > 1e-4
    assert all(torch.isfinite(g).all() for g in gradients(ours, x))


@pytest.mark.parametrize("name", LANGUAGE)
def test_changing_a_token_changes_nothing_before_it(name):
    model = foci.hf.enable(make(name))
    x = inputs(name)
    y = x.clone()
    y[:, 7:] = (y[:, 7:] + 11) % WORDS
    with torch.no_grad():
        a, b = run(model, x), run(model, y)
    assert torch.equal(a[:, :7], b[:, :7]) and not torch.equal(a[:, 7:], b[:, 7:])


@pytest.mark.parametrize("name", LANGUAGE)
@pytest.mark.parametrize("metric", ["dot", "layer-change", "flat", "key-covariance", "random"])
def test_the_cache_changes_no_token(name, metric):
    model = foci.hf.enable(make(name), metric=metric)
    even, _, _ = pad([row for row in inputs(name, length=6)], "left")
    uneven = [row[:length] for row, length in zip(inputs(name, 5, 4, 9), (4, 6, 9, 1))]
    for ids, mask in ((even, torch.ones_like(even)), pad(uneven, "left")[:2]):
        made = [
            model.generate(
                ids, attention_mask=mask, max_new_tokens=20, do_sample=False, use_cache=cached
            )
            for cached in (True, False)
        ]
        assert made[0].shape == (ids.shape[0], ids.shape[1] + 20)
        assert torch.equal(made[0], made[1])


@pytest.mark.parametrize("name", LANGUAGE)
def test_padding_changes_no_generated_token(name):
    model = foci.hf.enable(make(name))
    rows = [row[:length] for row, length in zip(inputs(name, 7, 3, 9), (4, 6, 9))]
    ids, mask, _ = pad(rows, "left")
    often = dict(max_new_tokens=20, do_sample=False)
    together = model.generate(ids, attention_mask=mask, **often)
    for row, whole in zip(rows, together):
        one = row.view(1, -1)
        alone = model.generate(one, attention_mask=torch.ones_like(one), **often)
        assert torch.equal(alone[0, len(row) :], whole[ids.shape[1] :])


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_prompt_in_parts_is_the_whole_prompt(name):
    model = foci.hf.enable(make(name))
    x = inputs(name)
    with torch.no_grad():
        whole, exact = run(model, x), run(copy.deepcopy(model).double(), x)
        cache, parts, at = None, [], 0
        for length in (4, 1, 3, 1, 2):
            out = model(x[:, at : at + length], past_key_values=cache, use_cache=True)
            cache, at = out.past_key_values, at + length
            parts.append(out.logits)
    hold(torch.cat(parts, 1), whole, exact)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("metric", ["dot", "layer-change", "key-covariance"])
def test_padded_batches_are_unpadded_ones(name, side, metric):
    model = foci.hf.enable(make(name), metric=metric)
    exact = copy.deepcopy(model).double()
    rows = [row[:length] for row, length in zip(inputs(name, 3, 4, 11), (5, 8, 11, 1))]
    ids, mask, positions = pad(rows, side)
    with torch.no_grad():
        whole = run(model, ids, attention_mask=mask, position_ids=positions)
        assert torch.isfinite(whole).all()
        ours = [whole[i][mask[i].bool()] for i in range(len(rows))]
        alone = [run(model, row.view(1, -1))[0] for row in rows]
        hold(ours, alone, [run(exact, row.view(1, -1))[0] for row in rows])


def test_beams_follow_the_cache():
    model = foci.hf.enable(make("gpt2"))
    ids, mask, _ = pad([row[:n] for row, n in zip(inputs("gpt2", 4), (5, 8, 11))], "left")
    often = dict(attention_mask=mask, max_new_tokens=8, num_beams=3, do_sample=False)
    made = [model.generate(ids, use_cache=cached, **often) for cached in (True, False)]
    assert torch.equal(*made)


@pytest.mark.parametrize(
    "kind, config, more, pairs",
    [
        (GPTNeoXForCausalLM, GPTNeoXConfig, {}, ("halves", 0.25)),
        (CohereForCausalLM, CohereConfig, {}, ("neighbours", 1.0)),
        (LlamaForCausalLM, LlamaConfig, {"rotary_pairs": "none"}, None),
    ],
)
def test_rotary_pairs_are_found_by_trying(kind, config, more, pairs):
    torch.manual_seed(0)
    model = llama(kind, config).eval()
    model.generation_config.eos_token_id = None
    foci.hf.enable(model, **more)
    links = [m._foci for m in model.modules() if hasattr(m, "_foci")]
    assert [link.pairs for link in links] == [None, pairs, pairs]
    x = inputs("llama")
    often = dict(attention_mask=torch.ones_like(x), max_new_tokens=8, do_sample=False)
    made = [model.generate(x, use_cache=cached, **often) for cached in (True, False)]
    assert torch.equal(*made)


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_bfloat16(name):
    theirs = make(name).bfloat16()
    ours = foci.hf.enable(copy.deepcopy(theirs), metric="dot")
    exact = copy.deepcopy(theirs).double()
    xs = [inputs(name, seed) for seed in range(4)]
    with torch.no_grad():
        hold([run(ours, x) for x in xs], [run(theirs, x) for x in xs], [run(exact, x) for x in xs])
        changed = foci.hf.enable(copy.deepcopy(theirs))
        exact = [by_definition(exact, x) for x in xs]
        hold([run(changed, x) for x in xs], [by_definition(theirs, x) for x in xs], exact)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_autocast(name):
    model = foci.hf.enable(make(name))
    x = inputs(name)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        low = run(model, x)
    with torch.no_grad():
        high = run(model, x)
    assert torch.isfinite(low).all()
    assert (low.float() - high).abs().mean() < 0.05 * high.abs().mean()


# ---- saving and loading ------------------------------------------------------------------------


@pytest.mark.parametrize("name", LANGUAGE)
def test_saved_models_come_back_with_their_metric(name, tmp_path):
    model = foci.hf.enable(make(name), layers="2:", normalize="mean")
    x = inputs(name)
    model.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["foci"]["metric"] == "layer-change" and written["foci"]["layers"] == "2:"
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.foci == model.config.foci
    with torch.no_grad():
        wanted = run(model, x)
        assert torch.equal(run(again, x), wanted)
        again.save_pretrained(tmp_path / "twice")
        assert torch.equal(run(type(model).from_pretrained(tmp_path / "twice"), x), wanted)
        # Only when asked for by name does it run without its metric.
        plain = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="sdpa")
        assert not torch.equal(run(plain, x), wanted)


def test_vit_comes_back_with_its_metric(tmp_path):
    model = foci.hf.enable(make("vit"), metric="random", seed=5)
    model.save_pretrained(tmp_path)
    again, _ = ViTForImageClassification.from_pretrained(tmp_path, output_loading_info=True)
    x = inputs("vit")
    with torch.no_grad():
        assert torch.equal(run(again, x), run(model, x))


def test_a_config_that_means_something_else_now_is_refused():
    model = foci.hf.enable(make("gpt2"))
    model.config.foci["mechanism"] = model.config.foci["mechanism"].replace("max", "mean")
    with pytest.raises(ValueError, match="normalize=mean.*normalize=max"):
        foci.hf.enable(model)


def test_without_foci_a_saved_model_does_not_load(tmp_path, monkeypatch):
    foci.hf.enable(make("gpt2")).save_pretrained(tmp_path)
    monkeypatch.delitem(AttentionInterface._global_mapping, "foci")
    with pytest.raises(ValueError, match="foci"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_model_made_from_a_stored_config_asks_for_enable(tmp_path):
    foci.hf.enable(make("gpt2")).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    fresh = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(RuntimeError, match=r"layer-change.*foci.hf.enable\(model\)"):
        run(fresh, inputs("gpt2"))
    foci.hf.enable(fresh)
    assert fresh.config.foci["metric"] == "layer-change"
    assert torch.isfinite(run(fresh, inputs("gpt2"))).all()


def test_naming_the_attention_alone_is_not_enough():
    model = make("gpt2")
    model.set_attn_implementation("foci")
    with pytest.raises(RuntimeError, match=r"foci.hf.enable\(model, metric=...\)"):
        run(model, inputs("gpt2"))


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_disable_undoes_enable(name):
    model = make(name)
    before = model.config.to_dict()
    x = inputs(name)
    with torch.no_grad():
        wanted = run(model, x)
        foci.hf.disable(foci.hf.enable(model))
        assert torch.equal(run(model, x), wanted)
    assert model.config.to_dict() == before and model.config._attn_implementation == "sdpa"
    for module in model.modules():
        assert not hasattr(module, "_foci")
        assert foci.hf._begin not in module._forward_pre_hooks.values()
        assert foci.hf._end not in module._forward_hooks.values()


def test_enable_twice_is_the_last_one():
    model = foci.hf.enable(foci.hf.enable(make("gpt2"), metric="random"), metric="flat")
    once = foci.hf.enable(make("gpt2"), metric="flat")
    x = inputs("gpt2")
    with torch.no_grad():
        assert torch.equal(run(model, x), run(once, x))
    assert len(model.transformer._forward_pre_hooks) == len(once.transformer._forward_pre_hooks)
    with pytest.raises(ValueError, match="name the metric"):
        foci.hf.enable(model, normalize="mean")
    foci.hf.disable(model)
    assert model.config._attn_implementation == "sdpa"


def test_copies_share_nothing_and_nothing_is_left_behind():
    model = foci.hf.enable(make("gpt2"))
    twin = copy.deepcopy(model)
    assert twin.transformer._foci_stacks[0] is twin.transformer.h[1].attn._foci.stack
    assert twin.transformer._foci_stacks[0] is not model.transformer._foci_stacks[0]
    x = inputs("gpt2")
    assert torch.equal(run(model, x), run(twin, x))
    assert not model.transformer._foci_stacks[0].values
    assert not twin.train().transformer._foci_stacks[0].values
    gradients(twin, x)
    assert not twin.transformer._foci_stacks[0].values


# ---- training ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("grad", ["detached", "through"])
def test_checkpointing_gives_the_same_gradients(name, reentrant, grad):
    model = foci.hf.enable(make(name), metric_grad=grad).train()
    x = inputs(name)
    wanted = gradients(model, x)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    if name == "vit" and reentrant:
        x = x.requires_grad_()  # or reentrant checkpointing finds nothing to differentiate
    if reentrant and grad == "through":
        with pytest.raises(RuntimeError, match="use_reentrant"):
            gradients(model, x)
        return
    for _ in range(2):
        for a, b in zip(gradients(model, x), wanted):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_through_reaches_the_layer_below():
    x = inputs("gpt2")
    made = [
        gradients(foci.hf.enable(make("gpt2"), metric_grad=grad), x)
        for grad in ("detached", "through")
    ]
    assert max(float((a - b).abs().max()) for a, b in zip(*made)) > 1e-6


# ---- refusals ----------------------------------------------------------------------------------


def test_dropout_is_refused_in_training_only():
    model = foci.hf.enable(make("gpt2", attn_pdrop=0.1))
    run(model, inputs("gpt2"))
    with pytest.raises(NotImplementedError, match="dropout=0.1.*attn_pdrop"):
        run(model.train(), inputs("gpt2"))


@pytest.mark.parametrize("name", sorted(MAKE))
def test_attention_maps_are_refused(name):
    model = foci.hf.enable(make(name))
    with pytest.raises(NotImplementedError, match="output_attentions.*foci.measure"):
        run(model, inputs(name), output_attentions=True)


@pytest.mark.parametrize(
    "argument, value",
    [
        ("position_bias", torch.zeros(1, 4, 3, 3)),
        ("sliding_window", 4),
        ("softcap", 30.0),
        ("s_aux", torch.zeros(4)),
        ("head_mask", torch.ones(4)),
        ("seq_idx", torch.zeros(1, 3)),
        ("cu_seq_lens_q", torch.tensor([0, 3])),
        ("block_table", torch.zeros(1)),
    ],
)
def test_arguments_foci_lacks_are_refused_by_name(argument, value):
    layer = foci.hf.enable(make("gpt2")).transformer.h[0].attn
    q = torch.randn(1, 4, 3, 16)
    foci.hf.attention(layer, q, q, q, None, scaling=0.25)
    with pytest.raises(NotImplementedError, match=argument):
        foci.hf.attention(layer, q, q, q, None, scaling=0.25, **{argument: value})


def test_sliding_windows_are_refused():
    torch.manual_seed(0)
    model = llama(MistralForCausalLM, MistralConfig, sliding_window=4)
    foci.hf.enable(model)
    with pytest.raises(NotImplementedError, match="sliding_window"):
        run(model, inputs("llama"), use_cache=False)


def test_the_jacobian_has_no_cache():
    model = foci.hf.enable(make("gpt2"), metric="jacobian")
    x, often = inputs("gpt2"), dict(max_new_tokens=3, do_sample=False)
    with pytest.raises(NotImplementedError, match="jacobian.*use_cache=False"):
        model.generate(x, **often)
    assert model.generate(x, use_cache=False, **often).shape == (3, 14)


def test_static_caches_are_refused():
    model = foci.hf.enable(make("gpt2"))
    with pytest.raises(NotImplementedError, match="static.*cache_implementation='dynamic'"):
        model.generate(inputs("gpt2"), max_new_tokens=3, cache_implementation="static")


def test_other_masks_are_refused():
    model = foci.hf.enable(make("llama"))
    x = inputs("llama")
    with pytest.raises(NotImplementedError, match=r"attention_mask has shape \(3, 1, 11, 11\)"):
        run(model, x, attention_mask=torch.ones(3, 1, 11, 11, dtype=torch.bool))
    packed = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2]]).expand(3, -1)
    with pytest.raises(NotImplementedError, match="packed"):
        run(model, x, position_ids=packed, use_cache=False)
    cache = model(x, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="attention_mask covers 1 tokens of 12"):
        model(x[:, :1], past_key_values=cache, attention_mask=torch.ones(3, 1))


def test_models_foci_does_not_serve_are_refused():
    with pytest.raises(NotImplementedError, match="cross attention"):
        foci.hf.enable(make("gpt2", add_cross_attention=True))
    small = dict(d_model=32, encoder_layers=1, decoder_layers=1, vocab_size=WORDS)
    heads = dict(encoder_attention_heads=2, decoder_attention_heads=2)
    tail = dict(encoder_ffn_dim=32, decoder_ffn_dim=32)
    with pytest.raises(NotImplementedError, match="encoder-decoder"):
        foci.hf.enable(BartModel(BartConfig(**small, **heads, **tail)))
    with pytest.raises(TypeError, match="PreTrainedModel"):
        foci.hf.enable(torch.nn.Linear(2, 2))
    model = foci.hf.enable(make("gpt2"))
    model.transformer.h[0].attn._is_replica = True
    with pytest.raises(NotImplementedError, match="DataParallel"):
        run(model, inputs("gpt2"))


def test_settings_are_checked_before_anything_changes():
    model = make("gpt2")
    for error, match, asked in (
        (ValueError, "scope='sequence'.*allow_leak", dict(scope="sequence")),
        (ValueError, "metric is 'euclid'", dict(metric="euclid")),
        (ValueError, "layers", dict(layers="9:")),
        (ValueError, "layers", dict(layers="some")),
        (NotImplementedError, "foci.nn", dict(metric="learned")),
        (NotImplementedError, "foci.nn", dict(scope="running")),
        (TypeError, "normalize", dict(normalise="max")),
        (ValueError, "rotary_pairs", dict(rotary_pairs="both")),
        (ValueError, "ridge", dict(metric="random", ridge=0.1)),
    ):
        with pytest.raises(error, match=match):
            foci.hf.enable(model, **asked)
    assert model.config._attn_implementation == "sdpa" and not hasattr(model.config, "foci")
    foci.hf.enable(model, scope="sequence", allow_leak=True)
    assert torch.isfinite(run(model, inputs("gpt2"))).all()


def test_a_decoder_may_look_both_ways():
    theirs = make("llama")
    x = inputs("llama")
    ours = foci.hf.enable(copy.deepcopy(theirs), metric="dot")
    exact = copy.deepcopy(theirs).double()
    more = dict(is_causal=False, use_cache=False)
    with torch.no_grad():
        hold(*(run(model, x, **more) for model in (ours, theirs, exact)))
        changed = foci.hf.enable(theirs)
        assert (run(changed, x, **more) - run(changed, x)).abs().max() > 1e-3


def test_two_ideas_of_causality_are_refused():
    layer = foci.hf.enable(make("llama")).model.layers[0].self_attn
    layer.config.is_causal = False
    q, k = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 3, 16)
    with pytest.raises(ValueError, match="is_causal"):
        foci.hf.attention(layer, q, k, k, None, scaling=0.25)
    foci.hf.attention(layer, q, k, k, None, scaling=0.25, is_causal=False)


# ---- torch.compile -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(MAKE))
@pytest.mark.parametrize("metric", ["dot", "layer-change"])
def test_compiles_into_one_graph(name, metric):
    model = foci.hf.enable(make(name), metric=metric)
    x = inputs(name)
    more = {} if name == "vit" else {"attention_mask": torch.ones_like(x)}
    if name in LANGUAGE:
        more["use_cache"] = False
    exact = copy.deepcopy(model).double()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for one in (x, inputs(name, seed=9)):
            wanted = run(model, one, **more)
            hold(run(compiled, one, **more), wanted, run(exact, one, **more))
    run(compiled.train(), x, **more).square().mean().backward()
    hold(collected(model), gradients(model, x), gradients(exact, x), "gradients")


def test_models_of_other_sizes_compile_too():
    """The second makes torch.compile take the scale, which differs, for variable."""
    x = inputs("gpt2")
    more = dict(attention_mask=torch.ones_like(x), use_cache=False)
    torch._dynamo.reset()
    for heads in (4, 2, 8):
        model = foci.hf.enable(make("gpt2", n_head=heads))
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            exact = run(copy.deepcopy(model).double(), x, **more)
            hold(run(compiled, x, **more), run(model, x, **more), exact)
            short = {**more, "attention_mask": more["attention_mask"][:, :7]}
            assert torch.isfinite(run(compiled, x[:, :7], **short)).all()


def test_gpt2_compiles_with_its_cache():
    model = foci.hf.enable(make("gpt2"))
    x = inputs("gpt2")
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        wanted, exact = run(model, x), run(copy.deepcopy(model).double(), x)
        hold(run(compiled, x), wanted, exact)


def test_packed_rows_are_refused_under_compile_too():
    """Without a mask and a cache transformers cannot rule them out while it traces."""
    model = foci.hf.enable(make("gpt2"))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(Exception, match="attention_mask"):
        run(compiled, inputs("gpt2"), use_cache=False)


@pytest.mark.parametrize("make", [gpt2, llama, vit, bert])
def test_five_lines_measure_a_model(make):
    """docs/python.md shows these lines; plain models are given foci's attention for the while."""
    model = make().eval()
    image = dict(pixel_values=torch.randn(2, 3, 32, 32))
    words = dict(input_ids=torch.randint(3, WORDS, (2, 9)))
    inputs = image if make is vit else words
    plain = foci.measure_model(model, **inputs)
    assert getattr(model, "_foci_before", None) is None  # as it was
    foci.hf.enable(model, metric="layer-change")
    report = foci.measure_model(model, **inputs)
    print(report.summary())
    assert len(plain.layers) == len(report.layers) == 3 and report.samples == 2
    for layer in report.layers:
        assert 1 <= layer.rows["effective_keys"].mean <= layer.keys
        assert layer.tokens["effective_rank"].n == 2
    assert plain.layers[1].metric is None and report.layers[1].metric["most"] == 1
    with torch.no_grad():
        assert torch.isfinite(model(**inputs)[0]).all()
