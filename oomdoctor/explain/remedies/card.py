"""Remedies on the GPU itself: other processes, memory limits, fragmentation, a larger GPU."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.row import Row, always, held, rule, setting


def _unlike_windows(case: Case) -> bool:
    return not case.shows(r'File "[A-Za-z]:[\\/]') and case.dialect == "cuda_caching_allocator"


def _gaps_cover(case: Case) -> bool:
    """Whether reserved but unallocated memory would cover the request."""
    covers = (case.unallocated or 0) >= (case.requested or 1)
    return covers and _unlike_windows(case) and case.setup.allocator != "expandable_segments"


CARD_ROWS: tuple[Row, ...] = (
    Row("stop_others", 0, "Stop the other process that is using the GPU",
        lambda case: bool(case.others) or case.capacity is None,
        lambda case: held(case.others, "held by other processes"),
        {"shell": "nvidia-smi; fuser -v /dev/nvidia*; kill PID"},
        "fuser finds processes that nvidia-smi does not list, such as an old notebook"),
    Row("other_card", 1, "Use a free GPU", lambda case: (case.others or 0) > 0,
        lambda case: held(case.others, "held by other processes on this GPU"),
        {"shell": "CUDA_VISIBLE_DEVICES=N python train.py"}),
    Row("raise_fraction", 0, "Raise or remove the memory fraction (now $share of the GPU)",
        lambda case: case.incident.event.allowed_bytes is not None,
        lambda case: held(max(0, (case.capacity or 0)
                                    - (case.incident.event.allowed_bytes or 0)) or None,
                          "off limits to this process"),
        {"pytorch": "torch.cuda.set_per_process_memory_fraction(1.0)"}),
    setting("expandable_segments", 0, "Turn on expandable segments", _gaps_cover,
        lambda case: held(case.unallocated, "reserved but unallocated memory that becomes usable"),
        {"shell": "export $alloc_conf=expandable_segments:True",
         "pytorch": "set it before torch is imported"}, allocator="expandable_segments"),
    Row("empty_cache", 1, "Empty the cache between parts of the program that alternate",
        lambda case: (case.unallocated or 0) >= (case.requested or 1),
        rule("helps only if two parts of the program take turns and allocate very different sizes"),
        {"pytorch": "torch.cuda.empty_cache()",
         "transformers": "TrainingArguments(torch_empty_cache_steps=10)"}),
    Row("no_cuda_graphs", 2, "Turn off CUDA graphs", always,
        lambda case: held(case.incident.event.private_pools_bytes, "in private pools"),
        {"pytorch": 'torch.compile(model, mode="default")', "vllm": "--enforce-eager"}),
    Row("pool_limit", 1, "Look for a memory limit or a private pool in the program", always,
        rule("torch.cuda.MemPool, set_per_process_memory_fraction, a container's limit"),
        {"shell": "grep -rn 'MemPool\\|memory_fraction' ."}),
    Row("bigger_card", 8, "Use a GPU with more memory",
        lambda case: case.incident.resource == "gpu",
        rule("`oomdoctor probe $model --vram SIZE` shows whether a given size is enough"), {}),
)  # fmt: skip
