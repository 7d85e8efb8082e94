"""From the options of `probe` to a `SurveyRequest`, and the part that `plan` shares.

All errors of a command line are reported together.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import get_args

from oomdoctor.analysis.command_line import command_line
from oomdoctor.cli.options.flatten import leaves
from oomdoctor.cli.options.planning import PlanOptions
from oomdoctor.cli.options.probing import ProbeOptions
from oomdoctor.cli.requests.dataset import lengths_request, training_request
from oomdoctor.cli.requests.gpus import check_sharded, effective_batch, ladder_name, read_gpus
from oomdoctor.cli.requests.reader import Reader, hub_id
from oomdoctor.cli.requests.rungs import recorded_only
from oomdoctor.emulator.card import MAX_DEVICES, split_count
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.config import MOST_GPUS, Recipe
from oomdoctor.records.dataset import TrainingRequest
from oomdoctor.records.fewest import GpuRange
from oomdoctor.records.model import ModelRef, SourceChoice, TaskChoice
from oomdoctor.records.plan import PlanRequest
from oomdoctor.records.report import RankBy, SurveyRequest
from oomdoctor.records.result import WeightsChoice
from oomdoctor.runs.device import USUAL_CPU_SHAPE
from oomdoctor.runs.emulated import emulated_gpus
from oomdoctor.system.environment import slurm
from oomdoctor.system.interpreters.kept import interpreter_with
from oomdoctor.system.machine.devices import choose_device, list_gpus
from oomdoctor.system.recipes.recipes import Sizes, load_recipe, parse_rung
from oomdoctor.units import size_note

# With --resume these may change, because they do not affect what a rung measures ...
_WRITING_S = 60.0  # before the end of a Slurm job
_FREE = frozenset({"rank_by", "tokens", "rows", "epochs", "time_limit", "rung_timeout"})
# ... and these are not part of a request. MODEL is checked against the run.
_NOT_IN_REQUEST = frozenset(
    {"model", "resume", "wait", "format_", "json_", "output_file", "verbose", "quiet"}
)
USUAL_SHAPES = {"cuda": ("2048", "16"), "cpu": (str(USUAL_CPU_SHAPE[0]), str(USUAL_CPU_SHAPE[1]))}
_HIGHEST_SEED = 2**63 - 1  # torch takes signed 64-bit seeds


@dataclass(frozen=True, slots=True)
class RungRuns:
    """How the rungs are run: parsed from the options of `probe`, fixed by `plan`.

    `versions` are those of --with.
    """

    device: str
    vram_bytes: int | None
    weights: WeightsChoice
    evaluate: bool
    eval_batch_size: int
    seed: int
    predict: bool
    time_limit_s: float | None
    rung_limit_s: float
    plan: PlanRequest | None = None
    versions: tuple[str, ...] = ()
    emulate: str | None = None
    snapshot: str | None = None
    trace: str | None = None
    all_ranks: bool = False
    nodes: int = 1


def new_request(options: ProbeOptions) -> SurveyRequest:
    """The request that a command line of `probe` describes.

    Raises:
        OomDoctorError: an option, the recipe or a rung is wrong (exit 2).
    """
    reader = Reader("probe", quiet=options.quiet)
    span = read_gpus(reader, options.ladder)
    if span.low != span.high:
        reader.fault("--gpus", "is one number for probe; `oomdoctor plan` takes a range with --min")
    weights: WeightsChoice = reader.choice("--weights", options.weights, get_args(WeightsChoice))
    emulate, span = _emulate(reader, options, span)
    device = options.device if emulate is None else "cuda"
    runs = RungRuns(
        device=device,
        vram_bytes=None if options.vram is None else reader.size("--vram", options.vram),
        weights=weights,
        evaluate=options.evaluate,
        eval_batch_size=reader.sized("--eval-batch", options.eval_batch),
        seed=reader.integer("--seed", options.seed, 0, _HIGHEST_SEED),
        predict=options.predict,
        time_limit_s=_time_limit(reader, options),
        rung_limit_s=reader.duration("--rung-timeout", options.rung_timeout),
        emulate=emulate,
        snapshot=options.snapshot,
        trace=options.trace,
        all_ranks=reader.choice("--ranks", options.ranks, ("1", "all")) == "all",
        nodes=_nodes(reader, options, span),
    )
    if emulate is None and runs.all_ranks:
        reader.fault("--ranks", "is for emulated GPUs; on others, all ranks run anyway")
    if span.high > 1 and options.device not in ("auto", "cuda", "cpu"):
        reader.fault("--device", "names one device; with --gpus, set CUDA_VISIBLE_DEVICES instead")
    shape = _usual_shape(device) if emulate is None else USUAL_SHAPES["cuda"]
    return recorded_only(common_request(reader, options, shape, runs, span))


def _nodes(reader: Reader, options: ProbeOptions, span: GpuRange) -> int:
    """On how many nodes the ranks run."""
    nodes = reader.integer("--nodes", options.nodes, 1, MOST_GPUS)
    if nodes == 1:
        return 1
    if options.emulate is not None:
        reader.fault("--nodes", "is for real nodes; leave out --emulate, or --nodes")
    elif span.high % nodes or span.high == 1:
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
    if options.device != "auto":
        reader.fault("--emulate", "brings its own GPU; leave out --device")
    try:
        gpus = emulated_gpus(options.emulate)
    except ValueError as error:
        reader.fault("--emulate", str(error))
        return options.emulate, span
    _, name = split_count(options.emulate)
    card = gpus.card
    if card.facts is None and (note := size_note(name)) is not None:
        reader.note("--emulate", note)
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


def common_request(
    reader: Reader,
    options: ProbeOptions | PlanOptions,
    usual_shape: tuple[str, str],
    runs: RungRuns,
    span: GpuRange,
) -> SurveyRequest:
    """A request from the options that `probe` and `plan` share.

    `usual_shape` is the sequence length and the effective batch size to use if none is given.
    `span` is the number of GPUs, or the range that --min searches.

    Raises:
        OomDoctorError: `reader` has collected errors, or the recipe or a rung is wrong (exit 2).
    """
    ladder, ranking = options.ladder, options.ranking
    model = _model_name(ladder.model or "")
    if not model:
        reader.fault("MODEL", "is missing")
    for name, value in leaves(options):
        if isinstance(value, str) and not value.isascii() and not _is_text(value):
            reader.fault(_option(name), f"{value!r} is not UTF-8 text")
    sequence_length = reader.sized("--seq-len", ladder.seq_len or usual_shape[0])
    micro: int | None = None
    if ladder.micro_batch is not None:
        micro = reader.sized("--micro-batch", ladder.micro_batch)
    effective = effective_batch(reader, ladder, int(usual_shape[1]), span, micro)
    if runs.versions:
        python: str | None = interpreter_with(runs.versions)  # may not exist yet
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
    )
    request = SurveyRequest(
        model=ModelRef(
            name=model,
            revision=ladder.revision,
            task=task,
            source=source,
            trust_remote_code=ladder.trust_remote_code,
        ),
        recipe=recipe,
        device=runs.device,
        vram_bytes=runs.vram_bytes,
        headroom=headroom,
        sequence_length=sequence_length,
        effective_batch_size=effective,
        micro_batch_size=micro,
        weights=runs.weights,
        evaluate=runs.evaluate,
        eval_batch_size=runs.eval_batch_size,
        rank_by=rank_by,
        tokens=tokens,
        time_limit_s=runs.time_limit_s,
        rung_limit_s=runs.rung_limit_s,
        python=python,
        seed=runs.seed,
        plan=runs.plan,
        lengths=lengths,
        predict=runs.predict,
        fresh=ladder.fresh,
        training=training,
        versions=runs.versions,
        emulate=runs.emulate,
        snapshot=runs.snapshot,
        trace=runs.trace,
        gpus=span.high,
        all_ranks=runs.all_ranks,
        nodes=runs.nodes,
    )
    check_sharded(request)
    return request


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
    for name in sorted(typed - _FREE - _NOT_IN_REQUEST):
        reader.fault(_option(name), "cannot change when a run is resumed")
    model = options.ladder.model
    if model is not None and stored.model.name not in (model, _model_name(model)):
        reader.fault("MODEL", f"this run is about {stored.model.name}, not {model}")
    rank_by: RankBy = reader.choice("--rank-by", options.ranking.rank_by, get_args(RankBy))
    tokens = reader.count("--tokens", options.ranking.tokens)
    time_limit_s = _time_limit(reader, options)
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
    known = stored.lengths is not None or before is not None
    now = training_request(reader, options.ladder, lengths=known)
    if now is None or not typed & {"rows", "epochs"}:
        return before
    if before is None:
        return now
    return TrainingRequest(
        rows=now.rows if "rows" in typed else before.rows,
        epochs=now.epochs if "epochs" in typed else before.epochs,
    )


def _model_name(typed: str) -> str:
    """The absolute path of a folder, because a run may be resumed elsewhere; else the hub id."""
    name = hub_id(typed.strip())
    try:
        folder = Path(name).expanduser()
        return str(folder.resolve()) if name and folder.is_dir() else name
    except (OSError, RuntimeError, ValueError):  # not a valid path on this system
        return name


def _usual_shape(device: str) -> tuple[str, str]:
    """Default sequence length and effective batch size: what the device can do in minutes."""
    try:
        chosen = choose_device(device, list_gpus())
    except OomDoctorError:
        return USUAL_SHAPES["cuda"]  # the survey reports what is wrong with the device
    return USUAL_SHAPES[chosen.type]


def _time_limit(reader: Reader, options: ProbeOptions) -> float | None:
    """--time-limit, else what is left of the Slurm job, minus the time to write the answer."""
    text = options.time_limit
    if text is not None:
        return reader.duration("--time-limit", text)
    ends_at = slurm().ends_at
    return None if ends_at is None else max(1.0, ends_at - time.time() - _WRITING_S)


def _recipe(name: str, rungs: tuple[str, ...], sizes: Sizes) -> Recipe:
    recipe = load_recipe(name, **sizes)
    own = [parse_rung(text, **sizes) for text in rungs]
    ladder = {rung.config.rung_key(): rung for rung in recipe.rungs}
    for rung in own:
        key = rung.config.rung_key()
        if any(rung.config != other.config for other in own if other.config.rung_key() == key):
            raise usage_error(
                "same_rung",
                f"two --rung options differ only in their micro-batch size ({rung.label})",
                "leave out micro_batch_size to search for it, or start one run for each",
            )
        labels = {known.label for other, known in ladder.items() if other != key}
        if rung.label in labels:  # different configurations whose generated labels are the same
            number = next(n for n in count(2) if f"{rung.label}-{n}" not in labels)
            rung = replace(rung, label=f"{rung.label}-{number}")
        # A typed rung replaces the same one of the recipe: it may fix the micro-batch size.
        ladder[key] = rung
    if not ladder:
        raise usage_error(
            "empty_ladder",
            "the ladder has no rungs: --recipe none needs at least one --rung",
            "add --rung method=lora,lora_rank=16, or leave out --recipe",
        )
    return replace(recipe, rungs=tuple(ladder.values()), typed=rungs)


def _option(name: str) -> str:
    words = {"model": "MODEL", "evaluate": "--eval"}
    return words.get(name, "--" + name.replace("_", "-"))


def _is_text(value: str) -> bool:
    # Python turns bytes that are not UTF-8 into lone surrogates, which cannot be written to a file.
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
