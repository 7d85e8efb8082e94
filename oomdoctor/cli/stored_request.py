"""`show` and `runs` as requests: what to draw, which runs are meant and how many to keep."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from oomdoctor.cli.option_reader import Reader
from oomdoctor.cli.options.verbs import RunsOptions, ShowOptions
from oomdoctor.commands.runs_choosing import Limits, Wanted, parse_limits
from oomdoctor.render.charts import CHARTS
from oomdoctor.system.environment import runs_limit
from oomdoctor.units import day_or_age, parse_age

VERBS = ("probe", "plan", "run")


@dataclass(frozen=True, slots=True)
class RunsRequest:
    """What to list. `limits` is None without --prune, `most` for all that match."""

    wanted: Wanted
    most: int | None
    limits: Limits | None


def runs_request(options: RunsOptions, now: datetime) -> RunsRequest:
    """The request; `now` has a time zone.

    Raises:
        OomDoctorError: an option is wrong, or contradicts another one (exit 2).
    """
    reader = Reader("runs")
    reader.exclude(options)
    command = None
    if options.command is not None:
        command = reader.choice("--command", options.command, VERBS)
    since = None
    if options.since is not None:
        since = reader.read("--since", options.since, lambda text: parse_since(text, now), now)
    most = reader.integer("--limit", options.limit, minimum=0)
    limits = _limits(options, reader)
    reader.check()
    return RunsRequest(Wanted(options.model, command, since), most or None, limits)


def parse_since(text: str, now: datetime) -> datetime:
    """The moment meant by `today`, `yesterday`, an age such as `3d`, or an ISO date or time.

    Days start at midnight, local time.

    Raises:
        ValueError: the text is something else.
    """
    if (moment := day_or_age(text, now.astimezone())) is not None:
        return moment
    try:
        moment = datetime.fromisoformat(text.strip())
        return moment if moment.tzinfo is not None else moment.astimezone()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time; write today, yesterday, 12h, 3d or 2026-11-23"
        ) from None


def _limits(options: RunsOptions, reader: Reader) -> Limits | None:
    if not options.prune:
        return None
    given: dict[str, float] = {}
    if options.keep is not None:
        given["keep"] = reader.integer("--keep", options.keep, minimum=0)
    if options.older_than is not None:
        given["older_than_s"] = reader.read("--older-than", options.older_than, parse_age, 1.0)
    if options.max_size is not None:
        given["max_bytes"] = reader.size("--max-size", options.max_size)
    standing = runs_limit()
    if given or standing is None:
        return Limits(**given) if given else None
    return reader.read("OOMDOCTOR_RUNS_LIMIT", standing, parse_limits, Limits())


_FORMATS = {".html": "html", ".htm": "html", ".png": "png", ".svg": "svg"}


def drawn_files(options: ShowOptions) -> dict[str, Path]:
    """The files to write, by their option: `html`, `png` or `svg`.

    Raises:
        OomDoctorError: an option is wrong, or does not go with the others (exit 2).
    """
    asked = {"html": options.html, "png": options.png, "svg": options.svg}
    files = {kind: file for kind, file in asked.items() if file is not None}
    reader = Reader("show")
    reader.choice("--chart", options.chart, CHARTS)
    reader.exclude(options)
    for kind, file in files.items():
        ending = _FORMATS.get(file.suffix.lower(), kind)
        if ending != kind:
            reader.fault(f"--{kind}", f"{file} is the name of a file for --{ending}")
    reader.check()
    return files
