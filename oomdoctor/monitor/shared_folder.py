"""The folder that is shared with the parent: what it asks for, and what processes answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oomdoctor.system.environment import launched_number
from oomdoctor.system.store.record_files import whole_or_not

ASKED = "watch.json"


def asked(folder: Path) -> dict[str, Any]:
    """What the parent asks for: `steps` is "steady", "all" or a number of optimizer steps."""
    document: dict[str, Any] = json.loads((folder / ASKED).read_text(encoding="utf-8"))
    return document


def replace_file(path: Path, text: str) -> None:
    """Write the whole file or nothing, so that the parent never reads half a record."""
    with whole_or_not(path) as beside:
        beside.write_text(text, encoding="utf-8")


def rank_and_world() -> tuple[int | None, int]:
    """This process's rank and the number of ranks, by torch.distributed or its launcher."""
    import sys

    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return launched_number("RANK"), launched_number("WORLD_SIZE") or 1
