"""The work of steps that wait for the card or for the host, and their times taken apart."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.analysis.simulator.step_parts import Engine, step_time
from oomdoctor.analysis.simulator.timing import Work, estimated_timing
from oomdoctor.records.job.costs import OpCost
from oomdoctor.records.job.measurement import Timing
from oomdoctor.records.job.step_time import StepTime
from oomdoctor.system.catalogue import find_gpu, speed_errors

A100 = find_gpu("A100-SXM4-80GB")
PRODUCT = OpCost("mm", "matmul", "bfloat16", 5e11, 1e8)
ATTENTION = OpCost("_flash_attention_forward", "attention", "bfloat16", 2e11, 1e8)
ADD = OpCost("add", "elementwise", "bfloat16", 0.0, 1e9)
UNPACK = OpCost("dequantize_blockwise", "quantised", "bfloat16", 0.0, 1e8)
COPY = OpCost("_to_copy", "copy", "bfloat16", 0.0, 1e8)
TINY = OpCost("mul", "elementwise", "bfloat16", 0.0, 8.0)

BUSY = Work([(PRODUCT, 9), (ATTENTION, 4), (UNPACK, 2)], [(PRODUCT, 18), (ADD, 3), (COPY, 1)],
            [(ADD, 2)])  # fmt: skip
IDLE = Work([(TINY, 500), (PRODUCT, 1)], [(TINY, 1000)], [(TINY, 300)])


def taken_apart(
    work: Work, micro_steps: int = 4, engine: Engine | None = None, **waits: float
) -> tuple[StepTime, Timing]:
    assert A100 is not None
    timing = estimated_timing(work, A100, None, speed_errors())
    assert timing is not None
    engine = engine or Engine()
    update = engine.update_share * timing.optimizer_step_s + engine.host_s
    timing = replace(
        timing,
        micro_step_s=timing.micro_step_s + waits.get("micro", 0.0),
        optimizer_step_s=update + waits.get("update", 0.0),
    )
    return step_time(work, timing, micro_steps, A100, None, engine), timing
