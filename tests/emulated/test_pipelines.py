"""Pipelines of diffusers without weights: served whole and by part, and trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emulated_run import Watched

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CLIP = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 77, "bos_token_id": 0,
        "eos_token_id": 2, "pad_token_id": 1}  # fmt: skip
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
      "n_positions": 64}  # fmt: skip
BLOCKS = {"block_out_channels": [32, 32], "down_block_types": ["DownEncoderBlock2D"] * 2,
          "up_block_types": ["UpDecoderBlock2D"] * 2, "latent_channels": 4}  # fmt: skip
FLUX = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 128,
        "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32,
        "in_channels": 16, "_diffusers_version": "0.30", "of_another_release": 1}  # fmt: skip
PARTS = {
    "scheduler": ("diffusers", "FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
    "text_encoder": ("transformers", "CLIPTextModel", CLIP | {"torch_dtype": "bfloat16"}),
    "text_encoder_2": ("transformers", "T5EncoderModel", T5 | {"torch_dtype": "bfloat16"}),
    "tokenizer": ("transformers", "CLIPTokenizer", None),
    "tokenizer_2": ("transformers", "T5TokenizerFast", None),
    "transformer": ("diffusers", "FluxTransformer2DModel", FLUX),
    "vae": ("diffusers", "AutoencoderKL", BLOCKS),
}
TRAINED = """
import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler, FluxTransformer2DModel
from peft import LoraConfig
from transformers import CLIPTextModel, CLIPTokenizer, T5EncoderModel

def one(model):
    (dtype,) = {p.dtype for p in model.parameters()}
    return dtype

name = "tiny-flux"
assert FlowMatchEulerDiscreteScheduler.from_pretrained(name, subfolder="scheduler").shift == 3
tokenizer = CLIPTokenizer.from_pretrained(name, subfolder="tokenizer", revision=None)
padded = tokenizer(["a dog", "cat"], padding="max_length", max_length=77, return_tensors="pt")
assert padded.input_ids.shape == (2, 77) and padded.input_ids.max() < 99
encoder = CLIPTextModel.from_pretrained(name, subfolder="text_encoder", variant="fp16")
assert one(encoder) == torch.float16
# Without a type, transformers takes that of the file, and diffusers makes it float32.
assert one(T5EncoderModel.from_pretrained(name, subfolder="text_encoder_2")) == torch.bfloat16
assert one(FluxTransformer2DModel.from_pretrained(name, subfolder="transformer")) == torch.float32

pipe = DiffusionPipeline.from_pretrained(name, torch_dtype=torch.bfloat16)
assert type(pipe).__name__ == "FluxPipeline"
assert {one(pipe.vae), one(pipe.text_encoder), one(pipe.transformer)} == {torch.bfloat16}
with torch.no_grad():
    pipe.text_encoder.to("cuda"), pipe.text_encoder_2.to("cuda")
    embeds, pooled, ids = pipe.encode_prompt("a dog", None, max_sequence_length=64)
assert embeds.shape == (1, 64, 32)
model = pipe.transformer.to("cuda").requires_grad_(False)
model.add_adapter(LoraConfig(r=4, target_modules=["to_q", "to_k", "to_v"]))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
for _ in range(3):
    latents = torch.randn(1, 64, 16, device="cuda", dtype=torch.bfloat16)
    at = torch.zeros(64, 3, device="cuda")
    time = torch.ones(1, device="cuda", dtype=torch.bfloat16)
    model(latents, embeds, pooled, time, at, ids).sample.float().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COUNTED = """
import diffusers, torch, transformers
from oomdoctor.monitor.inside.pipeline import built
from oomdoctor.system.models.pipelines import pipelines

parts = {part.class_name + str(part.config): part for p in pipelines() for part in p.parts.values()}
for part in parts.values():
    if part.parameters:
        kind = getattr({"diffusers": diffusers, "transformers": transformers}[part.library],
                       part.class_name)
        count = sum(p.numel() for p in built(kind, part.config).parameters())
        assert count == part.parameters, (part.class_name, count)
        print("equal", part.class_name)
"""


def _tiny_flux(folder: Path) -> None:
    index = {"_class_name": "FluxPipeline"}
    for part, (library, name, config) in PARTS.items():
        (folder / part).mkdir(parents=True)
        if config is not None:
            file = "scheduler_config.json" if part == "scheduler" else "config.json"
            (folder / part / file).write_text(json.dumps(config))
        index[part] = [library, name]
    (folder / "model_index.json").write_text(json.dumps(index))


def test_a_folder_of_configs_is_served_as_a_pipeline(
    unsloth_python: Path, emulator_cache: Path, tmp_path: Path
) -> None:
    _tiny_flux(tmp_path / "tiny-flux")
    watched = Watched(tmp_path, unsloth_python, emulator_cache)
    report, _, error = watched.run("L4", TRAINED, options=("--weights", "synthetic"))
    assert report.exit_code == 0, error
    (rank,) = report.ranks
    assert (rank.outcome, rank.steps) == ("fits", 3)
    assert not list((tmp_path / "tiny-flux").rglob("*.safetensors"))


def test_built_in_parts_have_the_published_number_of_parameters(
    unsloth_python: Path, emulator_cache: Path, tmp_path: Path
) -> None:
    watched = Watched(tmp_path, unsloth_python, emulator_cache)
    report, out, error = watched.run("L4", COUNTED)
    assert report.exit_code == 0, error
    assert out.count("equal") >= 12
