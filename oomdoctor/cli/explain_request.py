"""`explain`: what its options say about the training, what --apply changes, what to type next."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomdoctor.cli.explain_sources import STDIN
from oomdoctor.cli.option_reader import Reader, hub_id
from oomdoctor.cli.options.verbs import ExplainOptions
from oomdoctor.cli.streams import output
from oomdoctor.commands.explain.explained import (
    built_in,
    settings_in,
    with_model_named,
    with_training,
)
from oomdoctor.errors import ExitCode, OomDoctorError, usage_error
from oomdoctor.render.proof import proof_lines
from oomdoctor.units import GIB

if TYPE_CHECKING:
    from oomdoctor.explain.training.known import Given
    from oomdoctor.records.job.model import ModelRef, ModelSpec, SourceChoice
    from oomdoctor.records.report.diagnosis import Diagnosis
    from oomdoctor.records.report.user_training import AppliedRemedy

_USUAL_BATCH = 16


def read_given(reader: Reader, options: ExplainOptions) -> tuple[Given, tuple[str, ...]]:
    """What the options say, and notes for the report.

    A model that cannot be found or read is a note: the text is explained without it.

    Raises:
        OomDoctorError: `reader` has collected errors; the configuration cannot be read.
    """
    from oomdoctor.explain.training.known import Given

    model, config = options.model, options.config or options.apply
    length = reader.given(reader.sized, "--seq-len", options.seq_len)
    batch = reader.given(reader.sized, "--micro-batch", options.micro_batch)
    reader.check()
    settings: Mapping[str, Any] = {}
    if config is not None:
        settings = _settings_in(config, "--config" if options.config else "--apply")
    given = Given(
        sequence_length=length,
        micro_batch_size=batch,
        settings=settings,
        settings_source=None if config is None else config.name,
    )
    given, notes = _with_model(given, model, config)
    if config is None:
        return given, notes
    given, disagreements = with_training(given, config, interpreter(options), parse=options.exact)
    return given, notes + disagreements


def interpreter(options: ExplainOptions) -> str:
    """The interpreter that simulates the training, and whose libraries it has."""
    return shutil.which(options.python or sys.executable) or ""


def _with_model(
    given: Given, model: str | None, config: Path | None
) -> tuple[Given, tuple[str, ...]]:
    """The model of --model, or the one that the file names, if it is built in."""
    from oomdoctor.explain.training.known import setup_of

    if model is not None:
        try:
            resolved, notes = _resolve(model)
        except OomDoctorError as error:
            return given, (_without(error),)
        missing = _missing_sizes(resolved)
        if missing:
            text = f"{resolved.id}: config.json has no usable {', '.join(missing)}"
            return given, (*notes, f"explained without the model: {text}")
        return replace(given, model=resolved), notes
    given = with_model_named(given, str(config))
    named = setup_of(given, {}).values.get("model")
    if given.model is not None or named is None:
        return given, ()
    note = f"{config} names the model {named}, which is not built in; add --model"
    return given, (note,)


def _settings_in(path: Path, option: str) -> Mapping[str, Any]:
    """The settings of a training file or a command; only a file can be changed."""
    from oomdoctor.system.training_files import is_command

    if option == "--apply" and is_command(str(path)):
        raise usage_error(
            "bad_option",
            f"--apply: {path} is a command, not a file of settings",
            f"pass it as --config {shlex.quote(str(path))}, which shows what to change",
        )
    return settings_in(path, option)


def _without(error: OomDoctorError) -> str:
    """The note about a model that cannot be used, with what to do."""
    from oomdoctor.system.models.hub import ELSEWHERE

    hint = f"; {error.hint}" if error.hint else ""
    if error.code in ELSEWHERE:
        hint += "; or pass a name from `oomdoctor models`, which are built in"
    return f"explained without the model: {error.message}{hint}"


def _missing_sizes(model: ModelSpec) -> list[str]:
    """The sizes without which nothing can be computed, by their usual names in config.json."""
    from oomdoctor.analysis.memory.shape import shape_of
    from oomdoctor.records.facts.architectures import SIZE_NAMES

    shape = shape_of(model.config)
    needed = ("layers", "hidden", "heads", "vocabulary")
    return [SIZE_NAMES[name][0] for name in needed if getattr(shape, name) is None]


def _resolve(name: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model of --model; built-in facts first, because they need no import and no network."""
    name = hub_id(name)
    spec = None if Path(name).exists() else built_in(name)
    if spec is not None:
        return spec, ()
    from oomdoctor.records.job.model import ModelRef
    from oomdoctor.system.models.hub import resolve_with_notes

    return resolve_with_notes(ModelRef(name=name))


