"""The page: one file without a network, whose scripts are the only ones that a browser will run.

No text of the snapshot is in the HTML, except its name in the title, escaped. All others are in the
packed data, and the scripts show them as text. The policy in the head allows no request.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from string import Template

from oomdoctor.records.inside.timeline import Timeline
from oomdoctor.render.timeline.packed import packed

STYLES = ("uPlot.min.css", "page.css")
SCRIPTS = (
    "uPlot.iife.min.js",
    "data.js",
    "columns.js",
    "paint.js",
    "panel.js",
    "moves.js",
    "page.js",
)
PARTS = ("page.html", "uPlot.LICENSE", *STYLES, *SCRIPTS)
"""The files that the page is made of."""


def page(timeline: Timeline, parts: Mapping[str, str]) -> str:
    """The HTML; `parts` are the texts of the files `PARTS`."""
    style = "\n".join(parts[name] for name in STYLES)
    script = "\n".join(parts[name] for name in SCRIPTS)
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}"
    return Template(parts["page.html"]).substitute(
        policy=policy,
        license=parts["uPlot.LICENSE"].strip(),
        # A file name may hold bytes that are no text.
        title=escape(timeline.source.encode("utf-8", "replace").decode()),
        style=style,
        script=script,
        data=packed(timeline),
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
