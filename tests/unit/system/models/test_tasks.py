"""The task of a config: by class name, by keys, by the built-in models; honest refusals."""

from __future__ import annotations

from typing import Any

import pytest

from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.records.job.model import TaskChoice
from oomdoctor.system.models.tasks import (
    OWN_SCRIPT,
    architecture_of,
    other_input,
    task_of,
    text_part,
)

TEXT = {"vocab_size": 100}
IMAGE = {"image_size": 224, "num_channels": 3}
GEMMA = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "tie_word_embeddings": True,
    "vision_config": {"model_type": "siglip_vision_model"},
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560},
}


def _config(architecture: str | None, model_type: str = "new", **keys: Any) -> dict[str, Any]:
    named = {} if architecture is None else {"architectures": [architecture]}
    return {"model_type": model_type, **named, **keys}


@pytest.mark.parametrize(
    ("config", "task"),
    [
        (_config("LlamaForCausalLM", **TEXT), "causal-lm"),
        (_config("BertGenerationDecoder", "bert-generation", **TEXT), "causal-lm"),
        (_config("ReformerModelWithLMHead", "reformer", **TEXT), "causal-lm"),
        (_config("T5WithLMHeadModel", "t5", is_encoder_decoder=True, **TEXT), "seq2seq-lm"),
        (_config("GPT2LMHeadModel", **TEXT), "causal-lm"),
        (_config("BartForCausalLM", "bart", is_encoder_decoder=True, **TEXT), "causal-lm"),
        (_config("BertForMaskedLM", **TEXT), "masked-lm"),
        (_config("BertForPreTraining", **TEXT), "masked-lm"),
        (_config("BertForSequenceClassification", **TEXT), "sequence-classification"),
        (_config("T5ForConditionalGeneration", is_encoder_decoder=True, **TEXT), "seq2seq-lm"),
        (_config("T5WithLMHeadModel", is_encoder_decoder=True, **TEXT), "seq2seq-lm"),
        (_config("MarianMTModel", is_encoder_decoder=True, **TEXT), "seq2seq-lm"),
        (_config("ViTForImageClassification", **IMAGE), "image-classification"),
        (
            _config(
                "CLIPForImageClassification", "clip", vision_config={"a": 1}, text_config={"a": 1}
            ),
            "image-classification",
        ),
        (_config("ResNetForImageClassification", num_channels=3), "image-classification"),
        (_config("PerceiverForImageClassificationLearned", image_size=56), "image-classification"),
        (_config("UdopForConditionalGeneration", patch_size=16, **IMAGE), "image-text-to-text"),
        (_config("VisionEncoderDecoderModel", encoder=IMAGE, decoder=TEXT), "image-text-to-text"),
        # BEiT counts visual tokens
        (_config("BeitModel", patch_size=16, **IMAGE, **TEXT), "image-classification"),
        # bare models
        (_config("BertModel", "bert", **TEXT), "embedding"),
        (_config("MistralModel", "mistral", **TEXT), "causal-lm"),
        (_config("BartModel", "bart", is_encoder_decoder=True, **TEXT), "seq2seq-lm"),
        (_config("Dinov2Model", "dinov2", **IMAGE), "image-classification"),
        (_config("NewModel", **TEXT), "embedding"),
        (_config("T5EncoderModel", "t5", is_encoder_decoder=True, **TEXT), "embedding"),
        (_config(None, "deberta-v2", **TEXT), "sequence-classification"),
        (_config(None, "llama", **TEXT), "causal-lm"),
        # keys that are there but empty are no other input
        (_config("LlamaForCausalLM", audio_config=None, **TEXT), "causal-lm"),
    ],
)
def test_task_by_architecture(config: dict[str, Any], task: str) -> None:
    assert task_of(config, "auto") == task


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        (_config("BertForQuestionAnswering", **TEXT), "auto"),
        (_config("DetrForObjectDetection", **IMAGE), "auto"),
        (_config("LlavaForConditionalGeneration", **TEXT), "auto"),
        (_config(None, **TEXT), "auto"),
        (_config("WhisperForConditionalGeneration", num_mel_bins=80, **TEXT), "auto"),
        (_config("WhisperForConditionalGeneration", num_mel_bins=80, **TEXT), "seq2seq-lm"),
        (GEMMA, "masked-lm"),
        (_config("LlamaForCausalLM", **TEXT), "image-classification"),
        (_config("ViTForImageClassification", **IMAGE), "causal-lm"),
        (_config("LlamaForCausalLM", **TEXT), "seq2seq-lm"),
        (_config("ViTModel", **IMAGE), "embedding"),
        (GEMMA, "embedding"),
    ],
)
def test_unsupported(config: dict[str, Any], asked: TaskChoice) -> None:
    with pytest.raises(OomDoctorError) as caught:
        task_of(config, asked)
    assert caught.value.code == "unsupported_task"
    assert caught.value.exit_code == ExitCode.MODEL_UNAVAILABLE
    assert architecture_of(config) in caught.value.message
    for task in ("causal-lm", "masked-lm", "sequence-classification", "seq2seq-lm", "image-cl"):
        assert task in (caught.value.hint or "")


