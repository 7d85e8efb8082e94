"""How the SFTTrainer of an installed TRL computes its loss, where no setting of a file says it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from oomdoctor.records.user_training import Document

_CHUNKED_SINCE = (1, 16)  # `SFTTrainer` calls `add_fused_lm_head` for all losses
_TRAINER = "SFTTrainer"


def in_chunks(document: Document, settings: Mapping[str, object]) -> str | None:
    """The installed TRL, if its loss is computed in chunks for these settings; else None.

    A step with this loss needs TRL, so without an installed one the usual loss is taken. The same
    holds for a script that defines its trainer, whose loss may be another one.
    """
    library = document.parser or document.library
    if document.path.endswith(".py") and _TRAINER not in document.calls:
        return None
    found = re.fullmatch(r"trl (\d+)\.(\d+).*", library or "")
    if found is None or (int(found[1]), int(found[2])) < _CHUNKED_SINCE:
        return None
    plain = settings.get("objective", "default") == "default" and "loss" not in settings
    sharded_by_zero = str(settings.get("sharding", "")).startswith("zero")
    if not plain or sharded_by_zero or document.values.get("loss_type") == "dft":
        return None
    return library