def model_of(name: str, given: Given, options: ExplainOptions) -> ModelRef:
    """The model that a diagnosis names, and where a simulation may look it up.

    A name from a log or a configuration file is only looked up in the built-in facts: a text must
    not make us open a path or contact a server.
    """
    from oomdoctor.records.job.model import ModelRef

    if options.model is None or given.model is None or given.model.source == "catalogue":
        return ModelRef(name=name, source="catalogue")
    source: SourceChoice = "local" if given.model.source == "local" else "auto"
    return ModelRef(name=hub_id(options.model), source=source)


def applied_to(
    diagnosis: Diagnosis, options: ExplainOptions, number: int | None, command: tuple[str, ...]
) -> AppliedRemedy | None:
    """What --apply asks for: proven and written, if that was asked too; None without --apply.

    With --verify, `command` is run; if it is empty, the usual one for the file.

    Raises:
        OomDoctorError: the file cannot be read or written (exit 2 or 1).
    """
    if options.apply is None:
        return None
    from oomdoctor.commands.explain.applied import apply_remedy, write

    try:
        applied = apply_remedy(diagnosis, str(options.apply), number)
        if options.verify and applied.number is not None:
            applied = _verified(diagnosis, options, number, command) or applied
    except OomDoctorError as error:
        text, hint = error.message.replace("--from: ", "--apply: "), error.hint
        hint = None if hint is None else hint.replace("--from", "--apply")
        raise OomDoctorError(error.code, text, hint, error.exit_code) from None
    proven = applied.proof is None or applied.proof.fits
    if not options.write or applied.number is None or not proven:
        return applied
    return write(applied, output.write_file)


def _verified(
    diagnosis: Diagnosis, options: ExplainOptions, number: int | None, command: tuple[str, ...]
) -> AppliedRemedy | None:
    """The remedy that a run of the changed training shows to be enough, or the last one tried.

    Raises:
        OomDoctorError: the card or the command is not known (exit 2), or it cannot be run here.
    """
    from functools import partial

    from oomdoctor.analysis.command_line import size_text
    from oomdoctor.commands.devices.emulated import emulated_gpus
    from oomdoctor.commands.explain.applied import start_of
    from oomdoctor.commands.run.interpreter import chosen_python, found_command, path_of
    from oomdoctor.commands.run.run_watched import verified
    from oomdoctor.commands.run.session import WatchRequest

    file = str(options.apply)
    usual, count = start_of(file)
    if not command and usual is None:
        raise usage_error(
            "no_command",
            f"--verify: no command is known that trains with {file}",
            f"type it after --: oomdoctor explain ... --apply {file} --verify -- COMMAND",
        )
    command = command or usual or ()
    size = diagnosis.numbers.capacity_bytes
    if options.gpu is None and size is None:
        raise usage_error(
            "bad_option", "--verify: the size of the card is not in the text", "pass --gpu CARD"
        )
    reader = Reader("explain", quiet=options.quiet)
    text = options.gpu or f"{count}x{size_text(size or 0)}"
    gpus = reader.read("--gpu", text, partial(emulated_gpus), None)
    reader.check()
    python = chosen_python(options.python, command)
    path = path_of(python) if options.python is not None else None
    found_command(command[0], path)
    request = WatchRequest(command, gpus, python, "steady", "synthetic", path=path)
    say = (lambda _: None) if options.quiet else output.say
    return verified(request, diagnosis, file, number, say)


