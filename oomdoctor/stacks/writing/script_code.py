"""What scripts make as objects, as code to paste: adapters, quantized weights, parts of loops."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence

from oomdoctor.records.configuration.config import TrainConfig, by_bitsandbytes
from oomdoctor.records.facts.choices import FormatName
from oomdoctor.records.facts.optimizers import canonical
from oomdoctor.records.report.user_training import AddedCode
from oomdoctor.stacks.reading.python_values import name_of
from oomdoctor.stacks.reading.script_calls import LOADED_BY_TRL, Script
from oomdoctor.stacks.scripts import model as models
from oomdoctor.stacks.scripts.code import Part, imports
from oomdoctor.stacks.scripts.model import BUILT
from oomdoctor.stacks.writing.python_patch import call_name

_LOOP = "around the forward pass and the loss"


class _Place:
    """A script, and where in it the code belongs."""

    def __init__(self, path: str, text: str, script: Script, program: FormatName) -> None:
        self.path, self.text, self.script, self.program = path, text, script, program
        self.tree = ast.parse(text)

    def below_model(self, part: Part) -> AddedCode:
        """Code that stands below the call that loads the model."""
        call = self.script.calls.get("model")
        line = None if call is None else self._statement(call).end_lineno
        where = (
            "once the model is loaded" if line is None else "below the call that loads the model"
        )
        name = self._model_name()
        body = re.sub(r"\bmodel\b(?!=)", name, part.body)
        functions = "\n\n".join(part.functions)
        code = f"{functions}\n\n\n{body}" if functions else body
        return AddedCode(self.path, "below", line, where, code, _imports(part))

    def keyword(self, call: ast.Call, code: str, part: Part) -> AddedCode:
        """A keyword with an object."""
        where = f"as a keyword of {call_name(call)}(...)"
        return AddedCode(self.path, "keyword", call.lineno, where, code, _imports(part))

    def trains_model(self) -> bool:
        """Whether the script puts the model into training mode."""
        name = f"{self._model_name()}.train"
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return any(name_of(call.func) == name for call in calls)

    def _statement(self, call: ast.Call) -> ast.stmt:
        holders = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt)
                   and any(child.lineno == call.lineno and child.col_offset == call.col_offset
                           for child in ast.walk(node) if isinstance(child, ast.Call))]  # fmt: skip
        return max(holders, key=lambda holder: holder.lineno)

    def _model_name(self) -> str:
        call = self.script.calls.get("model")
        node = None if call is None else self._statement(call)
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Tuple):
            target = target.elts[0]
        return target.id if isinstance(target, ast.Name) else "model"


def _imports(part: Part) -> tuple[str, ...]:
    return tuple(line for line in imports(part.names).splitlines() if line)


def _adapter(place: _Place, after: TrainConfig) -> tuple[AddedCode, ...]:
    """peft's adapters: an argument of TRL's trainers, or wrapped around the model."""
    if after.method == "full":
        raise ValueError("the script makes adapters in code")
    trainer = place.script.calls.get("trainer")
    if place.program == "trl" and trainer is not None:
        lora = models.lora_config(after)
        return (place.keyword(trainer, f"peft_config={lora.body}", lora),)
    return (place.below_model(models.adapter(after)),)


def _quantization(place: _Place, after: TrainConfig) -> tuple[AddedCode, ...]:
    """bitsandbytes' configuration, which the call that loads the model takes."""
    if not by_bitsandbytes(after):
        raise ValueError("the script quantizes in code")
    body = f"quantization_config={models.quantization(after)}"
    names = ("transformers:BitsAndBytesConfig", *(["torch"] if "torch." in body else []))
    part = Part(body, names)
    arguments, model = place.script.calls.get("arguments"), place.script.calls.get("model")
    prepared = models.kbit_preparation(after)
    parts: list[AddedCode] = []
    if model is None and arguments is not None and LOADED_BY_TRL in place.script.classes:
        key, _, value = part.body.partition("=")
        code = f'model_init_kwargs={{"{key}": {value}}}'
        parts.append(place.keyword(arguments, code, part))
    elif model is not None:
        parts.append(place.keyword(model, part.body, part))
    else:
        raise ValueError("the script has no call that loads the model")
    if prepared.body and "lora" in place.script.calls:  # else the code of the adapter has it
        parts.append(place.below_model(prepared))
    return tuple(parts)


