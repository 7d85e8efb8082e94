"""A report, or any record, as JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from oomdoctor.records import codec

if TYPE_CHECKING:
    from oomdoctor.records.report.report import Report
    from oomdoctor.render.formats import Style

# JSON escapes C0 controls itself. DEL, C1 controls, invisible and bidirectional characters and lone
# surrogates are allowed in JSON, but can confuse a terminal or an encoder.
_RAW_IN_JSON = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def render(report: Report, style: Style) -> str:
    """The whole report, whatever the style."""
    return to_json(report)


def to_json(record: object) -> str:
    """A record, or a list of them, as JSON: all keys present, null when unknown."""
    text = codec.dumps(record)
    return _RAW_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
