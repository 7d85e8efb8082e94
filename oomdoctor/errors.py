"""Exit codes and the one exception type that reaches a person.

Every floor raises `OomDoctorError`; only `cli` turns it into text, JSON and an exit code.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to a shell script. One test holds each row."""

    OK = 0  # something fits; a cause was found
    INTERNAL = 1  # a fault of oomdoctor itself, also an uncaught error or a closed pipe
    USAGE = 2  # the command line, a recipe or a rung is wrong
    NO = 3  # it worked and the answer is no
    MODEL_UNAVAILABLE = 4
    MACHINE_UNFIT = 5
    INCONCLUSIVE = 6  # nothing fits, but not everything could be tried
    INTERRUPTED = 130  # SIGINT; a partial report was written
    TERMINATED = 143  # SIGTERM, which is how Slurm ends a job


class OomDoctorError(Exception):
    """A failure explained to a person: what failed and why, then the line to type.

    `code` is a stable lower-case word for scripts, `message` one sentence, `hint` the remedy.
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
    """An error in what the user typed (exit 2)."""
    return OomDoctorError(code, message, hint, ExitCode.USAGE)


def model_error(code: str, message: str, hint: str | None = None) -> OomDoctorError:
    """The model cannot be had or cannot be built (exit 4)."""
    return OomDoctorError(code, message, hint, ExitCode.MODEL_UNAVAILABLE)


def machine_error(code: str, message: str, hint: str | None = None) -> OomDoctorError:
    """This machine cannot do what was asked (exit 5)."""
    return OomDoctorError(code, message, hint, ExitCode.MACHINE_UNFIT)
