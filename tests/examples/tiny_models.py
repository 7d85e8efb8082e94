"""Tiny models of each kind, and jobs for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ModelSpec, Task
from oomdoctor.records.job.result import ProbeJob

_DECODER: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
CONFIGS: dict[str, tuple[Task, str, dict[str, Any]]] = {
    "dense": ("causal-lm", "LlamaForCausalLM", {"model_type": "llama", **_DECODER}),
    "gqa-tied": (
        "causal-lm",
        "Qwen2ForCausalLM",
        {
            "model_type": "qwen2",
            **_DECODER,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
    ),
    "sliding-window": (
        "causal-lm",
        "MistralForCausalLM",
        {"model_type": "mistral", **_DECODER, "sliding_window": 16},
    ),
    "moe": (
        "causal-lm",
        "MixtralForCausalLM",
        {"model_type": "mixtral", **_DECODER, "num_local_experts": 4, "num_experts_per_tok": 2},
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
        {"model_type": "llama", **_DECODER},
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
            "d_model": 32,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
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
            "text_config": {"model_type": "qwen2", **_DECODER},
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
            **_DECODER,
            "num_key_value_heads": 2,
            "kv_channels": 16,
            "num_local_experts": 2,
            "num_experts_per_tok": 2,
        },
    ),
    "router": (  # its router derives from a linear layer, and returns two tensors
        "causal-lm",
        "PhimoeForCausalLM",
        {"model_type": "phimoe", "num_local_experts": 4, **_DECODER},
    ),
}
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
            "text_config": {"model_type": "llama", **_DECODER},
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
            "text_config": {"model_type": "llama", **_DECODER, "pad_token_id": 0},
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
            **_DECODER,
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
            "text_config": {"model_type": "gemma3_text", **_DECODER, "head_dim": 16},
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
            "text_config": {"model_type": "mistral", **_DECODER, "head_dim": 16},
            "vision_config": {"model_type": "pixtral", **_TOWER, "head_dim": 16},
            "image_token_index": 511,
        },
    ),
    "internvl": (
        "image-text-to-text",
        "InternVLForConditionalGeneration",
        {
            "model_type": "internvl",
            "text_config": {"model_type": "qwen2", **_DECODER},
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
            "text_config": {"model_type": "llama", **_DECODER, "max_position_embeddings": 256},
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
                **_DECODER,
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
                **_DECODER,
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
            **_DECODER,
            "vision_config": {"model_type": "git_vision_model", **_TOWER},
        },
    ),
    "idefics": (
        "image-text-to-text",
        "IdeficsForVisionText2Text",
        {
            "model_type": "idefics",
            **_DECODER,
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
                **_DECODER,
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
_ALL = CONFIGS | SPECIAL | WITH_IMAGES | MORE_WITH_IMAGES | OTHER_IMAGES


def tiny_spec(kind: str = "dense") -> ModelSpec:
    """The model of this kind as the hub would have found it."""
    task, architecture, config = _ALL[kind]
    return ModelSpec(
        id=f"tiny/{kind}",
        source="local",
        architecture=architecture,
        model_type=config["model_type"],
        task=task,
        config=config | {"architectures": [architecture]},
    )


def tiny_folder(folder: Path, kind: str = "dense") -> Path:
    """A new folder with the config.json of this kind, to give as the model."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(dict(tiny_spec(kind).config)))
    return folder


def tiny_job(kind: str = "dense", **changes: Any) -> ProbeJob:
    """A CPU job at micro-batch 2 of 4; keys of the job itself start with `job_`."""
    job = {
        name.removeprefix("job_"): value
        for name, value in changes.items()
        if name.startswith("job_")
    }
    rung = {name: value for name, value in changes.items() if not name.startswith("job_")}
    base = TrainConfig(
        weights_dtype="float32", micro_batch_size=2, sequence_length=32, effective_batch_size=4
    )
    return replace(
        ProbeJob(
            mode="measure",
            label="tiny",
            model=tiny_spec(kind),
            config=replace(base, **rung),
            device_type="cpu",
            timing_limit_s=2.0,
            max_timed_steps=3,
        ),
        **job,
    )
