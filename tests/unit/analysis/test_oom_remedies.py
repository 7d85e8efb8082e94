"""What helps, in which order, with which effect; and what is never advised."""

from __future__ import annotations

from typing import Any

import pytest
from explain_make import ADAM, LAYER, LOSS, answer, changes, gib, incident, llama, samples

from oomdoctor.analysis.oom.case import Case
from oomdoctor.analysis.oom.remedy_table import TABLE
from oomdoctor.analysis.oom.settings import Given, Setup
from oomdoctor.records.diagnosis import Diagnosis, Frame, LogFacts, Remedy
from oomdoctor.units import MIB

CHECKPOINT = Frame("/s/torch/utils/checkpoint.py", 500, "checkpoint", None)
EAGER = Frame("/s/transformers/models/llama/modeling_llama.py", 9, "eager_attention_forward", "x")


def _find(found: Diagnosis, words: str) -> Remedy | None:
    return next((r for r in found.remedies if words in r.change), None)


def _settings(**settings: Any) -> Given:
    return Given(settings=settings)


def test_expandable_segments_only_where_the_gaps_cover_the_request() -> None:
    covered = answer(event_reserved_unallocated_bytes=gib(3), event_requested_bytes=gib(2))
    remedy = _find(covered, "allocator grow")
    assert remedy is not None
    assert (remedy.frees_bytes, remedy.basis) == (gib(3), "measured")
    assert remedy.lines["shell"] == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    short = answer(event_reserved_unallocated_bytes=gib(1.9), event_requested_bytes=gib(2))
    assert _find(short, "allocator grow") is None


def test_the_row_itself_asks_for_covering_gaps() -> None:
    row = TABLE["expandable_segments"]
    for gaps, helps in ((gib(2), True), (gib(2) - 1, False), (None, False)):
        case = Case(incident(event_reserved_unallocated_bytes=gaps), LogFacts(), Setup())
        assert row.when(case) is helps


def test_new_name_of_the_variable_where_the_message_uses_it() -> None:
    found = answer(
        event_reserved_unallocated_bytes=gib(3),
        event_message="... try setting PYTORCH_ALLOC_CONF=expandable_segments:True",
    )
    remedy = _find(found, "allocator grow")
    assert remedy is not None
    assert remedy.lines["shell"] == "export PYTORCH_ALLOC_CONF=expandable_segments:True"


def test_no_expandable_segments_where_they_are_on_or_cannot_be() -> None:
    gaps = {"event_reserved_unallocated_bytes": gib(3), "event_requested_bytes": gib(2)}
    on = LogFacts(settings={"allocator": "expandable_segments:True"})
    assert _find(answer(facts=on, **gaps), "allocator grow") is None
    windows = (Frame("C:\\train.py", 3, "main", "step()"),)
    assert _find(answer(frames=windows, **gaps), "allocator grow") is None


def test_the_hint_of_the_message_is_no_setting() -> None:
    facts = LogFacts(
        settings={"allocator": "expandable_segments:True"},
        evidence={
            "allocator": ("try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid",)
        },
    )
    found = answer(facts=facts, event_reserved_unallocated_bytes=gib(3))
    assert _find(found, "allocator grow") is not None


def test_no_smaller_batch_at_batch_one() -> None:
    one = answer(phase="forward", frames=LAYER, given=Given(micro_batch_size=1))
    assert _find(one, "smaller micro-batch") is None
    many = _find(answer(phase="forward", frames=LAYER, given=Given(micro_batch_size=8)), "smaller")
    assert many is not None
    assert "(now 8)" in many.change


def test_no_checkpointing_where_it_is_on() -> None:
    off = answer(phase="forward", frames=LAYER)
    assert _find(off, "activation checkpointing") is not None
    for on in (
        answer(phase="forward", frames=(*LAYER, CHECKPOINT)),
        answer(phase="forward", frames=LAYER, given=_settings(gradient_checkpointing=True)),
        answer(phase="backward", recomputing=True),
    ):
        assert _find(on, "activation checkpointing") is None


def test_no_checkpointing_without_gradients() -> None:
    frames = (Frame("/s/torch/utils/_contextlib.py", 120, "decorate_context", None), *LAYER[2:])
    assert _find(answer(phase="forward", frames=frames), "activation checkpointing") is None


def test_fused_attention_only_instead_of_eager() -> None:
    assert _find(answer(phase="forward", frames=(*LAYER, EAGER)), "fused attention") is not None
    assert _find(answer(phase="forward", frames=LAYER), "fused attention") is None


def test_fused_loss_only_for_language_models_without_it() -> None:
    assert _find(answer(phase="loss", frames=LOSS), "loss in chunks") is not None
    vision = (Frame("/s/transformers/models/vit/modeling_vit.py", 1, "forward", "x"),)
    assert _find(answer(phase="loss", frames=vision), "loss in chunks") is None
    assert _find(
        answer(phase="loss", frames=LOSS, given=_settings(use_liger_kernel=True)), "loss in chunks"
    ) is None  # fmt: skip


