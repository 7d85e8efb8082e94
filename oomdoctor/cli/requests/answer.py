"""The format of the answer, checked before the work starts."""

from __future__ import annotations

from oomdoctor.cli.options.answer import FORMATS, AnswerOptions, ListOptions
from oomdoctor.cli.requests.reader import Reader
from oomdoctor.cli.streams import output
from oomdoctor.render.formats import format_of_file


def chosen_format(command: str, answer: AnswerOptions | ListOptions) -> str:
    """The output format; `--json` is short for `--format json`.

    Raises:
        OomDoctorError: the format is unknown, the two options contradict each other, or the output
            file cannot be written (exit 2); or a package for a page is missing (exit 5).
    """
    reader = Reader(command)
    reader.choice("--format", answer.format_, FORMATS)
    if answer.json_ and answer.format_ not in ("table", "json"):
        reader.fault("--format", f"{answer.format_} and --json contradict each other")
    file = answer.output_file
    page = _asks_for_page(answer)
    if page is not None and isinstance(answer, ListOptions):
        reader.fault(page, f"{command} has no page for a browser")
    reader.check()
    if file is not None:
        output.check_writable(file)
    if page is not None:
        from oomdoctor.render.formats.html_page import need_page

        need_page(page)
    return "json" if answer.json_ else answer.format_


def _asks_for_page(answer: AnswerOptions | ListOptions) -> str | None:
    """The option that asks for HTML."""
    if answer.format_ == "html":
        return "--format html"
    file = answer.output_file
    return "--output" if file is not None and format_of_file(file.name) == "html" else None
