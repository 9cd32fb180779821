# SPDX-License-Identifier: Apache-2.0
"""Elliptical attention in a Hugging Face model: one line on, one line off.

    import foci.hf
    model = AutoModelForCausalLM.from_pretrained("gpt2")
    foci.hf.enable(model, metric="layer-change")      # all layers but the lowest
    model.save_pretrained(folder)                     # the metric is stored in config.json
    model = AutoModelForCausalLM.from_pretrained(folder)              # and comes back
    foci.hf.disable(model)

Importing this module registers the attention function and the mask function "foci" with
transformers, and lets from_pretrained restore a stored metric. What foci lacks (dropout, sliding
windows, attention maps, static caches, ...) is refused by name. docs/adapters.md says more.
"""
import functools
import inspect
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import torch
from torch import nn

from . import _ops, _stack
from ._hf_pass import NAME, _begin, _end, attention, key_mask
from ._mechanism import differ
from ._settings import SETTINGS, refuse_unknown

# After _hf_pass, which says what to do when transformers is missing.
from transformers import PreTrainedModel  # isort: skip

__all__ = ["NAME", "attention", "disable", "enable", "key_mask"]


def enable(
    model: PreTrainedModel,
    metric: Optional[str] = None,
    layers: Optional[_stack.Layers] = None,
    *,
    rotary_pairs: Optional[str] = None,
    **settings: Any,
) -> PreTrainedModel:
    """Gives the model's attention layers a metric, in place, and returns the model.

    metric: "dot", "layer-change" (default), "flat", "jacobian", "key-covariance", "random". Left
        out, a metric stored in the model's config is applied again.
    layers: where it holds: "1:" (default), ":", "2:8:2", "1,3,5", or numbers. Other layers are dot;
        so is the lowest one for layer-change and flat, which need a layer below.
    rotary_pairs: "halves", "neighbours" or "none", where the model's code does not show it.
    settings: the metric's and the weighting's, as for foci.attend: scope, normalize, metric_grad,
        weighting, backend, ... The scale is the model's own unless given.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"foci.hf.enable: model is a {type(model).__name__}; pass the PreTrainedModel itself "
            "(model.module of a parallel wrapper, model.get_base_model() of PEFT)"
        )
    again = getattr(model.config, "foci", None) if metric is None else None
    metric, layers, pairs, settings = _resolve(model, metric, layers, rotary_pairs, settings)
    stacks = _find(model)
    linked: List[Tuple[Any, Any, _stack.Link]] = []
    for runner, modules in stacks:
        links = _stack.make_links(len(modules), metric, layers, settings)
        for one, link in zip(modules, links):
            _check_causal(one, metric, settings)
            link.pairs = _pairs(one, pairs) if link.metric != "dot" else None
            link.expect(getattr(one, "scaling", None))
            linked.append((runner, one, link))
    if all(link.metric != metric for _, _, link in linked):
        raise ValueError(
            f"foci.hf.enable: layers is {layers!r}, and metric='{metric}' then holds in no layer "
            f"of {type(model).__name__}"
        )
    for _, _, link in linked:
        _ops.check_settings(link.own)
    mechanism = _ops.check_settings(_stack.text(metric, {**settings, "backend": None}))
    if again and differ(again.get("mechanism", mechanism), mechanism):
        raise ValueError(
            f"foci.hf.enable: the config was stored with '{again['mechanism']}', and this version "
            f"of foci would compute '{mechanism}'; name the metric and every setting that differs"
        )
    before = model.config._attn_implementation
    _unlink(model)
    owner: Any
    module: Any
    for owner, module, link in linked:
        module._foci = link
        if not hasattr(owner, "_foci_stacks"):
            owner._foci_stacks = []
            owner.register_forward_pre_hook(_begin, with_kwargs=True)
            owner.register_forward_hook(_end)
        if link.index == 0:
            owner._foci_stacks.append(link.stack)
    if before != NAME:
        model._foci_before = before
        model.set_attn_implementation(NAME)
    if model.config._attn_implementation != NAME:
        _unlink(model)
        raise NotImplementedError(
            f"foci.hf.enable: {type(model).__name__} does not call its attention through "
            "transformers' AttentionInterface, so foci cannot take its place"
        )
    stored = {"metric": metric, "layers": _plain(layers), **settings, "mechanism": mechanism}
    model.config.foci = stored if pairs is None else {**stored, "rotary_pairs": pairs}
    # A public field of config.json: without foci.hf, transformers then refuses to load the model.
    model.config.attn_implementation = NAME
    return model


def disable(model: PreTrainedModel) -> PreTrainedModel:
    """Undoes enable(): the attention implementation the model had before, and nothing stored."""
    _unlink(model)
    before = model.__dict__.pop("_foci_before", None)
    if model.config._attn_implementation == NAME:
        fallback = "sdpa" if getattr(model, "_supports_sdpa", True) else "eager"
        model.set_attn_implementation(before or fallback)
    for name in ("foci", "attn_implementation"):
        model.config.__dict__.pop(name, None)
    return model


def _plain(layers: _stack.Layers) -> Any:
    return layers if isinstance(layers, (str, int)) else [int(x) for x in layers]


def _resolve(
    model: PreTrainedModel,
    metric: Optional[str],
    layers: Optional[_stack.Layers],
    rotary_pairs: Optional[str],
    settings: Mapping[str, Any],
) -> Tuple[str, _stack.Layers, Optional[str], Dict[str, Any]]:
    """What is asked for, or else what the config stores."""
    stored = getattr(model.config, "foci", None)
    if stored and metric is None:
        if layers is not None or settings or rotary_pairs is not None:
            raise ValueError(
                f"foci.hf.enable: the config stores {stored}; to change part of it, name the "
                "metric too"
            )
        kept = {name: value for name, value in stored.items() if name != "mechanism"}
        pairs = kept.pop("rotary_pairs", None)
        return kept.pop("metric"), kept.pop("layers"), pairs, kept
    allowed = (*SETTINGS, "weighting", "backend", "scale")
    unknown = {name: value for name, value in settings.items() if name not in allowed}
    refuse_unknown("hf.enable", unknown, ["metric", "layers", "rotary_pairs", *allowed])
    if rotary_pairs not in (None, "halves", "neighbours", "none"):
        raise ValueError(
            f"foci.hf.enable: rotary_pairs is {rotary_pairs!r}; it must be halves, neighbours or "
            "none"
        )
    if layers is not None and not isinstance(layers, (str, int)):
        layers = [int(x) for x in layers]
    given = {name: value for name, value in settings.items() if value is not None}
    return metric or "layer-change", "1:" if layers is None else layers, rotary_pairs, given


# ---- the layers of a model ---------------------------------------------------------------------


def _calls_interface(module: nn.Module) -> bool:
    return "ALL_ATTENTION_FUNCTIONS" in _names(module)


def _names(module: nn.Module) -> Tuple[str, ...]:
    """The global names and attributes that a module's forward uses."""
    forward = inspect.unwrap(type(module).forward)
    code = getattr(forward, "__code__", None)
    return tuple(code.co_names) if code is not None else ()


