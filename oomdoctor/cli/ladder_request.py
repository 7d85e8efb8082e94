"""The part of a request that `probe` and `plan` share: model, ladder, GPUs, the rungs it names.

All errors of a command line are reported together.
"""

from __future__ import annotations

import difflib
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import get_args

from oomdoctor.analysis.command_line import command_line
from oomdoctor.analysis.search.precision import ladder_for
from oomdoctor.cli.ladder_from import lengths_request, training_request
from oomdoctor.cli.option_reader import Reader, model_name
from oomdoctor.cli.options.exclusions import given_options
from oomdoctor.cli.options.verbs import LadderOptions, PlanOptions, ProbeOptions
from oomdoctor.cli.streams.output import can_say, say
from oomdoctor.commands.devices.cards import card_named
from oomdoctor.commands.devices.device import USUAL_CPU_SHAPE
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.configuration.config import Recipe, Rung, chosen_by_name, says_its_gpus
from oomdoctor.records.configuration.faults import MOST_GPUS
from oomdoctor.records.facts.choices import Routing
from oomdoctor.records.job.model import ModelRef, SourceChoice, TaskChoice
from oomdoctor.records.report.report import RankBy, SurveyRequest
from oomdoctor.records.report.searched import GpuRange
from oomdoctor.records.report.user_training import YOURS, UserTraining
from oomdoctor.system.interpreters.venvs import interpreter_with
from oomdoctor.system.recipes.recipes import Sizes, load_recipe, parse_rung

USUAL_SHAPES = {"cuda": ("2048", "16"), "cpu": (str(USUAL_CPU_SHAPE[0]), str(USUAL_CPU_SHAPE[1]))}


