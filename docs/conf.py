"""Builds the documentation site from the pages in docs/: `python scripts/build_site.py`.

The pages stay plain Markdown, so that they read well without the site. Its menu is what index.md
lists: its headings, and the pages below them. Nothing is loaded from the network, and the search
works from a file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pygments.lexers.shell import BashSessionLexer

_ROOT = Path(__file__).resolve().parents[1]
_VERSION = re.search(
    r'__version__ = "(.+)"', (_ROOT / "oomdoctor" / "__init__.py").read_text(encoding="utf-8")
)

project = "oomdoctor"
version = release = _VERSION[1] if _VERSION else ""
copyright = "the oomdoctor authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["reports", "examples", "images", "man", "site"]
smartquotes = False  # "--vram" is typed so, not with a dash
html_theme = "furo"
html_static_path = ["site"]
html_css_files = ["wide.css"]
html_title = f"oomdoctor {release}"
html_show_copyright = False
html_copy_source = False
# The summaries of the search are fetched, which a browser refuses for a page that is a file.
html_show_search_summary = False
# Every heading is a target, so that links such as `page.md#a-heading` work here and on GitHub.
myst_heading_anchors = 4
myst_all_links_external = False
nitpicky = True
pygments_style = "default"
highlight_language = "none"  # of blocks that name none: commands, which are not Python


class Console(BashSessionLexer):
    """Commands and what they print: only `$` is a prompt, because a `#` begins lines of tables."""

    _ps1rgx = re.compile(r"^(\$ )(.*\n?)")
    _ps2 = "\0"  # no command has a second line


def menu(index: str) -> dict[str, list[str]]:
    """The pages by the heading of index.md under which a list item begins with them."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title = part.partition("\n")[0].strip()
        pages = re.findall(r"^- \[[^\]]+\]\(([\w-]+)\.md\)", part, re.MULTILINE)
        rest = re.findall(r"\]\(([\w-]+)\.md\)", part)
        found[title] = list(dict.fromkeys([*pages, *rest]))
    return {title: pages for title, pages in found.items() if pages}


def _as_on_the_site(app: Any, name: str, source: list[str]) -> None:
    """Put the menu below the index, leave out links to what is not on the site, choose pictures."""
    if name == root_doc:
        for title, pages in menu(source[0]).items():
            listed = "\n".join(pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n"
    source[0] = re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", source[0])
    source[0] = _PICTURE.sub(_for_each_screen, source[0])


# What is behind the name of a picture, and the screens that it is for: furo's classes, and those of
# site/wide.css. scripts/picture_files.py draws them.
_SCREENS = {
    "": "only-light only-wide",
    "-dark": "only-dark only-wide",
    "-phone": "only-light only-narrow",
    "-phone-dark": "only-dark only-narrow",
}
_PICTURE = re.compile(r"^!\[(.+)\]\(images/([\w-]+)\.png\)$", re.MULTILINE)


def _for_each_screen(picture: re.Match[str]) -> str:
    """Show of a picture that is drawn for each kind of screen the one that fits."""
    alt, name = picture.groups()
    if not (_ROOT / "docs" / "images" / f"{name}-dark.png").exists():
        return picture[0]
    return "\n\n".join(
        f"```{{image}} images/{name}{ending}.png\n:alt: {alt}\n:class: {screens}\n"
        ":loading: lazy\n```"
        for ending, screens in _SCREENS.items()
    )


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", _as_on_the_site)
    app.add_lexer("console", Console)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
