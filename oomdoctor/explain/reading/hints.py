"""Plain words that let the reader skip most lines of a log without trying every row."""

from __future__ import annotations

import re
from collections.abc import Iterable


def any_hint(rows: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches if any of the hints of these rows is present."""
    words = dict.fromkeys(word for hints in rows for word in hints.split("|"))
    return re.compile("|".join(words))