def test_eight_bit_states_only_for_wide_ones_of_full_training() -> None:
    assert _find(answer(phase="optimizer", frames=ADAM), "8-bit AdamW") is not None
    for given in (_settings(optim="adamw_bnb_8bit"), _settings(adapter="lora")):
        found = answer(phase="optimizer", frames=ADAM, given=given)
        assert "8-bit AdamW" not in changes(found)


def test_sharding_only_over_several_cards() -> None:
    assert _find(answer(phase="optimizer", frames=ADAM), "shard over") is None
    assert _find(answer(phase="optimizer", frames=ADAM, facts=LogFacts(world_size=8)), "shard over")
    sharded = answer(phase="optimizer", frames=ADAM, given=_settings(zero_stage=3, world_size=8))
    assert _find(sharded, "shard over") is None


@pytest.mark.parametrize("dialect", ["slurm", "container", "host_oom_killer", "cpu_allocator"])
def test_nothing_of_the_gpu_for_host_memory(dialect: str) -> None:
    found = answer(event_dialect=dialect, resource="host", event_capacity_bytes=None)
    text = " ".join((*changes(found), *(v for r in found.remedies for v in r.lines.values())))
    for word in ("checkpointing=True", "AdamW", "expandable", "LoRA", "micro-batch", "nvidia-smi"):
        assert word not in text


def test_what_the_closed_form_gives() -> None:
    given = Given(llama(), sequence_length=2048, micro_batch_size=4)
    found = answer(phase="loss", frames=LOSS, given=given)
    fused = _find(found, "loss in chunks")
    assert fused is not None
    assert fused.frees_bytes == 4 * 2048 * 128256 * 14
    assert fused.basis == "arithmetic"
    assert fused.arithmetic == "logits 13.7 GiB -> 0 B"
    adam = _find(answer(phase="optimizer", frames=ADAM, given=Given(llama())), "8-bit AdamW")
    assert adam is not None
    assert adam.frees_bytes == 2 * 8_030_261_248


def test_without_a_model_the_request_tells_the_least() -> None:
    remedy = _find(answer(phase="forward", frames=LAYER), "smaller micro-batch")
    assert remedy is not None
    assert (remedy.frees_bytes, remedy.basis) == (gib(1), "arithmetic")
    small = answer(phase="forward", frames=LAYER, event_requested_bytes=20 * MIB)
    remedy = _find(small, "smaller micro-batch")
    assert remedy is not None
    assert (remedy.frees_bytes, remedy.basis) == (None, "rule")


def test_the_batch_is_cut_as_far_as_needed() -> None:
    given = Given(llama(), sequence_length=512, micro_batch_size=16,
                  settings={"gradient_accumulation_steps": 2})  # fmt: skip
    found = answer(phase="loss", frames=LOSS, event_requested_bytes=gib(20), given=given)
    remedy = _find(found, "smaller micro-batch")
    assert remedy is not None
    line = remedy.lines["transformers"]
    assert "per_device_train_batch_size=8, gradient_accumulation_steps=4" in line


def test_enough_comes_before_too_little_and_cheap_before_dear() -> None:
    given = Given(llama(), sequence_length=2048, micro_batch_size=4)
    found = answer(phase="loss", frames=LOSS, given=given, event_requested_bytes=gib(3.91))
    enough = [r.frees_bytes is not None and r.frees_bytes >= gib(2.91) for r in found.remedies]
    assert enough == sorted(enough, reverse=True)
    assert "loss in chunks" in found.remedies[0].change
    assert "shorter" not in found.remedies[0].change


def test_what_meets_the_surest_cause_comes_first() -> None:
    facts = LogFacts(step_memory=samples(10, 12, 14, 16, 18, 20), last_step=5)
    found = answer(phase="forward", frames=LAYER, facts=facts)
    assert found.remedies[0].change.startswith("keep numbers, not tensors")
    assert _find(found, "smaller micro-batch") is not None


def test_other_process_first() -> None:
    found = answer(
        phase="forward", frames=LAYER, event_other_processes_bytes=gib(40),
        event_process_bytes=gib(38),
    )  # fmt: skip
    first = found.remedies[0]
    assert first.change.startswith("end the other process")
    assert (first.frees_bytes, first.basis) == (gib(40), "measured")


def test_every_row_is_complete() -> None:
    for row in TABLE.values():
        assert row.change
        if row.key != "bigger_card":
            assert row.lines, row.key
        for line in row.lines.values():
            assert "\n" not in line


def test_no_placeholder_is_left() -> None:
    for phase in ("load", "forward", "loss", "backward", "clip", "optimizer", "eval", "generate"):
        for given in (Given(), Given(llama(), micro_batch_size=4, sequence_length=512)):
            found = answer(phase=phase, given=given)
            for remedy in found.remedies:
                text = " ".join((remedy.change, remedy.note or "", *remedy.lines.values()))
                assert "$batch" not in text and "$steps" not in text and "$length" not in text
