"""`explain --apply`: a remedy as a change of the user's file, and what to type to make it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oomdoctor.cli.options.explaining import ExplainOptions
from oomdoctor.cli.requests.reader import Reader
from oomdoctor.cli.streams import output
from oomdoctor.errors import OomDoctorError

if TYPE_CHECKING:
    from oomdoctor.records.diagnosis import Diagnosis
    from oomdoctor.records.user_training import AppliedRemedy


def remedy_number(reader: Reader, options: ExplainOptions) -> int | None:
    """The number of --remedy; options that need --apply are faults without it."""
    if options.apply is None:
        for name, given in (("--remedy", options.remedy), ("--write", options.write)):
            if given:
                reader.fault(name, "needs --apply FILE")
    return None if options.remedy is None else reader.integer("--remedy", options.remedy)


def applied_to(
    found: Diagnosis, options: ExplainOptions, number: int | None
) -> AppliedRemedy | None:
    """What --apply asks for: written, if that was asked too; None without --apply.

    Raises:
        OomDoctorError: the file cannot be read or written (exit 2 or 1).
    """
    if options.apply is None:
        return None
    from oomdoctor.runs.files.applied import apply_remedy, write

    try:
        applied = apply_remedy(found, str(options.apply), number)
    except OomDoctorError as error:
        text, hint = error.message.replace("--from: ", "--apply: "), error.hint
        hint = None if hint is None else hint.replace("--from", "--apply")
        raise OomDoctorError(error.code, text, hint, error.exit_code) from None
    if not options.write or not applied.lines:
        return applied
    return write(applied, output.write_file)


def publish_applied(applied: AppliedRemedy, names: Sequence[str], options: ExplainOptions) -> None:
    """The diff to stdout; the remedy and the line to type to stderr."""
    if applied.lines:
        output.print_answer(applied.diff)
    if options.quiet:
        return
    for reason in applied.not_applied:
        output.say(f"not applied: {reason}")
    if not applied.lines:
        line = shlex.join(["oomdoctor", "explain", *names])
        output.say(
            f"no remedy is a change of the settings in {applied.file}"
            if applied.not_applied
            else f"no remedy to apply: {line} says what was found"
        )
        return
    output.say(f"remedy {applied.number}: {applied.change}")
    if applied.written:
        output.say(f"changed {applied.file}; as it was: {applied.backup}")
        return
    words = ["oomdoctor", "explain", *names, "--apply", applied.file]
    chosen = ["--remedy", str(options.remedy)] if options.remedy is not None else []
    output.say(f"to change the file: {shlex.join([*words, *chosen, '--write'])}")
