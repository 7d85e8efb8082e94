"""The environment of an emulated command."""

from __future__ import annotations

import pytest

from oomdoctor.emulator.variables import tunables


def test_tunables_of_the_user_are_kept_and_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    ours = tunables()
    assert ours.startswith("glibc.rtld.optional_static_tls=")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    assert tunables() == f"{ours}:glibc.malloc.arena_max=1"
