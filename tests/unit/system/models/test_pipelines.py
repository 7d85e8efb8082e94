"""Pipelines of diffusers: built in, in a folder, and in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oomdoctor.records.job.model import ModelRef
from oomdoctor.system.models.pipelines import INDEX, find_pipeline, locate_pipeline, pipelines

PARTS = {
    "scheduler": ["diffusers", "DDPMScheduler"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "unet": ["diffusers", "UNet2DConditionModel"],
}


def _folder(path: Path) -> Path:
    index = {"_class_name": "StableDiffusionPipeline", "safety_checker": [None, None], **PARTS}
    for part in PARTS:
        (path / part).mkdir(parents=True)
    (path / INDEX).write_text(json.dumps(index))
    (path / "scheduler/scheduler_config.json").write_text('{"num_train_timesteps": 50}')
    (path / "text_encoder/config.json").write_text('{"hidden_size": 8, "torch_dtype": "float16"}')
    (path / "unet/config.json").write_text('{"sample_size": 8}')
    return path


@pytest.mark.parametrize("pipeline", pipelines(), ids=lambda pipeline: pipeline.id)
def test_a_built_in_pipeline_is_whole(pipeline: object) -> None:
    assert isinstance(pipeline, type(pipelines()[0]))
    for name, part in pipeline.parts.items():
        assert part.library in ("diffusers", "transformers")
        if name.startswith("tokenizer"):  # made for the text encoder of the same number
            assert pipeline.parts[name.replace("tokenizer", "text_encoder")].config
    assert all(find_pipeline(name.upper()) is pipeline for name in pipeline.aliases)


def test_a_text_encoder_may_be_a_model_of_the_catalogue() -> None:
    klein = find_pipeline("black-forest-labs/FLUX.2-klein-base-4B")
    assert klein is not None
    assert klein.parts["text_encoder"].config["hidden_size"] == 2560


def test_a_folder_says_what_its_pipeline_is_made_of(tmp_path: Path) -> None:
    pipeline = locate_pipeline(ModelRef(str(_folder(tmp_path))))
    assert pipeline is not None
    assert pipeline.class_name == "StableDiffusionPipeline"
    assert set(pipeline.parts) == set(PARTS)
    assert pipeline.parts["scheduler"].config == {"num_train_timesteps": 50}
    assert pipeline.parts["unet"].dtype == "float16"  # diffusers does not say it
    assert locate_pipeline(ModelRef(str(tmp_path / "unet"))) is None


def test_the_cache_comes_before_what_is_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ref = ModelRef("Qwen/Qwen-Image")
    built_in = locate_pipeline(ref)
    assert built_in is not None and built_in.path is None
    repository = tmp_path / "models--Qwen--Qwen-Image"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("abc")
    folder = _folder(repository / "snapshots/abc")
    cached = locate_pipeline(ref)
    assert cached is not None and cached.path == folder
    (folder / "unet/config.json").unlink()
    (folder / "unet").rmdir()  # only its index was ever downloaded
    assert locate_pipeline(ref) == built_in
    assert locate_pipeline(ModelRef("no-such/pipeline")) is None
