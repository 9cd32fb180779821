# SPDX-License-Identifier: Apache-2.0
"""Every refusal names the argument and the remedy; nothing falls back silently."""
import re

import foci
import pytest
import torch
from draws import draw

q, k, v, v_prev = draw()
many = draw(H=4, G=2)
ones = torch.ones(1, 2, 1, 4, dtype=torch.float64)
keep = torch.ones(2, 5, dtype=torch.bool)
meta = {name: x.to("meta") for name, x in zip(("k", "v", "v_prev"), (k, v, v_prev))}
short = dict(is_causal=True, causal_align="top-left")


def refused(error, says, call):
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    assert re.search(says, str(caught.value)), str(caught.value)


# What is given beside q, k and v -> the error and what it says.
CASES = [
    # what foci lacks
    (dict(dropout_p=0.1), NotImplementedError, "dropout_p is 0.1.*use 0"),
    (dict(attn_mask=torch.ones(5, 5).bool()), NotImplementedError, "attn_mask.*use key_mask"),
    (dict(attn_mask=torch.zeros(2, 1, 1, 5)), NotImplementedError, "attn_mask.*key_bias"),
    (dict(attn_mask=torch.ones(2, 2, 1, 5).bool()), NotImplementedError, "attn_mask of shape"),
    (dict(attn_mask=torch.ones(2, 1, 5, 5).bool()), NotImplementedError, "attn_mask of shape"),
    (dict(attn_mask=torch.ones(3, 1, 1, 5).bool()), ValueError, "attn_mask has shape.*must be"),
    (dict(is_causal="yes"), ValueError, "is_causal is 'yes'; it must be True or False"),
    (dict(weighting="decay"), ValueError, "causal only: set is_causal=True"),
    (dict(normalize=None), ValueError, 'normalize=None is ambiguous: write normalize="none"'),
    (dict(window_size=(8, 0)), NotImplementedError, "window_size is not supported: cut k"),
    (dict(sliding_window=8), NotImplementedError, "sliding_window is not supported: cut k"),
    (dict(softcap=30.0), NotImplementedError, "softcap is not supported"),
    (dict(logits_soft_cap=30.0), NotImplementedError, "logits_soft_cap is not supported"),
    (dict(alibi_slopes=torch.ones(2)), NotImplementedError, "alibi_slopes.*key_bias"),
    (dict(sinks=torch.ones(2)), NotImplementedError, "sinks is not supported: append a key"),
    (dict(s_aux=torch.ones(2)), NotImplementedError, "s_aux is not supported: append a key"),
    (dict(position_bias=torch.ones(2)), NotImplementedError, "position_bias.*key_bias"),
    (dict(attn_bias=torch.ones(2)), NotImplementedError, "attn_bias is not supported.*key_bias"),
    (dict(score_mod=print), NotImplementedError, "score_mod is not supported: a metric"),
    (dict(block_mask=1), NotImplementedError, "block_mask is not supported: key_mask"),
    # names
    (dict(metrc="dot"), TypeError, "unexpected keyword argument 'metrc'; did you mean metric"),
    (dict(normalise="max"), TypeError, "'normalise'; did you mean normalize"),
    (dict(vprev=v), TypeError, "'vprev'; did you mean v_prev"),
    (dict(causal=True), TypeError, "'causal'; did you mean is_causal"),
    (dict(softmax_scale=1.0), TypeError, "'softmax_scale'; did you mean scale"),
    (dict(key_padding_mask=keep), TypeError, "did you mean key_mask .true = keep"),
    (dict(zzz=1), TypeError, "unexpected keyword argument 'zzz'$"),
    # words and numbers
    (dict(metric="dote"), ValueError, "metric is 'dote'; it must be one of dot, layer-change"),
    (dict(weighting="max"), ValueError, "weighting is 'max'"),
    (dict(metric="dot causal=true"), ValueError, "metric is 'dot causal=true'; a setting is one"),
    (dict(metric=3), ValueError, "metric is '3'"),
    (dict(form=None), None, ""),
    (dict(form=["product"]), TypeError, "form is a list; it must be a word, a number or a bool"),
    (dict(form="circle"), ValueError, "form is 'circle'; it must be one of product, distance"),
    (dict(normalize="max"), ValueError, "normalize belongs to metric layer-change.*metric is dot"),
    (dict(rate=0.5), ValueError, "rate belongs to weighting decay; the weighting is softmax"),
    (dict(scale=-1.0), ValueError, "scale is -1; it must be"),
    (dict(scale="auto"), ValueError, "scale auto belongs to a full metric"),
    (dict(weighting="decay"), ValueError, "decay.*causal"),
    (dict(backend="gpu"), ValueError, "backend is 'gpu'; it must be one of auto, ref, cpu, cuda"),
    (dict(weighting="relu2", return_lse=True), ValueError, "return_lse belongs to softmax"),
    (dict(weighting="relu2", form="distance"), ValueError, "does not go with weighting relu2"),
    # masks and biases
    (dict(key_mask=keep, attn_mask=keep[:, None, None]), ValueError, "attn_mask and key_mask"),
    (dict(key_mask=keep.long()), ValueError, "key_mask has torch.int64.*key_mask.bool"),
    (dict(key_mask=keep[:, :3]), ValueError, "key_mask has shape"),
    (dict(key_bias=torch.ones(2, 3, 5).double()), ValueError, "key_bias has shape"),
    (dict(key_bias=torch.ones(2, 2, 5).double(), weighting="linear"), ValueError, "key_bias"),
    (dict(key_mask=[True] * 5), TypeError, "key_mask is a list; it must be a tensor"),
    (dict(key_bias=0.5), TypeError, "key_bias is a float; it must be a tensor"),
    # metrics
    (dict(metric="layer-change", v_prev="x"), TypeError, "v_prev is a str; it must be a tensor"),
    (dict(metric="layer-change"), ValueError, "v_prev is missing.*lowest layer"),
    (dict(metric="flat"), ValueError, "v_prev is missing"),
    (dict(metric="layer-change", v_prev=v_prev[:1]), ValueError, "v_prev has shape"),
    (dict(metric="layer-change", v_prev=v_prev.float()), ValueError, "v_prev has type f32"),
    (dict(metric="given"), ValueError, "metric given needs metric_tensor"),
    (dict(metric_tensor=ones), ValueError, 'metric_tensor came along.*metric="given"'),
    (dict(metric=ones, metric_tensor=ones), ValueError, "metric is a tensor and metric_tensor too"),
    (dict(metric=-ones), ValueError, "a given metric must be finite and >= 0"),
    (
        dict(metric=torch.ones(1, 2, 4, 4).double()),
        ValueError,
        'a matrix per head: set extent="full"',
    ),
    (dict(metric=torch.ones(1, 3, 1, 4).double()), ValueError, "metric has shape"),
    (dict(metric="learned"), ValueError, "learned has a parameter: use foci.nn.Attention"),
    (dict(metric="learned-full"), ValueError, "learned-full has a parameter"),
    (
        dict(metric="layer-change", v_prev=v_prev, is_causal=True, scope="sequence"),
        ValueError,
        "scope sequence in a causal call.*use scope prefix",
    ),
    (
        dict(metric="layer-change", v_prev=v_prev, is_causal=True, reduce="median"),
        ValueError,
        "median cannot run along a prefix",
    ),
    # alignment
    (dict(causal_align="middle"), ValueError, "causal_align is 'middle'; it must be"),
    (dict(causal_align="middle", is_causal=True), ValueError, "causal_align is 'middle'"),
    # rotary pairs
    (dict(rotary_pairs="thirds"), ValueError, "rotary_pairs is 'thirds'; it must be halves"),
    (dict(metric=ones, rotary_pairs="halves"), ValueError, "a given metric is taken as it is"),
    (dict(metric="flat", rotary_pairs="halves"), ValueError, "v_prev is missing"),
    (
        dict(metric="flat", v_prev=v_prev[:, :, :2], rotary_pairs="halves"),
        ValueError,
        "v_prev has shape",
    ),
    (
        dict(metric="flat", v_prev=v_prev, normalize="sum", rotary_pairs="halves"),
        ValueError,
        "normalize is 'sum'",
    ),
    (
        dict(metric="jacobian", metric_grad="through", rotary_pairs="halves"),
        NotImplementedError,
        "jacobian with rotary_pairs has no metric_grad through",
    ),
    (
        dict(metric="flat", v_prev=v_prev, rate=0.1, rotary_pairs="halves"),
        ValueError,
        "rate belongs to weighting decay",
    ),
]


