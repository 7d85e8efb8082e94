"""The configurations of tiny models of text that also see images."""

from __future__ import annotations

from typing import Any

from tiny_configs import DECODER

from oomdoctor.records.job.model import Task

_TOWER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 4,
}
# Not among CONFIGS: their sequences have tokens of images.
WITH_IMAGES: dict[str, tuple[Task, str, dict[str, Any]]] = {
    "llava": (
        "image-text-to-text",
        "LlavaForConditionalGeneration",
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama", **DECODER},
            "vision_config": {"model_type": "clip_vision_model", **_TOWER},
            "image_token_index": 511,
            "vision_feature_layer": -1,
        },
    ),
    "smolvlm": (
        "image-text-to-text",
        "SmolVLMForConditionalGeneration",
        {
            "model_type": "smolvlm",
            "text_config": {"model_type": "llama", **DECODER, "pad_token_id": 0},
            "vision_config": {"model_type": "smolvlm_vision", **_TOWER},
            "image_token_id": 511,
            "scale_factor": 2,
        },
    ),
    "qwen2_5_vl": (
        "image-text-to-text",
        "Qwen2_5_VLForConditionalGeneration",
        {
            "model_type": "qwen2_5_vl",
            # As on the hub, the decoder's settings stand beside those of the encoder.
            **DECODER,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            "vision_config": {
                "model_type": "qwen2_5_vl",
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 64,
                "patch_size": 4,
                "window_size": 16,
                "fullatt_block_indexes": [1],
            },
            "image_token_id": 511,
            "video_token_id": 510,
            "vision_start_token_id": 509,
        },
    ),
}
_PARTS: dict[str, Any] = {"out_hidden_size": 64, "patch_size": 4, "depth": 2, "num_heads": 2}
# Families that the oldest supported transformers does not have, or whose images it gets otherwise.
MORE_WITH_IMAGES: dict[str, tuple[Task, str, dict[str, Any]]] = {
    "gemma3": (
        "image-text-to-text",
        "Gemma3ForConditionalGeneration",
        {
            "model_type": "gemma3",
            "text_config": {"model_type": "gemma3_text", **DECODER, "head_dim": 16},
            "vision_config": {"model_type": "siglip_vision_model", **_TOWER},
            "image_token_id": 511,
            "mm_tokens_per_image": 4,
        },
    ),
    "mistral3": (
        "image-text-to-text",
        "Mistral3ForConditionalGeneration",
        {
            "model_type": "mistral3",
            "text_config": {"model_type": "mistral", **DECODER, "head_dim": 16},
            "vision_config": {"model_type": "pixtral", **_TOWER, "head_dim": 16},
            "image_token_index": 511,
        },
    ),
    "internvl": (
        "image-text-to-text",
        "InternVLForConditionalGeneration",
        {
            "model_type": "internvl",
            "text_config": {"model_type": "qwen2", **DECODER},
            "vision_config": {
                "model_type": "internvl_vision",
                **_TOWER,
                "image_size": [16, 16],
                "patch_size": [4, 4],
            },
            "image_token_id": 511,
        },
    ),
    "llava_next": (
        "image-text-to-text",
        "LlavaNextForConditionalGeneration",
        {
            "model_type": "llava_next",
            "text_config": {"model_type": "llama", **DECODER, "max_position_embeddings": 256},
            "vision_config": {"model_type": "clip_vision_model", **_TOWER, "image_size": 8},
            "image_grid_pinpoints": [[8, 16], [16, 8], [16, 16]],
            "image_token_index": 511,
            "vision_feature_layer": -1,
        },
    ),
    "qwen3_vl": (
        "image-text-to-text",
        "Qwen3VLForConditionalGeneration",
        {
            "model_type": "qwen3_vl",
            "text_config": {
                "model_type": "qwen3_vl_text",
                **DECODER,
                "head_dim": 16,
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [2, 3, 3],
                    "mrope_interleaved": True,
                },
            },
            "vision_config": {
                "model_type": "qwen3_vl",
                **_PARTS,
                "hidden_size": 32,
                "intermediate_size": 64,
                "deepstack_visual_indexes": [0],
                "num_position_embeddings": 16,
            },
            "image_token_id": 511,
            "video_token_id": 510,
            "vision_start_token_id": 509,
            "vision_end_token_id": 508,
        },
    ),
    "qwen3_5": (
        "image-text-to-text",
        "Qwen3_5ForConditionalGeneration",
        {
            "model_type": "qwen3_5",
            "text_config": {
                "model_type": "qwen3_5_text",
                **DECODER,
                "head_dim": 16,
                "linear_key_head_dim": 8,
                "linear_value_head_dim": 8,
                "linear_num_key_heads": 2,
                "linear_num_value_heads": 4,
                "layer_types": ["linear_attention", "full_attention"],
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "partial_rotary_factor": 0.5,
                    "mrope_section": [1, 1, 2],
                    "mrope_interleaved": True,
                },
            },
            "vision_config": {
                "model_type": "qwen3_5",
                **_PARTS,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_position_embeddings": 16,
            },
            "image_token_id": 511,
            "video_token_id": 510,
            "vision_start_token_id": 509,
            "vision_end_token_id": 508,
        },
    ),
}
# Images that are beside the text or alone, or whose place a mask marks: 16 pixels a side.
OTHER_IMAGES: dict[str, tuple[Task, str, dict[str, Any]]] = {
    "git": (
        "image-text-to-text",
        "GitForCausalLM",
        {
            "model_type": "git",
            **DECODER,
            "vision_config": {"model_type": "git_vision_model", **_TOWER},
        },
    ),
    "idefics": (
        "image-text-to-text",
        "IdeficsForVisionText2Text",
        {
            "model_type": "idefics",
            **DECODER,
            "cross_layer_interval": 1,
            "vision_config": {"embed_dim": 32, **_TOWER},
            "freeze_vision_layers": False,
            "freeze_text_layers": False,
        },
    ),
    "kosmos-2": (
        "image-text-to-text",
        "Kosmos2ForConditionalGeneration",
        {
            "model_type": "kosmos-2",
            "text_config": {
                "vocab_size": 512,
                "max_position_embeddings": 128,
                "embed_dim": 64,
                "layers": 2,
                "attention_heads": 4,
                "ffn_dim": 128,
                "dropout": 0.0,
                "attention_dropout": 0.0,
            },
            "vision_config": _TOWER,
            "latent_query_num": 4,
        },
    ),
    "pix2struct": (
        "image-text-to-text",
        "Pix2StructForConditionalGeneration",
        {
            "model_type": "pix2struct",
            "text_config": {
                "vocab_size": 512,
                "hidden_size": 32,
                "d_kv": 8,
                "d_ff": 64,
                "num_layers": 2,
                "num_heads": 4,
            },
            "vision_config": {
                "hidden_size": 32,
                "patch_embed_hidden_size": 48,
                "patch_size": 4,
                "d_ff": 64,
                "d_kv": 8,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "seq_len": 64,
            },
        },
    ),
    "vision-encoder-decoder": (
        "image-text-to-text",
        "VisionEncoderDecoderModel",
        {
            "model_type": "vision-encoder-decoder",
            "encoder": {"model_type": "vit", **_TOWER},
            "decoder": {
                "model_type": "bert",
                **DECODER,
                "is_decoder": True,
                "add_cross_attention": True,
            },
            "pad_token_id": 0,
            "decoder_start_token_id": 1,
        },
    ),
    "siglip2": (
        "image-classification",
        "Siglip2ForImageClassification",
        {"model_type": "siglip2", "vision_config": {**_TOWER, "num_patches": 16}},
    ),
    "imagegpt": (
        "image-classification",
        "ImageGPTForImageClassification",
        {
            "model_type": "imagegpt",
            "vocab_size": 65,
            "n_positions": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
        },
    ),
    "perceiver": (
        "image-classification",
        "PerceiverForImageClassificationLearned",
        {
            "model_type": "perceiver",
            "num_latents": 8,
            "d_latents": 32,
            "d_model": 32,
            "num_self_attends_per_block": 2,
            "num_self_attention_heads": 2,
            "num_cross_attention_heads": 1,
            "image_size": 16,
        },
    ),
}
