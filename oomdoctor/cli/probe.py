"""`oomdoctor probe`: from the command line to a survey, and from its report to the streams."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import typer

from oomdoctor.cli.options import answer, ladder, probing
from oomdoctor.cli.show import publish_report
from oomdoctor.cli.streams.running import carry_out

if TYPE_CHECKING:
    from oomdoctor.records.report import SurveyRequest
    from oomdoctor.system.store.run_folders import RunFolder

EPILOG = """\b
Examples:
  oomdoctor probe HuggingFaceTB/SmolLM2-135M --recipe quick
  oomdoctor probe Qwen/Qwen2.5-7B --vram 24GiB --seq-len 4096 --effective-batch 32
  oomdoctor probe MODEL --recipe none --rung method=lora,lora_rank=64,micro_batch_size=4
Next: `oomdoctor show` prints the run again, in any format.
"""


def probe(
    context: typer.Context,
    model: ladder.Model = None,
    recipe: ladder.RecipeName = "default",
    rung: ladder.Rungs = None,
    device: probing.Device = "auto",
    vram: probing.Vram = None,
    headroom: ladder.Headroom = "2%",
    seq_len: probing.SequenceLength = None,
    effective_batch: probing.EffectiveBatch = None,
    micro_batch: ladder.MicroBatch = None,
    lengths: ladder.Lengths = None,
    tokenizer: ladder.Tokenizer = None,
    text_field: ladder.TextField = None,
    task: ladder.Task = "auto",
    weights: probing.Weights = "synthetic",
    evaluate: probing.Evaluate = False,
    eval_batch: probing.EvalBatch = "8",
    rank_by: answer.RankBy = "throughput",
    tokens: answer.Tokens = "1M",
    time_limit: probing.TimeLimit = None,
    rung_timeout: probing.RungTimeout = "10m",
    revision: ladder.Revision = None,
    source: ladder.Source = "auto",
    trust_remote_code: ladder.TrustRemoteCode = False,
    python: ladder.Python = None,
    seed: probing.Seed = "0",
    predict: probing.Predict = True,
    wait: probing.Wait = False,
    resume: probing.Resume = None,
    format_: answer.Format = "table",
    json_: answer.Json = False,
    output_file: answer.Output = None,
    verbose: answer.Verbose = False,
    quiet: answer.Quiet = False,
) -> None:
    """Measure real training steps of MODEL under a ladder of configurations and rank them.

    Every configuration runs in a process of its own, on the GPU or on the CPU. Exit code 0 when
    something fits, 3 when nothing does.
    """
    from oomdoctor.runs.survey.run import run_survey

    chosen = answer.chosen_format("probe", format_, json_, output_file)
    folder, request = _new(context) if resume is None else _resumed(context, resume)
    work = partial(run_survey, request, folder, wait=wait)
    report = carry_out(work, folder, quiet=quiet, resumed=resume is not None)
    publish_report(report, chosen, verbose=verbose, file=output_file)
    raise typer.Exit(report.exit_code)


def _new(context: typer.Context) -> tuple[RunFolder, SurveyRequest]:
    from oomdoctor.cli.requests.survey import new_request
    from oomdoctor.system.store import run_folders

    request = new_request(context.params)
    return run_folders.create(request.model.name), request


def _resumed(context: typer.Context, run: str) -> tuple[RunFolder, SurveyRequest]:
    from oomdoctor.cli.requests.survey import resumed_request
    from oomdoctor.runs.survey.run import resume_request
    from oomdoctor.system.store import run_folders

    folder = run_folders.open_run(run)
    typed = frozenset(
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    )
    return folder, resumed_request(resume_request(folder), context.params, typed)