@pytest.mark.parametrize("how,error,says", CASES)
def test_refusals(how, error, says):
    if error is None:  # None is as good as absent
        assert torch.equal(foci.attend(q, k, v, **how), foci.attend(q, k, v))
        return
    refused(error, says, lambda: foci.attend(q, k, v, **how))
    if "return_lse" not in how:
        refused(error, says, lambda: foci.measure(q, k, v, **how))


@pytest.mark.parametrize(
    "name", ["k", "v", "v_prev", "key_mask", "key_bias", "attn_mask", "metric"]
)
def test_mixed_devices(name):
    x = dict(q=q, k=k, v=v, v_prev=v_prev, key_mask=keep, key_bias=torch.ones(2, 2, 5).double())
    x.update(attn_mask=keep[:, None, None], metric=ones)
    x = {n: t.to("meta") if n == name else t for n, t in x.items() if n in ("q", "k", "v", name)}
    says = (
        "the metric is on meta"
        if name == "metric"
        else f"{name} is on meta and q on cpu.*to.q.device"
    )
    refused(ValueError, says, lambda: foci.attend(x.pop("q"), x.pop("k"), x.pop("v"), **x))
    if name == "metric":
        call = dict(metric="given", metric_tensor=ones.to("meta"))
        refused(ValueError, "metric_tensor is on meta", lambda: foci.attend(q, k, v, **call))


