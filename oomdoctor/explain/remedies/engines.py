"""What to type for an engine: its own limits and shares, as its log prints them, made smaller.

Defaults are those of `data/programs.toml`.
"""

from __future__ import annotations

import re

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.reading.logged_settings import SHARE
from oomdoctor.explain.reading.patterns import patterns

_RE = patterns("engines")

_SHARE = 0.90  # of TensorRT-LLM and others: of the GPU, or of what the weights leave
_CONTEXT = 16384  # tokens
_ROLLOUT_SHARE = 0.3  # TRL's default for an engine beside a trainer
_LARGEST_SHARE = 0.95
_STEP = 0.10
_MARGIN = 0.02  # of the GPU: what others take may change by this much
SHORTEST = 1024  # tokens; what is shorter serves hardly anybody


def share_of(case: Case) -> float:
    """The part of the GPU that the engine takes, 0 to 1: as the log says it, or its default."""
    told = case.facts.settings.get(SHARE)
    if isinstance(told, int | float) and 0 < told <= 1:
        return float(told)
    return _ROLLOUT_SHARE if case.program.kind == "rl" else case.program.share or _SHARE


def fitting_context(case: Case) -> int | None:
    """The longest context that fits, in tokens; None if the text does not say."""
    return _printed(_RE["fits"], case)


def engine_values(case: Case) -> dict[str, str]:
    """The values of the $names in the lines of engines."""
    context = _context(case)
    batched = ("max_num_batched_tokens", "chunked_prefill_size", "max_batch_prefill_tokens")
    said = next((size for name in batched if (size := _number(case, name))), 4096)
    prefill = _printed(_RE["too_many"], case) or said
    # How many it serves at once, as said; vLLM's default is at least 256.
    served = _number(case, "max_num_seqs") or _printed(_RE["dummies"], case) or 256
    sequences = _printed(_RE["states"], case) or max(1, served // 4)
    return {
        "program": "the rollout engine" if case.program.kind == "rl" else case.program.title,
        "share_lower": f"{_lower(case):.2f}",
        "share_higher": f"{min(_LARGEST_SHARE, share_of(case) + _STEP):.2f}",
        "context": str(context),
        "input": str(context - context // 8),
        "sequences": str(sequences),
        "prefill": str(max(512, prefill // 2)),
        "total_tokens": str((_printed(_RE["total"], case) or 2 * context) // 2),
        "gpus": str(2 * case.parallel),
        "tp": str(case.parallel),
    }


def _lower(case: Case) -> float:
    """A share that leaves room: what is free at the start, if the log says so, else less."""
    share, total = share_of(case), case.capacity
    if total and case.free is not None and _RE["at_start"].search(case.message):
        return max(_MARGIN, int(100 * (case.free / total - _MARGIN)) / 100)
    if case.program.kind == "rl" and share > 2 * _ROLLOUT_SHARE:
        return _ROLLOUT_SHARE
    step = _STEP if share > 2 * _STEP else share / 3
    if total and case.missing and case.missing < total // 2:
        step = max(step, case.missing / total + _MARGIN)
    return max(0.05, share - step)


def _context(case: Case) -> int:
    """The longest context that fits, if the text says it; else half of today's."""
    fits = fitting_context(case)
    if fits is not None:
        return fits
    today = _number(case, "max_model_len") or _number(case, "n_ctx")
    return max(SHORTEST, (today or case.program.context or _CONTEXT) // 2)


def _number(case: Case, key: str) -> int:
    """A number that the log prints; 0 if it prints none above 1."""
    value = case.facts.settings.get(key)
    return value if isinstance(value, int) and value > 1 else 0


def _printed(pattern: re.Pattern[str], case: Case) -> int | None:
    """The number of the first match in the message or the quoted lines; None if there is none.

    A terminal may have wrapped the message: then a line of the log has the number.
    """
    wrapped = case.facts.mentions.get("printed limit", ()) if case.dialect == "vllm" else ()
    match = pattern.search(" ".join((case.message, *case.incident.lines, *wrapped)))
    if match is None:
        return None
    return int(next(part for part in match.groups() if part).replace(",", ""))
