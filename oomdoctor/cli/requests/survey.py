"""From options to a `SurveyRequest`, with all faults of a command line at once.

`common_request` reads what `probe` and `plan` share; what only `plan` has is in `plan_request`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

from oomdoctor.cli.options.reader import Reader, hub_id
from oomdoctor.cli.requests.rows import lengths_request
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.config import Recipe
from oomdoctor.records.model import ModelRef, SourceChoice, TaskChoice
from oomdoctor.records.report import RankBy, SurveyRequest
from oomdoctor.records.result import WeightsChoice
from oomdoctor.system.machine.devices import choose_device, list_gpus
from oomdoctor.system.recipes.recipes import Sizes, load_recipe, parse_rung

# What may differ when a run goes on: none of it changes what a rung measures.
_FREE = {
    "rank_by": "rank_by",
    "tokens": "tokens",
    "time_limit": "time_limit_s",
    "rung_timeout": "rung_limit_s",
}
USUAL_SHAPES = {"cuda": ("2048", "16"), "cpu": ("64", "4")}
_HIGHEST_SEED = 2**63 - 1  # torch takes seeds of 64 bits with a sign
_NOT_IN_REQUEST = {"model", "resume", "wait", "format_", "json_", "output_file", "verbose", "quiet"}


def new_request(given: Mapping[str, Any]) -> SurveyRequest:
    """The request that the parameters of `probe` describe; keys are its parameter names.

    Raises:
        OomDoctorError: an option, the recipe or a rung is wrong (exit 2).
    """
    reader = Reader("probe")
    usual_length, usual_batch = _usual_shape(given["device"])
    values = {
        "vram_bytes": reader.size("--vram", given["vram"]),
        "weights": reader.choice("--weights", given["weights"], get_args(WeightsChoice)),
        "eval_batch_size": reader.integer("--eval-batch", given["eval_batch"]),
        "seed": reader.integer("--seed", given["seed"], 0, _HIGHEST_SEED),
        "device": given["device"],
        "evaluate": given["evaluate"],
        "predict": given["predict"],
        **_limits(reader, given),
    }
    return common_request(reader, given, usual_length, usual_batch, values)


def common_request(
    reader: Reader,
    given: Mapping[str, Any],
    usual_length: str,
    usual_batch: str,
    values: Mapping[str, Any],
) -> SurveyRequest:
    """A request of the options that `probe` and `plan` share, and of `values` read elsewhere.

    Raises:
        OomDoctorError: an option, here or before, the recipe or a rung is wrong (exit 2).
    """
    model = _model_name(given["model"] or "")
    if not model:
        reader.fault("MODEL", "is missing")
    for name, value in given.items():
        if isinstance(value, str) and not value.isascii() and not _is_text(value):
            reader.fault(_option(name), f"{value!r} is not text in UTF-8")
    sequence_length = reader.integer("--seq-len", given["seq_len"] or usual_length)
    effective = reader.integer("--effective-batch", given["effective_batch"] or usual_batch)
    micro = given["micro_batch"]
    if micro is not None:
        micro = reader.integer("--micro-batch", micro)
        if effective % micro:
            reader.fault(
                "--micro-batch", f"{micro} does not divide the effective batch {effective}"
            )
    python = shutil.which(given["python"] or sys.executable)
    if python is None:
        reader.fault("--python", f"{given['python']} is not a program")
    headroom = reader.share("--headroom", given["headroom"])
    rank_by = reader.choice("--rank-by", given["rank_by"], get_args(RankBy))
    tokens = reader.count("--tokens", given["tokens"])
    reference = ModelRef(
        name=model,
        revision=given["revision"],
        task=reader.choice("--task", given["task"], get_args(TaskChoice)),
        source=reader.choice("--source", given["source"], get_args(SourceChoice)),
        trust_remote_code=given["trust_remote_code"],
    )
    lengths = lengths_request(reader, given, sequence_length)
    reader.check()
    assert python is not None  # else `check` raised; said for the type checker
    return SurveyRequest(
        model=reference,
        recipe=_recipe(given["recipe"], given["rung"] or (), sequence_length, effective, micro),
        sequence_length=sequence_length,
        effective_batch_size=effective,
        micro_batch_size=micro,
        headroom=headroom,
        rank_by=rank_by,
        tokens=tokens,
        python=python,
        lengths=lengths,
        **values,
    )


def resumed_request(
    stored: SurveyRequest, given: Mapping[str, Any], typed: frozenset[str]
) -> SurveyRequest:
    """A stored request with what may change anew; `typed` are the parameters that were typed.

    Raises:
        OomDoctorError: the run is a plan, or an option was typed that would make it another
            survey (exit 2).
    """
    if stored.plan is not None:
        raise usage_error(
            "not_a_survey",
            "the run is a plan, which there is nothing to go on with",
            "run `oomdoctor plan` again: it takes seconds",
        )
    reader = Reader("probe")
    for name in sorted(typed - set(_FREE) - _NOT_IN_REQUEST):
        reader.fault(_option(name), "is fixed by the run that --resume goes on with")
    if given["model"] is not None and stored.model.name not in (
        given["model"],
        _model_name(given["model"]),
    ):
        reader.fault("MODEL", f"the run is about {stored.model.name}, not {given['model']}")
    values = _free_values(reader, given)
    reader.check()
    return replace(stored, **{_FREE[name]: values[_FREE[name]] for name in typed & set(_FREE)})


def _model_name(typed: str) -> str:
    """A folder by its whole path, because --resume may come from anywhere; else the hub id."""
    name = hub_id(typed.strip())
    try:
        folder = Path(name).expanduser()
        return str(folder.resolve()) if name and folder.is_dir() else name
    except (OSError, RuntimeError, ValueError):  # no path that this system can have
        return name


def _usual_shape(device: str) -> tuple[str, str]:
    """Sequence length and effective batch where none was given: what the device does in minutes."""
    try:
        chosen = choose_device(device, list_gpus())
    except OomDoctorError:
        return USUAL_SHAPES["cuda"]  # the survey says what is wrong with the device
    return USUAL_SHAPES[chosen.type]


def _free_values(reader: Reader, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rank_by": reader.choice("--rank-by", given["rank_by"], get_args(RankBy)),
        "tokens": reader.count("--tokens", given["tokens"]),
        **_limits(reader, given),
    }


def _limits(reader: Reader, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "time_limit_s": reader.duration("--time-limit", given["time_limit"]),
        "rung_limit_s": reader.duration("--rung-timeout", given["rung_timeout"]),
    }


def _recipe(
    name: str, rungs: tuple[str, ...], sequence_length: int, effective: int, micro: int | None
) -> Recipe:
    sizes = Sizes(
        sequence_length=sequence_length, effective_batch_size=effective, micro_batch_size=micro
    )
    recipe = load_recipe(name, **sizes)
    own = [parse_rung(text, **sizes) for text in rungs]
    ladder = {rung.config.rung_key(): rung for rung in recipe.rungs}
    for rung in own:
        key = rung.config.rung_key()
        if any(rung.config != other.config for other in own if other.config.rung_key() == key):
            raise usage_error(
                "same_rung",
                f"two --rung differ in nothing but the micro-batch size ({rung.label})",
                "leave micro_batch_size out to have it searched, or start a run for each",
            )
        labels = {known.label for other, known in ladder.items() if other != key}
        if rung.label in labels:  # another configuration, but alike: two rows need two names
            number = next(n for n in count(2) if f"{rung.label}-{n}" not in labels)
            rung = replace(rung, label=f"{rung.label}-{number}")
        # The same rung of the recipe gives way: what was typed may fix its micro-batch size.
        ladder[key] = rung
    if not ladder:
        raise usage_error(
            "empty_ladder",
            "the ladder has no rungs: --recipe none without a --rung",
            "add --rung method=lora,lora_rank=16, or leave out --recipe",
        )
    return replace(recipe, rungs=tuple(ladder.values()))


def _option(name: str) -> str:
    words = {"model": "MODEL", "evaluate": "--eval"}
    return words.get(name, "--" + name.replace("_", "-"))


def _is_text(value: str) -> bool:
    # Bytes of the command line that are not UTF-8 arrive as lone surrogates, which no file and no
    # document can hold.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
