"""Reading settings of training programs as a rung."""

from __future__ import annotations

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import Document, UserTraining
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of

TRL = {
    "model_name_or_path": "Qwen/Qwen2.5-7B",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "learning_rate": 2e-4,
    "use_peft": True,
    "lora_r": 32,
    "lora_target_modules": "all-linear",
    "max_length": 4096,
    "dtype": "bfloat16",
}
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {"zero_stage": 3, "offload_optimizer_device": "cpu"},
    "mixed_precision": "bf16",
    "num_processes": 8,
}


def read(*files: dict, model: dict | None = None, **options: int) -> UserTraining:
    documents = [Document(f"file{i}.yaml", values) for i, values in enumerate(files, 1)]
    return finished(draft_of(documents), lambda: model or {}, Overrides(**options))


def test_settings_of_trl_become_a_rung():
    training = read(TRL | {"load_in_4bit": True})
    assert training.files[0].format == "trl"
    assert training.model == "Qwen/Qwen2.5-7B"
    assert training.config == TrainConfig(
        method="qlora",
        quantization="nf4",
        double_quant=False,
        kbit_prepare="none",
        autocast_dtype="bfloat16",  # the default of TRL
        adapter_dtype="bfloat16",
        activation_checkpointing="full",  # the default of TRL
        lora_rank=32,
        lora_dropout=0.05,
        micro_batch_size=4,
        sequence_length=4096,
        effective_batch_size=32,
    )


def test_what_is_not_taken_is_listed_with_its_reason():
    training = read(TRL | {"eval_packing": True, "no_such_setting": 3})
    reasons = {item.name: (item.matters, item.reason) for item in training.not_taken}
    assert reasons["learning_rate"] == (False, "does not change memory or speed")
    assert reasons["eval_packing"][0]
    assert "not a setting of TRL" in reasons["no_such_setting"][1]
    named = {item.name for item in (*training.said, *training.not_taken)}
    assert named == {*TRL, "eval_packing", "no_such_setting"}  # nothing is dropped


def test_a_launcher_says_how_many_gpus_and_how_they_shard():
    training = read(TRL, ACCELERATE)
    config = training.config
    assert (config.sharding, config.world_size, config.offload) == ("zero3", 8, "optimizer")
    assert config.effective_batch_size == 4 * 8 * 8
    assert (config.weights_dtype, config.autocast_dtype) == ("bfloat16", "none")


AXOLOTL = {"base_model": "m", "sequence_len": 512}
LLAMA_FACTORY = {"model_name_or_path": "m", "finetuning_type": "full", "cutoff_len": 512}
SWIFT = {"model": "m", "tuner_type": "full", "max_length": 512}
IN_32_BITS = AXOLOTL | {"bf16": False, "float32": True}


@pytest.mark.parametrize("settings", [TRL, IN_32_BITS, LLAMA_FACTORY, SWIFT])
@pytest.mark.parametrize(("value", "on"), [(True, True), (False, False), (None, False)])
def test_programs_with_the_arguments_of_the_trainer_have_tf32(settings, value, on):
    training = read(settings | {"tf32": value})
    assert training.config.tf32 is on
    assert "tf32" not in {item.name for item in training.not_taken if item.matters}


def test_tf32_is_off_unless_a_file_turns_it_on():
    assert not any(read(settings).config.tf32 for settings in (TRL, LLAMA_FACTORY, SWIFT))


def test_axolotl_turns_tf32_on_where_products_are_in_float32():
    assert read(IN_32_BITS).config.tf32
    assert read(IN_32_BITS | {"tf32": "auto"}).config.tf32
    assert not read(AXOLOTL).config.tf32
    assert not read(AXOLOTL | {"tf32": True}).config.tf32
    assert read(AXOLOTL | {"bf16": "full", "adapter": "lora"}).config.tf32  # of the adapters


def test_two_files_that_disagree_are_an_error():
    launcher = ACCELERATE | {"gradient_accumulation_steps": 2}
    with pytest.raises(OomDoctorError, match=r"file1.yaml says gradient_acc.*: 8, but"):
        read(TRL, launcher)


def test_options_replace_what_the_files_say():
    training = read(TRL, sequence_length=1024, gpus=2)
    assert (training.config.sequence_length, training.config.world_size) == (1024, 2)
    assert training.config.sharding == "ddp"
    assert training.config.effective_batch_size == 64
    (replaced,) = [item for item in training.not_taken if item.name == "max_length"]
    assert replaced.reason == "--seq-len says 1024"


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [("lora_r", "many", "must be a whole number"),
     ("lora_modules_to_save", True, "must be a list of names"),
     ("lora_target_modules", 4, "must be a list of names")],
)  # fmt: skip
def test_a_wrong_value_names_its_line(name, value, fault):
    document = Document("a.yaml", TRL | {name: value}, {name: 7})
    with pytest.raises(OomDoctorError, match=rf"a.yaml:7: {name} {fault}"):
        draft_of([document])


def test_sharding_needs_a_number_of_gpus():
    with pytest.raises(OomDoctorError, match="no file says on how many GPUs"):
        read({**TRL, "fsdp": "full_shard auto_wrap"})


GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


@pytest.mark.parametrize(
    ("settings", "model", "quantization"),
    [
        (TRL, GPTQ, "checkpoint"),
        (TRL, {"quantization_config": {"quant_method": "fp8"}}, "checkpoint"),
        (TRL, {"quantization_config": {"quant_method": "mxfp4"}}, "none"),  # not trained as stored
        (TRL, {}, "none"),
        (TRL | {"use_peft": False}, GPTQ, "none"),
        (
            {"model_name_or_path": "m", "finetuning_type": "lora", "quantization_bit": 4},
            GPTQ,  # LLaMA-Factory: quantization_bit has no effect then
            "checkpoint",
        ),
        (
            {"base_model": "m", "sequence_len": 512, "adapter": "lora", "gptq": True},
            {},
            "checkpoint",
        ),
    ],
)
def test_adapters_on_a_quantized_checkpoint_are_trained_as_it_is_stored(
    settings: dict, model: dict, quantization: str
) -> None:
    config = read(settings, model=model).config
    assert config.quantization == quantization
    assert config.method == ("qlora" if quantization != "none" else config.method)
