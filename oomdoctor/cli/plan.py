"""`oomdoctor plan`: from the command line to a prediction, and from its report to the streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from oomdoctor.cli import options as option
from oomdoctor.cli import output
from oomdoctor.cli.options import chosen_format
from oomdoctor.cli.probe import discard_unused
from oomdoctor.cli.show import publish_report
from oomdoctor.errors import OomDoctorError

if TYPE_CHECKING:
    from oomdoctor.records.report import Report, SurveyRequest
    from oomdoctor.system.store import RunFolder

EPILOG = """\b
Examples:
  oomdoctor plan meta-llama/Llama-3.1-8B --gpu "RTX 4090"
  oomdoctor plan Qwen/Qwen2.5-7B --gpu 24GiB --sweep seq-len=512..32768 --recipe qlora
  oomdoctor plan MODEL --gpu A10G --why full-bf16
Next: `oomdoctor probe MODEL` measures it where the GPU is.
"""


def plan(
    context: typer.Context,
    model: option.Model = None,
    gpu: option.Gpus = None,
    all_gpus: option.AllGpus = False,
    sweep: option.Sweep = None,
    why: option.Why = None,
    recipe: option.RecipeName = "default",
    rung: option.Rungs = None,
    lengths: option.Lengths = None,
    tokenizer: option.Tokenizer = None,
    text_field: option.TextField = None,
    headroom: option.Headroom = "2%",
    seq_len: option.PlannedLength = None,
    effective_batch: option.PlannedBatch = None,
    micro_batch: option.MicroBatch = None,
    task: option.Task = "auto",
    rank_by: option.RankBy = "throughput",
    tokens: option.Tokens = "1M",
    revision: option.Revision = None,
    source: option.Source = "auto",
    trust_remote_code: option.TrustRemoteCode = False,
    python: option.Python = None,
    format_: option.Format = "table",
    json_: option.Json = False,
    output_file: option.Output = None,
    verbose: option.Verbose = False,
    quiet: option.Quiet = False,
) -> None:
    """Predict what `probe` would measure on a GPU that need not be here.

    The model's own code runs one training step of each configuration without a device; every
    allocation goes through a model of PyTorch's allocator. Exit code 0 when something fits, 3 when
    nothing does.
    """
    from oomdoctor.cli.plan_request import plan_request
    from oomdoctor.system import store

    chosen = chosen_format("plan", format_, json_)
    if output_file is not None:
        output.check_writable(output_file)
    request = plan_request(context.params)
    folder = store.create(request.model.name)
    try:
        report = _predict(request, folder, quiet=quiet)
    except OomDoctorError as error:
        discard_unused(folder, error)
        raise
    publish_report(report, chosen, verbose=verbose, file=output_file)
    raise typer.Exit(report.exit_code)


def _predict(request: SurveyRequest, folder: RunFolder, *, quiet: bool) -> Report:
    from oomdoctor.cli.progress import Progress
    from oomdoctor.cli.signals import stop_on_signals
    from oomdoctor.runs.plan import run_plan

    with stop_on_signals() as stop, Progress(quiet=quiet) as progress:
        return run_plan(request, folder, on_event=progress.on_event, stop=stop)
