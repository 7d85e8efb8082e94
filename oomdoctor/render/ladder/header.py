"""The head of the page: the result in one sentence, the model, the device, the memory budget."""

from __future__ import annotations

from oomdoctor.analysis.ranking import ranked_by
from oomdoctor.records.configuration.config import runs_itself
from oomdoctor.records.job.machine import Machine
from oomdoctor.records.job.model import sequences_in_sample
from oomdoctor.records.job.result import Outcome, ProbeResult
from oomdoctor.records.report.plan import CardPlan
from oomdoctor.records.report.report import Budget, ModelFacts, Report, SurveyRequest
from oomdoctor.records.report.warnings import LOWERED
from oomdoctor.render.blocks import Facts, Look, Section
from oomdoctor.render.words import METHODS, SWEPT_WORDS, calibrated_by_words, card_name, counted
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
_EMULATED = (
    "emulated: PyTorch's own allocator on a card that runs no kernels; exact memory, no speeds"
)
_ENGINES = "the engine itself ran on the emulated card, one rank for all GPUs"
_UNSLOTH = "Unsloth itself ran on the emulated card"
_ALONE = "; one rank stands for all"
_SIMULATED = "simulated, not measured"
_ESTIMATED = "; speeds (~) are estimated from the card's peak rates"


def headline(report: Report) -> str:
    """One sentence: how many rungs fit, how it ended, how long it took."""
    name = f"{report.tool.name} {report.tool.version} {report.command}{_subject(report)}"
    took = format_seconds(report.elapsed_s)
    total = len(report.results)
    across = bool(report.cards) and not total
    counts = _of_cards(report) if across else _ladder(report)
    if report.status == "running":
        return f"{name}: still running after {took}; so far {counts}"
    if report.status == "interrupted":
        return f"{name}: interrupted after {took}; so far {counts}"
    if not total and not across:
        ended = "stopped by an error" if report.errors else "no configuration was tried"
        return f"{name}: {ended} after {took}"
    return f"{name}: {counts} ({took})"


def _subject(report: Report) -> str:
    """` of gpt2 at 1,024 tokens on RTX 4090`: the model, and the device if there is one.

    The sequence length stands there if it is not the one that was asked for.
    """
    model = f" of {report.model.id}" if report.model is not None else ""
    lowered = any(warn.code == LOWERED for warn in report.warnings)
    if lowered and report.sweep is None and report.request is not None:
        lengths = [result.config.sequence_length for result in report.results]
        model += f" at {max(lengths, default=report.request.sequence_length):,} tokens"
    on_cpu = report.machine is not None and report.machine.device == "cpu"
    return model + on_device(report) + " (bytes of tensors)" * on_cpu


def on_device(report: Report) -> str:
    """` on 8 x RTX 4090`; empty where no device is known, and of a plan for several cards."""
    machine = report.machine
    if machine is None or (is_plan(report) and len(report.cards) != 1):
        return ""
    if machine.device == "cpu":
        return " on the CPU"
    name = report.cards[0].name if is_plan(report) else machine.gpu_name or "GPU"
    return f" on {_times(report, machine)}{card_name(name)}"


def is_plan(report: Report) -> bool:
    """Whether the report predicts instead of measuring."""
    return report.command == "plan"


def too_large(report: Report) -> tuple[Outcome, ...]:
    """The outcomes of rungs that do not fit.

    A simulation that got no host memory says nothing about the card.
    """
    return ("oom",) if is_plan(report) else ("oom", "host_oom")


def own_result(report: Report) -> ProbeResult | None:
    """The row of the rung of --from."""
    key = report.yours.key if report.yours is not None else None
    return next((result for result in report.results if result.key == key), None)


