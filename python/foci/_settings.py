# SPDX-License-Identifier: Apache-2.0
"""Keywords of a call, as the settings text that the operators read: `name=value name=value`.

What a name means, which values it has and to which mechanism it belongs is judged in one place,
the operators; here are only names, so that a wrong one is met with the right one.
"""
import difflib
import sys
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, TypedDict, Union

from . import _ops

if sys.version_info >= (3, 11):
    from typing import Literal, Unpack
else:
    from typing_extensions import Literal, Unpack

__all__ = ["Literal", "Settings", "Unpack", "refuse_unknown", "split", "text", "written"]


class Settings(TypedDict, total=False):
    """Settings of metrics and weightings. Each belongs to some mechanisms; docs/<name>.md lists
    them, and one that does not belong is refused."""

    form: Literal["product", "distance"]
    reduce: Literal["mean", "median"]
    normalize: Literal["max", "mean", "none"]
    scope: str
    ridge: float
    prior: float
    period: int
    floor: float
    seed: int
    layer: int
    extent: Literal["diagonal", "full"]
    rescale: Literal["length", "l1", "l2", "none"]
    feature: Literal["elu1", "relu", "exp"]
    rate: float
    content: bool
    allow_leak: bool
    metric_grad: Literal["detached", "through"]


SETTINGS: Tuple[str, ...] = tuple(Settings.__annotations__)

# What other attention calls have and foci lacks: the values that switch it off, and the remedy.
_LACKING: Dict[str, Tuple[Tuple[Any, ...], str]] = {
    "window_size": ((None, (-1, -1), [-1, -1]), "cut k, v and key_mask to the window"),
    "sliding_window": ((None, False), "cut k, v and key_mask to the window"),
    "softcap": ((None, 0, 0.0), "scores are not capped here; set it to 0"),
    "logits_soft_cap": ((None, 0, 0.0), "scores are not capped here; set it to 0"),
    "alibi_slopes": ((None,), "key_bias adds a number per key, but none per query"),
    "sinks": ((None,), "append a key of zeros with a key_bias, and a value of zeros"),
    "s_aux": ((None,), "append a key of zeros with a key_bias, and a value of zeros"),
    "position_bias": ((None,), "key_bias adds a number per key, but none per query"),
    "attn_bias": ((None,), "key_bias adds a number per key, but none per query"),
    "score_mod": ((None,), "a metric and a weighting say how scores are made"),
    "block_mask": ((None,), "key_mask leaves keys out, is_causal what comes later"),
}

# Dropout on the weights, as layers call it.
_DROPPING = ("dropout", "dropout_p", "attn_drop", "attention_dropout")

# The same thing under another library's name.
_RENAMED: Dict[str, str] = {
    "query": "q",
    "key": "k",
    "value": "v",
    "causal": "is_causal",
    "softmax_scale": "scale",
    "scaling": "scale",
    "dropout": "dropout_p",
    "mask": "key_mask",
    "key_padding_mask": "key_mask (true = keep: the other way round)",
    "cu_seqlens_q": "q_offsets",
    "cu_seqlens_k": "k_offsets",
    "values_prev": "v_prev",
}


def refuse_unknown(call: str, unknown: Mapping[str, object], known: Iterable[str]) -> None:
    """TypeError with the nearest name; NotImplementedError for what other libraries have."""
    for name, value in unknown.items():
        if name in _LACKING:
            off, remedy = _LACKING[name]
            if any(value is x or (type(value) is type(x) and value == x) for x in off):
                continue
            raise NotImplementedError(f"foci.{call}: {name} is not supported: {remedy}")
        if name in _DROPPING and "dropout_p" not in known:
            if not value:
                continue
            raise NotImplementedError(
                f"foci.{call}: {name} is not supported: use dropout on what the layer returns"
            )
        near = difflib.get_close_matches(name, list(known), n=1)
        right = _RENAMED.get(name, near[0] if near else None)
        hint = f"; did you mean {right}?" if right else ""
        raise TypeError(f"foci.{call}() got an unexpected keyword argument '{name}'{hint}")


def split(call: str, keywords: Mapping[str, Any], known: Iterable[str]) -> Dict[str, Any]:
    """The settings among the keywords that a signature does not name; None is as good as absent."""
    for name in ("normalize", "rescale"):
        if name in keywords and keywords[name] is None:
            raise ValueError(
                f'foci.{call}: {name}=None is ambiguous: write {name}="none" to switch it off, or '
                "leave it out for the default"
            )
    unknown = {name: value for name, value in keywords.items() if name not in SETTINGS}
    if unknown:
        refuse_unknown(call, unknown, [*known, *SETTINGS])
    return {n: value for n, value in keywords.items() if value is not None and n not in unknown}


def written(name: str, value: object) -> str:
    """`name=value` as the operators read it."""
    if isinstance(value, bool):
        word = "true" if value else "false"
    elif isinstance(value, (int, float)):
        word = str(_ops.constant(value))
    elif isinstance(value, str):
        word = value
    else:
        raise TypeError(
            f"foci: {name} is a {type(value).__name__}; it must be a word, a number or a bool"
        )
    if not word or " " in word or "=" in word:
        raise ValueError(f"foci: {name} is '{word}'; a setting is one word or number")
    return f"{name}={word}"


BACKENDS = ("auto", "ref", "cpu", "cuda")


def text(
    metric: str,
    weighting: str,
    settings: Mapping[str, Any],
    scale: Optional[Union[float, str]] = None,
    causal: bool = False,
    backend: str = "auto",
) -> str:
    """The settings text of a call; what is left at its default is left out."""
    if backend not in BACKENDS:
        raise ValueError(f"backend is '{backend}'; it must be one of {', '.join(BACKENDS)}")
    named: Dict[str, Any] = {"metric": metric, "weighting": weighting, **settings}
    if scale is not None:
        named["scale"] = scale
    if causal:
        named["causal"] = True
    if backend != "auto":
        named["backend"] = backend
    return " ".join([written(name, value) for name, value in named.items()])
