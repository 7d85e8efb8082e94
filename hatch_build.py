"""Where a built package says that its project is. hatchling calls this for a wheel or an sdist.

README.md has relative links, which work in a checkout but not on a package index. A build that gets
the address of the repository makes them absolute and adds the project's URLs. Other builds, such as
`pip install .`, keep README.md as it is and have no URLs. A wheel built from an sdist has what the
sdist has.

OOMDOCTOR_PROJECT_URL   address of the repository, such as https://github.com/OWNER/NAME
OOMDOCTOR_PROJECT_REF   tag or commit that links lead to (default: HEAD)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
# The target of a link or a picture, unless it is absolute or a heading of the same page.
_RELATIVE = re.compile(
    r"""(?:(?<=\]\()|(?<=\bsrc=")|(?<=\bsrcset="))(?![a-z]+:|#)[^)"\s]+(?=[)"])"""
)
_PICTURES = (".png", ".svg", ".jpg", ".jpeg", ".gif")


class Links(MetadataHookInterface):
    """Sets the fields `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill the fields from README.md and from the environment."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address, ref = project(os.environ)
        if address:
            text = with_absolute_links(text, address, ref)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = project_urls(address, ref) if address else {}


def project(environment: Mapping[str, str]) -> tuple[str, str]:
    """The address of the repository, empty if it is not given, and the tag or commit."""
    address = environment.get("OOMDOCTOR_PROJECT_URL", "").rstrip("/")
    if address and not re.fullmatch(r"https://[\w.-]+(?:/[\w.-]+)+", address):
        raise ValueError(
            f"OOMDOCTOR_PROJECT_URL is {address!r}; expected https://github.com/OWNER/NAME"
        )
    return address, environment.get("OOMDOCTOR_PROJECT_REF") or "HEAD"


def project_urls(address: str, ref: str) -> dict[str, str]:
    """The project's URLs, by the labels that PyPI recognizes."""
    return {
        "Homepage": address,
        "Documentation": f"{address}/blob/{ref}/docs/index.md",
        "Changelog": f"{address}/blob/{ref}/CHANGELOG.md",
        "Issues": f"{address}/issues",
        "Source": address,
    }


def with_absolute_links(text: str, address: str, ref: str) -> str:
    """Markdown whose relative links lead to the repository. Blocks of code stay as they are."""

    def absolute(target: re.Match[str]) -> str:
        kind = "raw" if target[0].lower().endswith(_PICTURES) else "blob"
        return f"{address}/{kind}/{ref}/{target[0]}"

    parts = _FENCE.split(text)
    parts[::2] = [_RELATIVE.sub(absolute, part) for part in parts[::2]]
    return "".join(parts)
