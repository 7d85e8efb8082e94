"""The base of a quantized checkpoint, with the tensors that its file has.

FP8 layers are transformers' own. Those of GPTQ and AWQ stand for gptqmodel's (7.7), which need a
GPU: `TorchLinear` dequantizes a weight and multiplies, so autograd keeps it, and `AwqGEMMLinear`
dequantizes it again in the backward pass. What their kernels need inside is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch.autograd.function import FunctionCtx

from oomdoctor.records.facts.checkpoints import Checkpoint, checkpoint_of
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import UnsupportedError, refused
from oomdoctor.worker.replacing import installed
from oomdoctor.worker.training.layers import is_of_experts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Tensors = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""The shape and type of each tensor by its name."""
_WORD = 32  # bits of an integer with packed weights


def stored_settings(spec: ModelSpec) -> dict[str, object]:
    """The `quantization_config` with which a stored checkpoint is loaded to be trained.

    Raises:
        UnsupportedError: it has none, or that is not trained.
    """
    row = checkpoint_of(spec.quantized)
    if spec.quantized is None:
        raise UnsupportedError("the checkpoint is not quantized; use quantization=nf4")
    if row is None or not row.stored:
        method = spec.quantized.get("quant_method")
        why = "" if row is None else f": {row.instead}"
        raise UnsupportedError(f"a {method} checkpoint is not trained as it is stored{why}")
    return dict(spec.quantized) | dict(row.settings)


def dequantized_settings(spec: ModelSpec, quantizes: bool) -> dict[str, object]:
    """The `quantization_config` with which a checkpoint is loaded in 16 bits.

    Raises:
        UnsupportedError: transformers does not dequantize it, or `quantizes` it again.
    """
    row = checkpoint_of(spec.quantized)
    if row is None or not row.dequantizes or quantizes:
        raise UnsupportedError(
            f"the checkpoint is quantized ({spec.quant_method}), and this configuration needs the "
            "unquantized model"
        )
    return {**(spec.quantized or {}), "dequantize": True}


def store_as_in_checkpoint(model: PreTrainedModel, job: ProbeJob) -> None:
    """Replace layers that are only declared by those of the job's checkpoint.

    Raises:
        UnsupportedError: LoRA is not trained on such a checkpoint, or the job is measured.
    """
    settings = stored_settings(job.model)
    row = checkpoint_of(settings)
    assert row is not None
    if job.mode not in ("simulate", "inspect"):
        raise UnsupportedError(
            f"synthetic weights of a {row.name} checkpoint are only simulated; use plan, or "
            f"--weights pretrained (needs {' and '.join(row.needs)})"
        )
    if row.layers == "experts":
        _store_by_transformers(model, settings)
        return
    _check_apart(model, row)
    kind = _KINDS[row.method]
    whole = _kept_whole(model, settings)
    for name, module in list(model.named_modules()):
        if type(module) is torch.nn.Linear and not any(part in name for part in whole):
            model.set_submodule(name, kind(module, settings))


def check_stored(job: ProbeJob, device_type: str) -> Checkpoint:
    """How a stored checkpoint is loaded for training, which can be done here.

    Raises:
        UnsupportedError: a package is missing, or this device has the weights in another dtype.
    """
    row = checkpoint_of(stored_settings(job.model))
    assert row is not None
    lacking = row.lacks_here(device_type, installed)
    if lacking is not None:
        raise UnsupportedError(lacking)
    return row


def check_kept(model: PreTrainedModel, row: Checkpoint) -> None:
    """Check that a model has the weights of its stored checkpoint as they are.

    Raises:
        UnsupportedError: transformers dequantized them, as FP8 on a GPU without it, or left experts
            out that it keeps in one tensor.
    """
    settings = getattr(getattr(model, "hf_quantizer", None), "quantization_config", None)
    if settings is None or getattr(settings, "dequantize", False):
        raise UnsupportedError(
            f"transformers dequantized the {row.name} weights here, which method=lora measures"
        )
    _check_apart(model, row)


def _check_apart(model: PreTrainedModel, row: Checkpoint) -> None:
    stacked = [name for name, p in model.named_parameters() if is_of_experts(name, p)]
    if stacked and row.layers == "linear":
        raise UnsupportedError(
            f"transformers keeps the experts in one tensor ({stacked[0].rpartition('.')[2]}), and "
            f"{row.name} is loaded into linear layers only; --with transformers==4.57.6 keeps "
            "them apart, or use quantize_experts=true with the unquantized model"
        )


