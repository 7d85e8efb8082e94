"""What all training scripts share: the head, the sizes, the options and the main function."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from oomdoctor.records.config import scored_tokens
from oomdoctor.stacks.rung import StackRung, learning_rate
from oomdoctor.stacks.scripts.code import WIDTH, imports, indented, literal
from oomdoctor.stacks.scripts.data import data_of


def script(
    rung: StackRung,
    program: str,
    names: Iterable[str],
    parts: Iterable[str],
    command: str,
    notes: Iterable[str] = (),
) -> str:
    """A whole script: head, imports, and the parts with two blank lines between them.

    `command` starts it. `notes` stand in the head.
    """
    text = "\n\n\n".join(part.strip("\n") for part in parts if part)
    environment = _environment(rung)
    used = [*names, *(["os"] if environment else [])]
    head = f"{_head(rung, program, command, notes)}\n\n{imports(used)}"
    return f"{head}\n\n{environment}{constants(rung)}\n\n\n{text}\n"


def _head(rung: StackRung, program: str, command: str, notes: Iterable[str]) -> str:
    title = f"Fine-tune {rung.model} with {program}: {rung.label}."
    data = f"It takes --data: {data_of(rung.config).help}."
    texts = (title, *rung.origin, data, *notes)
    lines = [line for text in texts for line in textwrap.wrap(_quoted(text), WIDTH)]
    body = "\n".join((lines[0], "", *lines[1:], "", f"    {command}"))
    return f'"""{body}\n"""'


def _quoted(text: str) -> str:
    """A text that cannot end the docstring that it stands in, whatever names it holds."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"')


def _environment(rung: StackRung) -> str:
    """What has to be set before torch allocates anything."""
    if rung.config.allocator != "expandable_segments":
        return ""
    return (
        "# Segments that grow leave fewer gaps; torch reads this when it first allocates.\n"
        'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")\n\n'
    )


def constants(rung: StackRung) -> str:
    """The sizes of the rung."""
    config, rows = rung.config, data_of(rung.config).rows
    steps = config.accumulation_steps()
    where = "a row" if rows == "rows" else "a sequence, with its prompt"
    lines = [f"SEQUENCE_LENGTH = {config.sequence_length}  # tokens in {where}"]
    if config.objective in ("dpo", "grpo"):
        lines.append(f"COMPLETION_LENGTH = {scored_tokens(config)}  # tokens after the prompt")
    lines += [
        f"MICRO_BATCH_SIZE = {rung.micro_batch}  # {rows} in one forward pass of a GPU",
        f"ACCUMULATION_STEPS = {steps}  # forward passes in one optimizer step",
    ]
    return "\n".join(lines)


ARGUMENT_IMPORTS = ("argparse", "pathlib:Path")


def arguments(rung: StackRung) -> str:
    """The options of the script."""
    rate = f"{learning_rate(rung.config):.0e}".replace("e-0", "e-")
    beside = rung.beside
    if "learning_rate" in beside:
        rate = literal(beside["learning_rate"])
    whole = rung.epochs.is_integer()
    kind = "int" if whole else "float"
    count = literal(int(rung.epochs) if whole else rung.epochs)
    output = literal(beside.get("output_dir", "trained"))
    return f"""
def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default={literal(rung.model)}, help="a model id or a folder")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("train.jsonl"),
        help={literal(data_of(rung.config).help)},
    )
    parser.add_argument("--output", default={output}, help="the folder for the result")
    parser.add_argument("--epochs", type={kind}, default={count})
    parser.add_argument("--learning-rate", type=float, default={rate})
    args = parser.parse_args()
    if not args.data.is_file():
        parser.error(f"--data: there is no file {{args.data}}")
    return args
"""


COLLATE_IMPORTS = ("torch",)
COLLATE = '''
def collate(rows: list[list[int]]) -> dict[str, torch.Tensor]:
    """A batch of full rows. The model itself shifts the labels by one."""
    tokens = torch.tensor(rows)
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": tokens.clone(),
    }
'''


def main(lines: Iterable[str]) -> str:
    """The main function, and the call of it."""
    body = "\n".join(line for line in lines if line)
    return f'def main() -> None:\n{indented(body)}\n\n\nif __name__ == "__main__":\n    main()'