def _checkpointing(place: _Place, after: TrainConfig) -> tuple[AddedCode, ...]:
    """Checkpointing in a plain loop."""
    kind = after.activation_checkpointing
    if kind in ("attention", "mlp"):
        return (place.below_model(models.part_checkpointing(after)),)
    if kind == "none":
        raise ValueError("the script turns on checkpointing in code")
    if kind != "full":
        raise ValueError("a loop checkpoints all layers, or parts of them")
    settings = 'gradient_checkpointing_kwargs={"use_reentrant": False}'
    lines = [f"model.gradient_checkpointing_enable({settings})"]
    if not place.trains_model():
        lines.append("model.train()  # in evaluation mode, as it is loaded, nothing is recomputed")
    return (place.below_model(Part("\n".join(lines))),)


def _liger(place: _Place, after: TrainConfig) -> tuple[AddedCode, ...]:
    """Liger's kernels in a plain loop."""
    part = models.liger(after)
    if not part.body:
        raise ValueError("the script applies Liger in code")
    return (place.below_model(part),)


def _autocast(place: _Place, after: TrainConfig) -> tuple[AddedCode, ...]:
    """Mixed precision in a plain loop."""
    if after.autocast_dtype == "none":
        raise ValueError("the script turns on autocast in code")
    code = f'with torch.autocast("cuda", dtype=torch.{after.autocast_dtype}):'
    return (AddedCode(place.path, "around", None, _LOOP, code, ("import torch",)),)


def _accumulation(place: _Place, after: TrainConfig) -> tuple[AddedCode, ...]:
    """Gradient accumulation in a plain loop."""
    if after.accumulation_steps() == 1:
        raise ValueError("the script accumulates gradients in code")
    code = (
        f"accumulation_steps = {after.accumulation_steps()}  # divide the loss by it\n"
        "if (step + 1) % accumulation_steps == 0:"
    )
    return (AddedCode(place.path, "around", None, "around optimizer.step()", code),)


def _optimizer(place: _Place, after: TrainConfig) -> tuple[AddedCode, ...]:
    """Another optimizer in a plain loop, with the same arguments."""
    built, call = BUILT.get(canonical(after.optimizer)), place.script.calls.get("optimizer")
    if built is None or call is None:
        raise ValueError(f"the script makes its optimizer in code, and not {after.optimizer}")
    taken = ("lr", "weight_decay", "betas", "eps")
    given = [ast.get_source_segment(place.text, argument) or "" for argument in call.args]
    given += [
        f"{keyword.arg}={ast.get_source_segment(place.text, keyword.value)}"
        for keyword in call.keywords
        if keyword.arg in taken
    ]
    given += [f"{name}={value!r}" for name, value in built.arguments.items()]
    code = f"{built.called}({', '.join(given)})"
    where = f"instead of {name_of(call.func)}(...)"
    names = _imports(Part("", (built.imported,)))
    return (AddedCode(place.path, "instead", call.lineno, where, code, names),)


Maker = Callable[[_Place, TrainConfig], tuple[AddedCode, ...]]
# How the names of settings start -> what writes them as code; settings of one object share it.
_MAKERS: Mapping[str, Maker] = {
    **dict.fromkeys(
        ("use_peft", "lora_", "target_modules", "use_dora", "use_rslora", "modules_to_save"),
        _adapter,
    ),
    **dict.fromkeys(("load_in_", "bnb_", "use_bnb"), _quantization),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), _checkpointing),
    **dict.fromkeys(("bf16", "fp16"), _autocast),
    "use_liger_kernel": _liger,
    "gradient_accumulation_steps": _accumulation,
    "optim": _optimizer,
}


def code_of(
    path: str,
    text: str,
    script: Script,
    program: FormatName,
    after: TrainConfig,
    names: Sequence[str],
) -> tuple[AddedCode, ...]:
    """The code with which a script says settings that have no place in it, each object once.

    Raises:
        ValueError: a script has no code for a setting that oomdoctor knows.
    """
    makers: dict[Maker, None] = {}
    for name in names:
        fitting = [maker for start, maker in _MAKERS.items() if name.startswith(start)]
        if not fitting:
            raise ValueError(f"the script has no place for {name}")
        makers[fitting[0]] = None
    place = _Place(path, text, script, program)
    return tuple(code for maker in makers for code in maker(place, after))
