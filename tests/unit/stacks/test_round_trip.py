"""A rung written for a program and read back is the same rung, except for what is stated here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from stack_rungs import RUNGS

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero, steps_in_backward
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.facts.optimizers import RECIPE_NAMES, canonical
from oomdoctor.stacks.export import Lost, comparable, export, lost, settings_of
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.reading.script import read_script
from oomdoctor.stacks.rung import StackRung

# Beside the number of GPUs, which the launcher sets, and what no program has in a file.
NOBODY = {"allocator", "gpus_per_node", "document_length", "frozen_layers"}
NOBODY |= {"vision", "images", "image_size"}
VLLM = "vllm_gpu_memory_utilization"
OBJECTIVES = {"objective", "reference", "completion_length", "num_generations", VLLM}
# What the files of each program cannot hold; docs/from.md says the same.
STATED = {
    "trainer": NOBODY
    | OBJECTIVES
    | {"sequence_length", "packing", "kbit_prepare", "offload", "optimizer_in_backward", "fp8"}
    | {"loss", "adapter_dtype"},  # TRL's loss in chunks
    # `trl dpo`, `trl grpo` and `trl reward` tell the objective, where no setting does.
    "trl": NOBODY
    | {"kbit_prepare", "optimizer_in_backward", "objective", "completion_length", "fp8"}
    | {"adapter_dtype"},  # TRL decides it
    "axolotl": NOBODY
    | {
        "optimizer_in_backward",
        "completion_length",
        "reference",
        "fp8",
        "loss",
        VLLM,
        "adapter_dtype",
        "tf32",  # of other products than those of float32
    }
    | {"weights_dtype", "autocast_dtype", "activation_checkpointing", "checkpoint_every"}
    | {"kbit_prepare", "offload", "sync_each_batch", "bucket_elements", "prefetch", "sharding"},
    "llama-factory": NOBODY
    | OBJECTIVES
    | {"optimizer_in_backward", "adapter_dtype"}
    | {"weights_dtype", "autocast_dtype", "activation_checkpointing", "checkpoint_every"}
    | {"kbit_prepare", "quant_storage", "offload", "attention", "packing", "loss"},
    "ms-swift": NOBODY
    | {"kbit_prepare", "reference", "loss", "optimizer_in_backward", "fp8", "adapter_dtype"}
    | {"activation_checkpointing", "checkpoint_every", "offload", "sharding", "fsdp_version"}
    | {"prefetch", "reduce_dtype", "bucket_elements", "quantize_experts"},
    "torchtune": NOBODY
    | OBJECTIVES
    | {"weights_dtype", "autocast_dtype", "activation_checkpointing", "checkpoint_every"}
    | {"kbit_prepare", "quant_storage", "double_quant", "quantization", "loss", "attention"}
    | {"optimizer", "offload", "sharding", "fsdp_version", "prefetch", "reduce_dtype"}
    | {"bucket_elements", "sync_each_batch", "packing", "lora_targets", "method"}
    | {"use_rslora", "modules_to_save", "optimizer_rank", "fp8", "adapter_dtype", "tf32"},
    "accelerate": {"offload", "sharding", "prefetch"},
    "deepspeed": {"sharding", "offload"},
}


def only_here(config: TrainConfig, one: Lost) -> bool:
    """Whether no program has it: parts of layers, a mesh of nodes, states on the host alone."""
    return (
        (one.key == "activation_checkpointing" and one.value in ("attention", "mlp"))
        or (one.key == "lora_targets" and one.value == "attention")
        or (one.key == "sharding" and one.value == "hybrid")
        or (one.key == "offload" and config.sharding == "none" and one.value == "optimizer")
    )


def check(config: TrainConfig, program: str) -> None:
    if program == "torchtune":
        # The name of the builder, which depends on the model, says the method.
        prefix = {"full": "", "lora": "lora_", "qlora": "qlora_"}[config.method]
        written = settings_of(config, program)
        written.setdefault("model", {})["_component_"] = (
            f"torchtune.models.llama3_1.{prefix}llama3_1_8b"
        )
    else:
        written = settings_of(config, program)
    for one in lost(config, program, written):
        if only_here(config, one):
            continue
        assert one.key in STATED[program], (program, one, config)


@pytest.mark.parametrize("program", STATED)
def test_rungs_of_recipes_come_back(program: str) -> None:
    assert len(RUNGS) > 40
    for config in RUNGS.values():
        if program == "deepspeed" and not is_zero(config):
            continue
        check(config, program)


@pytest.mark.parametrize("program", ("trainer", "trl"))
def test_usual_rungs_come_back_whole(program: str) -> None:
    for name, config in RUNGS.items():
        found = lost(config, program, settings_of(config, program))
        held = {one.key for one in found if not only_here(config, one)}
        usual = {"kbit_prepare", "adapter_dtype", "sequence_length", "optimizer_in_backward", "fp8"}
        if config.objective == "default" and (program == "trl" or config.loss != "chunked"):
            assert held <= NOBODY | usual, (name, held)


CONFIGS = st.builds(
    TrainConfig,
    method=st.sampled_from(("full", "lora", "qlora")),
    weights_dtype=st.sampled_from(("bfloat16", "float32", "float16")),
    autocast_dtype=st.sampled_from(("none", "bfloat16", "float16")),
    optimizer=st.sampled_from(RECIPE_NAMES),
    attention=st.sampled_from(
        ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")
    ),
    activation_checkpointing=st.sampled_from(("none", "full", "every_n", "offload")),
    checkpoint_every=st.integers(2, 4),
    lora_rank=st.integers(1, 256),
    lora_alpha=st.integers(1, 512),
    lora_dropout=st.sampled_from((0.0, 0.05, 0.1)),
    lora_targets=st.sampled_from(("all-linear", ("q_proj", "v_proj"), ("down_proj",))),
    quantization=st.sampled_from(("none", "nf4", "int8")),
    double_quant=st.booleans(),
    loss=st.sampled_from(("default", "liger", "chunked")),
    packing=st.sampled_from(("none", "packed", "padding_free")),
    micro_batch_size=st.sampled_from((1, 2, 4)),
    sequence_length=st.integers(1, 32768),
    effective_batch_size=st.sampled_from((64, 128)),
    compile=st.booleans(),
    tf32=st.booleans(),
    sharding=st.sampled_from(("none", "ddp", "fsdp", "fsdp_grad_op", "zero1", "zero2", "zero3")),
    offload=st.sampled_from(("none", "optimizer", "parameters", "activations")),
    world_size=st.sampled_from((1, 2, 8)),
    fp8=st.sampled_from(("none", "none", "torchao", "transformer_engine")),
    optimizer_rank=st.integers(1, 512),
    fsdp_version=st.sampled_from((1, 2)),
    use_dora=st.booleans(),
    adapter_dtype=st.sampled_from(("default", "default", "float32", "bfloat16", "float16")),
    use_rslora=st.booleans(),
    modules_to_save=st.sampled_from(((), ("embed_tokens", "lm_head"))),
    frozen_layers=st.sampled_from((0, 0, 0, 4)),
    sync_each_batch=st.booleans(),
)


def repaired(config: TrainConfig) -> TrainConfig:
    """The configuration without the contradictions that chance makes most often."""
    changes: dict[str, Any] = {"world_size": 1 if config.sharding == "none" else 8}
    if config.method == "full":
        changes |= {"use_dora": False, "use_rslora": False, "modules_to_save": ()}
        changes["adapter_dtype"] = "default"
    else:
        changes["frozen_layers"] = 0
    if config.method == "qlora":
        changes["quantization"] = "int8" if config.quantization == "int8" else "nf4"
    else:
        changes["quantization"] = "none"
    if steps_in_backward(config):
        changes["optimizer"] = "adamw_torch"
    if config.method != "full" or config.sharding != "none":
        changes["fp8"] = "none"
    if config.autocast_dtype == "float16" and config.method == "full":
        changes["weights_dtype"] = "float32"
    if not is_fsdp(config):
        changes["fsdp_version"] = 2
    if is_zero(config):
        changes["sync_each_batch"] = False
    config = replace(config, **changes)
    if config_faults(config):
        config = replace(config, adapter_dtype="default")
    for change in ({"offload": "none"}, {"optimizer": "adamw_torch"}):
        config = replace(config, **change) if config_faults(config) else config
    return config


@pytest.mark.parametrize("program", STATED)
@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(config=CONFIGS)
def test_any_rung_comes_back(program: str, config: TrainConfig) -> None:
    config = repaired(config)
    assume(not config_faults(config))
    if program == "deepspeed" and not is_zero(config):
        return
    check(config, program)


OBJECTIVE_VALUES = st.fixed_dictionaries(
    {
        "objective": st.sampled_from(("default", "default", "dpo", "reward", "grpo")),
        "reference": st.sampled_from(("default", "precomputed", "kl")),
        "completion_length": st.sampled_from((0, 16, 300)),
        "num_generations": st.sampled_from((2, 4, 8)),
    }
)


def with_objective(config: TrainConfig, values: dict[str, Any]) -> TrainConfig:
    """The configuration with an objective, and without what chance adds that it does not have."""
    if values["objective"] == "default":
        return config
    if values["objective"] == "reward":
        values = {**values, "completion_length": 0}
    if {"dpo": "precomputed", "grpo": "kl"}.get(values["objective"]) != values["reference"]:
        values = {**values, "reference": "default"}
    checkpointing = config.activation_checkpointing
    kind = "full" if checkpointing in ("every_n", "offload") else checkpointing
    return replace(config, **values, loss="default", packing="none", activation_checkpointing=kind)


def read_back(text: str, config: TrainConfig) -> TrainConfig:
    gpus = config.world_size if config.world_size > 1 else None
    return finished(draft_of([read_script("train.py", text)]), dict, Overrides(gpus=gpus)).config


@pytest.mark.parametrize("target", ("trl", "trainer", "pytorch"))
@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(config=CONFIGS, objective=OBJECTIVE_VALUES)
def test_any_script_comes_back(target: str, config: TrainConfig, objective: dict[str, Any]) -> None:
    config = repaired(with_objective(config, objective))
    if target == "pytorch":  # a loop names the class, which two names of the Trainer stand for
        config = replace(config, optimizer=canonical(config.optimizer))
    assume(not config_faults(config))
    mixed = {config.weights_dtype, config.autocast_dtype} >= {"bfloat16", "float16"}
    assume(not (is_zero(config) and mixed))  # the Trainer has one of the two with DeepSpeed
    try:
        text = export(StackRung(config, "a rung", "some/model"), target)
    except OomDoctorError:
        assume(False)
    assert comparable(read_back(text, config)) == comparable(config)


def test_only_liger_or_the_chunks_are_written_for_trl() -> None:
    """In SFTTrainer, `use_liger_kernel: false` does not say that the logits are whole."""
    settings = settings_of(TrainConfig(micro_batch_size=1, loss="chunked"), "trl")
    assert (settings["use_liger_kernel"], settings["loss_type"]) == (False, "chunked_nll")
    assert "loss_type" not in settings_of(TrainConfig(micro_batch_size=1, loss="liger"), "trl")
    turned = {"loss_type": "chunked_nll", **settings}
    assert not lost(TrainConfig(micro_batch_size=1, loss="chunked"), "trl", turned)


def test_the_check_can_fail() -> None:
    written: dict[str, Any] = settings_of(TrainConfig(micro_batch_size=1), "trl")
    written["lora_r"] = 3
    wrong = TrainConfig(micro_batch_size=1, method="lora")
    assert "method" in {one.key for one in lost(wrong, "trl", written)}


def test_values_without_a_meaning_are_not_compared() -> None:
    assert comparable(TrainConfig(lora_rank=3)) == TrainConfig()
    assert comparable(TrainConfig(micro_batch_size=AUTO, checkpoint_every=9)) == TrainConfig()
