"""`oomdoctor probe`: from the command line to a survey, and from its report to the streams."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli import options as option
from oomdoctor.cli import output
from oomdoctor.cli.options import chosen_format
from oomdoctor.cli.show import publish_report
from oomdoctor.errors import OomDoctorError

if TYPE_CHECKING:
    from oomdoctor.records.report import Report, SurveyRequest
    from oomdoctor.system.store import RunFolder

EPILOG = """\b
Examples:
  oomdoctor probe HuggingFaceTB/SmolLM2-135M --recipe quick
  oomdoctor probe Qwen/Qwen2.5-7B --vram 24GiB --seq-len 4096 --effective-batch 32
  oomdoctor probe MODEL --recipe none --rung method=lora,lora_rank=64,micro_batch_size=4
Next: `oomdoctor show` prints the run again, in any format.
"""


def probe(
    context: typer.Context,
    model: option.Model = None,
    recipe: option.RecipeName = "default",
    rung: option.Rungs = None,
    device: option.Device = "auto",
    vram: option.Vram = None,
    headroom: option.Headroom = "2%",
    seq_len: option.SequenceLength = None,
    effective_batch: option.EffectiveBatch = None,
    micro_batch: option.MicroBatch = None,
    lengths: option.Lengths = None,
    tokenizer: option.Tokenizer = None,
    text_field: option.TextField = None,
    task: option.Task = "auto",
    weights: option.Weights = "synthetic",
    evaluate: option.Evaluate = False,
    eval_batch: option.EvalBatch = "8",
    rank_by: option.RankBy = "throughput",
    tokens: option.Tokens = "1M",
    time_limit: option.TimeLimit = None,
    rung_timeout: option.RungTimeout = "10m",
    revision: option.Revision = None,
    source: option.Source = "auto",
    trust_remote_code: option.TrustRemoteCode = False,
    python: option.Python = None,
    seed: option.Seed = "0",
    predict: option.Predict = True,
    wait: option.Wait = False,
    resume: option.Resume = None,
    format_: option.Format = "table",
    json_: option.Json = False,
    output_file: option.Output = None,
    verbose: option.Verbose = False,
    quiet: option.Quiet = False,
) -> None:
    """Measure real training steps of MODEL under a ladder of configurations and rank them.

    Every configuration runs in a process of its own, on the GPU or on the CPU. Exit code 0 when
    something fits, 3 when nothing does.
    """
    chosen = chosen_format("probe", format_, json_)
    if output_file is not None:
        output.check_writable(output_file)
    folder, request = _new(context) if resume is None else _resumed(context, resume)
    try:
        report = _survey(request, folder, wait=wait, quiet=quiet)
    except OomDoctorError as error:
        if resume is None:
            discard_unused(folder, error)
        raise
    publish_report(report, chosen, verbose=verbose, file=output_file)
    raise typer.Exit(report.exit_code)


def _new(context: typer.Context) -> tuple[RunFolder, SurveyRequest]:
    from oomdoctor.cli.request import new_request
    from oomdoctor.system import store

    request = new_request(context.params)
    return store.create(request.model.name), request


def _resumed(context: typer.Context, run: str) -> tuple[RunFolder, SurveyRequest]:
    from oomdoctor.cli.request import resumed_request
    from oomdoctor.runs.survey import resume_request
    from oomdoctor.system import store

    folder = store.open_run(run)
    typed = frozenset(
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    )
    return folder, resumed_request(resume_request(folder), context.params, typed)


def _survey(request: SurveyRequest, folder: RunFolder, *, wait: bool, quiet: bool) -> Report:
    from oomdoctor.cli.progress import Progress
    from oomdoctor.cli.signals import stop_on_signals
    from oomdoctor.runs.survey import run_survey

    with stop_on_signals() as stop, Progress(quiet=quiet) as progress:
        return run_survey(request, folder, wait=wait, on_event=progress.on_event, stop=stop)


def discard_unused(folder: RunFolder, error: OomDoctorError) -> None:
    """Remove the folder of a survey that could not start (no such model, no device).

    It has nothing to show or to go on with, and would stand in the way of `--resume latest`.
    """
    with suppress(OSError):
        if all(map(_says_nothing, folder.path.iterdir())):
            if str(folder.path) in (error.hint or ""):
                (folder.path / "request.json").unlink()  # no run any more, and the hint holds
            else:
                shutil.rmtree(folder.path, ignore_errors=True)


def _says_nothing(path: Path) -> bool:
    """Whether a file or folder of a run was there before a worker did anything."""
    if path.is_dir() and path.name.endswith("-inspect"):
        return all(inner.name == "job.json" for inner in path.iterdir())
    return path.name in ("request.json", "host.log", "lib")