def test_the_hint_offers_what_helps() -> None:
    hints = []
    for config in (GEMMA, _config("BertForQuestionAnswering", **TEXT)):
        with pytest.raises(OomDoctorError) as caught:
            task_of(config, "auto" if config is not GEMMA else "masked-lm")
        hints.append(caught.value.hint or "")
    assert "to train only the language model inside, add --task causal-lm" in hints[0]
    assert "choose one with --task" in hints[1]
    assert all(hint.endswith(OWN_SCRIPT) for hint in hints)  # it works with every model


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        (_config("LlamaForCausalLM", **TEXT), "sequence-classification"),
        (_config("BertForQuestionAnswering", **TEXT), "masked-lm"),
        (_config(None, **TEXT), "causal-lm"),
        (_config("Dinov2Model", **IMAGE), "image-classification"),
        (_config("T5EncoderModel", is_encoder_decoder=True, **TEXT), "seq2seq-lm"),
        (_config("LlamaForCausalLM", **TEXT), "embedding"),
    ],
)
def test_what_is_asked_is_taken(config: dict[str, Any], asked: TaskChoice) -> None:
    assert task_of(config, asked) == asked


WHISPER = {"num_mel_bins": 80, "decoder_layers": 4, "is_encoder_decoder": True}
WAVES = {"feat_extract_norm": "group", **TEXT}


def test_the_decoder_of_a_model_of_sound_takes_text() -> None:
    assert task_of(_config("WhisperForCausalLM", **WHISPER), "auto") == "causal-lm"


@pytest.mark.parametrize(
    ("config", "task"),
    [
        (_config("WhisperForConditionalGeneration", **WHISPER), "speech-seq2seq"),
        (_config("WhisperModel", **WHISPER), "speech-seq2seq"),
        (_config("WhisperForAudioClassification", **WHISPER), "audio-classification"),
        (_config("SpeechT5ForSpeechToText", is_encoder_decoder=True, **WAVES), "speech-seq2seq"),
        (
            _config("CanaryForConditionalGeneration", is_encoder_decoder=True,
                    encoder_config={"num_mel_bins": 80}),
            "speech-seq2seq",
        ),
        (_config("Wav2Vec2ForCTC", **WAVES), "ctc"),
        (_config("ParakeetForCTC"), "ctc"),
        # What is published to be fine-tuned has no head.
        (_config("Wav2Vec2ForPreTraining", **WAVES), "ctc"),
        (_config("Wav2Vec2BertModel", feature_projection_input_dim=160), "ctc"),
        (_config("HubertForSequenceClassification", **WAVES), "audio-classification"),
        (_config("ASTForAudioClassification", num_mel_bins=128), "audio-classification"),
    ],
)  # fmt: skip
def test_models_of_speech(config: dict[str, Any], task: str) -> None:
    assert task_of(config, "auto") == task


