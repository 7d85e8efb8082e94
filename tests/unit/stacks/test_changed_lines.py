"""The lines to change in the user's own file, in its own words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.records.report.user_training import UserTraining
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.writing.changed_lines import changed_lines
from oomdoctor.stacks.writing.patch import Edit, patched
from oomdoctor.system.training_files import read_documents

FILES = Path(__file__).parents[2] / "data" / "stacks" / "files"


def read(*names: str, **options: int) -> UserTraining:
    documents = read_documents([str(FILES / name) for name in names])
    return finished(draft_of(documents), dict, Overrides(**options))


def lines(training: UserTraining, **changes: Any) -> dict[str, str | None]:
    found = changed_lines(training, replace(training.config, **changes))
    return {f"{Path(one.file or 'environment').name}: {one.name}": one.after for one in found}


@pytest.mark.parametrize(
    ("name", "changes", "wanted"),
    [
        ("trainer.yaml", {"activation_checkpointing": "none"}, {"gradient_checkpointing": "false"}),
        ("trainer.yaml", {"sequence_length": 512}, {"block_size": "512"}),
        ("trainer.yaml", {"weights_dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}),
        (
            "sft.yaml",
            {"micro_batch_size": 2},
            {"per_device_train_batch_size": "2", "gradient_accumulation_steps": "8"},
        ),
        ("axolotl_qlora.yml", {"optimizer": "paged_adamw_8bit"}, {"optimizer": "paged_adamw_8bit"}),
        ("axolotl_qlora.yml", {"loss": "default"}, {"liger_fused_linear_cross_entropy": None}),
        (
            "axolotl_qlora.yml",
            {"attention": "sdpa"},
            {"attn_implementation": "sdpa", "flash_attention": None},
        ),
        (
            "llamafactory_lora.yaml",
            {"activation_checkpointing": "none"},
            {"disable_gradient_checkpointing": "true"},
        ),
        ("torchtune_lora.yaml", {"activation_checkpointing": "none"},
         {"enable_activation_checkpointing": "false"}),
    ],
)  # fmt: skip
def test_a_change_is_said_in_the_words_of_the_file(
    name: str, changes: dict[str, Any], wanted: dict[str, str | None]
) -> None:
    assert lines(read(name), **changes) == {f"{name}: {key}": one for key, one in wanted.items()}


def test_the_allocator_is_set_in_the_environment() -> None:
    found = lines(read("sft.yaml"), allocator="expandable_segments")
    assert found == {"environment: PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}


def test_the_engine_is_changed_in_the_file_that_sets_it() -> None:
    training = read("trainer.yaml", "ds_zero2_offload.json", gpus=2)
    found = lines(training, sharding="zero3")
    assert found == {"ds_zero2_offload.json: zero_optimization.stage": "3"}
    training = read("trainer.yaml", "accelerate_zero3.yaml")
    found = lines(training, offload="optimizer")
    assert found == {"accelerate_zero3.yaml: deepspeed_config.offload_optimizer_device": "cpu"}


def test_a_changed_file_says_the_changed_rung(tmp_path: Path) -> None:
    training = read("sft.yaml")
    after = replace(training.config, micro_batch_size=2, lora_rank=8, optimizer="adamw_torch")
    rows = (FILES / "sft.yaml").read_text().splitlines()
    for line in changed_lines(training, after):
        assert line.line is not None
        rows[line.line - 1] = f"{line.name}: {line.after}"
    file = tmp_path / "sft.yaml"
    file.write_text("\n".join(rows))
    assert finished(draft_of(read_documents([str(file)])), dict).config == after


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sft.yaml", "# mine\nmax_length: 512\nloss_type: nll\n"),
        ("sft.py", "from trl import SFTConfig\nSFTConfig(\n loss_type='nll')\n"),
    ],
)
def test_a_setting_that_is_there_is_changed_and_not_added(
    tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    documents = read_documents([str(tmp_path / name)])
    training = finished(draft_of(documents), dict, Overrides())
    (line,) = changed_lines(training, replace(training.config, loss="chunked"))
    assert (line.name, line.before, line.after, line.line) == ("loss_type", "nll", "chunked_nll", 3)
    edit = Edit(line.name, line.after)
    new = patched(name, text, [edit])
    assert new.count("loss_type") == 1 and "chunked_nll" in new
