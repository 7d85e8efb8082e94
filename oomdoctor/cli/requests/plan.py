"""From the options of `plan` to a request: the devices, the sweep, the rung to take apart."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace

from oomdoctor.cli.options.planning import PlanOptions
from oomdoctor.cli.requests.reader import Reader
from oomdoctor.cli.requests.survey import USUAL_SHAPES, RungRuns, common_request
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.plan import PlanRequest, Sweep, SweptKey
from oomdoctor.records.report import SurveyRequest
from oomdoctor.runs.plan.cards import card_named
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.machine.devices import choose_device, list_gpus

_SWEPT: dict[str, SweptKey] = {"seq-len": "sequence_length", "micro-batch": "micro_batch_size"}
_MOST_VALUES = 16
_RUNG_LIMIT_S = 600.0  # a simulation takes seconds; one that hangs must not block the plan


def plan_request(options: PlanOptions) -> SurveyRequest:
    """The request that a command line of `plan` describes.

    Raises:
        OomDoctorError: an option, the recipe or a rung is wrong (exit 2).
    """
    reader = Reader("plan")
    plan = PlanRequest(
        gpus=_gpus(reader, tuple(options.gpu or ()), all_gpus=options.all_gpus),
        all_gpus=options.all_gpus,
        sweep=_sweep(reader, options),
        why=options.why,
    )
    if plan.why is not None and (plan.all_gpus or plan.sweep is not None or len(plan.gpus) > 1):
        reader.fault(
            "--why", "needs exactly one card: give one --gpu, without --all-gpus or --sweep"
        )
    if options.ladder.lengths is not None:
        for option, value in (("--sweep", options.sweep), ("--why", options.why)):
            if value is not None:
                reader.fault(option, "cannot be combined with --lengths; use --seq-len")
    runs = RungRuns(
        device="cuda",
        vram_bytes=None,
        weights="synthetic",
        evaluate=False,
        eval_batch_size=8,
        seed=0,
        predict=False,
        time_limit_s=None,
        rung_limit_s=_RUNG_LIMIT_S,
        plan=plan,
    )
    request = common_request(reader, options, USUAL_SHAPES["cuda"], runs)
    return request if plan.why is None else _only(request, plan.why)


def _gpus(reader: Reader, named: tuple[str, ...], *, all_gpus: bool) -> tuple[str, ...]:
    """The catalogue names of the cards; by default the GPU of this machine."""
    if all_gpus:
        if named:
            reader.fault("--all-gpus", "already includes every card; leave out --gpu")
        return ()
    if not named:
        here = _gpu_here()
        if here is None:
            reader.fault(
                "--gpu", "is missing, and this machine has no GPU; name a card such as 'RTX 4090'"
            )
            return ()
        named = (here,)
    return tuple(name for name in named if _is_card(reader, name))


def _is_card(reader: Reader, name: str) -> bool:
    try:
        card_named(name, 0.0)
    except ValueError as error:
        reader.fault("--gpu", str(error))
        return False
    return True


def _gpu_here() -> str | None:
    """The name of this machine's first GPU, or its size if the card is unknown."""
    try:
        gpu = choose_device("auto", list_gpus()).gpu
    except OomDoctorError:
        return None  # several GPUs that cannot be distinguished: the user has to name one
    if gpu is None:
        return None
    known = find_gpu(gpu.name, gpu.total_bytes)
    return known.name if known is not None else f"{gpu.total_bytes}B"


def _sweep(reader: Reader, options: PlanOptions) -> Sweep | None:
    text, ladder = options.sweep, options.ladder
    if text is None:
        return None
    option, _, values = text.partition("=")
    option = option.strip().removeprefix("--")
    if option not in _SWEPT:
        reader.fault("--sweep", f"cannot sweep {text!r}: expected seq-len=A..B or micro-batch=A..B")
        return None
    key = _SWEPT[option]
    fixed = ladder.seq_len if key == "sequence_length" else ladder.micro_batch
    if fixed is not None:
        reader.fault(f"--{option}", "is already set by --sweep; leave it out")
    sweep = Sweep(key, reader.read("--sweep", values, _values, (1,)))
    batch = ladder.effective_batch or USUAL_SHAPES["cuda"][1]
    if key == "micro_batch_size" and batch.isdigit() and int(batch):
        for value in sweep.values:
            if int(batch) % value:
                reader.fault("--sweep", f"{value} does not divide the effective batch size {batch}")
    return sweep


def _values(text: str) -> tuple[int, ...]:
    """`512..4096` gives 512, 1024, 2048, 4096; `8,1,2` gives 1, 2, 8."""
    span = re.fullmatch(r"\s*(\d+)\s*\.\.\s*(\d+)\s*", text)
    if span is not None:
        low, high = int(span[1]), int(span[2])
        values = {high, *(low << step for step in range(64) if low and low << step <= high)}
        values = values if 0 < low <= high else set()
    else:
        parts = [part.strip() for part in text.split(",")]
        values = {int(part) for part in parts} if all(map(str.isdigit, parts)) else set()
    if not values or min(values) < 1:
        raise ValueError(
            f"{text!r} is not a range of whole numbers; write 512..32768 or 512,1024,4096"
        )
    if len(values) > _MOST_VALUES:
        raise ValueError(f"{text!r} has {len(values)} values; the maximum is {_MOST_VALUES}")
    return tuple(sorted(values))


def _only(request: SurveyRequest, label: str) -> SurveyRequest:
    """The request with only the rung of that label.

    Raises:
        OomDoctorError: the ladder has no such rung (exit 2).
    """
    rungs = tuple(rung for rung in request.recipe.rungs if rung.label == label)
    if not rungs:
        labels = [rung.label for rung in request.recipe.rungs]
        near = difflib.get_close_matches(label, labels, 3, 0.3) or labels
        raise usage_error(
            "unknown_rung",
            f"--why: the recipe {request.recipe.name} has no rung {label!r}",
            f"use one of its rungs: {', '.join(near)}; or add one with --rung",
        )
    return replace(request, recipe=replace(request.recipe, rungs=rungs))
