"""How GPUs share a training: accelerate's mesh is a rung, and what no rung has is refused."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.export import lost
from oomdoctor.stacks.names.row import nested, written
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import check_planned, draft_of
from oomdoctor.stacks.reading.script import read_script

TRL = {"per_device_train_batch_size": 1, "max_length": 4096, "use_peft": False, "packing": True}
TRL |= {"attn_implementation": "sdpa", "gradient_accumulation_steps": 2}
AXOLOTL = {"base_model": "m", "sequence_len": 4096, "micro_batch_size": 1, "fsdp_version": 2}
SCRIPT = """
from accelerate.parallelism_config import ParallelismConfig
from trl import SFTConfig, SFTTrainer
mesh = ParallelismConfig(dp_shard_size=2, cp_size=4)
arguments = SFTConfig(
    "out", per_device_train_batch_size=1, gradient_accumulation_steps=2, max_length=4096,
    fsdp="full_shard auto_wrap", fsdp_config={"version": 2}, parallelism_config=mesh,
)
"""


def launched(gpus: int, sizes: dict[str, int], **fsdp: Any) -> dict[str, Any]:
    """accelerate's file, as `accelerate config` of 1.15 writes it."""
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_processes": gpus,
        "fsdp_config": {"fsdp_version": 2, **fsdp},
        "parallelism_config": {f"parallelism_config_{key}": size for key, size in sizes.items()},
    }


def read(*files: dict[str, Any], **options: int) -> TrainConfig:
    documents = [Document(f"file{i}.yaml", values) for i, values in enumerate(files, 1)]
    draft = draft_of(documents)
    check_planned(draft)
    return finished(draft, dict, Overrides(**options)).config


def keys_of(config: TrainConfig) -> tuple[str, int, int, int]:
    shared = config.context_parallel_size
    return config.sharding, config.world_size, shared, config.effective_batch_size


def test_gpus_that_share_sequences_are_read_from_accelerate_and_from_arguments() -> None:
    sizes = {"dp_shard_size": 2, "cp_size": 4, "tp_size": 1, "dp_replicate_size": 1}
    assert keys_of(read(TRL, launched(8, sizes))) == ("fsdp", 8, 4, 4)
    arguments = TRL | {"fsdp": "full_shard", "fsdp_config": {"version": 2}}
    arguments["parallelism_config"] = {"cp_size": 4, "dp_shard_size": 2}
    assert keys_of(read(arguments)) == ("fsdp", 8, 4, 4)
    assert keys_of(read(arguments, gpus=8)) == ("fsdp", 8, 4, 4)


def test_a_script_makes_its_mesh_as_an_object() -> None:
    training = finished(draft_of([read_script("train.py", SCRIPT)]), dict)
    assert keys_of(training.config) == ("fsdp", 8, 4, 4)
    assert not [item.name for item in training.not_taken if item.matters]


def test_sequences_that_deepspeed_shares_are_read_from_sp_size() -> None:
    launch = launched(8, {"dp_shard_size": 2, "sp_size": 4}) | {
        "distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3}, "fsdp_config": {},
    }  # fmt: skip
    whole = TRL | {"packing": False}
    assert keys_of(read(whole, launch)) == ("zero3", 8, 4, 4)
    script = SCRIPT.replace("cp_size=4", "sp_size=4, sp_handler=Handler()").replace(
        'fsdp="full_shard auto_wrap", fsdp_config={"version": 2}',
        'deepspeed={"zero_optimization": {"stage": 3}}',
    )
    training = finished(draft_of([read_script("train.py", script)]), dict)
    assert keys_of(training.config) == ("zero3", 8, 4, 4)
    assert not [item.name for item in training.not_taken if "parallelism" in item.name]
    with pytest.raises(OomDoctorError, match="sp_size with DeepSpeed alone, and this is fsdp"):
        read(TRL, launched(8, {"dp_shard_size": 2, "sp_size": 4}))


def test_copies_of_shards_are_a_hybrid() -> None:
    sizes = {"dp_replicate_size": 2, "dp_shard_size": 4}
    config = read(TRL, launched(8, sizes))
    assert keys_of(config) == ("hybrid", 8, 1, 16)
    assert config.gpus_per_node == 4
    filled = read(AXOLOTL | {"dp_shard_size": 4, "fsdp_config": {}}, gpus=8)
    assert (filled.sharding, filled.gpus_per_node, filled.world_size) == ("hybrid", 4, 8)
    alone = read(AXOLOTL | {"dp_shard_size": 4, "fsdp_config": {}})
    assert (alone.sharding, alone.world_size) == ("fsdp", 4)


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ([TRL, launched(8, {"cp_size": 4})], "is 4, but there are 8 GPUs"),
        (
            [TRL | {"attn_implementation": "flash_attention_2"}, launched(4, {"cp_size": 4})],
            "needs attention = sdpa",
        ),
        ([TRL, launched(4, {"cp_size": 4}) | {"distributed_type": "MULTI_GPU", "fsdp_config": {}}],
         "with FSDP 2 alone, and this is ddp"),
        ([TRL | {"parallelism_config": {"cp_size": 4}}], "with FSDP 2 alone, and this is ddp"),
        ([TRL | {"max_length": 4100}, launched(4, {"cp_size": 4})], "4100 is not a multiple of 8"),
        ([TRL, launched(8, {"cp_size": 2, "dp_replicate_size": 2, "dp_shard_size": 2})],
         "and this is hybrid"),
    ],
)  # fmt: skip
def test_a_mesh_that_accelerate_refuses_is_an_error(
    files: list[dict[str, Any]], fault: str
) -> None:
    with pytest.raises(OomDoctorError, match=fault) as raised:
        read(*files)
    assert raised.value.exit_code == ExitCode.USAGE


