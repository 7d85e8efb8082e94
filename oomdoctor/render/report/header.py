"""The head of the page: what came out, of which model, on which device, within which budget."""

from __future__ import annotations

from oomdoctor.records.machine import Machine
from oomdoctor.records.plan import CardPlan
from oomdoctor.records.report import Budget, ModelFacts, Report, SurveyRequest
from oomdoctor.render.blocks import Block, Facts
from oomdoctor.render.words import SWEPT_WORDS
from oomdoctor.units import format_bytes, format_count, format_seconds

_SOURCES = {
    "local": "config from the local folder",
    "cache": "config from the Hugging Face cache",
    "hub": "config from the Hugging Face hub",
    "catalogue": "config from the built-in catalogue",
}
_RANKED_BY = {
    "throughput": "ranked by throughput",
    "memory": "ranked by memory",
    "micro-batch": "ranked by micro-batch size",
}

_PREDICTED = (
    "predicted: the step ran without a device and its allocations through a model of PyTorch's "
    "allocator; times are estimates (~) by operators and the card's peaks"
)


def headline(report: Report) -> str:
    """One sentence: how many rungs fit, how it ended, how long it took."""
    name = f"{report.tool.name} {report.tool.version} {report.command}"
    took = format_seconds(report.elapsed_s)
    total = len(report.results)
    fitting = sum(result.outcome == "fits" for result in report.results)
    missed = sum(result.outcome in ("oom", "host_oom") for result in report.results)
    others = total - fitting - missed
    if report.cards and not total:
        return f"{name}: {_across(report)}; {took}"
    counts = f"{fitting} of {total} rungs fit"
    if missed:
        counts += f", {missed} ran out of memory"
    if others:
        counts += f", {others} not {'predicted' if is_plan(report) else 'measured'}"
    if report.status == "interrupted":
        return f"{name}: interrupted after {took}; so far {counts}"
    if not total:
        ended = "stopped by an error" if report.errors else "no rung was tried"
        return f"{name}: {ended} after {took}"
    return f"{name}: {counts}; {took}"


def is_plan(report: Report) -> bool:
    """Whether the report predicts instead of measuring."""
    return report.command == "plan"


def header(report: Report) -> list[Block]:
    """Model, device, budget and training; nothing where the survey did not come that far."""
    pairs = []
    if report.model is not None:
        pairs.append(("Model", _model(report.model)))
    if report.machine is not None:
        told = _targets(report, report.machine) if is_plan(report) else _device(report.machine)
        pairs.append(("Device", told))
    if report.budget is not None and report.machine is not None:
        planned = is_plan(report) and len(report.cards) == 1
        told = _card(report.cards[0]) if planned else _budget(report.budget, report.machine)
        pairs.append(("Budget", told))
    if report.request is not None:
        pairs.append(("Training", _training(report.request)))
    if is_plan(report) and report.cards:
        pairs.append(("Evidence", _PREDICTED))
    if report.run_dir is not None:
        pairs.append(("Run", report.run_dir))
    return [Facts(tuple(pairs))] if pairs else []


def _model(model: ModelFacts) -> str:
    revision = f" at revision {model.revision}" if model.revision else ""
    experts = ", mixture of experts" if model.mixture_of_experts else ""
    return (
        f"{model.id}{revision}: {model.architecture}, {format_count(model.parameters)} parameters"
        f"{experts}, {model.task}; {_SOURCES[model.source]}, weights {model.weights}"
    )


def _across(report: Report) -> str:
    """What a plan for several cards, or a sweep, comes to."""
    total = len(report.cards)
    cards = "1 card" if total == 1 else f"{total} cards"
    if report.sweep is not None:
        rungs = len({line.key for line in report.sweep.lines})
        key = SWEPT_WORDS[report.sweep.key]
        words = "1 rung" if rungs == 1 else f"{rungs} rungs"
        return f"{words} at {len(report.sweep.values)} values of {key} on {cards}"
    fitting = sum(card.fitting > 0 for card in report.cards)
    return f"something fits on {fitting} of {cards}"


def _targets(report: Report, machine: Machine) -> str:
    """The device of a plan; none of its figures is this machine's but the versions."""
    versions = f"with the code of {', '.join(_libraries(machine))}"
    if len(report.cards) != 1:
        return f"{len(report.cards)} cards, none of them used; {versions}"
    card = report.cards[0]
    capability = (
        f", compute capability {card.compute_capability}" if card.compute_capability else ""
    )
    size = f" ({format_bytes(card.total_bytes)}{capability})" if machine.gpu_name else ""
    return f"{card.name}{size}, not used; {versions}"


def _card(card: CardPlan) -> str:
    return (
        f"{format_bytes(card.usable_bytes)} usable = {format_bytes(card.total_bytes)} "
        f"({card.total_source}) - {format_bytes(card.headroom_bytes)} headroom; about "
        f"{format_bytes(card.context.likely)} of it for the CUDA context and libraries"
    )


def _libraries(machine: Machine) -> list[str]:
    return [
        f"{name} {machine.versions[name]}"
        for name in ("torch", "transformers")
        if machine.versions.get(name)
    ]


def _device(machine: Machine) -> str:
    versions = _libraries(machine)
    if machine.device == "cuda":
        capability = (
            f", compute capability {machine.compute_capability}"
            if machine.compute_capability
            else ""
        )
        driver = [f"driver {machine.driver_version}"] if machine.driver_version else []
        head = f"{machine.gpu_name or 'GPU'} ({format_bytes(machine.total_bytes)}{capability})"
        return ", ".join([head, *driver, *versions])
    head = f"CPU ({machine.cpu_name or 'unknown model'}, {machine.cpu_count} cores)"
    memory = f"{format_bytes(machine.memory_available_bytes)} of memory available"
    return (
        ", ".join([head, memory, *versions])
        + "; memory is tensor bytes counted by the allocation trace"
    )


def _budget(budget: Budget, machine: Machine) -> str:
    free, cap = budget.free_bytes, budget.cap_bytes
    where = "the card" if machine.device == "cuda" else "the host"
    if cap is not None and cap <= free:
        origin = f"{format_bytes(cap)} cap (--vram)"
    else:
        origin = f"{format_bytes(free)} free"
    text = (
        f"{format_bytes(budget.usable_bytes)} usable = {origin} - "
        f"{format_bytes(budget.headroom_bytes)} headroom; {where} has "
        f"{format_bytes(budget.total_bytes)}"
    )
    if cap is not None and cap <= free:
        text += f", {format_bytes(free)} free"
        if machine.device == "cuda" and cap < budget.total_bytes:
            text += (
                f"; speed is this card's ({machine.gpu_name or 'GPU'}), memory capped to "
                f"{format_bytes(cap)}"
            )
    elif cap is not None:
        text += f"; the cap of {format_bytes(cap)} (--vram) is above what is free"
    return text


def _training(request: SurveyRequest) -> str:
    tokens = request.sequence_length * request.effective_batch_size
    length = (
        f"sequence length {request.sequence_length:,}, effective batch "
        f"{request.effective_batch_size:,} ({tokens:,} tokens an optimizer step)"
    )
    sweep = request.plan.sweep if request.plan is not None else None
    if sweep is not None and sweep.key == "sequence_length":
        span = f"{sweep.values[0]:,} to {sweep.values[-1]:,}"
        length = f"sequence length {span}, effective batch {request.effective_batch_size:,}"
    evaluation = f", with evaluation at batch {request.eval_batch_size}" * request.evaluate
    return f"{length}{evaluation}; recipe {request.recipe.name}, {_RANKED_BY[request.rank_by]}"
