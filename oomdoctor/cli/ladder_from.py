"""What the user's own files answer: --from for options not typed, --lengths for rows."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oomdoctor.cli.option_reader import Reader, hub_id, model_name
from oomdoctor.cli.options.verbs import LadderOptions
from oomdoctor.cli.streams.output import say
from oomdoctor.emulator.card import split_count
from oomdoctor.records.configuration.faults import MOST_GPUS
from oomdoctor.records.job.dataset import LengthsRequest, TrainingRequest

if TYPE_CHECKING:
    from oomdoctor.records.report.user_training import UserTraining


def with_files(
    reader: Reader, ladder: LadderOptions, *, emulate: str | None = None, quiet: bool = False
) -> tuple[LadderOptions, UserTraining | None]:
    """The options, with MODEL and the sizes of the files where none are typed.

    Raises:
        OomDoctorError: a file cannot be used, or `reader` has collected errors (exit 2).
    """
    if not ladder.from_:
        return ladder, None
    from oomdoctor.commands.user_training import read_user_training
    from oomdoctor.records.job.model import ModelRef
    from oomdoctor.stacks.reading.finish import Overrides

    overrides = Overrides(
        gpus=_gpus(reader, ladder.gpus, emulate),
        sequence_length=reader.given(reader.sized, "--seq-len", ladder.seq_len),
        effective_batch_size=reader.given(
            reader.sized, "--effective-batch", ladder.effective_batch
        ),
        micro_batch_size=reader.given(reader.sized, "--micro-batch", ladder.micro_batch),
    )
    reader.check()
    typed = ladder.model
    model = None if not typed else ModelRef(name=hub_id(typed.strip()), revision=ladder.revision)
    if not quiet:
        say(f"reading {', '.join(ladder.from_)}")
    python = shutil.which(ladder.python or sys.executable)
    training = read_user_training(ladder.from_, model, overrides, python)
    config = training.config
    filled = replace(
        ladder,
        model=typed or training.model,
        revision=ladder.revision or (None if typed else training.revision),
        # With --lengths, a length that is typed packs rows; the longest row is that of the data.
        seq_len=ladder.seq_len if ladder.lengths else str(config.sequence_length),
        effective_batch=str(config.effective_batch_size),
        gpus=ladder.gpus or (str(config.world_size) if config.world_size > 1 else None),
        task=training.task if training.task and ladder.task == "auto" else ladder.task,
    )
    return filled, training


def _gpus(reader: Reader, text: str | None, emulate: str | None) -> int | None:
    """The number of GPUs that is typed: the highest of a range, or those that are emulated."""
    if text is None:
        try:
            count, _ = split_count(emulate or "")
        except ValueError:  # which the option itself reports
            return None
        return count if count > 1 else None
    return reader.integer("--gpus", text.rpartition("..")[2], 1, MOST_GPUS)


_MOST_EPOCHS = 100_000


def lengths_request(
    reader: Reader, options: LadderOptions, sequence_length: int
) -> LengthsRequest | None:
    """The data file to count; None without --lengths.

    `sequence_length` is the parsed --seq-len, to which rows are packed if it was given.
    """
    if options.lengths is None:
        return None
    return LengthsRequest(
        file=_file(reader, options.lengths),
        tokenizer=None if options.tokenizer is None else model_name(options.tokenizer),
        text_field=options.text_field,
        packed_tokens=sequence_length if options.seq_len is not None else None,
    )


def training_request(
    reader: Reader, options: LadderOptions, *, lengths: bool
) -> TrainingRequest | None:
    """How much the user trains; `lengths` says that a data file counts the rows."""
    rows = reader.given(reader.count, "--rows", options.rows)
    if rows == 0:
        reader.fault("--rows", f"{options.rows!r} is less than one row")
    epochs = 1.0
    if options.epochs is not None:
        epochs = reader.read("--epochs", options.epochs, _epochs, 1.0)
    return TrainingRequest(rows, epochs) if rows is not None or lengths else None


def _epochs(text: str) -> float:
    """A number above zero, such as 3 or 0.5."""
    try:
        epochs = float(text)
    except ValueError:
        epochs = 0.0
    if not 0 < epochs <= _MOST_EPOCHS:  # also what is not a number at all
        raise ValueError(
            f"{text!r} is not a number of epochs above 0 and up to {_MOST_EPOCHS:,}; write 3 or 0.5"
        )
    return epochs


def _file(reader: Reader, typed: str) -> str:
    """The absolute path, because a run may be resumed from another folder."""
    try:
        path = Path(typed).expanduser().resolve()
        if path.is_file():
            return str(path)
    except (OSError, RuntimeError, ValueError):
        pass  # not a valid path on this system
    reader.fault("--lengths", f"{typed!r} is not a file")
    return typed