REFUSED = [
    ("accelerate", "parallelism_config.parallelism_config_tp_size", "tensor parallelism"),
    ("trainer", "parallelism_config.tp_size", "tensor parallelism"),
    ("deepspeed", "sequence_parallel_size", "Ulysses"),
    ("deepspeed", "tensor_parallel.autotp_size", "tensor parallelism"),
    ("axolotl", "context_parallel_size", "ring attention"),
    ("axolotl", "sequence_parallel_degree", "ring attention"),
    ("axolotl", "expert_parallel_size", "expert parallelism"),
    ("ms-swift", "sequence_parallel_size", "Ulysses"),
    ("verl", "actor_rollout_ref.actor.ulysses_sequence_parallel_size", "Ulysses"),
    ("openrlhf", "ds.ring_attn_size", "ring attention"),
    ("nemo-rl", "policy.dtensor_cfg.tensor_parallel_size", "tensor parallelism"),
    ("torchtune", "tensor_parallel_dim", "tensor parallelism"),
    ("torchtune", "context_parallel_dim", "ring attention"),
]


@pytest.mark.parametrize(("program", "name", "what"), REFUSED)
def test_what_no_rung_has_is_refused_and_one_gpu_is_nothing(
    program: Any, name: str, what: str
) -> None:
    def draft(size: int) -> Any:
        return draft_of([Document("a.yaml", nested({name: size}), {name: 7}, program)])

    check_planned(draft(1))
    assert not [item for item in draft(1).not_taken if item.matters]
    with pytest.raises(OomDoctorError, match=rf"a.yaml:7: {name}: 2: .*{what}") as raised:
        check_planned(draft(2))
    assert raised.value.exit_code == ExitCode.USAGE
    assert "run --emulate" in (raised.value.hint or "")


IN_PARTS = """
model = AutoModelForCausalLM.from_pretrained("m", {})
SFTConfig("out", per_device_train_batch_size=2, gradient_accumulation_steps=3)
"""


@pytest.mark.parametrize(
    "how", ['tp_plan="auto"', "distributed_config=DistributedConfig(tp_size=4)", "tp_size=4"]
)
def test_a_script_with_a_tensor_parallel_plan_shares_every_row(how: str) -> None:
    draft = draft_of([read_script("train.py", IN_PARTS.format(how))])
    check_planned(draft)
    training = finished(draft, dict, Overrides(gpus=4))
    assert keys_of(training.config) == ("tensor_parallel", 4, 1, 6)
    assert not [item.name for item in training.not_taken if item.name.startswith("distrib")]


def test_parts_of_layers_are_on_all_gpus_or_refused() -> None:
    plain = {key: value for key, value in AXOLOTL.items() if key != "fsdp_version"}
    plain["tensor_parallel_size"] = 2
    assert keys_of(read(plain)) == ("tensor_parallel", 2, 1, 1)
    for settings, options in ((plain | {"fsdp_version": 2}, {}), (plain, {"gpus": 4})):
        with pytest.raises(OomDoctorError, match="plans tensor parallelism over all GPUs"):
            read(settings, **options)
    with pytest.raises(OomDoctorError, match="splits by rows"):
        read(plain | {"adapter": "lora"})


@pytest.mark.parametrize(
    ("program", "values"),
    [
        *(
            (program, values)
            for program in ("accelerate", "trl")
            for values in (
                {"sharding": "fsdp", "world_size": 8, "context_parallel_size": 4},
                {"sharding": "hybrid", "world_size": 16, "effective_batch_size": 16},
                {"sharding": "zero3", "world_size": 8, "context_parallel_size": 4},
            )
        ),
        ("trl", {"sharding": "tensor_parallel", "world_size": 4, "effective_batch_size": 1}),
    ],
)
def test_a_mesh_is_written_and_read_back(values: dict[str, Any], program: Any) -> None:
    config = TrainConfig(micro_batch_size=1, **values)
    names = BY_NAME[program].names
    assert names is not None
    missing = {one.key for one in lost(config, program, nested(written(names, config)))}
    assert not missing & {"context_parallel_size", "sharding", "gpus_per_node", "world_size"}
