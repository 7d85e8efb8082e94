"""The context against public readings, and totals that are never too hopeful."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from oomdoctor.analysis.memory.overhead import (
    context_bytes,
    device_total_bytes,
    nccl_bytes,
    with_nccl,
)
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.system.catalogue import find_gpu, gpus

MIB = 1 << 20
GIB = 1 << 30
READINGS = json.loads(
    (Path(__file__).parents[4] / "tests/data/published_context.json").read_text(encoding="utf-8")
)


def card(name: str) -> GpuFacts:
    found = find_gpu(name)
    assert found is not None, name
    return found


def read_mib(row: dict[str, Any]) -> float:
    """What the process held beside PyTorch's reserved bytes; printed to 0.01 GiB."""
    if row["bare_mib"] is not None:
        return float(row["bare_mib"])
    return (row["process_gib"] - row["allocated_gib"]) * 1024 - row["unallocated_mib"]


def in_range(row: dict[str, Any]) -> bool:
    found = context_bytes(card(row["gpu"]))
    rounding = 0 if row["bare_mib"] else 10.5
    return found.low / MIB - rounding <= read_mib(row) <= found.high / MIB + rounding


def test_all_public_readings_but_the_known_one_lie_in_the_range() -> None:
    outside = [row["source"] for row in READINGS if not in_range(row)]
    assert outside == ["public out-of-memory message, collection no. 067"]


def test_the_likely_context_is_in_the_middle_of_the_readings() -> None:
    ratios = [read_mib(r) * MIB / context_bytes(card(r["gpu"])).likely for r in READINGS]
    assert 0.95 <= median(ratios) <= 1.05
    assert median(abs(ratio - 1) for ratio in ratios) <= 0.12


def test_the_context_grows_with_the_card() -> None:
    names = ("RTX 4060", "RTX 4070", "RTX 4090", "RTX 5090", "B200")
    sizes = [context_bytes(card(name)).likely for name in names]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 4 * sizes[0]


def test_an_unknown_card_gets_a_range_around_all_cards() -> None:
    unknown = context_bytes(None)
    assert unknown.low < unknown.likely < unknown.high
    known = [context_bytes(gpu) for gpu in gpus() if gpu.vendor == "NVIDIA"]
    assert all(unknown.high >= found.likely for found in known)
    amd = next(gpu for gpu in gpus() if gpu.vendor == "AMD")
    assert context_bytes(amd) == unknown
    assert context_bytes(replace(card("RTX 4090"), fp32_flops=None)) == unknown


def test_a_total_that_pytorch_reported_is_taken() -> None:
    total, basis = device_total_bytes(card("RTX 4090"))
    assert total == 24081 * MIB
    assert "PyTorch" in basis


def test_a_total_that_only_windows_reported_is_reduced() -> None:
    # PyTorch on Windows reports all of the driver's 16376 MiB, on Linux 220 to 510 MiB less.
    total, basis = device_total_bytes(card("RTX 4080"))
    assert total == (16376 - 510) * MIB
    assert "driver" in basis


def test_without_any_reading_the_marketed_size_is_reduced_by_what_drivers_keep() -> None:
    assert device_total_bytes(card("RTX 2080"))[0] == 8 * GIB - 510 * MIB
    assert device_total_bytes(card("Quadro RTX 8000"))[0] == 48 * GIB - 770 * MIB


def test_nothing_is_known_to_be_kept_by_other_vendors() -> None:
    assert device_total_bytes(card("MI325X"))[0] == 256 * GIB


def test_ecc_is_taken_off_where_it_is_on_by_default() -> None:
    total, basis = device_total_bytes(card("A2"))
    assert total == 15 * GIB - 510 * MIB
    assert "15/16" in basis


def test_a_driver_total_already_lacks_ecc() -> None:
    l40 = card("L40")
    assert l40.total_bytes is not None
    assert device_total_bytes(l40)[0] == l40.total_bytes - 770 * MIB


@pytest.mark.parametrize("gpu", gpus(), ids=lambda gpu: gpu.name)
def test_no_total_exceeds_what_the_driver_or_the_box_says(gpu: GpuFacts) -> None:
    total, basis = device_total_bytes(gpu)
    total += 20 * GIB if gpu.shares_host_memory else 0  # what the system holds
    assert 0.89 * gpu.memory_bytes <= total <= (gpu.total_bytes or gpu.memory_bytes)
    assert basis


def test_the_communicator_of_several_ranks_is_counted() -> None:
    alone = context_bytes(None)
    assert with_nccl(alone, 1) == alone
    two, eight = with_nccl(alone, 2), with_nccl(alone, 8)
    assert alone.likely < two.likely < eight.likely == with_nccl(alone, 64).likely
    assert eight.low - alone.low == eight.high - alone.high == nccl_bytes(8)
    assert "NCCL 688 MiB" in eight.source
