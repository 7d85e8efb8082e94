"""The request behind `--lengths`, `--tokenizer` and `--text-field`."""

from __future__ import annotations

from pathlib import Path

from oomdoctor.cli.options.ladder import LadderOptions
from oomdoctor.cli.requests.reader import Reader, hub_id
from oomdoctor.records.dataset import LengthsRequest


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
