"""Build a model with random weights from its configuration, directly on the device.

Parameters are declared on the meta device and then created one by one. So there is never a second
copy, and a quantized model never exists in full precision. Buffers are computed on the device.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.protocol import OnHost, UnsupportedError, refused
from oomdoctor.worker.replacing import replaced
from oomdoctor.worker.training.layers import is_of_experts
from oomdoctor.worker.training.model_config import model_class
from oomdoctor.worker.training.stored import store_as_in_checkpoint

if TYPE_CHECKING:
    from transformers import BitsAndBytesConfig, PretrainedConfig, PreTrainedModel

Place = Literal["device", "host", "zero3", "parts"]
_LARGE = 1 << 28  # elements
STANDARD_DEVIATION = 0.02  # the usual initializer_range: keeps activations and losses finite


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The model of a job, as transformers builds it from a configuration."""

    job: ProbeJob
    config: PretrainedConfig
    attention: str

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""
        return getattr(torch, self.job.config.weights_dtype)

    def made(self) -> PreTrainedModel:
        """The model.

        Raises:
            ValueError, ImportError: from transformers, for an unknown architecture or attention
                implementation.
        """
        spec = self.job.model
        return model_class(spec, self.config).from_config(
            self.config,
            attn_implementation=self.attention,
            trust_remote_code=spec.trust_remote_code,
            **{dtype_keyword(): self.dtype},
        )


def build_model(
    blueprint: Blueprint,
    device: torch.device,
    quantization: BitsAndBytesConfig | None,
    place: Place,
    on_host: OnHost,
) -> PreTrainedModel:
    """The model with synthetic weights on `device`, in train mode.

    What an engine shards has another `place`: "host" is host memory that is declared inside
    `on_host` and not touched, with "zero3" DeepSpeed shards each module once it exists.
    With "parts", transformers' plan says which part of a weight is on this device.
    """
    if place == "zero3":
        return blueprint.made().train()
    model = declare_model(blueprint, device)
    if place == "parts":
        model = _in_parts(model, blueprint.job.config.world_size)
    if quantization is not None:
        _prepare_quantized(model, quantization, device)
    if blueprint.job.config.quantization == "checkpoint":
        with unset_fake_temporarily():
            store_as_in_checkpoint(model, blueprint.job)
    with unset_fake_temporarily():
        model.tie_weights()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(blueprint.job.seed)
        _materialise(model, blueprint, device, on_host if place == "host" else None)
    if quantization is not None:
        model.hf_quantizer.postprocess_model(model)
    return model.train()


def _in_parts(model: PreTrainedModel, gpus: int) -> PreTrainedModel:
    """The declared model in parts of layers, as `from_pretrained` makes them before it loads.

    Raises:
        UnsupportedError: transformers is too old, or has no plan for the model.
    """
    try:
        from transformers.distributed import DistributedConfig

        distribute = model.maybe_distribute_model
    except (ImportError, AttributeError) as error:
        why = "tensor parallelism needs a newer transformers: pip install -U transformers"
        raise UnsupportedError(why) from error
    with refused("transformers cannot share this model", ValueError, RuntimeError):
        config, _, mesh = model.prepare_distribute_model(DistributedConfig(tp_size=gpus))
        return distribute(model, config, mesh)


def declare_model(blueprint: Blueprint, device: torch.device) -> PreTrainedModel:
    """The model with parameters on the meta device and buffers on `device`."""
    from accelerate import init_empty_weights

    # Quantized parameters cannot be declared with fake tensors. Weights become fake later, when
    # they are created.
    with (
        unset_fake_temporarily(),
        _not_sharded_yet(),
        init_empty_weights(include_buffers=False),
        device,
        _LargeOnMeta(),
    ):
        return blueprint.made()


