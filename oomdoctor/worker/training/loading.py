"""Load a job's model, with synthetic or pretrained weights, plain or quantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import (
    TrainConfig,
    by_bitsandbytes,
    is_cast_by_peft,
    is_fsdp,
)
from oomdoctor.worker.protocol import UnsupportedError, refused
from oomdoctor.worker.tracing.tensors import logical_numel
from oomdoctor.worker.training import synthetic
from oomdoctor.worker.training.layers import is_of_experts
from oomdoctor.worker.training.model_config import model_class
from oomdoctor.worker.training.setup import Setup
from oomdoctor.worker.training.stored import (
    check_kept,
    check_stored,
    dequantized_settings,
    stored_settings,
)

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig, PreTrainedModel

_MUCH = 0.1  # of a model's parameters


def quantization_config(config: TrainConfig) -> BitsAndBytesConfig:
    """The bitsandbytes configuration of a rung with quantized weights."""
    from transformers import BitsAndBytesConfig

    if config.quantization == "int8":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=config.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, compute_dtype(config)),
        bnb_4bit_quant_storage=getattr(torch, config.quant_storage),
    )


def note_what_stays_whole(setup: Setup) -> None:
    """A note if a large share of the model is outside linear layers, like experts of a mixture."""
    parameters = list(setup.model.parameters())
    sizes = [(p.dim() > 2 and p.is_floating_point(), logical_numel(p)) for p in parameters]
    share = sum(size for is_left, size in sizes if is_left) / sum(size for _, size in sizes)
    if share >= _MUCH:
        cast = is_cast_by_peft(setup.config)
        setup.notes.append(
            f"{share:.0%} of the parameters are outside linear layers (experts stored in one "
            "tensor), so bitsandbytes does not quantize them"
            + (" and peft casts them to float32" if cast else "")
            + ("; quantize_experts=true does, as axolotl" if _can_quantize(setup) else "")
        )


def _can_quantize(setup: Setup) -> bool:
    """Whether a key of a rung would quantize the experts of a model, too."""
    config = setup.config
    with_experts = any(is_of_experts(name, p) for name, p in setup.model.named_parameters())
    single = config.sharding in ("none", "ddp") and config.library == "transformers"
    return with_experts and single and config.quantization == "nf4"


def load_model(setup: Setup) -> tuple[PreTrainedModel, str]:
    """The model of a setup's configuration, and the attention implementation that it has.

    What FSDP shards is declared in host memory, inside `on_host`.
    """
    job, config, device = setup.job, setup.config, setup.device
    quantization = quantization_config(config) if by_bitsandbytes(config) else None
    attention: str = config.attention
    while True:
        try:
            blueprint = synthetic.Blueprint(job, setup.model_config, attention)
            if job.weights == "pretrained":
                return _load_pretrained(blueprint, quantization, device), attention
            given = (quantization, _place(config), setup.on_host)
            return synthetic.build_model(blueprint, device, *given), attention
        except RuntimeError as error:
            if "supported by the bitsandbytes" in str(error):
                raise UnsupportedError(str(error)) from error
            raise
        except (ValueError, ImportError) as error:
            if attention == "sdpa" and "scaled_dot_product_attention" in str(error):
                # transformers does the same when nobody names an implementation.
                attention = "eager"
            elif "attention" in str(error) and attention != "eager":
                raise UnsupportedError(f"{attention}: {error}") from error
            else:
                raise


def _place(config: TrainConfig) -> synthetic.Place:
    """Where weights are made, before an engine shards them."""
    if config.sharding == "zero3" and config.quantization == "none":
        return "zero3"
    if config.sharding == "tensor_parallel":
        return "parts"
    return "host" if is_fsdp(config) else "device"


def _load_pretrained(
    blueprint: synthetic.Blueprint, quantization: BitsAndBytesConfig | None, device: torch.device
) -> PreTrainedModel:
    spec = blueprint.job.model
    given: dict[str, object] = {synthetic.dtype_keyword(): blueprint.dtype}
    if quantization is not None:
        given["quantization_config"] = quantization
    stored = None
    if blueprint.job.config.quantization == "checkpoint":
        stored = check_stored(blueprint.job, device.type)
        # In the config, for transformers quantizes a checkpoint again whose config has none.
        blueprint.config.quantization_config = stored_settings(spec)
    elif spec.quantized is not None and spec.quant_method != "bitsandbytes":
        blueprint.config.quantization_config = dequantized_settings(spec, quantization is not None)
    local = spec.source == "local"
    with refused("the checkpoint cannot be loaded", ImportError, one_line=True):
        model = model_class(spec, blueprint.config).from_pretrained(
            spec.path if local else spec.id,
            config=blueprint.config,
            revision=None if local else spec.revision,
            trust_remote_code=spec.trust_remote_code,
            attn_implementation=blueprint.attention,
            device_map={"": str(device)},
            **given,
        )
    if stored is not None:
        check_kept(model, stored)
    return model
