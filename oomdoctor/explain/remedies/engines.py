"""What to type for an engine: its own limits and shares, smaller, as its log prints them."""

from __future__ import annotations

import re

from oomdoctor.explain.diagnosis.case import Case

# Of the GPU, where nothing else is said: vLLM and SGLang as documented, TGI takes all of it.
_SHARES = {"vllm": 0.90, "sglang": 0.88, "tgi": 1.0}
_SHARE_KEYS = ("gpu_memory_utilization", "mem_fraction_static", "cuda_memory_fraction")
_ROLLOUT_SHARE = 0.3  # TRL's default
_LARGEST_SHARE = 0.95
_STEP = 0.10
# The longest context that fits, as vLLM and TGI print it.
_FITS = re.compile(
    r"estimated maximum model length is (\d+)|stored in (?:the )?KV cache \((\d+)\)"
    r"|max_total_tokens[^\d]{1,20}(\d+)"
)


def share_of(case: Case) -> float:
    """The part of the GPU that the engine takes, 0 to 1: as the log says it, or its default."""
    told = (case.facts.settings.get(key) for key in _SHARE_KEYS)
    value = next((one for one in told if isinstance(one, int | float) and 0 < one <= 1), None)
    return float(value) if value is not None else _SHARES.get(case.program.name, 0.90)


def engine_values(case: Case) -> dict[str, str]:
    """The values of the $names in the lines of engines."""
    context = _context(case)
    return {
        "program": case.program.title,
        "share_lower": f"{_lower(case):.2f}",
        "share_higher": f"{min(_LARGEST_SHARE, share_of(case) + 0.05):.2f}",
        "rollout_share": f"{_rollout(case):.2f}",
        "context": str(context),
        "input": str(context - context // 8),
        "sequences": str(max(1, _number(case, "max_num_seqs", 64) // 4)),
        "prefill": str(max(512, _number(case, "max_num_batched_tokens", _prefill(case)) // 2)),
    }


def _lower(case: Case) -> float:
    """A share that leaves room; what is free at the start, if the log says that it is less."""
    share = share_of(case)
    if case.free and case.capacity and case.phase == "init" and case.free < share * case.capacity:
        return max(0.05, case.free / case.capacity - 0.02)
    return max(0.05, share - _STEP)


def _rollout(case: Case) -> float:
    told = case.facts.settings.get("vllm_gpu_memory_utilization", share_of(case))
    value = float(told) if isinstance(told, int | float) else _ROLLOUT_SHARE
    return _ROLLOUT_SHARE if value > 2 * _ROLLOUT_SHARE else max(0.05, round(value * 0.7, 2))


def _context(case: Case) -> int:
    """The longest context that fits, if the text says it; else half of today's."""
    match = _FITS.search(" ".join((case.message, *case.incident.lines)))
    if match is not None:
        return int(next(part for part in match.groups() if part))
    default = 8192 if case.program.name in ("llamacpp", "ollama") else 16384
    return max(1024, _number(case, "max_model_len", default) // 2)


def _prefill(case: Case) -> int:
    return _number(case, "chunked_prefill_size", _number(case, "max_batch_prefill_tokens", 4096))


def _number(case: Case, key: str, default: int) -> int:
    value = case.facts.settings.get(key)
    return value if isinstance(value, int) and value > 1 else default
