"""Batches of recordings: what a feature extractor makes of sound, by the inputs of the class."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from compared_steps import differences
from tiny_models import tiny_job, tiny_spec

from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training.batch import Batch, micro_batches
from oomdoctor.worker.training.build import build
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

    @wraps(own)
    def and_chunks(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs) | {"decoder_attention_mask": [(0, None)]}

    monkeypatch.setattr(WhisperFeatureExtractor, "__call__", and_chunks)
    assert "decoder_attention_mask" not in _batch("whisper", audio_seconds=7)


def test_recordings_have_the_masks_that_a_processor_asks_for() -> None:
    """LASR's own loss counts the frames by the mask, which its feature extractor leaves out."""
    pytest.importorskip("transformers", minversion="5.24")
    shapes = _shapes(_batch("masked-sound", audio_seconds=1))
    assert shapes["attention_mask"] == shapes["input_features"][:2]
    job = tiny_job("masked-sound", audio_seconds=1)
    assert differences(job) == {}


def test_a_decoder_hears_what_stands_before_its_text() -> None:
    """Voxtral's encoder makes 375 tokens of 30 seconds, which have no labels."""
    pytest.importorskip("transformers", minversion="5.0")
    batch = _batch("beside-text", sequence_length=400)
    shapes = _shapes(batch)
    assert shapes == {
        **dict.fromkeys(("input_ids", "attention_mask", "labels"), (2, 400)),
        "input_features": (2, 16, 3000),
    }
    ids, labels = batch["input_ids"], batch["labels"]
    assert isinstance(ids, torch.Tensor)
    assert isinstance(labels, torch.Tensor)
    assert ((ids == 24).sum(1) == 375).all()
    assert ((labels == -100) == (ids == 24)).all()
    with pytest.raises(UnsupportedError, match="375 tokens does not fit into a sequence of 300"):
        _batch("beside-text", sequence_length=300)


def test_a_decoder_without_a_token_for_sound_is_trained_on_text_alone() -> None:
    pytest.importorskip("transformers", minversion="5.0")
    spec = tiny_spec("beside-text")
    spec = replace(spec, config={**spec.config, "audio_token_id": None})
    assert "input_features" not in _batch("beside-text", job_model=spec)
    setup = build(tiny_job("beside-text", job_model=spec), torch.device("cpu"))
    assert setup.notes == [
        "trained on text alone, without sound: config.json of voxtral names no token for sound"
    ]


def test_a_class_that_takes_codes_of_sound_is_refused() -> None:
    pytest.importorskip("transformers", minversion="5.24")
    spec = replace(
        tiny_spec("ctc"),
        task="speech-seq2seq",
        model_type="kyutai_speech_to_text",
        architecture="KyutaiSpeechToTextForConditionalGeneration",
        config={"model_type": "kyutai_speech_to_text"},
    )
    with pytest.raises(UnsupportedError, match="how kyutai_speech_to_text takes sound is not"):
        _batch("ctc", job_model=spec)


def test_where_each_token_hears_a_row_is_as_long_as_its_recording() -> None:
    pytest.importorskip("transformers", minversion="5.24")
    shapes = _shapes(_batch("each-token-hears", sequence_length=25, audio_seconds=2))
    assert shapes["input_ids"] == (2, 25)
    assert shapes["input_features"] == (2, 16, 200)
    with pytest.raises(UnsupportedError, match="set sequence_length=25, or other audio_seconds"):
        _batch("each-token-hears", sequence_length=32, audio_seconds=2)
