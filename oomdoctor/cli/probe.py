"""`oomdoctor probe`: measure a ladder of configurations, and print the report."""

from __future__ import annotations

from functools import partial

import typer

from oomdoctor.cli.options.flatten import flatten, typed_options
from oomdoctor.cli.options.verbs import ProbeOptions
from oomdoctor.cli.streams.carry_out import carry_out, delete_old_runs
from oomdoctor.cli.streams.output import publish_report


@flatten
def probe(context: typer.Context, options: ProbeOptions) -> None:
    """Measure which training configurations of MODEL fit.

    Runs real training steps of each configuration in its own process, on the GPU or the CPU, and
    ranks the results. Exit code 0 if something fits, 3 if nothing does.

    Examples:
      oomdoctor probe HuggingFaceTB/SmolLM2-135M --recipe quick
      oomdoctor probe Qwen/Qwen2.5-7B --vram 24GiB --seq-len 4096
      oomdoctor probe gpt2 --recipe none --rung method=lora,lora_rank=64
    Next: `oomdoctor show` prints the run again, in any format.
    """
    from oomdoctor.cli.option_reader import chosen_format
    from oomdoctor.cli.probe_request import new_request, resumed_request
    from oomdoctor.commands.probe.run_survey import run_survey
    from oomdoctor.system.store import run_folders, run_list

    chosen = chosen_format("probe", options.answer)
    if options.resume is None:
        request = new_request(options)
        folder = run_folders.create(request.model.name)
    else:
        folder = run_list.open_run(options.resume, probes_only=True)
        request = resumed_request(folder.read_request(), options, typed_options(context))
    work = partial(run_survey, request, folder, wait=options.wait)
    report = carry_out(work, folder, quiet=options.quiet, resumed=options.resume is not None)
    publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
    delete_old_runs(folder.name)
    raise typer.Exit(report.exit_code)
