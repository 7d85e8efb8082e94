"""A configuration on a stored checkpoint as a file or a script, and what that says again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from oomdoctor.commands.export import rung_of_files
from oomdoctor.commands.user_training import quant_method_of, read_user_training
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.export import export, lost, settings_of
from oomdoctor.stacks.reading.finish import Overrides
from oomdoctor.stacks.rung import StackRung

CONFIG = TrainConfig(
    method="qlora", quantization="checkpoint", micro_batch_size=1, lora_targets=("q_proj",)
)


def written(tmp_path: Path, quant_method: str, program: str, config: TrainConfig = CONFIG) -> Path:
    """The file of a program for a model whose checkpoint is stored so."""
    model = tmp_path / "model"
    model.mkdir()
    settings = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    stored = {"quantization_config": {"quant_method": quant_method}}
    (model / "config.json").write_text(json.dumps(settings | stored))
    rung = StackRung(config, "rung", str(model), quant_method=quant_method)
    path = tmp_path / ("train.py" if program in ("trl", "trainer", "pytorch") else "train.yaml")
    path.write_text(export(rung, program))
    return path


@pytest.mark.parametrize(
    ("quant_method", "program", "line"),
    [
        ("gptq", "trl", 'quantization_config=GPTQConfig(bits=4, backend="auto_trainable")'),
        ("awq", "pytorch", 'quantization_config=AwqConfig(bits=4, backend="auto_trainable")'),
        ("gptq", "axolotl", "gptq: true"),
        ("awq", "axolotl", "adapter: lora"),
        ("fp8", "trainer", "from_pretrained"),
        ("gptq", "llama-factory", "finetuning_type: lora"),
    ],
)
def test_a_stored_checkpoint_comes_back(
    quant_method: str, program: str, line: str, tmp_path: Path
) -> None:
    path = written(tmp_path, quant_method, program)
    text = path.read_text()
    assert line in text and "Not in this file: quantization" not in text
    assert ("GPTQConfig" in text) == ("GPTQConfig" in line)
    training = read_user_training([str(path)], None, Overrides(), None)
    assert (training.config.method, training.config.quantization) == ("qlora", "checkpoint")
    assert quant_method_of(training) == quant_method
    assert line in export(rung_of_files([str(path)], program)[0], program)


@pytest.mark.parametrize(
    ("quant_method", "loader"),
    [
        ("fp8", "FineGrainedFP8Config"),
        ("mxfp4", "Mxfp4Config"),
        ("compressed-tensors", "CompressedTensorsConfig"),
    ],
)
def test_lora_on_16_bit_weights_of_a_quantized_checkpoint_comes_back(
    quant_method: str, loader: str, tmp_path: Path
) -> None:
    plain = replace(CONFIG, method="lora", quantization="none")
    path = written(tmp_path, quant_method, "trl", plain)
    assert f"quantization_config={loader}(dequantize=True)" in path.read_text()
    training = read_user_training([str(path)], None, Overrides(), None)
    assert (training.config.method, training.config.quantization) == ("lora", "none")


def test_without_the_models_file_a_program_would_load_it_unquantized() -> None:
    settings = settings_of(CONFIG, "ms-swift")
    assert "quantization" in {key.key for key in lost(CONFIG, "ms-swift", settings)}
    assert not {key.key for key in lost(CONFIG, "ms-swift", settings, "gptq")} & {"quantization"}
