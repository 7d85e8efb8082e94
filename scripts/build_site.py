"""Build the documentation site from docs/. It needs the packages of the group `docs`.

    pip install --group docs && python scripts/build_site.py
    python scripts/build_site.py FOLDER    # instead of build/site

Every warning is an error: a page that is in no menu, a link that leads nowhere, a broken block.
Open index.html; the site needs no server and no network.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> int:
    """Build the site and say where it is."""
    from sphinx.cmd.build import build_main

    target = Path(arguments[0]) if arguments else ROOT / "build" / "site"
    trees = target.with_name(f"{target.name}-doctrees")
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(trees)]
    code = build_main([*options, str(ROOT / "docs"), str(target)])
    if code == 0:
        print(target / "index.html")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
