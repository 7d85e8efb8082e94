"""The values of the $names in texts and lines: of a device, of host memory, and of an engine.

An engine's own limits and shares are as its log prints them, made smaller; defaults are those of
`data/programs.toml`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.reading.logged_settings import SHARE
from oomdoctor.explain.reading.patterns import patterns
from oomdoctor.explain.remedies.row import next_batch
from oomdoctor.package_data import data_of
from oomdoctor.records.capability import MODERN, capability_numbers
from oomdoctor.records.report.diagnosis import ListedProcess
from oomdoctor.system.catalogue import gpu_variants
from oomdoctor.units import format_bytes

_RE = patterns("text_values")
_SHARE = 0.90  # of TensorRT-LLM and others: of the GPU, or of what the weights leave
_CONTEXT = 16384  # tokens
_ROLLOUT_SHARE = 0.3  # TRL's default for an engine beside a trainer
_LARGEST_SHARE = 0.95
_STEP = 0.10
_MARGIN = 0.02  # of the GPU: what others take may change by this much
_RESOLUTION = 1024  # pixels, of SDXL and later
# Losses for which the other rows of a batch are the negatives: accumulation does not replace these.
CONTRASTIVE = r"MultipleNegatives|InfoNCE|ContrastiveLoss|ClipLoss|clip_loss"
_PIXELS = 64  # buckets have a multiple of them
SHORTEST = 1024  # tokens; what is shorter serves hardly anybody


class Device(NamedTuple):
    """A kind of device: its tools and variables, as `data/devices.toml` has them."""

    processes: str
    visible: str
    allocator: str
    quantizes: bool = False


_DEVICES = {name: Device(**row) for name, row in data_of("devices.toml").items()}
# How data is read in pieces, with the library that the text shows.
_IN_PIECES = (
    (
        r"pandas|read_csv|data ?frame|parquet",
        "for part in pandas.read_csv(path, chunksize=100_000): ...",
    ),
    (r"load_dataset|datasets/", "load_dataset(..., streaming=True)"),
)
_SLICES = 'numpy.load(path, mmap_mode="r")  # and work on one slice at a time'
_VENDOR = re.compile(r"\b(NPU|MLU|MUSA|HPU) out of memory")  # as their builds of torch print it


def device_of(dialect: str, message: str) -> Device:
    """The kind of device whose memory ran out; an NVIDIA GPU if nothing says another."""
    vendor = _VENDOR.search(message)
    return _DEVICES.get(dialect if vendor is None else vendor[1], _DEVICES["cuda"])


def device_values(
    dialect: str, message: str, lines: Sequence[str], listed: Sequence[ListedProcess]
) -> dict[str, str]:
    """The values of the $names in texts and lines about devices, from what a failure prints."""
    device = device_of(dialect, message)
    nvidia = device is _DEVICES["cuda"]
    hidden = "fuser finds processes that nvidia-smi does not list, such as an old notebook"
    since = "this torch has no expandable segments; 2.1 and later do, and they help more"
    largest = max(listed, key=lambda process: process.used_bytes).pid if listed else "PID"
    # torch 2.9 and later name one variable for all devices
    newer = any("PYTORCH_ALLOC_CONF" in text for text in (message, *lines))
    return {
        "processes": f"{device.processes}; kill {largest}",
        "hidden": hidden if nvidia else "",
        "visible": device.visible,
        "alloc_conf": "PYTORCH_ALLOC_CONF" if newer else device.allocator,
        "split": "max_split_size_mb:128"
        if nvidia
        else "garbage_collection_threshold:0.8,max_split_size_mb:512",
        "split_note": since if nvidia else "",
        "flash": '; "flash_attention_2" does the same' if nvidia else "",
    }


def half_values(case: Case) -> dict[str, str]:
    """The values of the $names for a type of 16 bits: bfloat16, or what an older card can do.

    A name such as V100 may stand for several cards. AMD's have no compute capability.
    """
    named = gpu_variants(case.facts.gpu_name) if case.facts.gpu_name else ()
    capabilities = [card.compute_capability for card in named]
    older = bool(named) and all(
        number and capability_numbers(number) < MODERN for number in capabilities
    )
    return {
        "half": "fp16" if older else "bf16",
        "half_mixed": "16-mixed" if older else "bf16-mixed",
        "half_type": "float16" if older else "bfloat16",
        "scaled": "  # with torch.amp.GradScaler()" if older else "",
    }


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
        "share_lower": f"{lower_share(case):.2f}",
        "share_higher": f"{min(_LARGEST_SHARE, share_of(case) + _STEP):.2f}",
        "context": str(context),
        "input": str(context - context // 8),
        "sequences": str(sequences),
        "prefill": str(max(512, prefill // 2)),
        "total_tokens": str((_printed(_RE["total"], case) or 2 * context) // 2),
        "gpus": str(2 * case.parallel),
        "tp": str(case.parallel),
    }


def lower_share(case: Case) -> float:
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


def _fewer_pixels(case: Case) -> int:
    """About three quarters of the height and width of images, which leaves half of the pixels."""
    today = _number(case, "resolution") or _number(case, "imgsz") or _RESOLUTION
    return max(_PIXELS, today * 3 // 4 // _PIXELS * _PIXELS)


def values_of(case: Case) -> dict[str, str]:
    """The values of the $names in texts and lines."""
    setup = case.setup
    batch, divisor = next_batch(case), case.batch_divisor or 2
    was = case.batch
    if batch is None or was is None:
        steps = f"({divisor} * YOUR_STEPS)"
    else:
        steps = str(setup.get("accumulation_steps", 1) * was // batch)
    length = setup.get("sequence_length")
    allowed, total = case.incident.event.allowed_bytes, case.capacity
    pieces = (line for pattern, line in _IN_PIECES if case.logged(pattern))
    return {
        "limit": ""
        if case.resource != "host" or allowed is None
        else f" (now {format_bytes(allowed)})",
        "pieces": next(pieces, _SLICES),
        "batch": f"YOUR_BATCH // {divisor}" if batch is None else str(batch),
        "steps": steps,
        "was": "" if was is None else f" (now {was})",
        "length": "YOUR_LENGTH // 2" if length is None else str(max(1, length // 2)),
        "others": format_bytes(case.others),
        "allowed": format_bytes(allowed),
        "share": f"{(allowed or 0) / total:.2f}" if total else "less than all",
        "requested": format_bytes(case.requested),
        "workers": str(max(0, (setup.get("workers") or 4) // 2)),
        "model": setup.get("model") or "MODEL",
        "same_gradients": "fewer negatives for each row"
        if case.shows(CONTRASTIVE)
        else "same gradients",
        "pixels": str(_fewer_pixels(case)),
        "stage": "3" if setup.get("sharding") == "zero3" else "2",
        **device_values(
            case.dialect, case.message, case.incident.lines, case.incident.listed_processes
        ),
        **half_values(case),
        **engine_values(case),
    }
