"""Activation checkpointing of all layers, of every n-th, of one part of each, or on the host.

It is always non-reentrant. transformers does it if it can. If it has no setting, the forward method
of the chosen modules is wrapped in `torch.utils.checkpoint`, as a user would do.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial, wraps

from torch.nn import Module

from oomdoctor.records.facts.architectures import LAYER_PARTS
from oomdoctor.worker.protocol import OnHost, UnsupportedError, refused
from oomdoctor.worker.training.layers import stacks_of
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.techniques.offload import saved_on_host

# Norms and dropout may have such a name too, but no matrix.
_PARTS = {part: re.compile(names, re.IGNORECASE) for part, names in LAYER_PARTS.items()}
# Layers like BERT's have no MLP module, but a method that computes it.
_MLP_METHOD = "feed_forward_chunk"
_SETTINGS = {"use_reentrant": False}


def enable_checkpointing(setup: Setup) -> None:
    """Make the forward pass keep only what the rung's `activation_checkpointing` says.

    If transformers has no setting for it, a note has the code to type.

    Raises:
        UnsupportedError: the architecture has no checkpointing or no such part.
    """
    model, config, notes = setup.model, setup.config, setup.notes
    kind = config.activation_checkpointing
    if kind in ("attention", "mlp"):
        _checkpoint_part(model, kind, notes)
    elif kind == "every_n":
        _checkpoint_every(model, config.checkpoint_every, notes)
    else:
        _enable(model)
        if kind == "offload":
            _keep_inputs_on_host(model, setup.on_host, notes)


def _enable(model: Module, **settings: object) -> None:
    # transformers 5 renamed the method. peft and remote code may only have the old name.
    enable = getattr(model, "activation_checkpointing_enable", None)
    with refused("no activation checkpointing", ValueError):
        if enable is None:
            model.gradient_checkpointing_enable(_SETTINGS)
        else:
            enable(_SETTINGS, **settings)


def _has_setting(model: Module, setting: str) -> bool:
    """Whether this transformers has the setting; 5.23 added `every_n_layers` and `offload`."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    return enable is not None and setting in inspect.signature(enable).parameters


def _checkpoint_every(model: Module, every: int, notes: list[str]) -> None:
    """Checkpoint layers 0, n, 2n, ..., counted through all stacks as transformers does."""
    if _has_setting(model, "every_n_layers"):
        _enable(model, every_n_layers=every)
        return
    layers = list(_layers(model))[::every]
    if not layers:
        raise UnsupportedError(f"{type(model).__name__} has no list of layers")
    _turn_off_caches(model)
    for layer in layers:
        _checkpoint(layer, "forward")
    notes.append(
        "this transformers version checkpoints all layers or none; to checkpoint every n-th layer, "
        "set use_cache = False in the model's configs and run: "
        f"for layer in layers[::{every}]: {_line('layer.forward')}"
    )


def _checkpoint_part(model: Module, part: str, notes: list[str]) -> None:
    places = [place for layer in _layers(model) for place in _places(layer, part)]
    if not places:
        raise UnsupportedError(
            f"the layers of {type(model).__name__} have no {part} module; "
            'use activation_checkpointing = "every_n"'
        )
    _turn_off_caches(model)
    for module, _, method in places:
        _checkpoint(module, method)
    _, path, method = places[0]
    steps = re.sub(r"\.(\d+)", r"[\1]", f".{path}") if path else ""
    place = f"layer{steps}.{method}"
    notes.append(
        f"transformers has no setting that checkpoints only the {part} part; set use_cache = False "
        f"in the model's configs and run: for layer in layers: {_line(place)}"
    )


def _places(layer: Module, part: str) -> Iterator[tuple[Module, str, str]]:
    """(module, its path in the layer, method) of each outermost module of this part."""
    paths: list[str] = []
    for path, module in layer.named_modules():
        name = path.rsplit(".", 1)[-1]
        inside = any(path.startswith(f"{outer}.") for outer in paths)
        has_matrix = any(parameter.dim() >= 2 for parameter in module.parameters())
        if not inside and _PARTS[part].search(name) and has_matrix:
            paths.append(path)
            yield module, path, "forward"
    if not paths and part == "mlp" and hasattr(layer, _MLP_METHOD):
        yield layer, "", _MLP_METHOD


def _turn_off_caches(model: Module) -> None:
    """T5's decoder uses a cache even in training, and a recomputation would write to it twice."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "use_cache"):
            module.config.use_cache = False


def _layers(model: Module) -> Iterator[Module]:
    for stack in stacks_of(model, model.config):
        yield from model.get_submodule(stack.path)


def _checkpoint(module: Module, method: str) -> None:
    """Keep only the inputs of this method in training, and recompute the rest."""
    from torch.utils.checkpoint import checkpoint

    forward = getattr(module, method)

    @wraps(forward)
    def checkpointed(*args: object, **kwargs: object) -> object:
        if not module.training:
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, **_SETTINGS, **kwargs)

    setattr(module, method, checkpointed)


def _line(place: str) -> str:
    checkpoint = "torch.utils.checkpoint.checkpoint"
    return f"{place} = functools.partial({checkpoint}, {place}, use_reentrant=False)"


def _keep_inputs_on_host(model: Module, on_host: OnHost, notes: list[str]) -> None:
    """Keep the inputs of the checkpoints in host memory, as transformers' `offload` does.

    `offload` needs pinned memory and so a GPU, and a simulation would not see what is on the host.
    """
    for module in model.modules():
        run = vars(module).get("_gradient_checkpointing_func")
        if run is not None:
            module._gradient_checkpointing_func = partial(_with_inputs_on_host, on_host, run)
    if not _has_setting(model, "offload"):
        notes.append(
            "this transformers version cannot offload checkpoints; use transformers 5.23 or later "
            'with activation_checkpointing_kwargs={"offload": True}'
        )


def _with_inputs_on_host(
    on_host: OnHost, run: Callable[..., object], *args: object, **kwargs: object
) -> object:
    with saved_on_host(on_host):
        return run(*args, **kwargs)
