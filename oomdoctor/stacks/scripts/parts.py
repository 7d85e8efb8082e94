"""What all training scripts share: the head, the sizes, the options, and which rungs they say."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from oomdoctor.records.configuration.config import scored_tokens
from oomdoctor.records.configuration.keys import KEYS, settled
from oomdoctor.stacks.quoted import printable
from oomdoctor.stacks.rung import StackRung, learning_rate, not_in
from oomdoctor.stacks.scripts.code import WIDTH, Part, function, imports, lines, literal, together
from oomdoctor.stacks.scripts.data import data_of

SAVE = """\
model.save_pretrained(args.output)
tokenizer.save_pretrained(args.output)"""
_WITH_ENGINE = ("trainer", "trl")  # their Trainer has the Accelerator that the conversion needs


def check_said(rung: StackRung, target: str) -> None:
    """Check that a script can say all of a rung. Scripts train a language model on text.

    Raises:
        OomDoctorError: the rung has a key or a task that scripts do not express (exit 3).
    """
    config = rung.config
    if rung.task != "causal-lm":
        raise not_in(target, f"the task {rung.task}", "exports train causal language models")
    if config.loss == "chunked" and target != "trl":
        raise not_in(target, "loss = chunked", "use --to trl")
    if config.fp8 == "transformer_engine" and target not in _WITH_ENGINE:
        raise not_in(target, "fp8 = transformer_engine", "use --to trainer or --to trl")
    config = settled(config)
    for key in KEYS.values():
        value = getattr(config, key.name)
        if value != key.default() and target not in key.scripts:
            scripts = " or ".join(f"--to {name}" for name in key.scripts)
            raise not_in(target, f"{key.name} = {value}", f"use {scripts}" if scripts else None)


def script(
    rung: StackRung, program: str, parts: Iterable[Part], command: str, notes: Iterable[str] = ()
) -> str:
    """A whole script: head, imports, functions, and the main function with the parts in order.

    Two blank lines stand between functions. `command` starts it. `notes` stand in the head.
    """
    # What has to be set before torch allocates anything.
    expandable = rung.config.allocator == "expandable_segments"
    environment = lines("expandable_segments") if expandable else Part()
    whole = together(_arguments(rung), data_of(rung.config).source, *parts)
    body = textwrap.indent(whole.body, "    ")
    main = f'def main() -> None:\n{body}\n\n\nif __name__ == "__main__":\n    main()'
    text = "\n\n\n".join((*whole.functions, main))
    head = _head(rung, program, command, notes)
    set_first = f"{environment.body}\n\n" if environment.body else ""
    names = imports((*whole.names, *environment.names))
    return f"{head}\n\n{names}\n\n{set_first}{_constants(rung)}\n\n\n{text}\n"


def _head(rung: StackRung, program: str, command: str, notes: Iterable[str]) -> str:
    title = f"Fine-tune {rung.model} with {program}: {rung.label}."
    data = f"It takes --data: {data_of(rung.config).help}."
    texts = (title, *rung.origin, data, *notes)
    wrapped = [line for text in texts for line in textwrap.wrap(_quoted(text), WIDTH)]
    body = "\n".join((wrapped[0], "", *wrapped[1:], "", f"    {command}"))
    return f'"""{body}\n"""'


def _quoted(text: str) -> str:
    """A text that cannot end the docstring that it stands in, whatever names it holds."""
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _constants(rung: StackRung) -> str:
    config, rows = rung.config, data_of(rung.config).rows
    steps = config.accumulation_steps()
    where = "a row" if rows == "rows" else "a sequence, with its prompt"
    sizes = [f"SEQUENCE_LENGTH = {config.sequence_length}  # tokens in {where}"]
    if config.objective in ("dpo", "grpo"):
        sizes.append(f"COMPLETION_LENGTH = {scored_tokens(config)}  # tokens after the prompt")
    sizes += [
        f"MICRO_BATCH_SIZE = {config.micro_batch()}  # {rows} in one forward pass of a GPU",
        f"ACCUMULATION_STEPS = {steps}  # forward passes in one optimizer step",
    ]
    return "\n".join(sizes)


def _arguments(rung: StackRung) -> Part:
    usual, beside = f"{learning_rate(rung.config):.0e}".replace("e-0", "e-"), rung.beside
    whole = rung.epochs.is_integer()
    return function(
        "parse_arguments",
        "args = parse_arguments()",
        model=literal(rung.model),
        data=literal(data_of(rung.config).help),
        output=literal(beside.get("output_dir", "trained")),
        kind="int" if whole else "float",
        epochs=literal(int(rung.epochs) if whole else rung.epochs),
        rate=literal(beside["learning_rate"]) if "learning_rate" in beside else usual,
    )