def _ladder(report: Report) -> str:
    total = len(report.results)
    fitting = sum(result.surely_fits for result in report.results)
    near = sum(result.borderline for result in report.results)
    missed = sum(r.outcome in too_large(report) and not r.borderline for r in report.results)
    # Arithmetic says that they cannot fit, so they were not tried.
    ended = not is_plan(report) and report.status not in ("interrupted", "running")
    short = [r for r in report.results if ended and _cannot_fit(report, r)]
    others = total - fitting - near - missed - len(short)
    counts = f"{fitting} of {counted(total, 'config')} {'fits' if 1 in (fitting, total) else 'fit'}"
    if near:
        counts += f", {near} borderline"
    if missed and not is_plan(report):  # in a plan, what does not fit is all the rest
        counts += f", {missed} ran out of memory"
    if short:
        counts += f", {len(short)} {'needs' if len(short) == 1 else 'need'} more memory"
    if others:
        counts += f", {others} not {'simulated' if is_plan(report) else 'measured'}"
    if short and len(short) == total and report.budget is not None:
        least = min(short, key=lambda result: result.missed_by_bytes or 0)
        bytes_ = report.budget.usable_bytes + (least.missed_by_bytes or 0)
        counts += f"; {least.label} needs the least, at least {format_bytes(bytes_)}"
    return counts


def _cannot_fit(report: Report, result: ProbeResult) -> bool:
    """Whether a rung was left out because it needs more memory than there is."""
    return result.missed_by_bytes is not None and not (
        result.surely_fits or result.borderline or result.outcome in too_large(report)
    )


def header(report: Report, _: Look) -> list[Section]:
    """What the answer is about, and how it was found; nothing if the survey did not come so far."""
    planned, machine = is_plan(report) and bool(report.cards), report.machine
    pairs = []
    if report.model is not None:
        pairs.append(("Model", _model(report.model)))
    if machine is not None:
        pairs.append(("Device", _targets(report, machine) if is_plan(report) else _device(machine)))
    if report.budget is not None and machine is not None:
        card = report.cards[0] if planned and len(report.cards) == 1 else None
        text = _budget(report.budget, machine) if card is None else _card(card, machine)
        pairs.append(("Budget", text))
    if report.request is not None:
        pairs.append(("Training", _training(report, report.request)))
    if planned:
        evidence = _engines(report) + _checked(report)
        if _has_speeds(report):
            evidence += _ESTIMATED + _calibrated(report)
        pairs.append(("Evidence", evidence + _from_cache(report)))
    elif machine is not None and machine.emulated:
        asked = report.request
        alone = machine.gpus > 1 and asked is not None and not asked.all_ranks
        pairs.append(("Evidence", _EMULATED + _ALONE * alone))
    if report.run_dir is not None:
        pairs.append(("Run", report.run_dir))
    return [Section("", (Facts(tuple(pairs)),))] if pairs else []


def _engines(report: Report) -> str:
    """Which rungs their engines ran; the others are simulated."""
    lines = report.fewest.lines if report.fewest is not None else ()
    shown = [
        *(result.evidence for result in report.results if result.measurement is not None),
        *(line.evidence for line in lines if line.evidence is not None),
    ]
    sharded = report.machine is not None and report.machine.gpus > 1
    ran = sum(evidence == "emulated" for evidence in shown) if sharded else 0
    unsloth = sum(map(_ran_unsloth, report.results))
    parts = [f"{counted(ran - unsloth, 'config')}: {_ENGINES}"] if ran > unsloth else []
    if unsloth:
        parts.append(f"{counted(unsloth, 'config')}: {_UNSLOTH}")
    if not parts:
        return _SIMULATED
    rest = len(shown) - max(ran, unsloth)
    return "; ".join(parts) + (f"; {rest} simulated" if rest else "")


def _ran_unsloth(result: ProbeResult) -> bool:
    ran = result.evidence == "emulated" and result.measurement is not None
    return ran and result.config.library == "unsloth"


def _checked(report: Report) -> str:
    """How many rungs ran on the emulated card."""
    checked = sum(map(is_checked, report.results))
    if not checked:
        return ""
    return f"; {checked} of {counted(len(report.results), 'config')} checked on the emulated card"


