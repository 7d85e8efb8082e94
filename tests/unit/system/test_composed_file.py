"""Files of settings that build on another file or on each other."""

from __future__ import annotations

from pathlib import Path

from oomdoctor.commands.user_training import read_user_training
from oomdoctor.stacks.reading.finish import Overrides
from oomdoctor.system.composed_file import read_composed

BASE = """\
policy:
  model_name: a/b
  max_total_sequence_length: 512
  train_micro_batch_size: 4
  train_global_batch_size: 64
  precision: bfloat16
  generation:
    backend: vllm
    max_new_tokens: ${policy.max_total_sequence_length}
    vllm_cfg: {gpu_memory_utilization: 0.6}
  dynamic_batching: {train_mb_tokens: "${mul:${policy.max_total_sequence_length}, 4}"}
grpo: {num_prompts_per_step: 4, num_generations_per_prompt: 16}
cluster: {gpus_per_node: 1, num_nodes: 1}
"""


def test_a_file_of_nemo_rl_is_read_above_the_one_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BASE)
    file = tmp_path / "mine.yaml"
    file.write_text(
        "defaults: base.yaml\npolicy:\n  max_total_sequence_length: 1024\n"
        "cluster: {gpus_per_node: 2}\n"
    )
    config = read_user_training([str(file)], None, Overrides(), None).config
    assert (config.objective, config.sequence_length, config.completion_length) == ("grpo", 1024, 0)
    assert (config.world_size, config.sharding, config.fsdp_version) == (2, "fsdp", 2)
    assert (config.rollout_offload, config.vllm_gpu_memory_utilization) == ("all", 0.6)
    assert (config.weights_dtype, config.autocast_dtype) == ("float32", "bfloat16")


def test_what_is_computed_or_names_itself_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("a: ${b}\nb: ${a}\nc: ${mul:2,3}\nd: ${e.f}\ne: {f: 7}\ndefaults: none.yaml\n")
    values, _ = read_composed(file, "--from")
    assert values == {"d": 7, "e": {"f": 7}, "defaults": "none.yaml"}
