"""Links of a built package: a package index shows README.md, where relative links lead nowhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "https://github.com/owner/name"


class Targets(HTMLParser):
    """What a page links to and what it shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag == "img":
            self.pictures.append(str(given["src"]))


def metadata(monkeypatch: pytest.MonkeyPatch, url: str = "", ref: str = "") -> ProjectMetadata:
    """What hatchling reads for a build."""
    monkeypatch.setenv("OOMDOCTOR_PROJECT_URL", url)
    monkeypatch.setenv("OOMDOCTOR_PROJECT_REF", ref)
    return ProjectMetadata(str(ROOT), PluginManager())


def test_a_build_without_an_address_shows_the_readme_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = metadata(monkeypatch).core
    assert core.readme == README and core.readme_content_type == "text/markdown"
    assert core.urls == {} and core.dynamic == []


def test_every_url_leads_to_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    core = metadata(monkeypatch, f"{ADDRESS}/", "v9.8.7").core
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} == set(core.urls)
    for label, url in core.urls.items():
        file = url.removeprefix(ADDRESS).removeprefix("/blob/v9.8.7/").removeprefix("/issues")
        assert url.startswith(ADDRESS) and (ROOT / file).exists(), label
    head = metadata(monkeypatch, ADDRESS).core
    assert head.urls["Changelog"] == f"{ADDRESS}/blob/HEAD/CHANGELOG.md"


def test_every_link_of_the_readme_leads_to_a_file_of_the_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renderer = pytest.importorskip("readme_renderer.markdown")  # the one of PyPI
    text = metadata(monkeypatch, ADDRESS, "v9.8.7").core.readme
    page = renderer.render(text)
    if page is None:
        pytest.skip("readme_renderer has no renderer of Markdown here")
    shown = Targets(page)
    targets = [target for target in shown.links if not target.startswith("#")]
    assert len(targets) >= 30 and shown.pictures
    for kind, part in (("blob", targets), ("raw", shown.pictures)):
        for target in part:
            start = f"{ADDRESS}/{kind}/v9.8.7/"
            assert target.startswith(start), target
            assert (ROOT / target.removeprefix(start).partition("#")[0]).is_file(), target


def test_code_and_what_is_absolute_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("hatch_build.py", "pyproject.toml", "LICENSE"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8"))
    (tmp_path / "oomdoctor").mkdir()
    (tmp_path / "oomdoctor" / "__init__.py").write_text('__version__ = "1.0"\n')
    kept = "[a](https://a.org/b.md) [b](#there) [c](mailto:a@b.org)\n```\n[d](docs/d.md)\n```\n"
    changed = "[e](docs/e.md#f) ![g](docs/g.PNG) [![h](h.svg)](docs/h.md)\n"
    changed += '<source srcset="d.png"><img src="l.png"><img src="https://a.org/b.png">\n'
    (tmp_path / "README.md").write_text(kept + changed)
    monkeypatch.setenv("OOMDOCTOR_PROJECT_URL", ADDRESS)
    monkeypatch.setenv("OOMDOCTOR_PROJECT_REF", "v1")
    text = ProjectMetadata(str(tmp_path), PluginManager()).core.readme
    assert text.startswith(kept)
    assert text.removeprefix(kept) == (
        f"[e]({ADDRESS}/blob/v1/docs/e.md#f) ![g]({ADDRESS}/raw/v1/docs/g.PNG) "
        f"[![h]({ADDRESS}/raw/v1/h.svg)]({ADDRESS}/blob/v1/docs/h.md)\n"
        f'<source srcset="{ADDRESS}/raw/v1/d.png"><img src="{ADDRESS}/raw/v1/l.png">'
        '<img src="https://a.org/b.png">\n'
    )


@pytest.mark.parametrize("url", ["owner/name", "http://example.org/a/b", "https://example.org"])
def test_an_address_that_is_none_ends_the_build(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=re.escape(url)):
        _ = metadata(monkeypatch, url).core
