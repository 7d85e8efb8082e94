"""Makes the environment of `--with`, with its progress on stderr and an answer to Ctrl-C."""

from __future__ import annotations

from oomdoctor.cli.streams.output import say
from oomdoctor.errors import OomDoctorError


def make_environment(versions: tuple[str, ...], *, quiet: bool) -> None:
    """Make the environment with these library versions, unless it exists.

    Raises:
        OomDoctorError: it cannot be made (exit 2 or 5), or a signal came (exit 130 or 143).
    """
    from oomdoctor.cli.streams.signals import stop_on_signals
    from oomdoctor.system.interpreters.make import make_ready
    from oomdoctor.system.interpreters.pip import Helper, Stopped

    with stop_on_signals(outcome="no environment will be made") as stop:
        helper = Helper(say=_nothing if quiet else say, stopped=lambda: stop() is not None)
        try:
            make_ready(versions, helper)
        except Stopped:
            code = stop()
            assert code is not None  # the reason to stop
            raise OomDoctorError(
                "interrupted", "interrupted; no environment was made", None, code
            ) from None


def _nothing(text: str) -> None:
    """Say nothing."""
