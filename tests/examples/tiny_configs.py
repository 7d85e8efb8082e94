"""The configurations of tiny models of each kind, and of those whose parts are unusual."""

from __future__ import annotations

from typing import Any

from oomdoctor.records.job.model import Task

DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
ENCODER_DECODER: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
CONFIGS: dict[str, tuple[Task, str, dict[str, Any]]] = {
    "dense": ("causal-lm", "LlamaForCausalLM", {"model_type": "llama", **DECODER}),
    "gqa-tied": (
        "causal-lm",
        "Qwen2ForCausalLM",
        {
            "model_type": "qwen2",
            **DECODER,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "sliding-window": (
        "causal-lm",
        "MistralForCausalLM",
        {"model_type": "mistral", **DECODER, "sliding_window": 16},
    ),
    "moe": (
        "causal-lm",
        "MixtralForCausalLM",
        {"model_type": "mixtral", **DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "conv1d": (
        "causal-lm",
        "GPT2LMHeadModel",
        {
            "model_type": "gpt2",
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "vocab_size": 512,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
    ),
    "encoder": (
        "masked-lm",
        "BertForMaskedLM",
        {
            "model_type": "bert",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 512,
            "max_position_embeddings": 128,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    ),
    "classifier": (
        "sequence-classification",
        "LlamaForSequenceClassification",
        {"model_type": "llama", **DECODER},
    ),
    "seq2seq": (
        "seq2seq-lm",
        "T5ForConditionalGeneration",
        {
            "model_type": "t5",
            "d_model": 64,
            "d_ff": 128,
            "d_kv": 16,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 512,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
    ),
    "image": (
        "image-classification",
        "ViTForImageClassification",
        {
            "model_type": "vit",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 32,
            "patch_size": 8,
        },
    ),
}
# Not among CONFIGS: their layers have no parts of a usual transformer, or take no adapters on all.
SPECIAL: dict[str, tuple[Task, str, dict[str, Any]]] = {
    "ends-decide": (  # it classifies by the last end token of each row
        "sequence-classification",
        "BartForSequenceClassification",
        {
            "model_type": "bart",
            "vocab_size": 300,
            **ENCODER_DECODER,
            "max_position_embeddings": 128,
        },
    ),
    "state-space": (
        "causal-lm",
        "Mamba2ForCausalLM",
        {
            "model_type": "mamba2",
            "vocab_size": 300,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 16,
            "n_groups": 1,
        },
    ),
    "batch-norms": (
        "image-classification",
        "LevitForImageClassification",
        {
            "model_type": "levit",
            "image_size": 32,
            "hidden_sizes": [16, 32, 48],
            "num_attention_heads": [2, 2, 2],
            "key_dim": [8, 8, 8],
            "depths": [1, 1, 1],
            "down_ops": [["Subsample", 8, 2, 4, 2, 2], ["Subsample", 8, 4, 4, 2, 2]],
        },
    ),
    "reversible": (  # its layers have gradients only if their inputs do
        "causal-lm",
        "ReformerModelWithLMHead",
        {
            "model_type": "reformer",
            "is_decoder": True,
            "vocab_size": 512,
            "attn_layers": ["local", "local"],
            "hidden_size": 32,
            "feed_forward_size": 64,
            "num_attention_heads": 2,
            "attention_head_size": 16,
            "axial_pos_embds": False,
            "max_position_embeddings": 128,
            "local_attn_chunk_length": 16,
        },
    ),
    "without-loss": (
        "image-classification",
        "PPLCNetForImageClassification",
        {"model_type": "pp_lcnet", "scale": 0.25, "class_expand": 32},
    ),
    "hears": (  # it writes about sound, and is trained on text alone
        "seq2seq-lm",
        "Qwen2AudioForConditionalGeneration",
        {
            "model_type": "qwen2_audio",
            "text_config": {"model_type": "qwen2", **DECODER},
            "audio_config": {
                "model_type": "qwen2_audio_encoder",
                "d_model": 32,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "num_mel_bins": 16,
                "max_source_positions": 16,
            },
            "audio_token_index": 511,
        },
    ),
    "decoder-of-sound": (  # it has an encoder for sound, which this class leaves out
        "causal-lm",
        "WhisperForCausalLM",
        {
            "model_type": "whisper",
            "vocab_size": 300,
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_mel_bins": 16,
            "max_target_positions": 128,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 1,
            "decoder_start_token_id": 1,
        },
    ),
    "split-by-experts": (  # it splits its tokens by how many each expert gets
        "causal-lm",
        "JetMoeForCausalLM",
        {
            "model_type": "jetmoe",
            **DECODER,
            "num_key_value_heads": 2,
            "kv_channels": 16,
            "num_local_experts": 2,
            "num_experts_per_tok": 2,
        },
    ),
    "router": (  # its router derives from a linear layer, and returns two tensors
        "causal-lm",
        "PhimoeForCausalLM",
        {"model_type": "phimoe", "num_local_experts": 4, **DECODER},
    ),
}