class _LargeOnMeta(TorchFunctionMode):  # type: ignore[misc]
    """Declares large weights on the meta device at once: one may have more bytes than the host."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = dict(kwargs or {})
        if func is torch.empty:
            sizes = (size for size in tree_leaves(args) if isinstance(size, int))
            if math.prod(sizes) > _LARGE:
                kwargs["device"] = "meta"
        return func(*args, **kwargs)


def _not_sharded_yet() -> AbstractContextManager[None]:
    """Let transformers build a whole model although DeepSpeed ZeRO-3 is set up."""
    settings = sys.modules.get("transformers.integrations.deepspeed")
    name = "_hf_deepspeed_config_weak_ref"
    return replaced(settings, name, None) if hasattr(settings, name) else nullcontext()


def dtype_keyword() -> str:
    """The name of transformers' dtype argument: `torch_dtype` until 4.55, then `dtype`."""
    import transformers

    major, minor = (int(part) for part in transformers.__version__.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for one on a simulated device."""
    return isinstance(tensor, FakeTensor)


def _prepare_quantized(
    model: PreTrainedModel, quantization: BitsAndBytesConfig, device: torch.device
) -> None:
    """Replace the linear layers, as `from_pretrained` does before it loads weights."""
    from transformers.quantizers import AutoHfQuantizer

    quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=False)
    device_map = {"": str(device)}
    because = f"this transformers version cannot use bitsandbytes on {device.type}"
    with refused(because, RuntimeError, ImportError):
        quantizer.validate_environment(device_map=device_map)
    with unset_fake_temporarily():
        quantizer.preprocess_model(
            model=model, device_map=device_map, keep_in_fp32_modules=_kept_in_fp32(model)
        )
    model.hf_quantizer = quantizer


def _kept_in_fp32(model: PreTrainedModel) -> list[str]:
    return list(getattr(model, "_keep_in_fp32_modules", None) or [])


def _fp32_names(model: PreTrainedModel, dtype: torch.dtype) -> set[str]:
    """Parts of the names of parameters that `from_pretrained` keeps in fp32, like T5's wo."""
    names = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    return names | set(_kept_in_fp32(model) if dtype == torch.float16 else ())


def _materialise(
    model: PreTrainedModel, blueprint: Blueprint, device: torch.device, on_host: OnHost | None
) -> None:
    """Make every parameter: with random values on the device, or only declared `on_host`."""
    dtype, config = blueprint.dtype, blueprint.job.config
    fp32_names = _fp32_names(model, dtype)
    made: dict[int, torch.nn.Parameter] = {}  # tied weights are one parameter with several names
    for prefix, module in model.named_modules():
        for name, declared in list(module._parameters.items()):
            if declared is None or declared.device.type != "meta":
                continue
            if id(declared) not in made:
                if type(declared).__name__ in ("Params4bit", "Int8Params"):
                    parameter = _quantized_parameter(declared, dtype, device)
                    if on_host is not None:
                        parameter = _moved_to_host(parameter, on_host)
                else:
                    kept = not fp32_names.isdisjoint((*prefix.split("."), name))
                    wanted = torch.float32 if kept else declared.dtype
                    parameter = _plain_parameter(declared, name, wanted, device, on_host)
                made[id(declared)] = parameter
            module._parameters[name] = made[id(declared)]
            if config.quantize_experts and is_of_experts(f"{prefix}.{name}", declared):
                del made[id(declared)]
                _quantize_in_place(module, name, config)
        for declared in [buffer for buffer in module._buffers.values() if buffer is not None]:
            buffer = _buffer(declared, device)
            # In transformers 4, rotary embeddings also keep their buffer as a plain attribute.
            for names in (module._buffers, vars(module)):
                names.update({name: buffer for name in names if names[name] is declared})


def _quantize_in_place(module: torch.nn.Module, name: str, config: TrainConfig) -> None:
    """Let a module keep a parameter in 4 bits, and dequantize it whenever it is read.

    Raises:
        UnsupportedError: bitsandbytes is too old.
    """
    try:
        from bitsandbytes.nn.parametrize import replace_parameter_4bit
    except ImportError as error:
        why = "quantize_experts needs bitsandbytes 0.49 or later: pip install -U bitsandbytes"
        raise UnsupportedError(why) from error
    replace_parameter_4bit(
        module, name, compress_statistics=config.double_quant, quant_type=config.quantization
    )
    kept = module.parametrizations[name]
    vars(kept.original)["quant_state"] = kept[0].quant_state  # as of bitsandbytes' own parameters


def _buffer(declared: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The buffer; on a simulated device a fake one, whose views share its storage."""
    if is_fake(declared) or not is_fake(torch.empty(0)):
        return declared
    return torch.empty_like(declared, device=device)


def _plain_parameter(
    declared: torch.nn.Parameter,
    name: str,
    wanted: torch.dtype,
    device: torch.device,
    on_host: OnHost | None,
) -> torch.nn.Parameter:
    if hasattr(declared, "placements"):  # a part of it is on this device
        part = _plain_parameter(declared.to_local(), name, wanted, device, on_host)
        return torch.nn.Parameter(_as_part_of(declared, part.data), declared.requires_grad)
    with nullcontext() if on_host is None else on_host():
        place = device if on_host is None else torch.device("cpu")
        value = torch.empty(declared.shape, dtype=wanted, device=place)
    stored = not value.is_floating_point() or value.element_size() == 1  # as in a checkpoint
    if on_host is None and stored:
        value.zero_()
    elif on_host is None and value.dim() >= 2:
        value.normal_(0.0, STANDARD_DEVIATION)
    elif on_host is None:
        value.fill_(1.0 if name.endswith("weight") else 0.0)
    return torch.nn.Parameter(value, requires_grad=declared.requires_grad)


def _as_part_of(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A tensor in the place of a declared one in parts."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part,
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def _moved_to_host(made: torch.nn.Parameter, on_host: OnHost) -> torch.nn.Parameter:
    """A quantized parameter in host memory without values.

    Engines do not shard 4-bit weights that are stored as integers, so these stay on the device.
    """
    if hasattr(made, "CB") or made.dtype == torch.uint8:
        return made
    with on_host():
        # As transformers does: only the weights leave the device, not their constants.
        value = torch.empty(made.shape, dtype=made.dtype, device="cpu")
        return type(made)(value, requires_grad=False, **vars(made))


def _quantized_parameter(
    declared: torch.nn.Parameter, dtype: torch.dtype, device: torch.device
) -> torch.nn.Parameter:
    """One random weight, quantized on its way to the device as transformers' quantizers do."""
    import bitsandbytes

    kind = type(declared).__name__
    value = torch.empty(declared.shape, dtype=dtype, device=device)
    value.normal_(0.0, STANDARD_DEVIATION)
    settings = dict(declared.__dict__)
    if is_fake(value):
        return _fake_quantized(value, kind, settings)
    if kind == "Int8Params":
        settings.pop("SCB", None)
        value = value.to("cpu")  # bitsandbytes quantizes to int8 while it moves from the CPU
    return getattr(bitsandbytes.nn, kind)(value, requires_grad=False, **settings).to(device)


def _fake_quantized(
    value: torch.Tensor, kind: str, settings: dict[str, object]
) -> torch.nn.Parameter:
    """A plain parameter with the attributes of bitsandbytes' parameter classes.

    These classes cannot wrap fake tensors, and the layers only look for the attributes. The bytes
    are stored as integers, whatever type was asked for, which takes as much: peft casts every
    16-bit parameter that does not have the class of bitsandbytes.
    """
    import bitsandbytes

    functional = bitsandbytes.functional
    more: dict[str, object]
    if kind == "Int8Params":
        stored, scales, _ = functional.int8_vectorwise_quant(value.to(torch.float16))
        more = {"CB": stored, "SCB": scales}
    else:
        names = ("blocksize", "compress_statistics", "quant_type")
        given = {name: settings[name] for name in names}
        stored, state = functional.quantize_4bit(value, **given, quant_storage=torch.uint8)
        more = {"quant_state": state, "bnb_quantized": True}
    parameter = torch.nn.Parameter(stored, requires_grad=False)
    vars(parameter).update(settings | more)
    return parameter
