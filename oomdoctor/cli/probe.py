"""`oomdoctor probe`: measure a ladder of configurations, and print the report."""

from __future__ import annotations

import sys
from functools import partial
from typing import NoReturn

import typer

from oomdoctor.cli.options.flatten import flatten, typed_options
from oomdoctor.cli.options.verbs import ProbeOptions
from oomdoctor.cli.streams.carry_out import carry_out, delete_old_runs, stop_on_signals
from oomdoctor.cli.streams.output import Started, publish_report, say
from oomdoctor.errors import ExitCode


@flatten
def probe(context: typer.Context, options: ProbeOptions) -> None:
    """Measure which training configurations of MODEL fit.

    Runs real training steps of each configuration in its own process, on the GPU or the CPU, and
    ranks the results. Exit code 0 if something fits, 3 if nothing does.

    With --calibrate it measures the device instead, without MODEL, and keeps the times for later
    estimates.

    Examples:
      oomdoctor probe HuggingFaceTB/SmolLM2-135M --recipe quick
      oomdoctor probe Qwen/Qwen2.5-7B --vram 24GiB --seq-len 4096
      oomdoctor probe gpt2 --recipe none --rung method=lora,lora_rank=64
      oomdoctor probe --calibrate
    Next: `oomdoctor show` prints the run again, in any format.
    """
    from oomdoctor.cli.option_reader import chosen_format
    from oomdoctor.cli.probe_request import new_request, resumed_request
    from oomdoctor.commands.probe.run_survey import run_survey
    from oomdoctor.system.store import run_folders, run_list

    chosen = chosen_format("probe", options.answer)
    if options.calibrate:
        calibrate(options, chosen)
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


def calibrate(options: ProbeOptions, chosen: str) -> NoReturn:
    """Measure the device that the options name, and print what was kept.

    Raises:
        typer.Exit: with the exit code; 3 if nothing was kept.
    """
    from oomdoctor.cli.option_reader import Reader
    from oomdoctor.commands.probe.calibrate import CalibrationRequest
    from oomdoctor.commands.probe.calibrate import calibrate as measure

    started, reader = Started(), Reader("probe", quiet=options.quiet)
    reader.exclude(options)
    reader.check()
    python = options.ladder.python or sys.executable
    request = CalibrationRequest(options.device, options.emulate, python, options.wait)
    with stop_on_signals(outcome="nothing will be kept") as stop:
        answer = measure(request, say=(lambda _: None) if options.quiet else say, stop=stop)
    code = ExitCode.OK if answer.kept else ExitCode.NO
    report = started.report("probe", "ok" if answer.kept else "no", code, calibration=answer)
    publish_report(report, chosen, options.answer.output_file, verbose=options.verbose)
    raise typer.Exit(code)
