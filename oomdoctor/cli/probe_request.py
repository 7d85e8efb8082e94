"""From the options of `probe` to a `SurveyRequest`: a new one, or the stored one of --resume."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import get_args

from oomdoctor.analysis.command_line import command_line
from oomdoctor.cli.ladder_from import training_request, with_files
from oomdoctor.cli.ladder_request import USUAL_SHAPES, common_request, read_gpus, recorded_only
from oomdoctor.cli.option_reader import Reader, model_name
from oomdoctor.cli.options.verbs import ProbeOptions
from oomdoctor.commands.devices.emulated import emulated_gpus
from oomdoctor.emulator.card import MAX_DEVICES, split_count
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.configuration.faults import MOST_GPUS
from oomdoctor.records.job.dataset import TrainingRequest
from oomdoctor.records.job.result import WeightsChoice
from oomdoctor.records.report.report import RankBy, SurveyRequest
from oomdoctor.records.report.searched import GpuRange
from oomdoctor.system.environment import slurm
from oomdoctor.system.machine.devices import choose_device
from oomdoctor.system.machine.nvml import list_gpus

_WRITING_S = 60.0  # before the end of a Slurm job
_HIGHEST_SEED = 2**63 - 1  # torch takes signed 64-bit seeds


def new_request(options: ProbeOptions) -> SurveyRequest:
    """The request that a command line of `probe` describes.

    Raises:
        OomDoctorError: an option, the recipe or a rung is wrong (exit 2).
    """
    reader = Reader("probe", quiet=options.quiet)
    ladder, training = with_files(
        reader, options.ladder, emulate=options.emulate, quiet=options.quiet
    )
    typed, options = options, replace(options, ladder=ladder)
    reader.exclude(typed, options)
    span = read_gpus(reader, options.ladder)
    if span.low != span.high:
        reader.fault("--gpus", "is one number for probe; `oomdoctor plan` takes a range with --min")
    weights: WeightsChoice = reader.choice("--weights", options.weights, get_args(WeightsChoice))
    emulate, span = _emulate(reader, options, span)
    device = options.device if emulate is None else "cuda"
    all_ranks = reader.choice("--ranks", options.ranks, ("1", "all")) == "all"
    make = partial(
        SurveyRequest,
        device=device,
        vram_bytes=reader.given(reader.size, "--vram", options.vram),
        weights=weights,
        evaluate=options.evaluate,
        eval_batch_size=reader.sized("--eval-batch", options.eval_batch),
        seed=reader.integer("--seed", options.seed, 0, _HIGHEST_SEED),
        predict=options.predict,
        time_limit_s=time_limit(reader, options),
        rung_limit_s=reader.duration("--rung-timeout", options.rung_timeout),
        emulate=emulate,
        snapshot=options.snapshot,
        trace=options.trace,
        all_ranks=all_ranks,
        nodes=_nodes(reader, options, span),
    )
    shape = _usual_shape(device) if emulate is None else USUAL_SHAPES["cuda"]
    return recorded_only(common_request(reader, options, shape, span, make, yours=training))


def _nodes(reader: Reader, options: ProbeOptions, span: GpuRange) -> int:
    """On how many nodes the ranks run."""
    nodes = reader.integer("--nodes", options.nodes, 1, MOST_GPUS)
    if nodes == 1 or options.emulate is not None:
        return nodes
    if span.high % nodes or span.high == 1:
        reader.fault("--nodes", f"{nodes} nodes need a multiple of {nodes} as --gpus")
    elif slurm().job_id is None:
        reader.fault("--nodes", f"needs a Slurm job: salloc --nodes {nodes} oomdoctor probe ...")
    return nodes


def _emulate(reader: Reader, options: ProbeOptions, span: GpuRange) -> tuple[str | None, GpuRange]:
    """The emulated card by its published name, with its number if there are several.

    That number is also how many GPUs a rung trains on, unless --gpus says it.
    """
    if options.emulate is None:
        return None, span
    gpus = reader.read("--emulate", options.emulate, emulated_gpus, None)
    if gpus is None:
        return options.emulate, span
    _, name = split_count(options.emulate)
    card = gpus.card
    if card.facts is None:
        reader.note_size("--emulate", name)
    count = gpus.count
    if options.ladder.gpus is None:
        span = GpuRange(count, count)
    elif count == 1:
        count = span.high
        if count > MAX_DEVICES:
            reader.fault("--gpus", f"at most {MAX_DEVICES} GPUs can be emulated; use plan for more")
    elif count != span.high:
        reader.fault("--emulate", f"has {count} GPUs, but --gpus says {span.high}")
    name = name if card.facts is None or card.variants else card.name
    return (name if count == 1 else f"{count}x{name}"), span


def _usual_shape(device: str) -> tuple[str, str]:
    """Default sequence length and effective batch size: what the device can do in minutes."""
    try:
        chosen = choose_device(device, list_gpus())
    except OomDoctorError:
        return USUAL_SHAPES["cuda"]  # the survey reports what is wrong with the device
    return USUAL_SHAPES[chosen.type]


def time_limit(reader: Reader, options: ProbeOptions) -> float | None:
    """--time-limit, else what is left of the Slurm job, minus the time to write the answer."""
    text = options.time_limit
    if text is not None:
        return reader.duration("--time-limit", text)
    ends_at = slurm().ends_at
    return None if ends_at is None else max(1.0, ends_at - time.time() - _WRITING_S)


def resumed_request(
    stored: SurveyRequest, options: ProbeOptions, typed: frozenset[str]
) -> SurveyRequest:
    """The stored request, updated with the options in `typed` that may change.

    Raises:
        OomDoctorError: the run is a plan, or an option in `typed` would change what is measured
            (exit 2).
    """
    if stored.plan is not None:
        raise usage_error(
            "not_a_survey",
            "this run is a plan; only probes can be resumed",
            f"make it again: {command_line(stored)}",
        )
    reader = Reader("probe", quiet=options.quiet)
    reader.exclude(options, typed=typed)
    model = options.ladder.model
    if model is not None and stored.model.name not in (model, model_name(model)):
        reader.fault("MODEL", f"this run is about {stored.model.name}, not {model}")
    rank_by: RankBy = reader.choice("--rank-by", options.ranking.rank_by, get_args(RankBy))
    tokens = reader.count("--tokens", options.ranking.tokens)
    time_limit_s = time_limit(reader, options)
    rung_limit_s = reader.duration("--rung-timeout", options.rung_timeout)
    training = _resumed_training(reader, stored, options, typed)
    reader.check()
    return replace(
        stored,
        rank_by=rank_by if "rank_by" in typed else stored.rank_by,
        tokens=tokens if "tokens" in typed else stored.tokens,
        time_limit_s=stored.time_limit_s if time_limit_s is None else time_limit_s,
        rung_limit_s=rung_limit_s if "rung_timeout" in typed else stored.rung_limit_s,
        training=training,
    )


def _resumed_training(
    reader: Reader, stored: SurveyRequest, options: ProbeOptions, typed: frozenset[str]
) -> TrainingRequest | None:
    """The stored rows and epochs, with those that were typed now."""
    before = stored.training
    has_lengths = stored.lengths is not None or before is not None
    now = training_request(reader, options.ladder, lengths=has_lengths)
    if now is None and "epochs" in typed:
        reader.fault("--epochs", "this run knows no rows of your data; add --rows N")
    if now is None or not typed & {"rows", "epochs"}:
        return before
    if before is None:
        return now
    return TrainingRequest(
        rows=now.rows if "rows" in typed else before.rows,
        epochs=now.epochs if "epochs" in typed else before.epochs,
    )
