"""The table of measures: each share with its confidence interval, and the counts of each class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt

from explained.judge import MEASURES, Answer, Measure
from explained.texts import Text

_Z = 1.959964  # the normal quantile of 95 %
Count = tuple[int, int]  # what counts, of all
Judged = Sequence[tuple[Text, Sequence[Answer]]]


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share, by Wilson's score."""
    share, spread = right / count, _Z**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def counted(judged: Judged) -> dict[Measure, dict[str, Count]]:
    """What counts of how many, by measure and class."""
    sums: dict[Measure, dict[str, Count]] = {measure: {} for measure in MEASURES}
    for text, answers in judged:
        for answer in answers:
            right, count = sums[answer.measure].get(text.group, (0, 0))
            sums[answer.measure][text.group] = (right + answer.counts, count + 1)
    return {measure: groups for measure, groups in sums.items() if groups}


def total(groups: Mapping[str, Count]) -> Count:
    """The sum over classes."""
    return sum(right for right, _ in groups.values()), sum(count for _, count in groups.values())


def rows(judged: Judged) -> list[list[str]]:
    """The table, the heading first: a measure a row, a class a column after the total."""
    sums = counted(judged)
    names = sorted({text.group for text, _ in judged})
    classes = names if len(names) > 1 else []
    table = [["", "total", "share", "95 % interval", "goal", *classes]]
    for measure, groups in sums.items():
        right, count = total(groups)
        low, high = wilson(right, count)
        table.append(
            [
                measure.name,
                f"{right} of {count}",
                f"{right / count:.1%}",
                f"{low:.0%} to {high:.0%}",
                _goal(measure),
                *("/".join(map(str, groups[name])) if name in groups else "-" for name in classes),
            ]
        )
    return table


def _goal(measure: Measure) -> str:
    if measure.goal is None:
        return ""
    share = f"{measure.goal:.0%}"
    return f"at most {share}" if measure.at_most else share


def text_lines(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The table in columns."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for first, *others in table:
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([f"{first:<{widths[0]}}", *cells])


def markdown_lines(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """The table for the documentation."""
    heading, *others = table
    yield f"| {' | '.join(heading)} |"
    yield f"|{'---|' * len(heading)}"
    yield from (f"| {' | '.join(row)} |" for row in others)


def miss_lines(judged: Judged) -> Iterator[str]:
    """Every text with something wrong: what was said, and what is right."""
    for text, answers in judged:
        missed = [answer for answer in answers if answer.missed]
        if missed:
            yield f"\n{text.group}/{text.name}"
        said = ""
        for answer in missed:
            yield f"  {answer.measure.name}: wanted {answer.wanted}"
            if answer.said != said:  # remedies are the same for all questions about them
                yield from (f"      {line}" for line in answer.said.splitlines())
            said = answer.said
