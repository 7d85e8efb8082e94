"""Activation checkpointing of whole layers, of every n-th, of one part of each, or to the host.

Always non-reentrant. transformers does it where it can; where it has no switch, the forward of the
chosen modules is wrapped in `torch.utils.checkpoint`, as a user would.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

from oomdoctor.records.config import TrainConfig
from oomdoctor.worker.protocol.unsupported import UnsupportedError
from oomdoctor.worker.training.layers import stacks_of
from oomdoctor.worker.training.offload import OnHost, saved_on_host

# The attributes under which transformers' layers keep their parts. Norms and dropout with such a
# word in their name have no matrix.
_PARTS = {
    "attention": re.compile(r"attn|attention", re.IGNORECASE),
    "mlp": re.compile(r"mlp|moe|feed_?forward|ffn|^ff$|densereludense", re.IGNORECASE),
}
# Layers such as BERT's have no MLP module, but a method from its input to its output.
_MLP_METHOD = "feed_forward_chunk"
_SETTINGS = {"use_reentrant": False}


def enable_checkpointing(
    model: Any, config: TrainConfig, on_host: OnHost, notes: list[str]
) -> None:
    """Make the training forward of `model` keep what `config.activation_checkpointing` says.

    `notes` gets the lines to type where transformers has no setting for it.

    Raises:
        UnsupportedError: the architecture has no checkpointing or no such part.
    """
    kind = config.activation_checkpointing
    if kind == "none":
        return
    if kind in ("attention", "mlp"):
        _checkpoint_part(model, kind, notes)
    elif kind == "every_n":
        _checkpoint_every(model, config.checkpoint_every, notes)
    else:
        _enable(model)
        if kind == "offload":
            _keep_inputs_on_host(model, on_host, notes)


def _enable(model: Any, **settings: Any) -> None:
    # transformers 5 renamed the method; peft and remote code may only know the old name.
    enable = getattr(model, "activation_checkpointing_enable", None)
    try:
        if enable is None:
            model.gradient_checkpointing_enable(_SETTINGS)
        else:
            enable(_SETTINGS, **settings)
    except ValueError as error:
        raise UnsupportedError(f"no activation checkpointing: {error}") from error


def _knows(model: Any, setting: str) -> bool:
    """Whether this transformers has the setting; 5.23 brought `every_n_layers` and `offload`."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    return enable is not None and setting in inspect.signature(enable).parameters


def _checkpoint_every(model: Any, every: int, notes: list[str]) -> None:
    """Layers 0, n, 2n, ... counted through all stacks of the model, as transformers counts."""
    if _knows(model, "every_n_layers"):
        _enable(model, every_n_layers=every)
        return
    layers = list(_layers(model))[::every]
    if not layers:
        raise UnsupportedError(f"{type(model).__name__} has no list of layers")
    _turn_off_caches(model)
    for layer in layers:
        _checkpoint(layer, "forward")
    notes.append(
        "this transformers checkpoints all layers or none; set use_cache = False in the model's "
        f"configs and: for layer in layers[::{every}]: {_line('layer.forward')}"
    )


def _checkpoint_part(model: Any, part: str, notes: list[str]) -> None:
    found = [place for layer in _layers(model) for place in _places(layer, part)]
    if not found:
        raise UnsupportedError(
            f"the layers of {type(model).__name__} have no module that is their {part}; "
            'use activation_checkpointing = "every_n"'
        )
    _turn_off_caches(model)
    for module, _, method in found:
        _checkpoint(module, method)
    _, path, method = found[0]
    steps = re.sub(r"\.(\d+)", r"[\1]", f".{path}") if path else ""
    place = f"layer{steps}.{method}"
    notes.append(
        "transformers has no switch for it; set use_cache = False in the model's configs and: "
        f"for layer in layers: {_line(place)}"
    )


def _places(layer: Any, part: str) -> Iterator[tuple[Any, str, str]]:
    """(module, its path in the layer, method) of each outermost module that is this part."""
    found: list[str] = []
    for path, module in layer.named_modules():
        name = path.rsplit(".", 1)[-1]
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if not inside and _PARTS[part].search(name) and _has_matrix(module):
            found.append(path)
            yield module, path, "forward"
    if not found and part == "mlp" and hasattr(layer, _MLP_METHOD):
        yield layer, "", _MLP_METHOD


def _turn_off_caches(model: Any) -> None:
    """A recomputation would write a second time to a cache, which T5's decoder has in training."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = False


def _has_matrix(module: Any) -> bool:
    return any(parameter.dim() >= 2 for parameter in module.parameters())


def _layers(model: Any) -> Iterator[Any]:
    for stack in stacks_of(model, model.config):
        yield from model.get_submodule(stack.path)


def _checkpoint(module: Any, method: str) -> None:
    """Recompute what this method of a module makes, while the module trains."""
    from torch.utils.checkpoint import checkpoint

    forward = getattr(module, method)

    @functools.wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not module.training:
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **_SETTINGS, **kwargs)

    setattr(module, method, checkpointed)


def _line(place: str) -> str:
    checkpoint = "torch.utils.checkpoint.checkpoint"
    return f"{place} = functools.partial({checkpoint}, {place}, use_reentrant=False)"


def _keep_inputs_on_host(model: Any, on_host: OnHost, notes: list[str]) -> None:
    """Put the inputs that the checkpoints keep into host memory, as transformers' `offload` does.

    transformers' own needs pinned memory, which the CPU has not, and would not tell a simulation
    what lies on the host.
    """
    for module in model.modules():
        run = vars(module).get("_gradient_checkpointing_func")
        if run is not None:
            module._gradient_checkpointing_func = _with_inputs_on_host(run, on_host)
    if not _knows(model, "offload"):
        notes.append(
            "this transformers cannot offload checkpoints by itself; a newer one can: "
            'activation_checkpointing_kwargs={"offload": True}'
        )


def _with_inputs_on_host(run: Any, on_host: OnHost) -> Any:
    def offloading(function: Any, *args: Any, **kwargs: Any) -> Any:
        with saved_on_host(on_host):
            return run(function, *args, **kwargs)

    return offloading