def _kept_whole(model: PreTrainedModel, settings: Mapping[str, object]) -> list[str]:
    """Parts of the names of layers that stay as they are."""
    listed = settings.get("modules_to_not_convert")
    listed = map(str, listed) if isinstance(listed, list) else ()
    head = model.get_output_embeddings()
    heads = [name for name, module in model.named_modules() if module is head]
    return [*listed, *heads]


def _store_by_transformers(model: PreTrainedModel, settings: Mapping[str, object]) -> None:
    from transformers.quantizers import AutoHfQuantizer

    because = "this transformers version does not load the checkpoint"
    with refused(because, ValueError, ImportError):
        quantizer = AutoHfQuantizer.from_config(dict(settings), pre_quantized=True)
    if not quantizer.is_trainable or not hasattr(_fp8(), "FP8LinearFunction"):
        raise UnsupportedError("FP8 weights are trained by transformers 5.20 or later only")
    # Its checks look for a GPU, and a simulation has none.
    quantizer.preprocess_model(model=model)
    model.hf_quantizer = quantizer


def _fp8() -> object:
    from transformers.integrations import finegrained_fp8

    return finegrained_fp8


def _number(settings: Mapping[str, object], usual: int, *names: str) -> int:
    values = (settings.get(name) for name in names)
    return next((value for value in values if isinstance(value, int)), usual)


class _Packed(torch.nn.Linear):  # type: ignore[misc]
    """A linear layer whose weight is integers with several values each, and constants."""

    def __init__(self, plain: torch.nn.Linear, settings: Mapping[str, object]) -> None:
        inputs, outputs = plain.in_features, plain.out_features
        super().__init__(inputs, outputs, bias=plain.bias is not None, device="meta")
        self.weight = None
        bits = _number(settings, 4, "bits", "w_bit")
        size = _number(settings, 128, "group_size", "q_group_size")
        groups = math.ceil(inputs / (size if size > 0 else inputs))
        for name, (shape, dtype) in self.tensors(inputs, outputs, groups, bits).items():
            declared = torch.empty(shape, dtype=dtype, device="meta")
            self.register_parameter(name, torch.nn.Parameter(declared, requires_grad=False))
        if plain.bias is not None:
            bias = torch.empty(outputs, dtype=torch.float16, device="meta")
            self.bias = torch.nn.Parameter(bias, requires_grad=False)

    @classmethod
    def tensors(cls, inputs: int, outputs: int, groups: int, bits: int) -> Tensors:
        """The shapes and types of what the file has for a weight: here of its constants."""
        return {
            "qzeros": ((groups, outputs * bits // _WORD), torch.int32),
            "scales": ((groups, outputs), torch.float16),
        }

    def dequantized(self) -> torch.Tensor:
        """The weight: [inputs, outputs] in the type of its constants."""
        return self.scales.new_empty(self.in_features, self.out_features)


class _Gptq(_Packed):
    @classmethod
    def tensors(cls, inputs: int, outputs: int, groups: int, bits: int) -> Tensors:
        return {
            "qweight": ((inputs * bits // _WORD, outputs), torch.int32),
            **super().tensors(inputs, outputs, groups, bits),
            "g_idx": ((inputs,), torch.int32),
        }

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        rows = input.reshape(-1, self.in_features)
        weight = self.dequantized().to(input.dtype)
        result = torch.matmul(rows, weight).reshape(*input.shape[:-1], self.out_features)
        return result if self.bias is None else result.add_(self.bias.to(result.dtype))


class _Awq(_Packed):
    @classmethod
    def tensors(cls, inputs: int, outputs: int, groups: int, bits: int) -> Tensors:
        return {
            "qweight": ((inputs, outputs * bits // _WORD), torch.int32),
            **super().tensors(inputs, outputs, groups, bits),
        }

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        half = input if input.dtype in (torch.float16, torch.bfloat16) else input.half()
        result: torch.Tensor = _AwqProduct.apply(half, self)
        return result if result.dtype == input.dtype else result.to(input.dtype)


class _AwqProduct(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: FunctionCtx, input: torch.Tensor, layer: _Awq) -> torch.Tensor:
        ctx.layer = layer
        rows = input.reshape(-1, input.shape[-1])
        result = torch.matmul(rows, layer.dequantized().to(input.dtype))
        result = result if layer.bias is None else result + layer.bias
        return result.reshape(*input.shape[:-1], layer.out_features)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        weight = ctx.layer.dequantized().to(grad.dtype)
        rows = torch.matmul(grad.reshape(-1, grad.shape[-1]), weight.transpose(-1, -2))
        return rows.reshape(*grad.shape[:-1], weight.shape[0]), None


_KINDS: dict[str, type[_Packed]] = {"gptq": _Gptq, "awq": _Awq}
