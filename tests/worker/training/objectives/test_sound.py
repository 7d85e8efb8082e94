"""Batches of recordings: what a feature extractor makes of sound, by the inputs of the class."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_job, tiny_spec

from oomdoctor.worker.training.batch import Batch, micro_batches
from oomdoctor.worker.training.model_config import load_config
from oomdoctor.worker.training.setup import Setup


def _batch(kind: str, **changes: Any) -> Batch:
    job = tiny_job(kind, **changes)
    setup = Setup(job, torch.device("cpu"), None, lambda: None)  # type: ignore[arg-type]
    setup.model_config = load_config(job.model)
    (batch,) = micro_batches(setup, job.config, count=1)
    return batch


def _shapes(batch: Batch) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in batch.items() if not isinstance(value, int)}


def test_whisper_hears_30_seconds_and_writes_rows_of_the_sequence_length() -> None:
    assert _shapes(_batch("whisper")) == {"input_features": (2, 80, 3000), "labels": (2, 32)}


@pytest.mark.parametrize(("asked", "seconds"), [(0, 10), (3, 3)])
def test_recordings_of_ctc_have_the_seconds_that_are_asked_for(asked: int, seconds: int) -> None:
    shapes = _shapes(_batch("ctc", audio_seconds=asked))
    assert shapes == {"input_values": (2, 16_000 * seconds), "labels": (2, 10 * seconds)}


def test_a_classifier_of_sound_has_a_label_for_each_recording() -> None:
    assert _shapes(_batch("named-sounds")) == {"input_values": (2, 160_000), "labels": (2,)}


def test_features_have_the_type_of_weights_without_autocast() -> None:
    for autocast, dtype in (("none", torch.bfloat16), ("bfloat16", torch.float32)):
        batch = _batch("whisper", weights_dtype="bfloat16", autocast_dtype=autocast)
        features = batch["input_features"]
        assert isinstance(features, torch.Tensor)
        assert features.dtype == dtype


def test_the_extractor_of_the_folder_counts_and_else_the_sizes_of_the_config(
    tmp_path: Path,
) -> None:
    spec = tiny_spec("whisper")
    spec = replace(spec, config={**spec.config, "num_mel_bins": 128})
    assert _shapes(_batch("whisper", job_model=spec))["input_features"] == (2, 128, 3000)
    own = {"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 80}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**own, "chunk_length": 20}))
    spec = replace(spec, path=str(tmp_path))
    assert _shapes(_batch("whisper", job_model=spec))["input_features"] == (2, 80, 2000)


def test_an_extractor_that_transformers_maps_to_other_inputs() -> None:
    spec = tiny_spec("ctc")
    keys = {"model_type": "wav2vec2-bert", "vocab_size": 32}
    spec = replace(
        spec,
        model_type="wav2vec2-bert",
        architecture="Wav2Vec2BertForCTC",
        config={**keys, "architectures": ["Wav2Vec2BertForCTC"]},
    )
    assert _shapes(_batch("ctc", job_model=spec))["input_features"] == (2, 499, 160)


def test_what_an_extractor_says_beside_tensors_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Cohere's says which chunk is of which recording."""
    from transformers import WhisperFeatureExtractor

    own = WhisperFeatureExtractor.__call__

    def and_chunks(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) | {"decoder_attention_mask": [(0, None)]}

    monkeypatch.setattr(WhisperFeatureExtractor, "__call__", and_chunks)
    assert "decoder_attention_mask" not in _batch("whisper", audio_seconds=7)
