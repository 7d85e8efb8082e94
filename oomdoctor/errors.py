"""Exit codes, and the one exception type whose message is shown to the user.

Every floor raises `OomDoctorError`; only `cli` turns it into text, JSON and an exit code.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells a shell script. The documentation of exit codes is made from this."""

    OK = 0
    """Something fits (with `--from`: your own settings); `explain` found why memory ran out, or
    `--verify` proved a change; `triage` found why memory ran out for at least one job; `snapshot`
    read its file; `watch` found what it was asked for; `diff` found that nothing got worse; all of
    `check` are within their budgets."""
    INTERNAL = 1
    """A bug in oomdoctor, output that cannot be written, or a closed pipe."""
    USAGE = 2
    """The command line, a recipe or a configuration is wrong."""
    NO = 3
    """The answer is no: nothing fits, no name matches, no memory failure ended the run, there is
    nothing to watch, a run needed more than the card or `--max-peak` (even if `--cure` proved a
    change), `--verify` found no change that is enough, a `check` is above its budget, or `diff`
    found that something got worse."""
    MODEL_UNAVAILABLE = 4
    """The model cannot be found or built: gated, missing, offline, or a broken `config.json`."""
    MACHINE_UNFIT = 5
    """This machine cannot do it: no GPU, a busy device, or no disk space for the run."""
    INCONCLUSIVE = 6
    """Nothing surely fits so far, but a configuration is borderline or could not be tried; or
    `triage` found no memory failure, and at least one job does not say why it ended; or the two
    runs of `diff` have no configuration in common; or a run may need more than `--max-peak`; or
    `explain --verify` proved nothing; or the command of a `check` failed, or its peak is not
    sure."""
    INTERRUPTED = 130
    """Ctrl-C (SIGINT). A partial report was written."""
    TERMINATED = 143
    """SIGTERM, which is how Slurm ends a job. A partial report was written."""


class OomDoctorError(Exception):
    """An error for the user: what failed and why, and how to fix it.

    `code` is a stable lower-case word for scripts, `message` one sentence, `hint` one line that the
    user can type or do.
    """

    def __init__(
        self,
        code: str,
        message: str,
        hint: str | None = None,
        exit_code: ExitCode = ExitCode.INTERNAL,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


def usage_error(code: str, message: str, hint: str | None = None) -> OomDoctorError:
    """The command line or a file given on it is wrong (exit 2)."""
    return OomDoctorError(code, message, hint, ExitCode.USAGE)


def model_error(code: str, message: str, hint: str | None = None) -> OomDoctorError:
    """The model cannot be found, read or built (exit 4)."""
    return OomDoctorError(code, message, hint, ExitCode.MODEL_UNAVAILABLE)


def machine_error(code: str, message: str, hint: str | None = None) -> OomDoctorError:
    """This machine cannot run the request (exit 5)."""
    return OomDoctorError(code, message, hint, ExitCode.MACHINE_UNFIT)
