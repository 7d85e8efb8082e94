"""A training that is named by the command that starts it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.commands.user_training import read_user_training
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.report.user_training import UserTraining
from oomdoctor.stacks.reading.command_line import command_in
from oomdoctor.stacks.reading.finish import Overrides
from oomdoctor.stacks.writing.changed_lines import changed_lines
from oomdoctor.stacks.writing.patch import by_file

SCRIPT = """\
parser = TrlParser((ScriptArguments, SFTConfig, ModelConfig))
script_args, training_args, model_args = parser.parse_args_and_config()
trainer = SFTTrainer(model=model_args.model_name_or_path, args=training_args)
"""
OWN_PARSER = """\
parser.add_argument("--size", type=int, default=4)
args = parser.parse_args()
training = TrainingArguments(per_device_train_batch_size=args.size)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "own.py").write_text(OWN_PARSER)
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    (tmp_path / "ax.yml").write_text("base_model: a/b\nsequence_len: 512\nmicro_batch_size: 2\n")
    (tmp_path / "swift.yaml").write_text("model: a/b\ntuner_type: full\nmax_length: 768\n")
    (tmp_path / "args.yaml").write_text("max_length: 256\nper_device_train_batch_size: 3\n")
    return tmp_path


def read(text: str) -> UserTraining:
    return read_user_training([text], None, Overrides(), None)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            "train.py --model_name_or_path a/b --per_device_train_batch_size 4 --max-length=96",
            {"micro_batch_size": 4, "sequence_length": 96, "world_size": 1},
        ),
        (
            "torchrun --nnodes 2 --nproc-per-node=4 train.py --gradient_checkpointing False",
            {"world_size": 8, "sharding": "ddp", "activation_checkpointing": "none"},
        ),
        (
            "accelerate launch --num_processes 8 --use_fsdp --fsdp_version 2 "
            "--fsdp_offload_params true --use_parallelism_config --parallelism_config_cp_size 4 "
            "--parallelism_config_dp_shard_size 2 train.py --attn_implementation sdpa",
            {"sharding": "fsdp", "context_parallel_size": 4, "offload": "parameters"},
        ),
        (
            "accelerate launch --num_processes 2 train.py --deepspeed zero.json --bf16",
            {"world_size": 2, "sharding": "zero2", "weights_dtype": "bfloat16"},
        ),
        (
            "python train.py --config args.yaml --max_length 128",
            {"micro_batch_size": 3, "sequence_length": 128},
        ),
        (
            "trl sft --use_peft --lora_target_modules q_proj o_proj --lora_r 4",
            {"method": "lora", "lora_rank": 4, "lora_targets": ("q_proj", "o_proj")},
        ),
        ("trl dpo --max_length 512", {"objective": "dpo", "sequence_length": 512}),
        ("accelerate launch trl reward --lora_r 4 --use_peft", {"objective": "reward"}),
        ("trl grpo --max_completion_length 64", {"objective": "grpo", "completion_length": 64}),
        ("trl kto --beta 0.2 --per_device_train_batch_size 3", {"objective": "default"}),
        (
            "NPROC_PER_NODE=2 swift sft --model a/b --deepspeed zero2 --max_length 64",
            {"method": "lora", "sharding": "zero2", "world_size": 2, "sequence_length": 64}
            | {"effective_batch_size": 16, "lora_alpha": 32, "autocast_dtype": "none"},
        ),
        (
            "swift rlhf --rlhf_type grpo --model a --max_length 64 --use_vllm true --sleep_level 1",
            {"objective": "grpo", "sequence_length": 64 + 512, "num_generations": 8}
            | {"vllm_gpu_memory_utilization": 0.9, "vllm_enable_sleep_mode": True}
            | {"reference": "kl", "effective_batch_size": 16},
        ),
        ("swift rlhf --rlhf_type grpo --model a/b --beta 0", {"reference": "default"}),
        ("swift rlhf --model a/b --tuner_type full", {"objective": "dpo", "method": "full"}),
        ("swift rlhf --rlhf_type kto --model a/b", {"objective": "default"}),
        ("swift sft swift.yaml --attn_impl flash_attn", {"sequence_length": 768, "method": "full"}),
        (
            "swift pt --model a/b --quant_method bnb --quant_bits 4 --packing --packing_length 96",
            {"method": "qlora", "double_quant": True, "packing": "packed", "sequence_length": 96},
        ),
        (
            "NPROC_PER_NODE=4 swift sft --model a/b --fsdp fsdp2 --torch_dtype float16",
            {"sharding": "fsdp", "fsdp_version": 2, "world_size": 4, "autocast_dtype": "float16"},
        ),
        (
            "python -m verl.trainer.main_ppo algorithm.adv_estimator=rloo data.max_prompt_length=64"
            " +actor_rollout_ref.model.path=a/b actor_rollout_ref.actor.ppo_mini_batch_size=8"
            " actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.rollout.n=4"
            " actor_rollout_ref.actor.fsdp_config.optimizer_offload=True trainer.n_gpus_per_node=2",
            {"objective": "grpo", "sequence_length": 64 + 512, "effective_batch_size": 32}
            | {"micro_batch_size": 2, "world_size": 2, "sharding": "fsdp", "reference": "default"}
            | {"weights_dtype": "float32", "vllm_gpu_memory_utilization": 0.5}
            | {"vllm_enable_sleep_mode": True, "rollout_offload": "optimizer"},
        ),
        (  # rows of a micro-batch are said in tokens
            "torchrun --nproc-per-node 2 -m verl.trainer.sft_trainer model.path=a/b "
            "data.train_batch_size=24 data.max_length=512 data.max_token_len_per_gpu=4096",
            {"objective": "default", "world_size": 2, "micro_batch_size": 6}
            | {"effective_batch_size": 24, "sharding": "fsdp"},
        ),
        (
            "ray job submit --address=x -- python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b "
            "--actor_num_gpus_per_node 4 --vllm_num_engines 4 --colocate_all_models "
            "--vllm_gpu_memory_utilization 0.6 --micro_train_batch_size 8 --train_batch_size 128 "
            "--n_samples_per_prompt 8 --zero_stage 3 --init_kl_coef 0 --deepspeed_enable_sleep",
            {"objective": "grpo", "world_size": 4, "sharding": "zero3", "micro_batch_size": 8}
            | {"effective_batch_size": 128, "vllm_gpu_memory_utilization": 0.6}
            | {"rollout_offload": "optimizer", "reference": "default", "sequence_length": 2048},
        ),
        (
            "deepspeed --num_gpus 2 --module openrlhf.cli.train_dpo --model.model_name_or_path a/b "
            "--data.max_len 512 --train.micro_batch_size 2 --ds.lora.rank 16",
            {"objective": "dpo", "method": "lora", "lora_rank": 16, "sharding": "zero2"}
            | {"world_size": 2, "effective_batch_size": 128, "micro_batch_size": 2},
        ),
        (
            "accelerate launch -m axolotl.cli.train ax.yml --micro-batch-size 5",
            {"micro_batch_size": 5, "sequence_length": 512},
        ),
    ],
)
def test_a_command_is_a_training(folder: Path, text: str, keys: dict[str, Any]) -> None:
    config = read(text).config
    assert {key: getattr(config, key) for key in keys} == keys


