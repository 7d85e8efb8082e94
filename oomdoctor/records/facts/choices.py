"""The values that keys of a rung may have, named as transformers, peft and bitsandbytes do.

Of numbers, how large they usually are, above what they are questioned, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oomdoctor.package_data import data_of

Method = Literal["full", "lora", "qlora"]
Dtype = Literal["bfloat16", "float32", "float16"]
AdapterDtype = Literal["default", "float32", "bfloat16", "float16"]
AutocastDtype = Literal["none", "bfloat16", "float16"]
Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"]
Checkpointing = Literal["none", "full", "every_n", "attention", "mlp", "offload"]
Quantization = Literal["none", "nf4", "int8", "checkpoint"]
QuantStorage = Literal["uint8", "bfloat16", "float16", "float32"]
KbitPrepare = Literal["peft", "norms", "none"]
Loss = Literal["default", "liger", "chunked"]
Objective = Literal["default", "dpo", "reward", "grpo"]
Reference = Literal["default", "precomputed", "kl"]
RolloutOffload = Literal["none", "optimizer", "all"]
RlProgram = Literal["trl", "verl", "openrlhf", "nemo-rl"]
Critic = Literal["none", "card", "weights", "host"]
RewardModel = Literal["none", "card"]
Routing = Literal["even", "worst"]
Vision = Literal["trained", "frozen"]
Packing = Literal["none", "packed", "padding_free"]
Padding = Literal["none", "longest", "max_length"]
Library = Literal["transformers", "unsloth"]
Fp8 = Literal["none", "torchao", "transformer_engine"]
Offload = Literal["none", "optimizer", "parameters", "activations"]
Sharding = Literal[
    "none", "ddp", "fsdp", "fsdp_grad_op", "hybrid", "zero1", "zero2", "zero3",
    "tensor_parallel", "context_parallel", "pipeline_parallel",
]  # fmt: skip
FsdpVersion = Literal[2, 1]
Prefetch = Literal["default", "none", "forward"]
ReduceDtype = Literal["default", "float32", "bfloat16"]
AllocatorSetting = Literal["default", "expandable_segments"]
AUTO: Literal["auto"] = "auto"
# The programs whose files can be read and written, the general ones first.
WrittenFormat = Literal[
    "trainer",
    "trl",
    "accelerate",
    "deepspeed",
    "axolotl",
    "llama-factory",
    "ms-swift",
    "torchtune",
    "unsloth",
    "pytorch",
]
FormatName = Literal[WrittenFormat, "verl", "openrlhf", "nemo-rl"]
"""All whose files can be read."""


@dataclass(frozen=True, slots=True)
class Size:
    """A number of a rung: above `questioned` the report warns, above `refused` it is an error."""

    words: str
    usual: str
    questioned: int
    refused: int

    def refusal(self, value: int) -> str:
        """Why a value is refused."""
        return f"{value:,} is above the maximum of {self.refused:,}; usual are {self.usual}"


SIZES: dict[str, Size] = {key: Size(**row) for key, row in data_of("rung_sizes.toml").items()}
