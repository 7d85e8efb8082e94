"""From the options of `plan` to a request: cards, sweeps, what is solved for, a rung for --why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

from oomdoctor.analysis.command_line import SOLVED_WORDS
from oomdoctor.cli.ladder_from import with_files
from oomdoctor.cli.ladder_request import USUAL_SHAPES, common_request, only, read_gpus
from oomdoctor.cli.option_reader import Reader
from oomdoctor.cli.options.verbs import PlanOptions
from oomdoctor.commands.devices.cards import card_named, cards_of
from oomdoctor.commands.devices.emulated import check_vendor
from oomdoctor.commands.plan.picks import price_list
from oomdoctor.commands.plan.tasks import PLANNED
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.machine import real_name
from oomdoctor.records.report.plan import CardOrder, Interconnect, PlanRequest, Sweep, SweptKey
from oomdoctor.records.report.report import SurveyRequest
from oomdoctor.records.report.searched import OF_GRPO, SolvedKey
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.interpreters.venvs import parse_versions, untested
from oomdoctor.system.machine.capabilities import minimum_versions
from oomdoctor.system.machine.devices import choose_device
from oomdoctor.system.machine.nvml import list_gpus
from oomdoctor.units import format_bytes

_SOLVED = {word: key for key, word in SOLVED_WORDS.items()}
_SWEPT: dict[str, SweptKey] = {SOLVED_WORDS[key]: key for key in get_args(SweptKey)}
_ORDERS: tuple[CardOrder, ...] = get_args(CardOrder)
_LINKS: tuple[Interconnect, ...] = get_args(Interconnect)
_MOST_VALUES = 16


def plan_request(options: PlanOptions) -> SurveyRequest:
    """The request that a command line of `plan` describes.

    Raises:
        OomDoctorError: an option, the recipe or a rung is wrong (exit 2).
    """
    reader = Reader("plan", quiet=options.quiet)
    ladder, training = with_files(reader, options.ladder, quiet=options.quiet)
    typed, options = options, replace(options, ladder=ladder)
    span = read_gpus(reader, options.ladder)
    plan = PlanRequest(
        gpus=_named_gpus(reader, tuple(options.gpu or ()), all_gpus=options.all_gpus),
        all_gpus=options.all_gpus,
        sweep=_sweep(reader, options),
        why=options.why,
        min_memory_bytes=reader.given(reader.size, "--min-vram", options.min_vram),
        sort=_card_order(reader, options),
        prices=None
        if options.price is None
        else reader.read("--price", options.price, price_list, None),
        solve=_solve(reader, options),
        verify=options.verify,
        fewest=span if options.fewest else None,
        interconnect=reader.choice("--interconnect", options.interconnect, _LINKS),
        host_memory_bytes=reader.given(reader.size, "--host-memory", options.host_memory),
    )
    reader.exclude(typed, options)
    if plan.verify and len(plan.gpus) == 1:
        reader.read("--verify", card_named(plan.gpus[0], 0.0), check_vendor, None)
    _check_least(reader, plan)
    make = partial(PLANNED, plan=plan)
    versions = _versions(reader, options)
    request = common_request(
        reader, options, USUAL_SHAPES["cuda"], span, make, yours=training, versions=versions
    )
    if plan.solve == "lora_rank":
        request = _solvable(
            request,
            lambda config: config.method != "full",
            ("no_adapters", "has a LoRA rank"),
            "use --recipe lora or --recipe qlora, or add a configuration: --rung method=lora",
        )
    if plan.solve in OF_GRPO:
        request = _solvable(
            request,
            lambda config: config.objective == "grpo",
            ("no_grpo", "trains with GRPO"),
            "use --recipe preference, or add a configuration: --rung objective=grpo",
        )
    if plan.why is not None:
        request = only(request, "--why", plan.why)
        plan = replace(plan, why=request.recipe.rungs[0].label)
        return replace(request, plan=plan)
    if options.snapshot is not None:
        request = only(request, "--snapshot", options.snapshot)
        return replace(request, snapshot=request.recipe.rungs[0].label)
    if options.trace is not None:
        request = only(request, "--trace", options.trace)
        return replace(request, trace=request.recipe.rungs[0].label)
    return request


def _named_gpus(reader: Reader, named: tuple[str, ...], *, all_gpus: bool) -> tuple[str, ...]:
    """The catalogue names of the cards; by default the GPU of this machine."""
    if all_gpus:
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
    card = reader.read("--gpu", name, partial(card_named, headroom=0.0), None)
    if card is None:
        return False
    if card.facts is None:
        reader.note_size("--gpu", name)
    return True


def _gpu_here() -> str | None:
    """The name of this machine's first GPU, or its size if the card is unknown."""
    try:
        gpu = choose_device("auto", list_gpus()).gpu
    except OomDoctorError:
        return None  # several GPUs that cannot be distinguished: the user has to name one
    if gpu is None:
        return None
    listed = find_gpu(real_name(gpu.name), gpu.total_bytes)
    return listed.name if listed is not None else f"{gpu.total_bytes}B"