def test_mixed_devices_below_python():
    """The operators judge too: C++ callers reach them alone."""
    rest = [None] * 6 + [""]
    refused(ValueError, "k is on meta", lambda: torch.ops.foci.attend(q, k.to("meta"), v, *rest))
    refused(ValueError, "is on", lambda: torch.ops.foci.attend(q.to("meta"), k, v, *rest))


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64]
)
def test_integer_tensors(dtype):
    for at, name in enumerate("qkv"):
        x = [q, k, v]
        x[at] = x[at].to(dtype)
        refused(ValueError, f"{name} has type", lambda: foci.attend(*x))


def test_shapes():
    refused(ValueError, r"q has shape \(2, 5, 4\).*unsqueeze", lambda: foci.attend(q[:, 0], k, v))
    refused(ValueError, "v has shape", lambda: foci.attend(q, k, v[0]))
    refused(TypeError, "k is a list; it must be a tensor", lambda: foci.attend(q, [1], v))
    refused(ValueError, "k has shape", lambda: foci.attend(q, k[..., :3], v))
    refused(ValueError, "k has type f32; it must be f64", lambda: foci.attend(q, k.float(), v))
    refused(ValueError, "k has 2: set enable_gqa=True", lambda: foci.attend(*many[:3]))
    three = draw(H=3, G=2)[:3]
    refused(ValueError, "must be a multiple", lambda: foci.attend(*three, enable_gqa=True))
    wide = draw(E=3)
    call = dict(metric="layer-change", v_prev=wide[3])
    refused(ValueError, "needs E = D", lambda: foci.attend(*wide[:3], **call))
    odd = draw(D=3, E=3)
    call = dict(metric="flat", v_prev=odd[3], rotary_pairs="halves")
    refused(
        ValueError, "rotary_pairs needs an even head size", lambda: foci.attend(*odd[:3], **call)
    )


def test_a_causal_mask_that_is_not_square_needs_a_word():
    says = 'is_causal with 3 queries and 5 keys.*"bottom-right".*"top-left"'
    refused(ValueError, says, lambda: foci.attend(q[:, :, :3], k, v, is_causal=True))
    call = dict(metric="jacobian", **short)
    refused(
        NotImplementedError, "jacobian.*top-left", lambda: foci.attend(q[:, :, :3], k, v, **call)
    )


def test_packed_sequences():
    one = [x[:1] for x in (q, k, v, v_prev)]
    at = torch.tensor([0, 2, 5])
    both = dict(q_offsets=at, k_offsets=at)
    refused(ValueError, "one is missing", lambda: foci.attend(*one[:3], q_offsets=at))
    refused(ValueError, "need B = 1", lambda: foci.attend(q, k, v, **both))
    refused(
        NotImplementedError, "aligned bottom-right", lambda: foci.attend(*one[:3], **both, **short)
    )
    call = dict(metric="flat", v_prev=one[3], rotary_pairs="halves", **both)
    refused(NotImplementedError, "rotary_pairs with packed", lambda: foci.attend(*one[:3], **call))
    meta_at = dict(q_offsets=at.to("meta"), k_offsets=at)
    refused(ValueError, "q_offsets is on meta", lambda: foci.attend(*one[:3], **meta_at))


def test_a_backend_asked_for_by_name_never_falls_back():
    refused(NotImplementedError, "cpu", lambda: foci.attend(q, k, v, backend="cpu"))  # f64
    refused(NotImplementedError, "cuda", lambda: foci.attend(q, k, v, backend="cuda"))


def test_settings_text():
    full = foci.check_settings("metric=layer-change")
    assert full.startswith("metric=layer-change weighting=softmax") and "normalize=max" in full
    for text, says in (
        ("metric", "name=value"),
        ("metric=dot metric=dot", "metric is said twice"),
        ("colour=red", "no setting 'colour'"),
        ("metric=random seed=x", "seed is 'x'; it must be a whole number"),
        ("metric=key-covariance ridge=x", "ridge is 'x'; it must be a number"),
    ):
        refused(ValueError, says, lambda: foci.check_settings(text))
