"""`oomdoctor explain`: from a traceback or a log to what ran out, why, and what helps.

Reads text and answers; nothing that the text names is opened, imported or run.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oomdoctor import __version__
from oomdoctor.cli import options as option
from oomdoctor.cli import output
from oomdoctor.cli.show import publish_report
from oomdoctor.errors import ExitCode, usage_error
from oomdoctor.units import GIB

if TYPE_CHECKING:
    from oomdoctor.analysis.oom.settings import Given
    from oomdoctor.records.diagnosis import Diagnosis
    from oomdoctor.records.model import ModelSpec
    from oomdoctor.records.report import Report

EPILOG = """\b
Examples:
  oomdoctor explain trace.txt
  oomdoctor explain logs/*.out --json
  oomdoctor explain slurm-123.out --model meta-llama/Llama-3.1-8B --seq-len 4096 --micro-batch 4
Next: `oomdoctor probe MODEL` measures which configuration fits.
"""
_STDIN = "-"
_LARGE = 256 * 1024**2  # bytes of a log that takes a moment to read
_PASTE = (
    "paste the traceback or the log here, then press Ctrl-D on an empty line; "
    "or give a file: oomdoctor explain trace.txt"
)

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE]...",
        help="Logs, plain or .gz or .zst; - or none reads what is piped in.",
        show_default=False,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="The model that was trained: a hub id, a folder, a name from `oomdoctor models`.",
        show_default=False,
    ),
]
SequenceLength = Annotated[
    str | None,
    typer.Option(
        "--seq-len", metavar="N", help="Tokens in a sequence, with padding.", show_default=False
    ),
]
MicroBatch = Annotated[
    str | None,
    typer.Option(
        "--micro-batch", metavar="N", help="Sequences on one device at once.", show_default=False
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings of the training: Trainer, accelerate, DeepSpeed, axolotl or LLaMA-Factory, "
        "as JSON, YAML or TOML.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="All causes, evidence, remedies and lines.")
]


def explain(
    files: Files = None,
    model: Model = None,
    seq_len: SequenceLength = None,
    micro_batch: MicroBatch = None,
    config: Config = None,
    format_: option.Format = "table",
    json_: option.Json = False,
    output_file: option.Output = None,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Explain an out-of-memory error: what ran out, where, why, and which changes help.

    Exit code 0 when memory ran out and the cause is told, 3 when no memory failure ended the run.
    """
    from oomdoctor.analysis.oom.diagnose import exit_of

    clock, started = time.monotonic(), datetime.now(UTC)
    chosen = option.chosen_format("explain", format_, json_)
    sources = files or [_STDIN]
    given, notes = _given(sources, model, seq_len, micro_batch, config)
    if output_file is not None:
        output.check_writable(output_file)
    found: list[Diagnosis] = []
    for source in dict.fromkeys(sources):
        found += _read(source, given, quiet=quiet)
    code = exit_of(found)
    report = _report(found, code, given, notes, sources, started, time.monotonic() - clock)
    publish_report(report, chosen, verbose=verbose, file=output_file)
    if code != ExitCode.OK:
        raise typer.Exit(code)


def _given(
    sources: list[str],
    model: str | None,
    seq_len: str | None,
    micro_batch: str | None,
    config: Path | None,
) -> tuple[Given, tuple[str, ...]]:
    """What the options tell, with all faults of the command line at once."""
    from oomdoctor.analysis.oom.settings import Given, setup_of

    reader = option.Reader("explain")
    length = None if seq_len is None else reader.integer("--seq-len", seq_len)
    batch = None if micro_batch is None else reader.integer("--micro-batch", micro_batch)
    for source in sources:
        if source != _STDIN and (fault := _fault(Path(source))):
            reader.fault(source, fault)
    reader.check()
    settings: Mapping[str, Any] = {}
    if config is not None:
        from oomdoctor.system.train_config import read_train_config

        settings = read_train_config(config)
    given = Given(
        sequence_length=length,
        micro_batch_size=batch,
        settings=settings,
        settings_source=None if config is None else config.name,
    )
    if model is not None:
        resolved, notes = _resolve(model)
        return replace(given, model=resolved), notes
    named = setup_of(given, {}).model
    if named is None:
        return given, ()
    spec = _built_in(named)
    if spec is None:
        note = f"{config} names the model {named}, whose sizes are not built in: add --model"
        return given, (note,)
    return replace(given, model=spec, model_origin=str(config)), ()


def _fault(path: Path) -> str | None:
    """Why a log cannot be read; None if it can, as far as can be told without reading."""
    try:
        if path.is_dir():
            return "is a folder; name its files, such as " + str(path / "*.out")
        if not path.exists():
            return "there is no such file"
    except OSError as error:
        return error.strerror or "cannot be read"
    return None


def _resolve(name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model of --model; built-in facts first, because they need no import and no network."""
    name = option.hub_id(name)
    spec = None if Path(name).exists() else _built_in(name)
    if spec is not None:
        return spec, ()
    from oomdoctor.records.model import ModelRef
    from oomdoctor.system.hub import resolve_with_notes

    return resolve_with_notes(ModelRef(name=name))


def _built_in(name: str) -> ModelSpec | None:
    from oomdoctor.system.catalogue import find_model

    if find_model(name) is None:
        return None
    from oomdoctor.records.model import ModelRef
    from oomdoctor.system.hub import resolve

    return resolve(ModelRef(name=name, source="catalogue"))


def _read(source: str, given: Given, *, quiet: bool) -> tuple[Diagnosis, ...]:
    from oomdoctor.analysis.oom.diagnose import diagnose
    from oomdoctor.analysis.oom.scan import scan
    from oomdoctor.analysis.oom.settings import setup_of
    from oomdoctor.analysis.oom.stream import lines
    from oomdoctor.system.logs import read_chunks

    if source == _STDIN:
        if sys.stdin is None:
            raise usage_error("no_input", "standard input is closed", "give a file")
        if sys.stdin.isatty():
            output.say(_PASTE)
    elif not quiet and Path(source).is_file() and Path(source).stat().st_size > _LARGE:
        output.say(f"reading {source}")
    incidents, facts = scan(lines(read_chunks(None if source == _STDIN else source)))
    if given.model is None:
        # A name in a log is looked up in the built-in facts only: no path is opened, no server
        # asked because a text says so.
        named = facts.model_id or setup_of(given, facts.settings).model
        spec = _built_in(named) if named else None
        if spec is not None:
            given = replace(given, model=spec, model_origin="the log")
    return diagnose(source, incidents, facts, given)


def _report(
    found: list[Diagnosis],
    code: ExitCode,
    given: Given,
    notes: tuple[str, ...],
    sources: list[str],
    started: datetime,
    elapsed_s: float,
) -> Report:
    from oomdoctor.records.report import SCHEMA, Picks, Report, Tool, Warn

    return Report(
        schema=SCHEMA,
        command="explain",
        status="ok" if code == ExitCode.OK else "no",
        exit_code=int(code),
        tool=Tool("oomdoctor", __version__),
        started_at=started.isoformat(timespec="seconds"),
        elapsed_s=round(elapsed_s, 3),
        run_dir=None,
        request=None,
        machine=None,
        model=None,
        budget=None,
        results=(),
        ranking=(),
        ranking_reasons={},
        picks=Picks(None, None, None),
        next_commands=_next(found, given, sources),
        warnings=tuple(Warn("model", note) for note in notes),
        errors=(),
        diagnoses=tuple(found),
    )


def _next(found: list[Diagnosis], given: Given, sources: list[str]) -> tuple[str, ...]:
    import shlex

    failed = [one for one in found if one.is_oom and not one.survived]
    if not failed:
        return ()
    first = failed[0]
    name = "-" if first.source == _STDIN else shlex.quote(first.source)
    if len(set(sources)) > 1:
        return (f"oomdoctor explain {name}",)
    lines = [] if first.source == _STDIN else [f"oomdoctor explain {name} --verbose"]
    if first.resource == "gpu" and not first.assumed and first.numbers.requested_bytes:
        lines.append(f"oomdoctor explain {name} --model MODEL --seq-len N --micro-batch N")
    elif first.resource == "gpu" and given.model is not None:
        vram = first.numbers.capacity_bytes
        size = f" --vram {vram / GIB:.2f}GiB" if vram else ""
        lines.append(f"oomdoctor probe {shlex.quote(given.model.id)}{size}")
    return tuple(lines)
