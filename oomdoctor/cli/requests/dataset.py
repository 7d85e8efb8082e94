"""The requests behind `--rows`, `--epochs`, `--lengths`, `--tokenizer` and `--text-field`."""

from __future__ import annotations

from pathlib import Path

from oomdoctor.cli.options.surveys import LadderOptions
from oomdoctor.cli.requests.reader import Reader, hub_id
from oomdoctor.records.dataset import LengthsRequest, TrainingRequest

_MOST_EPOCHS = 100_000


def lengths_request(
    reader: Reader, options: LadderOptions, sequence_length: int
) -> LengthsRequest | None:
    """The data file to count; None without --lengths.

    `sequence_length` is the parsed --seq-len, to which rows are packed if it was given.
    """
    if options.lengths is None:
        for option, value in (
            ("--tokenizer", options.tokenizer),
            ("--text-field", options.text_field),
        ):
            if value is not None:
                reader.fault(option, "needs a data file; add --lengths FILE")
        return None
    return LengthsRequest(
        file=_file(reader, options.lengths),
        tokenizer=_tokenizer(options.tokenizer),
        text_field=options.text_field,
        packed_tokens=sequence_length if options.seq_len is not None else None,
    )


def training_request(
    reader: Reader, options: LadderOptions, *, lengths: bool
) -> TrainingRequest | None:
    """How much the user trains; `lengths` says that a data file counts the rows."""
    rows = None if options.rows is None else reader.count("--rows", options.rows)
    if rows == 0:
        reader.fault("--rows", f"{options.rows!r} is less than one row")
    epochs = 1.0
    if options.epochs is not None:
        epochs = reader.read("--epochs", options.epochs, _epochs, 1.0)
    if rows is None and not lengths:
        if options.epochs is not None:
            reader.fault("--epochs", "needs your rows; add --rows N or --lengths FILE")
        return None
    return TrainingRequest(rows, epochs)


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


def _tokenizer(typed: str | None) -> str | None:
    if typed is None:
        return None
    folder = Path(typed).expanduser()
    return str(folder.resolve()) if folder.is_dir() else hub_id(typed.strip())