def _find(model: PreTrainedModel) -> List[Tuple[nn.Module, List[nn.Module]]]:
    """Each stack of layers: the module that runs it, and its attention modules, lowest first."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise NotImplementedError(
            f"foci.hf.enable: {type(model).__name__} is an encoder-decoder, whose cross attention "
            "has no layer below; foci takes encoders and decoder-only models"
        )
    stacks: Dict[str, Dict[int, Tuple[str, nn.Module]]] = {}
    for name, module in model.named_modules():
        if not _calls_interface(module):
            continue
        if getattr(module, "is_cross_attention", False):
            raise NotImplementedError(
                f"foci.hf.enable: {name} is cross attention, which foci does not serve; use a "
                "model without config.add_cross_attention"
            )
        parts = name.split(".")
        at = max((i for i, part in enumerate(parts) if part.isdigit()), default=None)
        folder, index = (name, 0) if at is None else (".".join(parts[:at]), int(parts[at]))
        layer = stacks.setdefault(folder, {})
        if index in layer:
            raise NotImplementedError(
                f"foci.hf.enable: {layer[index][0]} and {name} are both attention of layer "
                f"{index}; foci takes models with one attention a layer"
            )
        layer[index] = (name, module)
    if not stacks:
        raise NotImplementedError(
            f"foci.hf.enable: {type(model).__name__} has no attention layer that calls "
            "transformers' AttentionInterface"
        )
    return [
        (_owner(model, folder), [layer[index][1] for index in sorted(layer)])
        for folder, layer in stacks.items()
    ]


def _owner(model: PreTrainedModel, folder: str) -> nn.Module:
    """The innermost module with a forward of its own that holds all layers of a stack."""
    parts = folder.split(".") if folder else []
    while parts:
        module: nn.Module = model.get_submodule(".".join(parts))
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict)) and not _calls_interface(module):
            return module
        parts.pop()
    whole: nn.Module = model
    return whole


def _check_causal(module: nn.Module, metric: str, settings: Mapping[str, Any]) -> None:
    if (
        metric not in ("dot", "random")
        and settings.get("scope") == "sequence"
        and getattr(module, "is_causal", True)
        and not settings.get("allow_leak")
    ):
        raise ValueError(
            "foci.hf.enable: scope='sequence' lets a causal model see later tokens; leave scope "
            "out (it is then 'prefix'), or say allow_leak=True"
        )


def _pairs(module: nn.Module, rotary_pairs: Optional[str]) -> Optional[_stack.Pairs]:
    """How the module's code rotates coordinates, found by trying it; None without rotary."""
    if rotary_pairs == "none":
        return None
    config = getattr(module, "config", None)
    parameters = getattr(config, "rope_parameters", None)
    rotates = any("rotary" in name.lower() or "rope" in name.lower() for name in _names(module))
    if rotary_pairs is None and not rotates and not parameters:
        return None
    share = getattr(config, "partial_rotary_factor", None)
    if isinstance(parameters, Mapping) and parameters.get("partial_rotary_factor") is not None:
        share = parameters["partial_rotary_factor"]
    share = 1.0 if share is None else float(share)
    if rotary_pairs is not None:
        return rotary_pairs, share
    turn = getattr(sys.modules.get(type(module).__module__), "rotate_half", None)
    if turn is not None:
        seen = turn(torch.arange(4.0)).tolist()
        if seen == [-2.0, -3.0, 0.0, 1.0]:
            return "halves", share
        if seen == [-1.0, 0.0, -3.0, 2.0]:
            return "neighbours", share
    raise NotImplementedError(
        f"foci.hf.enable: {type(module).__name__} rotates positions in a way foci does not know; "
        "say rotary_pairs='halves' (d turns with d + D/2) or 'neighbours' (2d with 2d + 1)"
    )


def _unlink(model: nn.Module) -> None:
    module: Any
    for module in model.modules():
        module.__dict__.pop("_foci", None)
        if module.__dict__.pop("_foci_stacks", None) is not None:
            _drop(module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs, _begin)
            _drop(module._forward_hooks, module._forward_hooks_with_kwargs, _end)


def _drop(hooks: Dict[int, Any], marks: Dict[int, bool], hook: Any) -> None:
    for key in [key for key, value in hooks.items() if value is hook]:
        del hooks[key]
        marks.pop(key, None)


def _restoring(load: Callable[..., Any]) -> Callable[..., Any]:
    """from_pretrained that applies the metric its config.json stores."""

    @functools.wraps(load)
    def from_pretrained(cls: type, *args: Any, **kwargs: Any) -> Any:
        loaded = load(cls, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        config: Any = getattr(model, "config", None)
        if getattr(config, "foci", None) and config._attn_implementation == NAME:
            enable(model)
        return loaded

    made: Any = from_pretrained
    made._foci_restores = True
    return from_pretrained


if not hasattr(PreTrainedModel.from_pretrained, "_foci_restores"):
    _load = PreTrainedModel.from_pretrained.__func__
    PreTrainedModel.from_pretrained = classmethod(_restoring(_load))
