"""The remedies on the card itself: who holds it, its limits, the gaps between allocations."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.row import Row, always, held, rule


def _unlike_windows(case: Case) -> bool:
    return not case.shows(r'File "[A-Za-z]:[\\/]') and case.dialect == "cuda_caching_allocator"


def _gaps_cover(case: Case) -> bool:
    """Only where reserved-but-unallocated memory would cover the request."""
    covers = (case.unallocated or 0) >= (case.requested or 1)
    return covers and _unlike_windows(case) and not case.setup.expandable_segments


CARD_ROWS: tuple[Row, ...] = (
    Row("stop_others", 0, "end the other process that holds the card",
        lambda case: bool(case.others) or case.capacity is None,
        lambda case: held(case.others, "held by others"),
        {"shell": "nvidia-smi; fuser -v /dev/nvidia*; kill PID"},
        "fuser finds processes that nvidia-smi hides, such as a notebook of before"),
    Row("other_card", 1, "use a card that is free", lambda case: (case.others or 0) > 0,
        lambda case: held(case.others, "held by others on this card"),
        {"shell": "CUDA_VISIBLE_DEVICES=N python train.py"}),
    Row("raise_fraction", 0, "raise the memory fraction or drop it (now $share of the card)",
        lambda case: case.incident.event.allowed_bytes is not None,
        lambda case: held(max(0, (case.capacity or 0)
                                    - (case.incident.event.allowed_bytes or 0)) or None,
                          "kept back by the limit"),
        {"pytorch": "torch.cuda.set_per_process_memory_fraction(1.0)"}),
    Row("expandable_segments", 0, "let the allocator grow its segments", _gaps_cover,
        lambda case: held(case.unallocated, "reserved but unallocated, usable again"),
        {"shell": "export $alloc_conf=expandable_segments:True",
         "pytorch": "set it before torch is imported"}),
    Row("empty_cache", 1, "give cached blocks back between the parts that alternate",
        lambda case: (case.unallocated or 0) >= (case.requested or 1),
        rule("helps only where two parts of the program use very different sizes in turn"),
        {"pytorch": "torch.cuda.empty_cache()",
         "transformers": "TrainingArguments(torch_empty_cache_steps=10)"}),
    Row("no_cuda_graphs", 2, "do without CUDA graphs", always,
        lambda case: held(case.incident.event.private_pools_bytes, "in private pools"),
        {"pytorch": 'torch.compile(model, mode="default")', "vllm": "--enforce-eager"}),
    Row("pool_limit", 1, "look for a limit or a pool of its own in the program", always,
        rule("torch.cuda.MemPool, set_per_process_memory_fraction, a container's limit"),
        {"shell": "grep -rn 'MemPool\\|memory_fraction' ."}),
    Row("bigger_card", 8, "a card with more memory", lambda case: case.incident.resource == "gpu",
        rule("`oomdoctor probe $model --vram SIZE` tells which size is enough"), {}),
)  # fmt: skip