def exit_of_applied(applied: AppliedRemedy) -> ExitCode:
    """3 if no remedy is a change of the file, or none is enough; 6 if runs of it show nothing."""
    if applied.number is None:
        return ExitCode.NO
    if applied.proof is None or applied.proof.fits:
        return ExitCode.OK
    return ExitCode.INCONCLUSIVE if applied.proof.fits is None else ExitCode.NO


def publish_applied(applied: AppliedRemedy, names: Sequence[str], options: ExplainOptions) -> None:
    """The diff to stdout; the remedy and the line to type to stderr."""
    if applied.number is not None:
        output.print_answer(applied.diff)
    if options.quiet:
        return
    for reason in applied.not_applied:
        output.say(f"not applied: {reason}")
    if applied.number is None:
        line = shlex.join(["oomdoctor", "explain", *names])
        output.say(
            f"no remedy is a change of the settings in {applied.file}"
            if applied.not_applied
            else f"no remedy to apply: {line} says what was found"
        )
        return
    output.say(f"remedy {applied.number}: {applied.change}")
    for line in proof_lines(applied):
        output.say(line)
    if applied.written:
        output.say(f"changed {applied.file}; as it was: {applied.backup}")
        return
    words = ["oomdoctor", "explain", *names, "--apply", applied.file]
    tried = options.remedy is not None or applied.proof is not None  # maybe not the first change
    chosen = ["--remedy", str(applied.number)] if tried else []
    output.say(f"to change the file: {shlex.join([*words, *chosen, '--write'])}")


def typed_options(options: ExplainOptions) -> list[str]:
    """What was typed about the training, as words of a command line."""
    pairs = {
        "--model": None if options.model is None else hub_id(options.model),
        "--seq-len": options.seq_len,
        "--micro-batch": options.micro_batch,
        "--snapshot": None if options.snapshot is None else str(options.snapshot),
        "--config": None if options.config is None else str(options.config),
        "--python": options.python,
    }
    words = [word for name, value in pairs.items() if value is not None for word in (name, value)]
    return [*words, "--exact"] if options.exact else words


def next_lines(
    diagnoses: list[Diagnosis], given: Given, options: ExplainOptions
) -> tuple[str, ...]:
    """Up to two commands: more about the first failure, and which configuration fits."""
    failed = [diagnosis for diagnosis in diagnoses if diagnosis.is_oom and not diagnosis.survived]
    if not failed:
        return ()
    first = failed[0]
    again = ["oomdoctor", "explain", first.source, *typed_options(options)]
    if len({diagnosis.source for diagnosis in diagnoses}) > 1:
        return (shlex.join(again),)
    lines = [] if first.source == STDIN else [shlex.join([*again, "--verbose"])]
    if first.resource == "gpu" and given.model is not None:
        lines += _what_fits(first, given, options)
    return tuple(lines)


def _what_fits(failure: Diagnosis, given: Given, options: ExplainOptions) -> list[str]:
    """`probe` where there is a GPU, else `plan`; nothing where neither can run.

    They take the user's file, if it says enough of the training.
    """
    from importlib.util import find_spec

    from oomdoctor.records.configuration.config import says_its_gpus
    from oomdoctor.system.machine.nvml import may_have_gpu

    assert given.model is not None
    vram = failure.numbers.capacity_bytes
    size = f"{vram / GIB:.2f}GiB" if vram else None
    training = given.training
    taken = training is not None and says_its_gpus(training.config)
    file = options.config or options.apply if taken else None
    words = [given.model.id] if file is None or options.model is not None else []
    words += [] if file is None else ["--from", str(file)]
    if may_have_gpu():
        words = ["oomdoctor", "probe", *words, *(["--vram", size] if size else [])]
    elif size and find_spec("torch") is not None:
        words = ["oomdoctor", "plan", *words, "--gpu", size]
    else:
        return []
    length, batch = given.sequence_length, given.micro_batch_size
    words += ["--seq-len", str(length)] if length is not None else []
    words += ["--micro-batch", str(batch)] if batch is not None else []
    if batch is not None and file is None and _USUAL_BATCH % batch:
        words += ["--effective-batch", str(batch)]
    return [shlex.join(words)]
