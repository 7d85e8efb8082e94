"""How well `explain` reads texts whose JSON has a `truth` of the message's figures and kind.

- is_oom: any failure of memory was found.
- resource, kind, phase: of the failure that ended the run (the first that the run did not survive
  and that no other explains; else the first).
- `kind` mixes the wording of a message and its cause. Only the wording is scored, by KINDS: kinds
  that are causes (another process, fragmentation, a cap, a private pool) count as PyTorch's
  allocator. Whether the figures show the cause is scored apart, for another process and for
  fragmentation, by the rules of the examples' README. LOOK_ALIKES is our reading of the contract.
- phase: only where the truth knows it from the text; the others are counted apart.
- numbers: of the first message with figures, as exact integers of the printed figure x unit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from math import floor, prod
from typing import Any

from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.records.report.diagnosis import Incident

MIB, GIB = 1024**2, 1024**3
KINDS = {
    "gpu_caching_allocator": "cuda_caching_allocator",
    "other_process": "cuda_caching_allocator",
    "fragmentation": "cuda_caching_allocator",
    "memory_fraction_cap": "cuda_caching_allocator",
    "private_pool": "cuda_caching_allocator",
    "nccl_alloc": "nccl",
    "slurm_cgroup_kill": "slurm",
    "vllm_kv_cache": "vllm",
    "wsl_pinned_memory": "wsl_pinned",
    "llamacpp_cuda_malloc": "llamacpp",
    "numpy_memoryerror": "numpy",
    "cublas_alloc": "cublas",
    "cudnn_alloc": "cudnn",
    "xla_jax": "xla",
    "xla_tpu": "tpu",
    "dataloader_worker_killed": "dataloader_worker",
    "cuda_driver_oom": "cuda_driver",
}
LOOK_ALIKES = {
    "connection_error": {"connection"},
    "data_error": {"other", "data"},
    "nccl_system_error": {"connection"},
    "type_error": {"type"},
    "key_error": {"key"},
    "value_error": {"other"},
    "index_error": {"index"},
    "import_error": {"import"},
    "shape_error": {"shape"},
    "triton_shared_memory": {"hardware"},
    "context_length": {"context_length"},
}
NUMBERS = {
    "tried_bytes_text": "requested_bytes",
    "total_text": "capacity_bytes",
    "free_text": "free_bytes",
    "allocated_text": "allocated_bytes",
    "reserved_unallocated_text": "reserved_unallocated_bytes",
}
FACTORS = {"bytes": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    f"{letter}{end}": 1024**power for power, letter in enumerate("kmgt", 1) for end in ("ib", "")
}

BINARY = {"mps"}  # kinds whose GB are 1024**3 bytes, by PyTorch's MPSAllocator


def compare(example: Mapping[str, Any]) -> list[tuple[str, object, object]]:
    """Rows of field, what was said and what is true."""
    found, _ = scan(lines([example["text"].encode("utf-8", "surrogatepass")]))
    truth = example["truth"]
    memory = [i for i in found if i.event.dialect != "not_oom"]
    main_one = main_incident(found)
    rows: list[tuple[str, object, object]] = [("is_oom", bool(memory), truth["is_oom"])]
    rows.append(("resource", main_one.resource if main_one else "none", truth["resource"]))
    rows.append(("kind", *kind_of(main_one, truth["kind"])))
    phase = main_one.phase if main_one else "unknown"
    prose = any(feature.startswith("phase-from") for feature in example["features"])
    if truth["phase"] == "unknown":
        rows.append(("phase (truth unknown)", phase, "unknown"))
    elif prose:
        rows.append(("phase (told by prose)", phase, truth["phase"]))
    else:
        rows.append(("phase", phase, truth["phase"]))
    figured = next((i for i in memory if i.event.requested_bytes or i.event.capacity_bytes), None)
    for key, field in NUMBERS.items():
        text = truth.get(key)
        if text is None:
            continue
        if text.startswith("shape"):
            said: object = (
                figured.tensor_shape if figured else next((i.tensor_shape for i in memory), None)
            )
            shape = tuple(int(n) for n in re.findall(r"\d+", text.split("]")[0]))
            rows.append(("numbers (shape)", said, shape))
            continue
        said = figured and getattr(figured.event, field)
        rows.append((f"numbers: {field}", said, size(text, truth["kind"] in BINARY)))
    for key, rule in (("other_process", other_process), ("fragmentation_suspected", fragmented)):
        if truth.get(key) is not None:
            rows.append((key, rule(figured), truth[key]))
    return rows


def main_incident(found: tuple[Incident, ...]) -> Incident | None:
    """The failure that ended the run."""
    ended = [i for i in found if not i.survived and not i.consequence]
    return next(iter(ended or found), None)


def kind_of(incident: Incident | None, kind: str) -> tuple[object, object]:
    """What was said of the kind and what it had to be, in the contract's words."""
    if kind.startswith("not_oom:"):
        name = kind.split(":")[1]
        wanted = LOOK_ALIKES.get(name, {name})
        said = incident.look_alike if incident else None
        return ("not_oom", said if said not in wanted else kind), ("not_oom", kind)
    return (incident.event.dialect if incident else None), KINDS.get(kind, kind)


def other_process(incident: Incident | None) -> bool:
    """The README's rule: more than 1.5 GiB that is neither free nor this process's, or a listed."""
    if incident is None:
        return False
    event = incident.event
    others = event.other_processes_bytes or 0
    own = event.process_bytes
    if own is None and not incident.listed_processes and event.allocated_bytes is not None:
        own = event.allocated_bytes + (event.reserved_unallocated_bytes or 0)
        if event.capacity_bytes is not None and event.free_bytes is not None:
            others = max(others, event.capacity_bytes - event.free_bytes - own)
    listed = "this process has" in incident.event.message and incident.listed_processes
    return bool(listed) or others > 1.5 * GIB


def fragmented(incident: Incident | None) -> bool:
    """The README's rule; what lies between half of the request and all of it counts as no."""
    if incident is None or incident.event.requested_bytes is None:
        return False
    event, asked = incident.event, incident.event.requested_bytes
    unallocated = event.reserved_unallocated_bytes
    if unallocated is None and event.reserved_bytes is not None:
        unallocated = event.reserved_bytes - (event.allocated_bytes or 0)
    return unallocated is not None and asked >= 50 * MIB and unallocated >= asked


def size(text: str, binary: bool = False) -> int | None:
    """The printed figure x its unit, independent of the code under test."""
    match = re.fullmatch(r"([\d.]+)\s*([A-Za-z]+)", text.strip())
    if match is None:
        return prod(int(n) for n in re.findall(r"\d+", text))
    unit = match[2].lower()
    factor = FACTORS[unit[0] if binary and unit[1:] == "b" else unit]
    return floor(Fraction(match[1]) * factor + Fraction(1, 2))
