# SPDX-License-Identifier: Apache-2.0
"""What is done to a model while it is measured: its blocks are listened to, and attention that is
not foci's is made so."""
import contextlib
import sys
from typing import Any, Iterator, List, Optional, Tuple

from torch import Tensor, nn


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """What stands in a numbered row of modules: the blocks of a model are among them."""
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            yield from module


def _tokens_in(found: Any) -> Optional[Tensor]:
    """The (B,N,D) tensor that a block takes or gives."""
    if isinstance(found, (tuple, list)) and found:
        found = found[0]
    return found if isinstance(found, Tensor) and found.dim() == 3 else None


@contextlib.contextmanager
def between_blocks(model: nn.Module, meter: Any) -> Iterator[None]:
    """Tells the meter of tokens before the first block and after each that attends."""
    began: List[Tuple[int, Optional[Tensor]]] = []

    def before(module: nn.Module, inputs: Tuple[Any, ...]) -> None:
        began.append((meter.calls, _tokens_in(inputs)))

    def after(module: nn.Module, inputs: Tuple[Any, ...], output: Any) -> None:
        calls, came = began.pop()
        gave = _tokens_in(output)
        if meter.calls != calls + 1:  # not one block
            return
        if calls == 0 and came is not None:
            meter.pass_tokens(0, came)
        if gave is not None:
            meter.pass_tokens(meter.calls, gave)

    hooks = []
    for block in dict.fromkeys(_blocks(model)):
        hooks.append(block.register_forward_pre_hook(before))
        hooks.append(block.register_forward_hook(after))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def plainly(model: nn.Module) -> Iterator[None]:
    """A Hugging Face model without a metric is given foci's plain attention for a while."""
    transformers = sys.modules.get("transformers")
    plain = transformers is not None and isinstance(model, transformers.PreTrainedModel)
    if plain:
        from . import hf

        if model.config._attn_implementation != hf.NAME:
            hf.enable(model, metric="dot", layers=":")
            try:
                yield
            finally:
                hf.disable(model)
            return
    yield
