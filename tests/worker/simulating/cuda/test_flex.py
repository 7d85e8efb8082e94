"""Flex attention on fake tensors: the blocks that its compiled kernels take on a GPU.

The figures are those of a Llama 3.2 1B on an emulated RTX 4090 (torch 2.12.1), whose
allocations a simulation with the same torch repeats one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from simulated_steps import simulation_job
from tiny_models import tiny_job

from oomdoctor.analysis.simulator.tape import Tape
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.simulate import simulated_rung
from oomdoctor.worker.training.build import check_supported

HEADS, KEYS, LENGTH, SIZE, ROWS = 32, 8, 512, 64, 2
SUMS = 4 * ROWS * HEADS * LENGTH
QUERIES, VALUES = (2 * ROWS * heads * LENGTH * SIZE for heads in (HEADS, KEYS))
MASK = [256, 160, 160, 32, 32, 128, 128, 128, 128, 32, 32]  # 4 x 4 blocks of 128 tokens


def flex_job(**changes: Any) -> ProbeJob:
    job = tiny_job("dense", attention="flex_attention", weights_dtype="bfloat16", **changes)
    sizes = {
        "hidden_size": HEADS * SIZE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEYS,
        "num_hidden_layers": 1,
        "max_position_embeddings": LENGTH,
    }
    job = replace(job, model=replace(job.model, config={**job.model.config, **sizes}))
    config = replace(job.config, sequence_length=LENGTH)
    return replace(job, config=config, device_type="cuda")


def recorded(job: ProbeJob) -> Tape:
    with clean_slate(), simulated_rung(simulation_job(job), PhaseFile(None), shallow=False) as own:
        return own.record(ROWS).tape


def made_by(tape: Tape, part: str) -> list[int]:
    return [block.size for block in tape.blocks if part in block.operator]


def follow(sizes: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether the wanted sizes are next to each other somewhere."""
    end = len(wanted)
    return any(list(sizes[at : at + end]) == list(wanted) for at in range(len(sizes) - end + 1))


def test_the_kernels_take_what_they_take_on_a_gpu() -> None:
    tape = recorded(flex_job())

    assert follow([block.size for block in tape.blocks], MASK)
    assert made_by(tape, "flex_attention_forward") == [SUMS, SUMS, QUERIES]
    assert made_by(tape, "flex_attention_backward") == [QUERIES, VALUES, VALUES]
    # What the compiler keeps of the first call: query, key, value, and eight small tensors.
    kept = [QUERIES, VALUES, VALUES, 8 * 512]
    assert made_by(tape, "of compiled call") == kept
    assert sum(kept) == 6_295_552
    lasting = {number for number, block in enumerate(tape.blocks) if "compiled" in block.operator}
    assert lasting.isdisjoint(-event - 1 for event in tape.events if event < 0)


def test_heads_that_are_no_power_of_two_have_repeated_keys() -> None:
    job = flex_job()
    odd = {"hidden_size": 12 * SIZE, "num_attention_heads": 12, "num_key_value_heads": 4}
    tape = recorded(replace(job, model=replace(job.model, config={**job.model.config, **odd})))

    assert len(set(made_by(tape, "flex_attention_backward"))) == 1


def test_few_tokens_run_another_kernel() -> None:
    job = flex_job()
    with pytest.raises(UnsupportedError, match="128 tokens"):
        recorded(replace(job, config=replace(job.config, sequence_length=64)))


def test_the_cpu_has_no_backward_pass() -> None:
    config = replace(TrainConfig(), attention="flex_attention")
    check_supported(config, "cuda", simulated=True)
    with pytest.raises(UnsupportedError, match="no backward pass on the CPU"):
        check_supported(config, "cpu")
