"""A folder's config.json: read, or the error that says what the folder is instead."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.system.models.checkpoint import config_beside, read_config


def _error_of(path: Path) -> OomDoctorError:
    with pytest.raises(OomDoctorError) as caught:
        read_config(config_beside(path))
    assert caught.value.exit_code == ExitCode.MODEL_UNAVAILABLE
    assert caught.value.hint
    return caught.value


def test_folder_or_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama"}')
    assert config_beside(tmp_path) == config_beside(file) == file
    assert read_config(file) == {"model_type": "llama"}


def test_folder_without_config(tmp_path: Path) -> None:
    error = _error_of(tmp_path)
    assert error.code == "no_config"
    assert str(tmp_path) in error.message


def test_the_latest_checkpoint_inside_is_named(tmp_path: Path) -> None:
    for step in (500, 1000, 1500):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (500, 1000):
        (tmp_path / f"checkpoint-{step}" / "config.json").write_text("{}")
    assert f"{tmp_path}/checkpoint-1000" in (_error_of(tmp_path).hint or "")


def test_peft_adapter(tmp_path: Path) -> None:
    adapter = tmp_path / "adapter_config.json"
    adapter.write_text('{"base_model_name_or_path": "Qwen/Qwen2.5-7B"}')
    error = _error_of(tmp_path)
    assert error.code == "peft_adapter"
    assert "oomdoctor probe Qwen/Qwen2.5-7B --recipe lora" in (error.hint or "")
    for broken in ("{", "[]", '{"base_model_name_or_path": null}'):
        adapter.write_text(broken)
        assert "with --recipe lora" in (_error_of(tmp_path).hint or "")


def test_a_file_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    error = _error_of(file)
    assert error.code == "not_a_folder"
    assert str(tmp_path) in (error.hint or "")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b'{"model_type": ', "is not valid JSON: Expecting value in line 1"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[1]", "is not a JSON object"),
        (b"{}", "has no model_type"),
        (b'{"model_type": 3, "architectures": ["X"]}', "has no model_type"),
    ],
)
def test_broken_config(tmp_path: Path, content: bytes, what: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    error = _error_of(tmp_path)
    assert error.code == "broken_config"
    assert what in error.message


def test_unreadable_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    error = _error_of(tmp_path)
    assert error.code == "broken_config"
    assert "Permission denied" in error.message


@pytest.mark.parametrize(
    ("config", "library"),
    [
        ({"_class_name": "UNet2DConditionModel"}, "diffusers"),
        ({"architecture": "resnet50", "num_classes": 1000}, "timm"),
        ({"dim": 4096, "n_layers": 32}, "original"),
    ],
)
def test_config_of_another_library(tmp_path: Path, config: dict[str, object], library: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    error = _error_of(tmp_path)
    assert error.code == "unsupported_architecture"
    assert library in error.message
