"""What helps, in which order, with which effect; and what is never advised."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from explain_make import ADAM, LAYER, LOSS, answer, changes, gib, incident, llama, samples

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis, Frame, LogFacts, Remedy
from oomdoctor.stacks.writing.changed_lines import IN_FILES
from oomdoctor.units import MIB

CHECKPOINT = Frame("/s/torch/utils/checkpoint.py", 500, "checkpoint", None)
EAGER = Frame("/s/transformers/models/llama/modeling_llama.py", 9, "eager_attention_forward", "x")


def _find(found: Diagnosis, words: str) -> Remedy | None:
    return next((r for r in found.remedies if words in r.change), None)


def _settings(**settings: Any) -> Given:
    return Given(settings=settings)


def test_expandable_segments_only_where_the_gaps_cover_the_request() -> None:
    covered = answer(event_reserved_unallocated_bytes=gib(3), event_requested_bytes=gib(2))
    remedy = _find(covered, "expandable segments")
    assert remedy is not None
    assert (remedy.frees_bytes, remedy.basis) == (gib(3), "measured")
    assert remedy.lines["shell"] == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    short = answer(event_reserved_unallocated_bytes=gib(1.9), event_requested_bytes=gib(2))
    assert _find(short, "expandable segments") is None


def test_the_row_itself_asks_for_covering_gaps() -> None:
    row = TABLE["expandable_segments"]
    for gaps, helps in ((gib(2), True), (gib(2) - 1, False), (None, False)):
        case = Case(incident(event_reserved_unallocated_bytes=gaps), LogFacts(), {})
        assert row.when(case) is helps


def test_new_name_of_the_variable_where_the_message_uses_it() -> None:
    found = answer(
        event_reserved_unallocated_bytes=gib(3),
        event_message="... try setting PYTORCH_ALLOC_CONF=expandable_segments:True",
    )
    remedy = _find(found, "expandable segments")
    assert remedy is not None
    assert remedy.lines["shell"] == "export PYTORCH_ALLOC_CONF=expandable_segments:True"


def test_no_expandable_segments_where_they_are_on_or_cannot_be() -> None:
    gaps = {"event_reserved_unallocated_bytes": gib(3), "event_requested_bytes": gib(2)}
    on = LogFacts(settings={"allocator": "expandable_segments:True"})
    assert _find(answer(facts=on, **gaps), "expandable segments") is None
    windows = (Frame("C:\\train.py", 3, "main", "step()"),)
    assert _find(answer(frames=windows, **gaps), "expandable segments") is None


def test_a_trainer_of_trl_that_only_the_text_names_gets_its_own_configuration() -> None:
    text = (
        "My own DPOTrainer of trl crashes half way:\nCUDA out of memory. Tried to allocate "
        "2.39 GiB. GPU 0 has a total capacity of 22.19 GiB of which 1.72 GiB is free."
    )
    batch = _find(_read(text), "smaller micro-batch")
    assert batch is not None and batch.lines["trl"].startswith("DPOConfig(")


@pytest.mark.parametrize(
    ("frame", "program", "lines"),
    [
        (
            "/root/LLaMA-Factory/src/llamafactory/train/sft/workflow.py",
            "llama-factory",
            ("eval_accumulation_steps: 8", "prediction_loss_only: true"),
        ),
        (
            "/root/ms-swift/swift/llm/train/sft.py",
            "ms-swift",
            ("--eval_accumulation_steps 8", "--prediction_loss_only true"),
        ),
    ],
)
def test_arguments_of_the_trainer_are_settings_of_programs_that_take_them(
    frame: str, program: str, lines: tuple[str, ...]
) -> None:
    frames = (
        Frame(frame, 51, "run_sft", "trainer.evaluate()"),
        Frame("transformers/trainer.py", 4327, "evaluation_loop", "all_preds.add(logits)"),
    )
    said = [remedy.lines.get(program) for remedy in answer(phase="eval", frames=frames).remedies]
    assert set(lines) <= set(said)


def test_a_program_with_options_gets_the_settings_of_a_remedy_as_options() -> None:
    lines = TABLE["checkpointing"].lines
    assert lines["ms-swift"] == "--gradient_checkpointing true"
    assert lines["axolotl"] == "gradient_checkpointing: true"


@pytest.mark.parametrize(("stage", "fused"), [("sft", True), ("dpo", False)])
def test_llama_factory_fuses_the_loss_of_labels_alone(stage: str, fused: bool) -> None:
    """It patches the loss that a model computes; preferences are compared by TRL."""
    frames = (
        Frame(f"/llamafactory/train/{stage}/workflow.py", 80, f"run_{stage}", "trainer.train()"),
        *LOSS,
    )
    keys = {remedy.key for remedy in answer(phase="loss", frames=frames).remedies}
    assert ("liger" in keys) is fused


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
        assert "Use 8-bit AdamW" not in changes(found)


def test_sharding_only_over_several_cards() -> None:
    assert _find(answer(phase="optimizer", frames=ADAM), "Shard across") is None
    assert _find(
        answer(phase="optimizer", frames=ADAM, facts=LogFacts(world_size=8)), "Shard across"
    )
    sharded = answer(phase="optimizer", frames=ADAM, given=_settings(zero_stage=3, world_size=8))
    assert _find(sharded, "Shard across") is None


@pytest.mark.parametrize("dialect", ["slurm", "container", "host_oom_killer", "cpu_allocator"])
def test_nothing_of_the_gpu_for_host_memory(dialect: str) -> None:
    found = answer(event_dialect=dialect, resource="host", event_capacity_bytes=None)
    text = " ".join((*changes(found), *(v for r in found.remedies for v in r.lines.values())))
    for word in ("checkpointing=True", "AdamW", "expandable", "LoRA", "micro-batch", "nvidia-smi"):
        assert word not in text


def test_what_the_closed_form_gives() -> None:
    given = Given(llama(), sequence_length=2048, micro_batch_size=4)
    found = answer(phase="loss", frames=LOSS, given=given, event_capacity_bytes=gib(140))
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
    found = answer(phase="loss", frames=LOSS, event_requested_bytes=gib(20), given=given,
                   event_capacity_bytes=gib(140))  # fmt: skip
    remedy = _find(found, "smaller micro-batch")
    assert remedy is not None
    line = remedy.lines["transformers"]
    assert "per_device_train_batch_size=8, gradient_accumulation_steps=4" in line


def test_enough_comes_before_too_little_and_cheap_before_dear() -> None:
    given = Given(llama(), sequence_length=2048, micro_batch_size=4)
    found = answer(phase="loss", frames=LOSS, given=given, event_requested_bytes=gib(3.91),
                   event_capacity_bytes=gib(140))  # fmt: skip
    enough = [r.frees_bytes is not None and r.frees_bytes >= gib(2.91) for r in found.remedies]
    assert enough == sorted(enough, reverse=True)
    assert "loss in chunks" in found.remedies[0].change
    assert "shorter" not in found.remedies[0].change


def test_what_meets_the_surest_cause_comes_first() -> None:
    facts = LogFacts(step_memory=samples(10, 12, 14, 16, 18, 20), last_step=5)
    found = answer(phase="forward", frames=LAYER, facts=facts)
    assert found.remedies[0].change.startswith("Keep numbers, not tensors")
    assert _find(found, "smaller micro-batch") is not None


def test_other_process_first() -> None:
    found = answer(
        phase="forward", frames=LAYER, event_other_processes_bytes=gib(40),
        event_process_bytes=gib(38),
    )  # fmt: skip
    first = found.remedies[0]
    assert first.change.startswith("Stop the other process")
    assert (first.frees_bytes, first.basis) == (gib(40), "measured")


def test_every_row_is_complete() -> None:
    for row in TABLE.values():
        assert row.change
        if row.key not in ("bigger_card", "smaller_model", "close_programs"):
            assert row.lines, row.key
        for name, line in row.lines.items():
            assert "\n" not in line or name in IN_FILES


def test_no_placeholder_is_left() -> None:
    for phase in ("load", "forward", "loss", "backward", "clip", "optimizer", "eval", "generate"):
        for given in (Given(), Given(llama(), micro_batch_size=4, sequence_length=512)):
            found = answer(phase=phase, given=given)
            for remedy in found.remedies:
                text = " ".join((remedy.change, remedy.note or "", *remedy.lines.values()))
                assert "$batch" not in text and "$steps" not in text and "$length" not in text


def test_only_what_lies_on_the_card_at_that_moment_counts() -> None:
    many = Given(model=llama(), micro_batch_size=4, sequence_length=4096)
    large = gib(300)
    forward = answer(phase="forward", frames=LAYER, given=many, event_capacity_bytes=large)
    assert _find(forward, "in chunks") is None  # the logits come after the layers
    smaller = _find(forward, "smaller micro-batch")
    assert smaller is not None and "logits" not in (smaller.arithmetic or "")
    loss = answer(phase="loss", frames=LOSS, given=many, event_capacity_bytes=large)
    assert _find(loss, "in chunks") is not None
    step = _find(answer(phase="optimizer", frames=ADAM, given=many), "LoRA")
    assert step is not None and "activations" not in (step.arithmetic or "")


def test_what_frees_nothing_is_not_advised() -> None:
    given = Given(model=llama(), micro_batch_size=1, sequence_length=2048,
                  settings={"zero_stage": 2, "bf16": True})  # fmt: skip
    found = answer(phase="optimizer", frames=ADAM, given=given)
    # DeepSpeed keeps 12 bytes a parameter beside 16-bit weights, whatever the optimizer's type.
    assert _find(found, "8-bit AdamW") is None
    assert all(remedy.frees_bytes != 0 for remedy in found.remedies)


def test_no_batch_or_length_while_a_model_is_loaded() -> None:
    loading = answer(phase="init", frames=LAYER[:1], event_requested_bytes=gib(30))
    assert _find(loading, "smaller micro-batch") is None
    assert _find(loading, "shorter sequences") is None


def test_checkpointing_is_assumed_where_the_forward_pass_needed_it() -> None:
    given = Given(model=llama(), micro_batch_size=8, sequence_length=4096)
    found = answer(phase="loss", frames=LOSS, given=given)
    assert any("would not fit without it" in words for words in found.assumed)
    assert _find(found, "activation checkpointing") is None
    small = answer(phase="loss", frames=LOSS, given=replace(given, micro_batch_size=1))
    assert "no activation checkpointing" in small.assumed


def test_sixteen_bit_weights_are_computed_where_32_were_loaded() -> None:
    found = answer(phase="load", frames=LAYER[:1], given=Given(model=llama()),
                   event_allocated_bytes=gib(29))  # fmt: skip
    half = _find(found, "bfloat16")
    assert half is not None and half.frees_bytes == 2 * 8_030_261_248
    # More than 32-bit weights take: something else lies there as well.
    beyond = answer(phase="load", frames=LAYER[:1], given=Given(model=llama()),
                    event_allocated_bytes=gib(70))  # fmt: skip
    assert not any("32 bits" in cause.why for cause in beyond.causes)


def test_names_are_filled_in_everywhere() -> None:
    for phase in ("load", "forward", "loss", "backward", "optimizer", "eval", "generate", "save"):
        for remedy in answer(phase=phase, event_requested_bytes=gib(90)).remedies:
            assert "$" not in (remedy.arithmetic or "") + remedy.change + (remedy.note or "")


def _read(text: str) -> Diagnosis:
    return diagnose("log", *scan([text]), Given())[0]


def test_vllm_takes_less_where_the_card_is_shared_and_more_where_the_cache_is_short() -> None:
    shared = _read(
        "ValueError: Free memory on device (3.1/23.6 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 21.2 GiB)."
    )
    assert shared.causes[0].cause == "other_process"
    assert _find(shared, "take more of the GPU") is None
    lower = _find(shared, "take less of the GPU")
    assert lower is not None
    assert lower.lines["vllm"].startswith("--gpu-memory-utilization 0.")
    short = _read("ValueError: No available memory for the cache blocks.")
    assert short.remedies[0].change == "Let vLLM take more of the GPU"
    assert _find(short, "take less of the GPU") is None
    full = _read(
        "vllm serve m --gpu-memory-utilization 0.98\nNo available memory for the cache blocks."
    )
    assert _find(full, "take more of the GPU") is None
    assert full.remedies[0].change == "Load a quantized checkpoint"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("=>> PBS: job killed: mem 4096kb exceeded limit 2048kb", "pbs"),
        ("TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", "lsf"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.", "slurm"),
    ],
)
def test_each_scheduler_has_its_own_lines(text: str, line: str) -> None:
    (remedy,) = (r for r in _read(text).remedies if "more host memory" in r.change)
    assert line in remedy.lines


def test_a_bare_bus_error_is_less_sure_than_the_loader_s_word() -> None:
    bare = _read("  exitcode  : -7 (pid: 33)")
    told = _read("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.")
    assert [found.causes[0].confidence for found in (bare, told)] == ["medium", "high"]
    assert _find(bare, "more shared memory") is not None


def test_unsloth_offloads_activations_already() -> None:
    layer = Frame("/s/site-packages/unsloth/models/llama.py", 600, "LlamaModel_fast_forward", "x")
    given = _settings(micro_batch_size=1)
    for frames, offered in ((LAYER, True), ((layer, *LAYER), False)):
        said = answer(given=given, frames=frames, phase="forward")
        assert (_find(said, "Offload activations") is not None) == offered
