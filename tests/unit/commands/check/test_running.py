"""Checks that run at the same time are ended at the same time."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from oomdoctor.commands.check import running
from oomdoctor.system.check_file import Check

# It says that it runs, and takes a second to end.
ENDS_SLOWLY = 'trap "sleep 1; exit 1" TERM; touch "$0"; while :; do sleep 0.1; done'


def test_an_interrupt_ends_all_at_once_and_says_nothing_of_them(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_words", lambda check, *_: ["sh", "-c", ENDS_SLOWLY, check.name])
    files = [tmp_path / str(number) for number in range(3)]
    checks = [Check(str(file), "T4", (), None, 0.02, 60.0) for file in files]
    began: list[float] = []

    def interrupt() -> None:
        while not all(file.exists() for file in files):
            time.sleep(0.05)
        began.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    said: list[Check] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # others may have set one
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        running.run_all(checks, tmp_path, 3, lambda check, ran: said.append(check))
    assert time.monotonic() - began[0] < 2.5  # and not a second for each
    assert not said
