"""From `--lengths` and what belongs to it to a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oomdoctor.cli.options.reader import Reader, hub_id
from oomdoctor.records.rows import LengthsRequest


def lengths_request(
    reader: Reader, given: Mapping[str, Any], seq_len: int
) -> LengthsRequest | None:
    """The data file to count, None without --lengths; keys are parameter names.

    `seq_len` is what --seq-len says, which then is the packed length.
    """
    if given["lengths"] is None:
        for option, name in (("--tokenizer", "tokenizer"), ("--text-field", "text_field")):
            if given[name] is not None:
                reader.fault(option, "is about the rows of a file; name it by --lengths")
        return None
    for name in ("sweep", "why"):
        if given.get(name) is not None:
            reader.fault(
                f"--{name}", "is a question of its own; leave out --lengths, see --seq-len"
            )
    return LengthsRequest(
        file=_file(reader, given["lengths"]),
        tokenizer=_tokenizer(given["tokenizer"]),
        text_field=given["text_field"],
        packed_tokens=seq_len if given["seq_len"] is not None else None,
    )


def _file(reader: Reader, typed: str) -> str:
    """The whole path, because a run may go on from elsewhere."""
    try:
        path = Path(typed).expanduser().resolve()
        if path.is_file():
            return str(path)
    except (OSError, RuntimeError, ValueError):
        pass  # no path that this system can have
    reader.fault("--lengths", f"{typed!r} is not a file")
    return typed


def _tokenizer(typed: str | None) -> str | None:
    if typed is None:
        return None
    folder = Path(typed).expanduser()
    return str(folder.resolve()) if folder.is_dir() else hub_id(typed.strip())
