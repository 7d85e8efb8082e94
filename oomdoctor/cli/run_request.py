"""From the options of `run` to a request."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from oomdoctor.cli.option_reader import Reader
from oomdoctor.cli.options.verbs import RunOptions
from oomdoctor.cli.streams.output import check_writable
from oomdoctor.commands.devices.emulated import EmulatedGpus, emulated_gpus
from oomdoctor.commands.run.interpreter import chosen_python, found_command, path_of
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.errors import usage_error
from oomdoctor.records.facts.run_values import RANKS, WEIGHTS, steps_of, values_of
from oomdoctor.units import parse_limit

_STEADY: str | int = "steady"
_EXAMPLE = "oomdoctor run --emulate 'RTX 4090' -- python train.py"


def watch_request(options: RunOptions) -> WatchRequest:
    """The request that a command line of `run` describes.

    Raises:
        OomDoctorError: an option is wrong, or there is no such command (exit 2).
    """
    reader = Reader("run", quiet=options.quiet)
    ranks = reader.choice("--ranks", options.ranks, RANKS)
    gpus = _gpus(reader, options.emulate, alone=ranks == "1")
    reader.exclude(options)
    asked = options.steps or ("all" if options.emulate is None else str(_STEADY))
    steps = reader.read("--steps", asked, steps_of, _STEADY)
    weights = reader.choice("--weights", options.weights, WEIGHTS)
    values = options.values
    if values is not None:
        reader.read("--values", values, values_of, values)
    if options.max_peak is not None:
        reader.read("--max-peak", options.max_peak, partial(parse_limit, total_bytes=1), 0)
    _check_case(reader, options.case)
    reader.check()
    for file, option in ((options.report, "--report"), (options.trace, "--trace")):
        if file is not None:
            check_writable(file, option)
    command = tuple(options.command or ())
    if not command:
        raise usage_error("no_command", "there is no command to run", f"for example: {_EXAMPLE}")
    if options.python is None:
        path = None
        found_command(command[0])
        # Only the stand-ins of an emulated GPU depend on the interpreter.
        python = None if gpus is None else chosen_python(None, command)
    else:
        python = chosen_python(options.python, command)
        path = path_of(python)
        found_command(command[0], path)
    return WatchRequest(
        command,
        gpus,
        python,
        steps,
        weights,
        values,
        path,
        options.case,
        stop_at_oom=options.stop_at_oom,
        cure=options.cure,
        max_peak=options.max_peak,
        breakdown=options.breakdown,
        why=options.why,
        trace=options.trace,
    )


def _gpus(reader: Reader, text: str | None, *, alone: bool) -> EmulatedGpus | None:
    if text is None:
        return None
    gpus = reader.read("--emulate", text, partial(emulated_gpus, alone=alone), None)
    if gpus is not None and gpus.card.facts is None:
        reader.note_size("--emulate", text)
    return gpus


def _check_case(reader: Reader, folder: Path | None) -> None:
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        reader.fault("--case", f"{folder} is not a folder")
    elif folder.is_dir() and any(folder.iterdir()):
        reader.fault("--case", f"{folder} is not empty")