def is_checked(result: ProbeResult) -> bool:
    """Whether a rung was predicted, and then ran on the emulated card."""
    return result.evidence == "emulated" and not runs_itself(result.config)


def _from_cache(report: Report) -> str:
    """Since when the simulations are known, if an earlier run did some of them."""
    if report.simulations is None or not report.simulations.from_cache:
        return ""
    cached, total = report.simulations.from_cache, report.simulations.total
    since = (report.simulations.oldest_at or "")[:10]
    some = "" if cached == total else f"{cached} of {total} simulations "
    return f"; {some}from cache of {since} (--fresh simulates again)"


def _calibrated(report: Report) -> str:
    """Which probes corrected the speeds, and on which cards if there are several."""
    calibrated = [(card, card.calibrated_by) for card in report.cards if card.calibrated_by]
    if not calibrated:
        return ""
    alone = len(report.cards) == 1
    parts = [
        calibrated_by_words(by, "this card" if alone else card.name) for card, by in calibrated
    ]
    return f" and calibrated by {'; '.join(parts)}"


def _has_speeds(report: Report) -> bool:
    picks = [getattr(card.picks, name) for card in report.cards for name in METHODS]
    shown = [*report.results, *filter(None, picks)]
    return any(result.tokens_per_s is not None for result in shown)


def _model(model: ModelFacts) -> str:
    revision = f" at revision {model.revision}" if model.revision else ""
    has_count = model.parameters is not None
    size = f", {format_count(model.parameters)} parameters" if has_count else ""
    experts = ", mixture of experts" if model.mixture_of_experts else ""
    return (
        f"{model.id}{revision}: {model.architecture}{size}{experts}, {model.task}; "
        f"{_SOURCES[model.source]}, {model.weights} weights"
    )


def _of_cards(report: Report) -> str:
    cards = counted(len(report.cards), "card")
    answer = report.sweep or report.fewest or report.solve
    rungs = counted(len({line.key for line in answer.lines}) if answer is not None else 0, "config")
    if report.sweep is not None:
        values = counted(len(report.sweep.values), "value")
        return f"{rungs} at {values} of {SWEPT_WORDS[report.sweep.key]} on {cards}"
    if report.fewest is not None:
        return f"the fewest GPUs for {rungs} on {cards}"
    if report.solve is not None:
        return f"the largest {SWEPT_WORDS[report.solve.key]} of {rungs} on {cards}"
    fitting = sum(card.fitting > 0 for card in report.cards)
    own = [card.yours.fits for card in report.cards if card.yours is not None]
    if own:
        more = f"; at least one config fits on {fitting}" if report.cards[0].rungs > 1 else ""
        return f"yours fits on {sum(own)} of {cards}{more}"
    return f"at least one config fits on {fitting} of {cards}"


def _targets(report: Report, machine: Machine) -> str:
    """The device of a plan; only the versions are this machine's."""
    libraries = ", ".join(_libraries(machine))
    simulated = f"simulated with {libraries}" if libraries else "not simulated"
    times = _times(report, machine)
    if len(report.cards) != 1:
        each = f"{times}of each of " if times else ""
        return f"{each}{counted(len(report.cards), 'card')}, {simulated}"
    card = report.cards[0]
    if not machine.gpu_name:  # only a size was given
        return f"{times or 'a '}card{'s' * bool(times)} with {card.name}, {simulated}"
    return f"{times}{card.name}{_size(card.total_bytes, card.compute_capability)}, {simulated}"


def _times(report: Report, machine: Machine) -> str:
    """How many GPUs there are: `8 x `; empty for one."""
    if report.fewest is not None:
        return f"{report.fewest.low} to {report.fewest.high} x "
    return f"{machine.gpus} x " if machine.gpus > 1 else ""


