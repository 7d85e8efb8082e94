"""The format of the answer, checked before the work starts."""

from __future__ import annotations

from oomdoctor.cli.options.answer import FORMATS, AnswerOptions
from oomdoctor.cli.requests.reader import Reader
from oomdoctor.cli.streams import output


def chosen_format(command: str, answer: AnswerOptions) -> str:
    """The output format; `--json` is short for `--format json`.

    Raises:
        OomDoctorError: the format is unknown, the two options contradict each other, or the output
            file cannot be written (exit 2).
    """
    reader = Reader(command)
    reader.choice("--format", answer.format_, FORMATS)
    if answer.json_ and answer.format_ not in ("table", "json"):
        reader.fault("--format", f"{answer.format_} and --json contradict each other")
    reader.check()
    if answer.output_file is not None:
        output.check_writable(answer.output_file)
    return "json" if answer.json_ else answer.format_