def common_request(
    reader: Reader,
    options: ProbeOptions | PlanOptions,
    usual_shape: tuple[str, str],
    span: GpuRange,
    make: Callable[..., SurveyRequest],
    *,
    yours: UserTraining | None,
    versions: tuple[str, ...] = (),
) -> SurveyRequest:
    """A request from the options that `probe` and `plan` share.

    `usual_shape` is the sequence length and the effective batch size to use if none is given.
    `span` is the number of GPUs, or the range that --min searches. `make` takes what is read here,
    and already has what a verb has alone. `yours` is the training of --from, and `versions` are
    those of --with.

    Raises:
        OomDoctorError: `reader` has collected errors, or the recipe or a rung is wrong (exit 2).
    """
    ladder, ranking = options.ladder, options.ranking
    model = model_name(ladder.model or "")
    if not model:
        unnamed = ": the files of --from do not name it; write it after the command"
        reader.fault("MODEL", f"is missing{unnamed if ladder.from_ else ''}")
    for name, option in given_options(options).items():
        value = option.value
        if isinstance(value, str) and not can_say(value, "utf-8"):  # bytes became lone surrogates
            reader.fault(name, f"{value!r} is not UTF-8 text")
    sequence_length = reader.sized("--seq-len", ladder.seq_len or usual_shape[0])
    micro = reader.given(reader.sized, "--micro-batch", ladder.micro_batch)
    effective = effective_batch(reader, ladder, int(usual_shape[1]), span, micro, yours)
    ranks = 1 if _shares_rows(ladder, yours) else span.high
    asked = shutil.which(ladder.python or sys.executable)
    python = interpreter_with(versions) if versions else asked  # the former may not exist yet
    if python is None:
        reader.fault("--python", f"{ladder.python} is not a program")
    headroom = reader.share("--headroom", ladder.headroom)
    rank_by: RankBy = reader.choice("--rank-by", ranking.rank_by, get_args(RankBy))
    tokens = reader.count("--tokens", ranking.tokens)
    task: TaskChoice = reader.choice("--task", ladder.task, get_args(TaskChoice))
    routing: Routing | None = reader.given(
        lambda option, text: reader.choice(option, text, get_args(Routing)),
        "--routing",
        ladder.routing,
    )
    source: SourceChoice = reader.choice("--source", ladder.source, get_args(SourceChoice))
    lengths = lengths_request(reader, ladder, sequence_length)
    training = training_request(reader, ladder, lengths=lengths is not None)
    reader.check()
    assert python is not None  # otherwise `check` raised
    if yours is not None and routing is not None:
        yours = replace(yours, config=replace(yours.config, routing=routing))
    recipe = _recipe(
        ladder_name(ladder, span.high, quiet=options.quiet),
        tuple(ladder.rung or ()),
        sizes=Sizes(
            sequence_length=sequence_length,
            effective_batch_size=-(-effective // ranks) * ranks,
            micro_batch_size=micro,
            gpus=span.high,
            routing=routing,
        ),
        yours=yours,
    )
    request = make(
        model=ModelRef(
            name=model,
            revision=ladder.revision,
            task=task,
            source=source,
            trust_remote_code=ladder.trust_remote_code,
        ),
        recipe=recipe,
        headroom=headroom,
        sequence_length=sequence_length,
        effective_batch_size=effective,
        micro_batch_size=micro,
        rank_by=rank_by,
        tokens=tokens,
        python=python,
        lengths=lengths,
        fresh=ladder.fresh,
        training=training,
        versions=versions,
        gpus=span.high,
        from_files=tuple(ladder.from_ or ()),
        user_training=yours,
        routing=routing,
    )
    check_sharded(request)
    return request


def _recipe(name: str, rungs: tuple[str, ...], sizes: Sizes, yours: UserTraining | None) -> Recipe:
    """The ladder: the rung of --from first, then those of the recipe, then those of --rung.

    Where --rung names rungs of the recipe, the others are left out.
    """
    recipe = load_recipe(name, **sizes)
    config = yours.config if yours is not None else None
    listed, chosen = {rung.label: rung for rung in recipe.rungs}, chosen_by_name(rungs)
    for label in chosen if listed else ():
        if label not in listed:
            raise unknown_rung("--rung", label, recipe.name, list(listed))
    own = [parse_rung(text, config, **sizes) for text in rungs if text not in listed]
    ladder = {
        rung.config.rung_key(): rung for rung in recipe.rungs if not chosen or rung.label in chosen
    }
    if yours is not None:
        key = yours.config.rung_key()
        ladder = {key: Rung(YOURS, yours.config)} | {
            other: rung for other, rung in ladder.items() if other != key
        }
    for rung in own:
        key = rung.config.rung_key()
        if any(rung.config != other.config for other in own if other.config.rung_key() == key):
            raise usage_error(
                "same_rung",
                f"two --rung options differ only in their micro-batch size ({rung.label})",
                "leave out micro_batch_size to search for it, or start one run for each",
            )
        labels = {other.label for at, other in ladder.items() if at != key}
        if rung.label in labels:  # the user gave two of them one label
            number = next(n for n in count(2) if f"{rung.label}-{n}" not in labels)
            rung = replace(rung, label=f"{rung.label}-{number}")
        # A typed rung replaces the same one of the recipe: it may fix the micro-batch size.
        ladder[key] = rung
    return replace(recipe, rungs=tuple(ladder.values()), typed=rungs)


def recorded_only(request: SurveyRequest) -> SurveyRequest:
    """The request with only the rungs to record, if there are any.

    Raises:
        OomDoctorError: the ladder has no such rung (exit 2).
    """
    asked = {"--snapshot": request.snapshot, "--trace": request.trace}
    wanted = {label for label in asked.values() if label is not None}
    if not wanted:
        return request
    labels = [rung.label for rung in request.recipe.rungs]
    for option, label in asked.items():
        if label is not None and label not in labels:
            raise unknown_rung(option, label, request.recipe.name, labels)
    rungs = tuple(rung for rung in request.recipe.rungs if rung.label in wanted)
    return replace(request, recipe=replace(request.recipe, rungs=rungs))


def unknown_rung(option: str, label: str, recipe: str, labels: Sequence[str]) -> OomDoctorError:
    """The error that no rung has a label, with those that look like it."""
    near = difflib.get_close_matches(label, labels, 3, 0.3) or labels
    return usage_error(
        "unknown_rung",
        f"{option}: the recipe {recipe} has no configuration {label!r}",
        f"use one of its configurations: {', '.join(near)}; or add one with --rung",
    )


def only(request: SurveyRequest, option: str, label: str) -> SurveyRequest:
    """The request with only the rung of that label, as the recipe or the card names it.

    Raises:
        OomDoctorError: the ladder has no such rung (exit 2).
    """
    assert request.plan is not None
    facts = card_named(request.plan.gpus[0], 0.0).facts
    capability = facts.compute_capability if facts is not None else None
    rungs = tuple(rung for rung in request.recipe.rungs if rung.label == label)
    ladder = ladder_for(rungs or request.recipe.rungs, capability)
    rungs = ladder if rungs else tuple(rung for rung in ladder if rung.label == label)
    if not rungs:
        labels = [rung.label for rung in ladder]
        raise unknown_rung(option, label, request.recipe.name, labels)
    return replace(request, recipe=replace(request.recipe, rungs=rungs))


_SEVERAL = 8  # to show in hints: the GPUs of a usual machine


def read_gpus(reader: Reader, options: LadderOptions) -> GpuRange:
    """The range of `--gpus A..B`; one number is a range of one."""
    if options.gpus is None:
        return GpuRange(1, 1)
    parts = options.gpus.split("..")
    if len(parts) > 2:
        reader.fault("--gpus", f"{options.gpus!r} is neither a number nor a range such as 1..64")
        return GpuRange(1, 1)
    low, *rest = (reader.integer("--gpus", part, 1, MOST_GPUS) for part in parts)
    high = rest[0] if rest else low
    if low > high:
        reader.fault("--gpus", f"{options.gpus!r} is empty; write the smaller number first")
    return GpuRange(min(low, high), high)


def effective_batch(
    reader: Reader,
    options: LadderOptions,
    usual: int,
    span: GpuRange,
    micro: int | None,
    yours: UserTraining | None = None,
) -> int:
    """The effective batch size: as typed, or the smallest usual one that the GPUs share equally.

    A range of GPUs takes any size, which is rounded up for each number of GPUs. Where GPUs share
    rows, each configuration says what it takes.
    """
    one_each = span.low == span.high and not _shares_rows(options, yours)
    gpus = span.high if one_each else 1
    whole = gpus * (micro or 1)
    if options.effective_batch is None:
        effective = usual if gpus == 1 else -(-usual // whole) * whole
    else:
        effective = reader.sized("--effective-batch", options.effective_batch)
    if effective % gpus:
        below, above = effective // gpus * gpus, -(-effective // gpus) * gpus
        near = f"{below} or {above}" if below else str(above)
        reader.fault(
            "--effective-batch", f"{effective} is not a multiple of the {gpus} GPUs; use {near}"
        )
    elif micro is not None and effective % whole:
        shared = f" on each of {gpus} GPUs" if gpus > 1 else ""
        reader.fault(
            "--micro-batch", f"{micro} does not divide the effective batch size {effective}{shared}"
        )
    return effective


def _shares_rows(options: LadderOptions, yours: UserTraining | None) -> bool:
    """Whether GPUs share rows in a rung that was typed, or in that of --from."""
    typed = [text.replace(" ", "") for rung in options.rung or () for text in rung.split(",")]
    shared = yours is not None and yours.config.groups() < yours.config.world_size
    said = ("context_parallel_size=", "sharding=tensor_parallel")
    return shared or any(text.startswith(said) for text in typed)


def ladder_name(options: LadderOptions, gpus: int, *, quiet: bool) -> str:
    """The recipe: the one that was asked for, else the one for one GPU or for several."""
    if options.recipe is not None:
        return options.recipe
    if gpus == 1:
        return "default"
    if not quiet:
        say("note: with --gpus the recipe is sharded; --recipe names another")
    return "sharded"


def check_sharded(request: SurveyRequest) -> None:
    """Check that rungs for several GPUs have them.

    Raises:
        OomDoctorError: --gpus is missing (exit 2).
    """
    fewest = request.plan.fewest if request.plan is not None else None
    yours = request.user_training  # an engine on one GPU, as its files say
    engines = {"none", yours.config.sharding} if yours is not None else {"none"}
    unsaid = [rung for rung in request.recipe.rungs if not says_its_gpus(rung.config)]
    if request.gpus > 1 or fewest is not None or {r.config.sharding for r in unsaid} <= engines:
        return
    name = request.recipe.name
    what = "the configuration trains" if name == "none" else f"the recipe {name} trains"
    raise usage_error(
        "needs_gpus",
        f"{what} on several GPUs, and --gpus is missing",
        command_line(request, {"--gpus": str(_SEVERAL)}),
    )