def _card(card: CardPlan, machine: Machine) -> str:
    usable = f"{format_bytes(card.usable_bytes)} usable{_each(machine)}"
    outside = "the CUDA context, NCCL" if machine.gpus > 1 else "the CUDA context"
    return (
        f"{usable} = {format_bytes(card.total_bytes)} ({card.total_source}) - "
        f"{format_bytes(card.headroom_bytes)} headroom; {outside} and libraries take about "
        f"{format_bytes(card.context.likely)} of it"
    )


def _libraries(machine: Machine) -> list[str]:
    return [
        f"{name} {machine.versions[name]}"
        for name in ("torch", "transformers")
        if machine.versions.get(name)
    ]


def _size(total_bytes: int, compute_capability: str | None) -> str:
    capability = f", compute capability {compute_capability}" if compute_capability else ""
    return f" ({format_bytes(total_bytes)}{capability})"


def _device(machine: Machine) -> str:
    versions = _libraries(machine)
    if machine.device == "cuda":
        driver = [f"driver {machine.driver_version}"] if machine.driver_version else []
        size = _size(machine.total_bytes, machine.compute_capability)
        times = f"{machine.gpus} x " if machine.gpus > 1 else ""
        return ", ".join([f"{times}{machine.gpu_name or 'GPU'}{size}", *driver, *versions])
    cpu = f"CPU ({machine.cpu_name or 'unknown model'}, {machine.cpu_count} cores)"
    memory = f"{format_bytes(machine.memory_available_bytes)} of memory available"
    ranks = [f"{machine.gpus} ranks"] if machine.gpus > 1 else []
    return (
        f"{', '.join([cpu, memory, *ranks, *versions])}; memory is tensor bytes, counted by a trace"
    )


def _each(machine: Machine) -> str:
    """Whose the memory is, where there are several."""
    if machine.gpus == 1:
        return ""
    return " per GPU" if machine.device == "cuda" else " per rank"


def _budget(budget: Budget, machine: Machine) -> str:
    free, cap = budget.free_bytes, budget.cap_bytes
    where = "the card" if machine.device == "cuda" else "the host"
    capped = cap is not None and cap <= free
    origin = f"{format_bytes(cap)} cap (--vram)" if capped else f"{format_bytes(free)} free"
    text = (
        f"{format_bytes(budget.usable_bytes)} usable{_each(machine)} = {origin} - "
        f"{format_bytes(budget.headroom_bytes)} headroom; {where} has "
        f"{format_bytes(budget.total_bytes)}"
    )
    if capped:
        text += f", {format_bytes(free)} of it free"
        if machine.device == "cuda" and cap is not None and cap < budget.total_bytes:
            text += "; the cap limits memory, not speed"
    return text


def _training(report: Report, request: SurveyRequest) -> str:
    task = None if report.model is None else report.model.task
    pairs = {sequences_in_sample(rung.config, task) for rung in request.recipe.rungs}
    sequences = max(pairs) if len(pairs) == 1 else 1
    tokens = request.sequence_length * request.effective_batch_size * sequences
    gpus = " x GPUs" if request.most_gpus() > 1 else ""
    batch = f"batch {request.effective_batch_size:,} (micro-batch x gradient accumulation{gpus})"
    length = (
        f"sequence length {request.sequence_length:,}, effective {batch}, "
        f"{tokens:,} tokens per optimizer step"
    )
    if max(pairs, default=1) > 1:
        length += ", two sequences a pair"
    sweep = request.plan.sweep if request.plan is not None else None
    if sweep is not None and sweep.key == "sequence_length":
        length = f"sequence length {sweep.values[0]:,} to {sweep.values[-1]:,}, effective {batch}"
    if request.plan is not None and request.plan.solve == "sequence_length":
        length = f"effective {batch}"
    ranked = ranked_by(report.results, request.rank_by)
    evaluation = f", evaluation batch size {request.eval_batch_size}" * request.evaluate
    ranks = f", {_RANKED_BY[ranked]}" if request.plan is None or request.plan.ranks else ""
    return f"{length}{evaluation}; recipe {request.recipe.name}{ranks}"