def _card_order(reader: Reader, options: PlanOptions) -> CardOrder | None:
    """The order of several cards; None for one card, and for a sweep."""
    if options.sort is not None:
        return reader.choice("--sort", options.sort, _ORDERS)
    several = options.all_gpus or len(options.gpu or ()) > 1
    if options.sweep is not None or not several:
        return None
    return "speed" if options.price is None else "cost"


def _check_least(reader: Reader, plan: PlanRequest) -> None:
    """Check that some card has the memory of --min-vram."""
    if plan.min_memory_bytes is not None and (plan.all_gpus or len(plan.gpus) > 1):
        cards = cards_of(replace(plan, min_memory_bytes=None), 0.0)
        if cards and plan.min_memory_bytes > cards[-1].memory_bytes:
            most = f"{cards[-1].name} has {format_bytes(cards[-1].memory_bytes)}"
            reader.fault("--min-vram", f"is more than any card has: {most}")


def _versions(reader: Reader, options: PlanOptions) -> tuple[str, ...]:
    """The library versions asked for; a note for each that is older than what is tested."""
    none: tuple[str, ...] = ()
    if options.with_ is None:
        return none
    versions = reader.read("--with", options.with_, parse_versions, none)
    for text in untested(versions, minimum_versions()):
        reader.note("--with", text)
    return versions


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
    sweep = Sweep(key, reader.read("--sweep", values, _values, (1,)))
    batch = ladder.effective_batch or USUAL_SHAPES["cuda"][1]
    if key == "micro_batch_size" and batch.isdigit() and int(batch):
        for value in sweep.values:
            if int(batch) % value:
                reader.fault("--sweep", f"{value} does not divide the effective batch size {batch}")
    return sweep


def _solve(reader: Reader, options: PlanOptions) -> SolvedKey | None:
    text = options.solve
    if text is None:
        return None
    option = text.strip().removeprefix("--")
    if option not in _SOLVED:
        reader.fault("--solve", f"cannot solve for {text!r}: expected one of {', '.join(_SOLVED)}")
        return None
    return _SOLVED[option]


def _solvable(
    request: SurveyRequest, has: Callable[[TrainConfig], bool], without: tuple[str, str], hint: str
) -> SurveyRequest:
    """The request with the rungs that have the setting in question.

    `without` are the code of the error, and what no rung does or has.

    Raises:
        OomDoctorError: the ladder has no such rung (exit 2).
    """
    rungs = tuple(rung for rung in request.recipe.rungs if has(rung.config))
    if not rungs:
        code, what = without
        recipe = request.recipe.name
        raise usage_error(code, f"--solve: no configuration of the recipe {recipe} {what}", hint)
    return replace(request, recipe=replace(request.recipe, rungs=rungs))


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
