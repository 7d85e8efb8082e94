"""`oomdoctor snapshot`: what held the memory in a snapshot of PyTorch, and which line made it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from oomdoctor.cli.options.answer import AnswerOptions
from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.streams.output import Started, publish_report
from oomdoctor.errors import ExitCode, usage_error


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """A command line of `snapshot`."""

    files: list[Path] | None = None
    html: Path | None = None
    png: Path | None = None
    gpu: list[str] | None = None
    answer: AnswerOptions = field(default_factory=AnswerOptions)
    verbose: bool = False
    quiet: bool = False


@flatten
def snapshot(options: SnapshotOptions) -> None:
    """Show what held the memory in a memory snapshot.

    Lists memory at the peak by category and by line of code. It needs no GPU and no torch, and
    nothing in the file is run. Write a snapshot with
    torch.cuda.memory._record_memory_history() at the start of the script and
    torch.cuda.memory._dump_snapshot("memory_snapshot.pickle") at its end, or where it runs out.

    Examples:
      oomdoctor snapshot memory_snapshot.pickle --html timeline.html
      oomdoctor snapshot memory_snapshot.pickle --gpu "RTX 4090" --gpu 40GiB
      oomdoctor snapshot before.pickle after.pickle
    Next: `oomdoctor explain trace.txt` reads the error that the run printed.
    """
    from oomdoctor.cli.explain_sources import all_rooms, histories, read_file, rooms_named
    from oomdoctor.cli.option_reader import Reader, chosen_format
    from oomdoctor.cli.streams.drawn import leaves_answer, write_pictures
    from oomdoctor.explain.diagnose import diagnosis_of
    from oomdoctor.explain.evidence import evidence_of
    from oomdoctor.snapshot.changes import with_replays
    from oomdoctor.snapshot.device_answer import device_of, difference_of

    started = Started()
    chosen = chosen_format("snapshot", options.answer)
    files = options.files or []
    if not files:
        raise usage_error("no_file", "no snapshot was given", "oomdoctor snapshot FILE")
    if len(files) > 2:
        message = f"{len(files)} snapshots were given"
        raise usage_error("bad_option", message, "give one, or two to compare")
    reader = Reader("snapshot")
    reader.exclude(options)
    reader.check()
    answers = leaves_answer((options.html, options.png), chosen, options.answer.output_file)
    asked = rooms_named(options.gpu or ())
    if options.png is not None:
        from oomdoctor.render.snapshot.png import need_picture

        need_picture()
    snapshots = [read_file(file, quiet=options.quiet) for file in files]
    *earlier, latest = map(histories, snapshots)
    devices = tuple(
        with_replays(history, device_of(history), asked, all_rooms) for history in latest.values()
    )
    name = str(files[-1])
    settings = snapshots[-1].settings
    written_by = str(settings["written_by"]) if "written_by" in settings else None
    source, drawn = files[-1].name, latest.values()
    html, png, quiet = options.html, options.png, options.quiet
    write_pictures(source, drawn, written_by, html=html, png=png, quiet=quiet)
    failed = tuple(map(diagnosis_of, evidence_of(name, devices)))
    differences = tuple(
        difference_of(before.get(index), latest[index])
        for before in earlier
        for index in sorted(latest)
    )
    report = started.report(
        "snapshot",
        "ok",
        ExitCode.OK,
        diagnoses=failed,
        source=name,
        settings=settings,
        devices=devices,
        differences=differences,
        causes=failed[0].causes if failed else (),
        remedies=failed[0].remedies if failed else (),
    )
    if answers:
        publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
