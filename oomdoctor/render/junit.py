"""The result of `check` as JUnit XML, which CI services show test by test."""

from __future__ import annotations

from xml.etree import ElementTree

from oomdoctor.records.report.check import CheckAnswer, CheckResult
from oomdoctor.render.check_page import grown_lines, why
from oomdoctor.render.text import escape


def junit(answer: CheckAnswer) -> str:
    """A test suite with a case for each check. What is above its budget fails; a command that
    failed, or a peak that is not sure, is an error.
    """
    results = answer.results
    suite = ElementTree.Element(
        "testsuite",
        name="oomdoctor check",
        tests=str(len(results)),
        failures=str(sum(_tag(result) == "failure" for result in results)),
        errors=str(sum(_tag(result) == "error" for result in results)),
        time=f"{sum(result.elapsed_s for result in results):.3f}",
    )
    for result in results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=escape(result.name),
            name=escape(result.title),
            time=f"{result.elapsed_s:.3f}",
        )
        tag = _tag(result)
        if tag is not None:
            told = ElementTree.SubElement(case, tag, message=escape(why(result)))
            told.text = "\n".join(map(escape, grown_lines(result)))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)


def _tag(result: CheckResult) -> str | None:
    if result.outcome == "passed":
        return None
    return "failure" if result.is_above else "error"
