"""The head of the page: what came out, of which model, on which device, within which budget."""

from __future__ import annotations

from oomdoctor.records.report import Budget, Machine, ModelFacts, Report, SurveyRequest
from oomdoctor.render.blocks import Block, Facts
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


def headline(report: Report) -> str:
    """One sentence: how many rungs fit, how it ended, how long it took."""
    name = f"{report.tool.name} {report.tool.version} {report.command}"
    took = format_seconds(report.elapsed_s)
    total = len(report.results)
    fitting = sum(result.outcome == "fits" for result in report.results)
    missed = sum(result.outcome in ("oom", "host_oom") for result in report.results)
    others = total - fitting - missed
    counts = f"{fitting} of {total} rungs fit"
    if missed:
        counts += f", {missed} ran out of memory"
    if others:
        counts += f", {others} not measured"
    if report.status == "interrupted":
        return f"{name}: interrupted after {took}; so far {counts}"
    if not total:
        ended = "stopped by an error" if report.errors else "no rung was tried"
        return f"{name}: {ended} after {took}"
    return f"{name}: {counts}; {took}"


def header(report: Report) -> list[Block]:
    """Model, device, budget and training; nothing where the survey did not come that far."""
    pairs = []
    if report.model is not None:
        pairs.append(("Model", _model(report.model)))
    if report.machine is not None:
        pairs.append(("Device", _device(report.machine)))
    if report.budget is not None and report.machine is not None:
        pairs.append(("Budget", _budget(report.budget, report.machine)))
    if report.request is not None:
        pairs.append(("Training", _training(report.request)))
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


def _device(machine: Machine) -> str:
    versions = [
        f"{name} {machine.versions[name]}"
        for name in ("torch", "transformers")
        if machine.versions.get(name)
    ]
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
    evaluation = f", with evaluation at batch {request.eval_batch_size}" * request.evaluate
    return (
        f"sequence length {request.sequence_length:,}, effective batch "
        f"{request.effective_batch_size:,} ({tokens:,} tokens an optimizer step){evaluation}; "
        f"recipe {request.recipe.name}, {_RANKED_BY[request.rank_by]}"
    )
