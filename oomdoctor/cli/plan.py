"""`oomdoctor plan`: from the command line to a prediction, and from its report to the streams."""

from __future__ import annotations

from functools import partial

import typer

from oomdoctor.cli.options import answer, ladder, planning
from oomdoctor.cli.show import publish_report
from oomdoctor.cli.streams.running import carry_out

EPILOG = """\b
Examples:
  oomdoctor plan meta-llama/Llama-3.1-8B --gpu "RTX 4090"
  oomdoctor plan Qwen/Qwen2.5-7B --gpu 24GiB --sweep seq-len=512..32768 --recipe qlora
  oomdoctor plan MODEL --gpu A10G --why full-bf16
Next: `oomdoctor probe MODEL` measures it where the GPU is.
"""


def plan(
    context: typer.Context,
    model: ladder.Model = None,
    gpu: planning.Gpus = None,
    all_gpus: planning.AllGpus = False,
    sweep: planning.Sweep = None,
    why: planning.Why = None,
    recipe: ladder.RecipeName = "default",
    rung: ladder.Rungs = None,
    lengths: ladder.Lengths = None,
    tokenizer: ladder.Tokenizer = None,
    text_field: ladder.TextField = None,
    headroom: ladder.Headroom = "2%",
    seq_len: planning.SequenceLength = None,
    effective_batch: planning.EffectiveBatch = None,
    micro_batch: ladder.MicroBatch = None,
    task: ladder.Task = "auto",
    rank_by: answer.RankBy = "throughput",
    tokens: answer.Tokens = "1M",
    revision: ladder.Revision = None,
    source: ladder.Source = "auto",
    trust_remote_code: ladder.TrustRemoteCode = False,
    python: ladder.Python = None,
    format_: answer.Format = "table",
    json_: answer.Json = False,
    output_file: answer.Output = None,
    verbose: answer.Verbose = False,
    quiet: answer.Quiet = False,
) -> None:
    """Predict what `probe` would measure on a GPU that need not be here.

    The model's own code runs one training step of each configuration without a device; every
    allocation goes through a model of PyTorch's allocator. Exit code 0 when something fits, 3 when
    nothing does.
    """
    from oomdoctor.cli.requests.plan import plan_request
    from oomdoctor.runs.plan.run import run_plan
    from oomdoctor.system.store import run_folders

    chosen = answer.chosen_format("plan", format_, json_, output_file)
    request = plan_request(context.params)
    folder = run_folders.create(request.model.name)
    report = carry_out(partial(run_plan, request, folder), folder, quiet=quiet)
    publish_report(report, chosen, verbose=verbose, file=output_file)
    raise typer.Exit(report.exit_code)
