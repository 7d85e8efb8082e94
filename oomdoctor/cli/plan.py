"""`oomdoctor plan`: simulate a ladder of configurations for any card, and print the report."""

from __future__ import annotations

from functools import partial

import typer

from oomdoctor.cli.options.flatten import flatten
from oomdoctor.cli.options.verbs import PlanOptions
from oomdoctor.cli.streams.carry_out import carry_out, delete_old_runs
from oomdoctor.cli.streams.output import publish_report


@flatten
def plan(options: PlanOptions) -> None:
    """Predict what `probe` would measure on any GPU.

    You don't need the GPU: one training step of each configuration is simulated with the model's
    own code, and its allocations are replayed through a model of PyTorch's allocator.
    Exit code 0 if something fits, 3 if nothing does.

    Examples:
      oomdoctor plan meta-llama/Llama-3.1-8B --gpu "RTX 4090"
      oomdoctor plan Qwen/Qwen2.5-7B --gpu 24GiB --solve seq-len
      oomdoctor plan gpt2 --gpu T4 --why lora-r16
    Next: `oomdoctor probe gpt2` measures it on the GPU itself.
    """
    from oomdoctor.cli.option_reader import chosen_format
    from oomdoctor.cli.plan_request import plan_request
    from oomdoctor.cli.streams.carry_out import make_environment
    from oomdoctor.commands.plan.run_plan import run_plan
    from oomdoctor.system.store import run_folders

    chosen = chosen_format("plan", options.answer)
    request = plan_request(options)
    if request.versions:
        make_environment(request.versions, quiet=options.quiet)
    folder = run_folders.create(request.model.name)
    report = carry_out(partial(run_plan, request, folder), folder, quiet=options.quiet)
    publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
    delete_old_runs(folder.name)
    raise typer.Exit(report.exit_code)
