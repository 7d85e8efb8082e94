"""Where memory depends on values that no kernel computed: the lines, and both ends of the range."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from oomdoctor.commands.run.branches import decisions
from oomdoctor.commands.run.diagnosis import last_words
from oomdoctor.commands.run.places import BULK, is_only_logged, only_moves, shown_file
from oomdoctor.commands.run.rank_records import Process, ran_out
from oomdoctor.commands.run.session import WatchRequest, line_of
from oomdoctor.commands.run.whole_numbers import may_become_size, result_may_become_size
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.run import RankMemory, UnknownSize, UnknownSizes

MOST = "max"
_ZEROS = "0"
_ENDED = (128 + 15, 128 + 9)  # by a signal, and not by one for us


def unknown_sizes(request: WatchRequest, processes: Sequence[Process]) -> UnknownSizes | None:
    """The lines whose memory depends, or may depend, on values that are not known."""
    counts: dict[tuple[str, int, str, bool], int] = {}
    opened, growing = set(), set()
    for process in processes:
        for loop in process.record["ended_loops"]:
            growing |= {(shown_file(loop["file"]), loop["line"])} if loop["grows"] else set()
        own_files = tuple(process.record["own_files"])
        for read in process.record["unknown_reads"]:
            sized = read["read"] == "size"
            place = shown_file(read["file"]), read["line"]
            if sized or _may_size(read, own_files):
                key = (*place, read["operator"], sized)
                if read["open"]:
                    opened.add(key)
            elif read["open"] and (decided := decisions(read, own_files)):
                counts_up = any(decision.counts for decision in decided) and read.get("grows")
                key = (*place, "while" if counts_up else decided[0].word, False)
                if place in growing or counts_up:
                    opened.add(key)
            else:
                continue
            counts[key] = counts.get(key, 0) + read["count"]
    chosen = request.assumed == MOST
    most_first = sorted(counts.items(), key=lambda item: (not item[0][3], -item[1]))
    sizes = tuple(
        UnknownSize(*key, count=count, bounded=key not in opened if chosen else None)
        for key, count in most_first
    )
    ended = (last_words(process) for process in processes)
    failed = next((words for words in ended if words is not None), None)
    return UnknownSizes(request.assumed or _ZEROS, sizes, failed=failed) if sizes else None


def ended_loops(processes: Sequence[Process]) -> dict[str, tuple[int, bool]]:
    """The lines whose loop was ended, after how many turns, and whether it kept memory in each."""
    return {
        f"{shown_file(loop['file'])}:{loop['line']}": (loop["turns"], loop["grows"])
        for process in processes
        for loop in process.record["ended_loops"]
    }


def _may_size(read: dict[str, Any], own_files: tuple[str, ...]) -> bool:
    """Whether the command may allocate by a number that it read."""
    place = read["inner_file"], read["inner_line"]
    if only_moves(read["inner_file"]):
        return False
    if read["read"] == "integer":
        return not is_only_logged(*place)
    kind = read["read"]
    if kind not in ("number", *BULK):
        return False
    if read["inner_file"] == read["file"]:
        return may_become_size(*place, own=True, files=own_files, read=kind)
    line = read["file"], read["line"]
    return may_become_size(*place, own=False, read=kind) or result_may_become_size(
        *line, own_files, kind
    )


def needs_most(request: WatchRequest, report: Report) -> bool:
    """Whether the command is to run again with the most that the unknown values can select.

    It may also have failed because zeros select nothing.
    """
    sizes = report.unknown_sizes
    if sizes is None or request.values is not None:
        return False
    may_differ = _allocates(sizes) or any(size.is_branch for size in sizes.sizes)
    return report.status == "ok" or (report.status == "error" and may_differ)


def again_line(first: Report) -> str:
    """What is shown before the command runs again."""
    assert first.unknown_sizes is not None
    sizes = first.unknown_sizes.sizes
    size = next((each for each in sizes if each.file), sizes[0])
    if size.is_branch:
        return (
            f"oomdoctor: {size.file}:{size.line} branches on a value that no kernel computed; "
            "running the command again the other way"
        )
    return (
        f"oomdoctor: {size.file}:{size.line} depends on values that no kernel computed; running "
        "the command again with the most that they can select"
    )


def with_both_ends(
    request: WatchRequest, first: Report, others: Sequence[Report], *, untried: bool = False
) -> Report:
    """The report of the run that needed more, with the range.

    `first` took unknown values for zeros, the others for the most that the shapes allow; each of
    them took more branches than the one before. `untried` says that the last one led to more
    branches, which no run took.
    """
    again = max(others, key=lambda report: (ran_out(report.ranks), _peak(report) or 0))
    if others[-1].status == "interrupted":
        again = others[-1]
    again = replace(again, elapsed_s=sum(report.elapsed_s for report in others))
    before = first.unknown_sizes
    assert before is not None and request.gpus is not None
    elapsed_s = round(first.elapsed_s + again.elapsed_s, 3)
    lower, upper = map(_peak, (first, again))
    if upper is None:
        half = line_of(
            replace(request, values="half"), request.gpus.card.name, alone=request.gpus.alone
        )
        ended = again if again.status == "interrupted" else first
        return replace(
            first,
            status=ended.status,
            exit_code=ended.exit_code,
            elapsed_s=elapsed_s,
            smallest_gpu=None,
            larger_batch=None,
            next_commands=(half,),
            unknown_sizes=replace(before, lower_bytes=lower, failed=_why(again)),
        )
    same = _peaks(first) == _peaks(again)
    both_known = again.unknown_sizes or before
    # An integer that was as unknown in both runs was not tried by either.
    sizes = tuple(s for s in both_known.sizes if s.allocates or not same or s.bounded is False)
    if not sizes and not _allocates(before):  # numbers that were counted
        exact = replace(first, elapsed_s=elapsed_s, unknown_sizes=None)
        return _without_branches(exact, before, both_known)
    worse = again
    if lower is not None and (ran_out(first.ranks), lower) > (ran_out(again.ranks), upper):
        worse = first
    both = replace(
        both_known,
        sizes=sizes,
        assumed=MOST if worse is again else _ZEROS,
        lower_bytes=None if lower is None else min(lower, upper),
        upper_bytes=max(lower or 0, upper),
        failed=_why(first) if lower is None else None,
        untried=_untried(others, more=untried),
    )
    if both.untried is not None or any(size.bounded is False for size in both.sizes):
        worse = replace(worse, smallest_gpu=None, larger_batch=None)
        worse = replace(worse, next_commands=()) if worse.status == "ok" else worse
    worse = replace(worse, started_at=first.started_at, elapsed_s=elapsed_s, unknown_sizes=both)
    worse = replace(worse, step=first.step)  # only the first run notes its launches
    return _without_branches(worse, before, both_known)


def _untried(others: Sequence[Report], *, more: bool) -> str | None:
    """Why branches that only showed in further runs have no answer; None if all have one."""
    if _peak(others[-1]) is None:
        last = _why(others[-1])
        return f"a further run, with branches that had not shown before, gave no answer: {last}"
    return "the last run led to more branches, and no run took them" if more else None


def _without_branches(report: Report, *tried: UnknownSizes) -> Report:
    """The report without the branches that went both ways, among lines that may decide."""
    sizes = (size for each in tried for size in each.sizes)
    places = {(size.file, size.line) for size in sizes if size.is_branch}

    def left(rank: RankMemory) -> RankMemory:
        branches = (b for b in rank.unknown_branches if (b.file, b.line) not in places)
        return replace(rank, unknown_branches=tuple(branches))

    return replace(report, ranks=tuple(map(left, report.ranks)))


def _allocates(sizes: UnknownSizes) -> bool:
    return any(size.allocates for size in sizes.sizes)


def _peaks(report: Report) -> list[tuple[int, int]]:
    return [(rank.peak_allocated_bytes, rank.peak_reserved_bytes) for rank in report.ranks]


def _peak(report: Report) -> int | None:
    """What the command needs by a run; None if it says nothing: no fit, and no GPU ran out."""
    answers = report.status == "ok" or (report.status == "no" and ran_out(report.ranks))
    peaks = (rank.peak_reserved_bytes for rank in report.ranks if answers)
    return max(peaks, default=None)


def _why(report: Report) -> str:
    if report.status == "interrupted":
        return "interrupted"
    if report.exit_code_of_command in _ENDED:
        return "it did not end in time"
    said = None if report.unknown_sizes is None else report.unknown_sizes.failed
    return said or f"exit code {report.exit_code_of_command}"
