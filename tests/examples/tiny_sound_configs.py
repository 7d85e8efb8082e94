"""Tiny models that are trained on recordings: a task, a class, and the content of config.json."""

from __future__ import annotations

from typing import Any

from tiny_configs import DECODER, ENCODER_DECODER

from oomdoctor.records.job.model import Task

_WAVES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": [16, 16, 16],
    "conv_kernel": [10, 8, 8],
    "conv_stride": [10, 8, 8],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "layerdrop": 0.0,
    "vocab_size": 32,
    "apply_spec_augment": False,
}
OF_SOUND: dict[str, tuple[Task, str, dict[str, Any]]] = {
    "masked-sound": (
        "ctc",
        "LasrForCTC",
        {
            "model_type": "lasr_ctc",
            "vocab_size": 64,
            "encoder_config": {
                "model_type": "lasr_encoder",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "subsampling_conv_channels": 16,
            },
        },
    ),
    "codebooks": (  # a decoder of sound, which has several tokens at each place
        "causal-lm",
        "MusicgenForCausalLM",
        {
            "model_type": "musicgen",
            "decoder": {
                "model_type": "musicgen_decoder",
                "vocab_size": 64,
                "num_codebooks": 3,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "ffn_dim": 64,
                "pad_token_id": 64,
                "bos_token_id": 64,
            },
            "text_encoder": {"model_type": "t5"},
            "audio_encoder": {"model_type": "encodec"},
        },
    ),
    "whisper": (
        "speech-seq2seq",
        "WhisperForConditionalGeneration",
        {
            "model_type": "whisper",
            "vocab_size": 300,
            **ENCODER_DECODER,
            "num_mel_bins": 80,
            "max_target_positions": 128,
            "is_encoder_decoder": True,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 1,
            "decoder_start_token_id": 1,
        },
    ),
    "beside-text": (
        "speech-seq2seq",
        "VoxtralForConditionalGeneration",
        {
            "model_type": "voxtral",
            "text_config": {"model_type": "llama", **DECODER},
            "audio_config": {
                "model_type": "voxtral_encoder",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 128,
                "num_mel_bins": 16,
            },
            "audio_token_id": 24,
        },
    ),
    "each-token-hears": (
        "speech-seq2seq",
        "VoxtralRealtimeForConditionalGeneration",
        {
            "model_type": "voxtral_realtime",
            "text_config": {"model_type": "voxtral_realtime_text", "head_dim": 16, **DECODER},
            "audio_config": {
                "model_type": "voxtral_realtime_encoder",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "head_dim": 16,
                "intermediate_size": 64,
                "num_mel_bins": 16,
            },
        },
    ),
    "ctc": ("ctc", "Wav2Vec2ForCTC", {"model_type": "wav2vec2", **_WAVES}),
    "named-sounds": (
        "audio-classification",
        "HubertForSequenceClassification",
        {"model_type": "hubert", **_WAVES},
    ),
}
