"""A real browser for the tests of pages, or a reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chromium import Tab, browser, program

_REASON = "no Chromium: install it with scripts/chromium.sh, or set OOMDOCTOR_CHROMIUM"


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """A tab of a browser that all tests share."""
    if program() is None:
        pytest.skip(_REASON)
    with browser(tmp_path_factory.mktemp("browser")) as found:
        yield found
