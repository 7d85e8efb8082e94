"""Models that take images beside text, for the catalogue: what the collected facts do not have.

Each configuration has the published values that shape the model; each count is the published one,
and the model that transformers builds has exactly as many parameters. Sources: copies of
config.json and printed models in public repositories, and lists of exact parameter counts.
"""

from __future__ import annotations

from typing import Any

_QWEN_TOKENS = {
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "vision_token_id": 151654,
    "image_token_id": 151655,
    "video_token_id": 151656,
}
_QWEN_COMMON: dict[str, Any] = {
    **_QWEN_TOKENS,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
}


def _qwen2_vl(width: int, tied: bool, vocabulary: int, **sizes: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2_vl",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        **_QWEN_COMMON,
        "hidden_size": width,
        "max_position_embeddings": 32768,
        "num_hidden_layers": 28,
        **sizes,
        "tie_word_embeddings": tied,
        "vision_config": {
            "depth": 32,
            "embed_dim": 1280,
            "hidden_size": width,
            "in_chans": 3,
            "mlp_ratio": 4,
            "num_heads": 16,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "vocab_size": vocabulary,
    }


_QWEN2_5_VL_3B: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    **_QWEN_COMMON,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "max_window_layers": 70,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "vision_config": {
        "depth": 32,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "hidden_act": "silu",
        "hidden_size": 1280,
        "in_chans": 3,
        "intermediate_size": 3420,
        "num_heads": 16,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 112,
    },
    "vocab_size": 151936,
}
_SMOLVLM_256M: dict[str, Any] = {
    "model_type": "idefics3",
    "architectures": ["Idefics3ForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "image_token_id": 49190,
    "scale_factor": 4,
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "llama",
        "head_dim": 64,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "max_position_embeddings": 8192,
        "num_attention_heads": 9,
        "num_hidden_layers": 30,
        "num_key_value_heads": 3,
        "pad_token_id": 2,
        "rms_norm_eps": 1e-05,
        "rope_theta": 100000,
        "vocab_size": 49280,
    },
    "vision_config": {
        "model_type": "idefics3_vision",
        "hidden_size": 768,
        "image_size": 512,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "patch_size": 16,
    },
}
_LLAVA_7B: dict[str, Any] = {
    "model_type": "llava",
    "architectures": ["LlavaForConditionalGeneration"],
    "image_token_index": 32000,
    "pad_token_id": 32001,
    "projector_hidden_act": "gelu",
    "text_config": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-05,
        "vocab_size": 32064,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "image_size": 336,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_hidden_layers": 24,
        "patch_size": 14,
        "projection_dim": 768,
    },
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
}


def _row(name: str, config: dict[str, Any], parameters: int) -> dict[str, Any]:
    return {
        "id": name,
        "config": config,
        "auto_class": "AutoModelForImageTextToText",
        "parameters": parameters,
        "notes": "",
        "aliases": [],
        "published_parameters": parameters,
    }


_2B = {"intermediate_size": 8960, "num_attention_heads": 12, "num_key_value_heads": 2}
_7B = {"intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4}
MODELS = (
    _row("Qwen/Qwen2-VL-2B-Instruct", _qwen2_vl(1536, True, 151936, **_2B), 2_208_985_600),
    _row("Qwen/Qwen2-VL-7B-Instruct", _qwen2_vl(3584, False, 152064, **_7B), 8_291_375_616),
    _row("Qwen/Qwen2.5-VL-3B-Instruct", _QWEN2_5_VL_3B, 3_754_622_976),
    _row("HuggingFaceTB/SmolVLM-256M-Instruct", _SMOLVLM_256M, 256_484_928),
    _row("llava-hf/llava-1.5-7b-hf", _LLAVA_7B, 7_063_427_072),
)
"""Lines of models.json."""
