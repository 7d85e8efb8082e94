"""What stands where in a page: the sections of a report in parts, with the charts between them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomdoctor.records.machine import Machine
from oomdoctor.records.report import Report
from oomdoctor.render.blocks import Facts, Note, Section
from oomdoctor.render.messages import error_sections, message_sections, next_sections
from oomdoctor.render.pages import sections_of
from oomdoctor.units import format_bytes

_COMMANDS_WITH_RUNGS = ("probe", "plan")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the page with an entry in its list of contents, unless it has no title.

    `charts` are the names of the kinds that it shows, above its sections. A `folded` part is opened
    on request.
    """

    name: str
    title: str
    sections: tuple[Section, ...] = ()
    charts: tuple[str, ...] = ()
    folded: bool = False


def parts_of(report: Report) -> list[Part]:
    """The parts of the page, without those that have nothing to show."""
    if report.command not in _COMMANDS_WITH_RUNGS:
        first, *others = sections_of(report, verbose=False, signs=True)
        parts = [Part("summary", "", (first,)), Part("report", "Report", tuple(others))]
    else:
        parts = _parts_of_rungs(report)
    return [part for part in parts if part.sections or part.charts]


def _parts_of_rungs(report: Report) -> list[Part]:
    from oomdoctor.render.charts.choose import charts_of
    from oomdoctor.render.report.details import detail_sections
    from oomdoctor.render.report.header import header, headline
    from oomdoctor.render.report.plan.sections import plan_sections
    from oomdoctor.render.report.report_page import file_sections
    from oomdoctor.render.report.row_lengths import length_sections
    from oomdoctor.render.report.rungs import rung_sections
    from oomdoctor.render.report.yours import your_sections

    drawn = {chart.name for chart in charts_of(report)}
    rungs = rung_sections(report, verbose=True, plus_minus="±")
    fitting = [one for one in rungs if one.title.startswith(("Fits", "Best of"))]
    others = [one for one in rungs if one not in fitting]
    yours = [
        replace(one, title=one.title.removeprefix("Yours: "))
        for one in your_sections(report, verbose=True, plus_minus="±")
    ]
    lengths = length_sections(report.lengths, cards=len(report.cards), verbose=True)
    warnings = message_sections("Warnings", [one.message for one in report.warnings])
    details = [one for one in detail_sections(report, "±") if one.title != "Versions"]

    def charts(*names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in drawn)

    return [
        Part(
            "summary",
            "",
            (Section("", (Note(headline(report), "strong"), *header(report))),),
        ),
        Part("errors", "Errors", _untitled("Errors", error_sections(report))),
        Part("yours", "Yours", tuple(yours)),
        Part("ranking", "Ranking", tuple(fitting)),
        Part("memory", "Memory", charts=charts("memory")),
        Part("frontier", "Memory against throughput", charts=charts("frontier")),
        Part("step", "Memory over a step", charts=charts("step")),
        Part("predicted", "Predicted against measured", charts=charts("predicted")),
        Part("others", "What did not fit, and why", tuple(others)),
        Part("plan", "Cards and questions", tuple(plan_sections(report, verbose=True)),
             charts("cards", "sweep")),
        Part("data", "Your data", tuple(lengths)),
        Part("files", "Recorded", _untitled("Recorded", file_sections(report))),
        Part("warnings", "Warnings", _untitled("Warnings", warnings)),
        Part("next", "Next", _untitled("Next", next_sections(report))),
        Part("environment", "Environment", _environment(report)),
        Part("details", "Every rung in detail", tuple(details), folded=True),
    ]  # fmt: skip


def _untitled(title: str, sections: list[Section]) -> tuple[Section, ...]:
    """The sections, without a title that is that of the part."""
    return tuple(
        replace(section, title="") if section.title.removesuffix(":") == title else section
        for section in sections
    )


def _environment(report: Report) -> tuple[Section, ...]:
    if report.machine is None:
        return ()
    machine = report.machine
    known = {name: version for name, version in machine.versions.items() if version}
    pairs = [*_devices(report, machine), *((name, version) for name, version in known.items())]
    missing = sorted(name for name, version in machine.versions.items() if not version)
    if missing:
        pairs.append(("not installed", ", ".join(missing)))
    return (Section("", (Facts(tuple(pairs)),)),) if pairs else ()


def _devices(report: Report, machine: Machine) -> list[tuple[str, str]]:
    """The hardware; of a plan it is another machine's, so only the libraries are known."""
    if report.command == "plan":
        return []
    cpu = f"{machine.cpu_name or 'unknown model'}, {machine.cpu_count} cores"
    pairs = [("CPU", cpu), ("host memory", format_bytes(machine.memory_bytes))]
    if machine.gpu_name:
        pairs.insert(0, ("GPU", f"{machine.gpu_name}, {format_bytes(machine.total_bytes)}"))
    if machine.driver_version:
        pairs.insert(1, ("driver", machine.driver_version))
    if machine.slurm_job_id:
        pairs.append(("Slurm job", machine.slurm_job_id))
    return pairs