def test_a_task_of_speech_that_is_asked_for() -> None:
    assert task_of(_config("Wav2Vec2ForPreTraining", **WAVES), "audio-classification") == (
        "audio-classification"
    )
    unknown = _config("NewForConditionalGeneration", is_encoder_decoder=True, **TEXT)
    assert task_of(unknown, "speech-seq2seq") == "speech-seq2seq"
    with pytest.raises(OomDoctorError, match="takes other inputs than ctc does"):
        task_of(_config("LlamaForCausalLM", **TEXT), "ctc")


def test_a_class_that_writes_about_sound_hears_it_unless_asked_for_text() -> None:
    parts = {"text_config": TEXT, "audio_config": {"model_type": "qwen2_audio_encoder"}}
    hears = _config("Qwen2AudioForConditionalGeneration", **parts)
    assert task_of(hears, "auto") == "speech-seq2seq"
    assert task_of(hears, "seq2seq-lm") == "seq2seq-lm"
    with pytest.raises(OomDoctorError, match="takes sound"):
        task_of(hears, "masked-lm")
    see = _config("ModernVBertForMaskedLM", text_config=TEXT, vision_config=IMAGE)
    assert task_of(see, "auto") == "masked-lm"
    sorts = _config("Gemma3ForSequenceClassification", text_config=TEXT, vision_config=IMAGE)
    assert task_of(sorts, "auto") == "sequence-classification"
    makes = {"decoder": {"num_codebooks": 4}, "audio_encoder": {}}
    assert task_of(_config("MusicgenForCausalLM", **makes), "auto") == "causal-lm"
    from_text = {"sampling_rate": 16000, "is_encoder_decoder": True, **TEXT}
    assert task_of(_config("SeamlessM4TForTextToText", **from_text), "auto") == "seq2seq-lm"


def test_images_beside_text_in_another_task_are_refused_for_the_task() -> None:
    other = _config("GemmaForBlockDiffusion", text_config=TEXT, vision_config=IMAGE)
    with pytest.raises(
        OomDoctorError, match="takes images as well as text, and is made for another"
    ):
        task_of(other, "auto")


def test_text_part() -> None:
    part = text_part(GEMMA)
    assert part == {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "architectures": ["Gemma3ForCausalLM"],
        "tie_word_embeddings": True,
    }
    assert other_input(GEMMA) == "images as well as text"
    assert other_input(part) is None


def test_text_part_of_its_own_class_or_none() -> None:
    own = {"model_type": "new", "architectures": ["NewForCausalLM"], "tie_word_embeddings": False}
    part = text_part({"text_config": own, "tie_word_embeddings": True})
    assert part is not None
    assert part["tie_word_embeddings"] is False
    unnamed = text_part({"text_config": {"model_type": "new", "architectures": ["NewModel"]}})
    assert unnamed == {"model_type": "new"}  # transformers may know its class
    assert text_part({"text_config": None}) is None
    assert text_part({}) is None


@pytest.mark.parametrize(
    "config",
    [
        GEMMA,
        _config("LlavaForConditionalGeneration", vision_config={"a": 1}),
        _config("NewForCausalLM", vision_config={"a": 1}, audio_config={"a": 1}),
        _config("ChameleonForConditionalGeneration", vq_config={"a": 1}, **TEXT),
        _config(None, vision_config={"a": 1}, text_config={"model_type": "new"}),
    ],
)
def test_what_writes_text_about_images_is_no_list(config: dict[str, Any]) -> None:
    assert task_of(config, "auto") == "image-text-to-text"
    assert task_of(config, "image-text-to-text") == "image-text-to-text"


@pytest.mark.parametrize(
    "config",
    [
        _config("LlamaForCausalLM", **TEXT),
        _config("CLIPModel", vision_config={"a": 1}, text_config={"model_type": "clip_text_model"}),
    ],
)
def test_what_writes_no_text_about_images(config: dict[str, Any]) -> None:
    with pytest.raises(OomDoctorError, match="does not write text about images"):
        task_of(config, "image-text-to-text")