def test_the_last_command_of_a_shell_script_counts(folder: Path) -> None:
    file = folder / "job.sbatch"
    file.write_text(
        "#!/bin/bash\n#SBATCH --nodes=1\nexport LENGTH=640\nBATCH=2\npython prepare.py --x 1\n"
        "srun torchrun --nproc_per_node 2 \\\n  train.py --max_length ${LENGTH} \\\n"
        "  --per_device_train_batch_size $BATCH --output_dir $OUT\necho done\n"
    )
    found = read(str(file))
    config = found.config
    assert (config.sequence_length, config.micro_batch_size, config.world_size) == (640, 2, 2)
    (unset,) = (one for one in found.not_taken if one.matters)
    assert (unset.name, unset.value) == ("output_dir", "$OUT")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("own.py --size 8", "the options of the script's parser are not read"),
        ("missing.py --size 8", "No such file"),
        ("not a command", "No such file"),
    ],
)
def test_what_is_not_read_says_what_to_type(folder: Path, text: str, said: str) -> None:
    with pytest.raises(OomDoctorError) as caught:
        read(text)
    assert said in caught.value.message and caught.value.hint


@pytest.mark.parametrize(
    "text", ["", "echo 'open", "trl env --beta 1", "swift infer", "ls -l", "\\\n" * 999]
)
def test_other_lines_start_no_training(text: str) -> None:
    assert command_in(text) is None


def test_values_of_any_form_stay_text() -> None:
    found = command_in(f"train.py --a {'[' * 9999} --b {'9' * 9999} --c '{{\"d\": 1}}' --e")
    assert found is not None
    assert isinstance(found.options["a"], str) and isinstance(found.options["b"], str)
    assert (found.options["c"], found.options["e"]) == ({"d": 1}, True)


