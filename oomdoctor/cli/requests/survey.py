"""The part of a request that `probe` and `plan` share: model, ladder, data.

All errors of a command line are reported together.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import get_args

from oomdoctor.cli.options.flatten import leaves
from oomdoctor.cli.options.surveys import PlanOptions, ProbeOptions
from oomdoctor.cli.requests.dataset import lengths_request, training_request
from oomdoctor.cli.requests.gpus import check_sharded, effective_batch, ladder_name
from oomdoctor.cli.requests.reader import Reader, hub_id
from oomdoctor.errors import usage_error
from oomdoctor.records.config import Recipe, Rung
from oomdoctor.records.model import ModelRef, SourceChoice, TaskChoice
from oomdoctor.records.planned.searched import GpuRange
from oomdoctor.records.report import RankBy, SurveyRequest
from oomdoctor.records.user_training import YOURS, UserTraining
from oomdoctor.runs.devices.device import USUAL_CPU_SHAPE
from oomdoctor.system.interpreters.kept import interpreter_with
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
        unnamed = (
            ": the files of --from do not name it; write it after the command"
            if ladder.from_
            else ""
        )
        reader.fault("MODEL", f"is missing{unnamed}")
    for name, value in leaves(options):
        if isinstance(value, str) and not value.isascii() and not _is_text(value):
            reader.fault(option_name(name), f"{value!r} is not UTF-8 text")
    sequence_length = reader.sized("--seq-len", ladder.seq_len or usual_shape[0])
    micro: int | None = None
    if ladder.micro_batch is not None:
        micro = reader.sized("--micro-batch", ladder.micro_batch)
    effective = effective_batch(reader, ladder, int(usual_shape[1]), span, micro)
    if versions:
        python: str | None = interpreter_with(versions)  # may not exist yet
        if ladder.python is not None:
            reader.fault("--with", "cannot be combined with --python, which has its own versions")
    else:
        python = shutil.which(ladder.python or sys.executable)
    if python is None:
        reader.fault("--python", f"{ladder.python} is not a program")
    headroom = reader.share("--headroom", ladder.headroom)
    rank_by: RankBy = reader.choice("--rank-by", ranking.rank_by, get_args(RankBy))
    tokens = reader.count("--tokens", ranking.tokens)
    task: TaskChoice = reader.choice("--task", ladder.task, get_args(TaskChoice))
    source: SourceChoice = reader.choice("--source", ladder.source, get_args(SourceChoice))
    lengths = lengths_request(reader, ladder, sequence_length)
    training = training_request(reader, ladder, lengths=lengths is not None)
    reader.check()
    assert python is not None  # otherwise `check` raised
    recipe = _recipe(
        ladder_name(ladder, span.high, quiet=options.quiet),
        tuple(ladder.rung or ()),
        sizes=Sizes(
            sequence_length=sequence_length,
            effective_batch_size=-(-effective // span.high) * span.high,
            micro_batch_size=micro,
            gpus=span.high,
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
    )
    check_sharded(request)
    return request


def model_name(typed: str) -> str:
    """The absolute path of a folder, because a run may be resumed elsewhere; else the hub id."""
    name = hub_id(typed.strip())
    try:
        folder = Path(name).expanduser()
        return str(folder.resolve()) if name and folder.is_dir() else name
    except (OSError, RuntimeError, ValueError):  # not a valid path on this system
        return name


def _recipe(name: str, rungs: tuple[str, ...], sizes: Sizes, yours: UserTraining | None) -> Recipe:
    """The ladder: the rung of --from first, then those of the recipe, then those of --rung."""
    recipe = load_recipe(name, **sizes)
    config = yours.config if yours is not None else None
    own = [parse_rung(text, config, **sizes) for text in rungs]
    ladder = {rung.config.rung_key(): rung for rung in recipe.rungs}
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
        labels = {known.label for other, known in ladder.items() if other != key}
        if rung.label in labels:  # the user gave two of them one label
            number = next(n for n in count(2) if f"{rung.label}-{n}" not in labels)
            rung = replace(rung, label=f"{rung.label}-{number}")
        # A typed rung replaces the same one of the recipe: it may fix the micro-batch size.
        ladder[key] = rung
    if not ladder:
        raise usage_error(
            "empty_ladder",
            "the ladder has no rungs: --recipe none needs at least one --rung or --from",
            "add --rung method=lora,lora_rank=16, or leave out --recipe",
        )
    return replace(recipe, rungs=tuple(ladder.values()), typed=rungs)


def option_name(name: str) -> str:
    """How the user types the option of this field."""
    words = {"model": "MODEL", "evaluate": "--eval", "from_": "--from"}
    return words.get(name, "--" + name.replace("_", "-"))


def _is_text(value: str) -> bool:
    # Python turns bytes that are not UTF-8 into lone surrogates, which cannot be written to a file.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
