"""The commands to type after `explain`; each can be pasted on this machine."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from oomdoctor.cli.options.explaining import ExplainOptions
from oomdoctor.cli.requests.files.sources import STDIN
from oomdoctor.cli.requests.reader import hub_id
from oomdoctor.units import GIB

if TYPE_CHECKING:
    from oomdoctor.explain.training.known import Given
    from oomdoctor.records.diagnosis import Diagnosis

_USUAL_BATCH = 16


def typed_options(options: ExplainOptions) -> list[str]:
    """What was typed about the training, as words of a command line."""
    pairs = {
        "--model": None if options.model is None else hub_id(options.model),
        "--seq-len": options.seq_len,
        "--micro-batch": options.micro_batch,
        "--snapshot": None if options.snapshot is None else str(options.snapshot),
        "--config": None if options.config is None else str(options.config),
        "--python": options.python,
    }
    words = [word for name, value in pairs.items() if value is not None for word in (name, value)]
    return [*words, "--exact"] if options.exact else words


def next_lines(found: list[Diagnosis], given: Given, typed: list[str]) -> tuple[str, ...]:
    """Up to two commands: more about the first failure, and which configuration fits."""
    failed = [one for one in found if one.is_oom and not one.survived]
    if not failed:
        return ()
    first = failed[0]
    again = ["oomdoctor", "explain", first.source, *typed]
    if len({one.source for one in found}) > 1:
        return (shlex.join(again),)
    lines = [] if first.source == STDIN else [shlex.join([*again, "--verbose"])]
    if first.resource == "gpu" and given.model is not None:
        lines += _what_fits(first, given)
    return tuple(lines)


def _what_fits(failure: Diagnosis, given: Given) -> list[str]:
    """`probe` where there is a GPU, else `plan`; nothing where neither can run."""
    from importlib.util import find_spec

    from oomdoctor.system.machine.nvml import may_have_gpu

    assert given.model is not None
    vram = failure.numbers.capacity_bytes
    size = f"{vram / GIB:.2f}GiB" if vram else None
    words = [given.model.id]
    if may_have_gpu():
        words = ["oomdoctor", "probe", *words, *(["--vram", size] if size else [])]
    elif size and find_spec("torch") is not None:
        words = ["oomdoctor", "plan", *words, "--gpu", size]
    else:
        return []
    length, batch = given.sequence_length, given.micro_batch_size
    words += ["--seq-len", str(length)] if length is not None else []
    if batch is not None:
        words += ["--micro-batch", str(batch)]
        words += ["--effective-batch", str(batch)] if _USUAL_BATCH % batch else []
    return [shlex.join(words)]
