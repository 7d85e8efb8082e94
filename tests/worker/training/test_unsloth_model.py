"""A rung with Unsloth, by a stand-in with its signatures, and the checkpoint that it loads."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_models import tiny_job

from oomdoctor.worker.host import _imports_first
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training import unsloth
from oomdoctor.worker.training.build import check_supported
from oomdoctor.worker.training.model_config import load_config
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.synthetic import Blueprint
from oomdoctor.worker.training.unsloth import write_checkpoint

RUNG = {"library": "unsloth", "method": "lora", "sequence_length": 64}


@pytest.mark.parametrize(("kind", "shard_bytes"), [("dense", 50_000), ("gqa-tied", 1 << 30)])
def test_the_empty_checkpoint_is_whole_and_takes_no_place(
    kind: str, shard_bytes: int, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job = tiny_job(kind, weights_dtype="bfloat16")
    write_checkpoint(tmp_path, Blueprint(job, load_config(job.model), "eager"), shard_bytes)
    model, info = AutoModelForCausalLM.from_pretrained(
        tmp_path, torch_dtype="auto", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(tmp_path).pad_token == "<pad>"
    files = [path.stat() for path in tmp_path.glob("*.safetensors")]
    assert (len(files) > 1) == (shard_bytes == 50_000)
    assert sum(file.st_size for file in files) > sum(p.nbytes for p in model.parameters())
    for file in files:
        assert file.st_blocks * 512 < 65_536 + file.st_size // 4
        assert len(files) == 1 or file.st_size < 2 * shard_bytes


def test_a_rung_is_loaded_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    class FastLanguageModel:
        """Unsloth's class, by the signatures of 2026.10."""

        @staticmethod
        def from_pretrained(
            model_name: str,
            max_seq_length: int = 2048,
            dtype: Any = None,
            load_in_4bit: bool = True,
            load_in_8bit: bool = False,
            full_finetuning: bool = False,
            device_map: Any = None,
            use_gradient_checkpointing: Any = "unsloth",
            **others: Any,
        ) -> tuple[str, str]:
            assert json.loads((Path(model_name) / "config.json").read_text())["model_type"]
            seen.append({"length": max_seq_length, "nf4": load_in_4bit, "full": full_finetuning})
            return "model", "tokenizer"

        @staticmethod
        def get_peft_model(
            model: str,
            r: int = 16,
            target_modules: Any = None,
            lora_alpha: int = 16,
            lora_dropout: float = 0.0,
            use_gradient_checkpointing: Any = "unsloth",
            use_rslora: bool = False,
        ) -> str:
            seen.append({"r": r, "checkpointing": use_gradient_checkpointing})
            return f"adapted {model}"

    module = SimpleNamespace(FastLanguageModel=FastLanguageModel)
    monkeypatch.setitem(sys.modules, "unsloth", module)
    job = tiny_job("dense", **RUNG, lora_rank=8, activation_checkpointing="offload")
    setup: Any = Setup(job, torch.device("cpu"), None, nullcontext)
    setup.model_config = load_config(job.model)
    setup.model = unsloth.load_model(setup)
    unsloth.add_adapter(setup)
    assert setup.model == "adapted model"
    assert seen == [
        {"length": 64, "nf4": False, "full": False},
        {"r": 8, "checkpointing": "unsloth"},
    ]
    assert "zero" in setup.notes[0]


def test_without_the_package_the_line_to_type_is_said() -> None:
    with pytest.raises(UnsupportedError, match="pip install unsloth"):
        check_supported(tiny_job("dense", **RUNG).config, "cuda")


def test_its_jobs_have_a_new_interpreter(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    for library in ("unsloth", "transformers"):
        job.write_text(json.dumps({"config": {"library": library}}))
        assert _imports_first(str(job)) == (library == "unsloth")