def test_a_step_that_no_rung_has_is_said(folder: Path) -> None:
    training = read("trl kto --beta 0.2")
    assert [one.name for one in training.not_taken if one.matters] == ["trl"]


def test_a_file_that_is_missing_is_named_with_its_command(folder: Path) -> None:
    with pytest.raises(OomDoctorError) as caught:
        read("my file.yaml")
    assert "'my file.yaml'" in str(caught.value)


VERL = "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b "
OPENRLHF = "python -m openrlhf.cli.train_ppo_ray --pretrain a/b "
MOVED = "critic.fsdp.optimizer_offload=True "


@pytest.mark.parametrize(
    ("text", "critic", "reward_model"),
    [
        (VERL, "card", "none"),
        (VERL + MOVED, "weights", "none"),
        (VERL + MOVED + "critic.fsdp.param_offload=True", "host", "none"),
        (VERL + "critic.enable=False", "none", "none"),
        (VERL + "algorithm.adv_estimator=grpo", "none", "none"),
        (VERL + "algorithm.adv_estimator=grpo critic.enable=True", "card", "none"),
        (OPENRLHF + "--colocate_all_models", "card", "none"),
        (OPENRLHF + "--colocate_all_models --reward_pretrain c/d", "card", "card"),
        (OPENRLHF + "--colocate_all_models --reward_pretrain c/d --deepspeed_enable_sleep",
         "weights", "card"),
        (OPENRLHF + "--colocate_all_models --advantage_estimator rloo --remote_rm_url x "
         "--reward_pretrain c/d", "none", "none"),
        (OPENRLHF + "--reward_pretrain c/d", "none", "none"),  # on other GPUs
        ("python -m verl.trainer.sft_trainer model.path=a/b", "none", "none"),
    ],
)  # fmt: skip
def test_the_critic_and_the_reward_model_of_ppo_are_counted_where_they_share_gpus(
    folder: Path, text: str, critic: str, reward_model: str
) -> None:
    training = read(text)
    assert (training.config.critic, training.config.reward_model) == (critic, reward_model)
    taken = {item.key: item.reason for item in training.assumed}
    if reward_model != "none":
        assert taken["reward_model"] == "c/d is assumed to be as large as the model"
    named = [item.name for item in training.not_taken if item.matters]
    assert [name for name in named if "critic" in name or "estimator" in name] == []


def test_a_change_of_hydra_is_its_word(folder: Path) -> None:
    training = read(
        "python -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=1"
    )
    after = replace(training.config, micro_batch_size=2)
    (texts,) = by_file(changed_lines(training, after)).values()
    assert texts == ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2"]


def test_a_change_to_qlora_names_the_library_that_quantizes(folder: Path) -> None:
    training = read("swift sft --model a/b")
    after = replace(training.config, method="qlora", quantization="nf4")
    names = {line.name for line in changed_lines(training, after)}
    assert {"quant_method", "quant_bits"} <= names


def test_a_file_of_verl_with_an_engine_is_no_sft(folder: Path) -> None:
    file = folder / "ppo.yaml"
    file.write_text(
        "actor_rollout_ref:\n  model: {path: a/b}\n  rollout: {name: vllm, n: 4}\n"
        "trainer: {n_gpus_per_node: 1}\n"
    )
    training = read(str(file))
    assert (training.config.objective, training.config.num_generations) == ("grpo", 4)
    assert training.config.critic == "card"  # verl's default estimator needs one
    config = training.config
    assert (config.rl_program, config.packing) == ("verl", "padding_free")
    assert (config.sharding, config.world_size) == ("fsdp", 1)  # FSDP wraps on one GPU too
    assert (config.reduce_dtype, config.sync_each_batch) == ("float32", True)


def test_deepspeed_of_openrlhf_trains_on_one_gpu_too(folder: Path) -> None:
    config = read(f"{OPENRLHF} --actor.num_gpus_per_node 1 --train.colocate_all").config
    assert (config.sharding, config.world_size, config.rl_program) == ("zero2", 1, "openrlhf")


def test_only_ms_swift_brings_files_of_deepspeed_with_it(folder: Path) -> None:
    (folder / "trainer.yaml").write_text("output_dir: out\nlearning_rate: 1e-5\ndeepspeed: zero2\n")
    with pytest.raises(OomDoctorError, match="names zero2, and there is no such file"):
        read("trainer.yaml")
