"""The dtype in which each program keeps adapters and the modules that are trained beside them."""

from __future__ import annotations

from collections.abc import Collection

from oomdoctor.stacks.partial_config import PartialConfig, RungKeys

OF_WEIGHTS = "weights"
"""Instead of a dtype: that of the weights, which the model may decide."""
REASONS = {
    "trl": "TRL casts the adapters of a quantized model",
    "llama-factory": "LLaMA-Factory trains in float32, without pure_bf16",
    "torchtune": "torchtune keeps adapters in the dtype of the model",
}


def adapter_dtype(
    given: PartialConfig, found: RungKeys, program: str, said: Collection[str]
) -> RungKeys:
    """The `adapter_dtype` of a rung with adapters, if the program has not the usual one.

    `found` are the keys of the rung so far. Read from TRL 1.16, LLaMA-Factory 0.9.5, axolotl 0.19,
    torchtune 0.6.1 and Unsloth 2026.10.
    """
    sharding = str(found.get("sharding", ""))
    if found["method"] == "full" or sharding in ("zero1", "zero2"):
        return {}
    if "adapter_dtype" in said:
        return {"adapter_dtype": given["adapter_dtype"]}
    if found.get("library") == "unsloth":
        return {}  # it leaves out TRL's cast
    quantized = found["method"] == "qlora"
    if program == "torchtune":
        return {"adapter_dtype": OF_WEIGHTS}
    if program == "llama-factory":
        # Its trainers cast nothing, so those for pairs differ from TRL's.
        pure = given.get("pure_bf16") or given.get("first_version")
        pure = pure or (sharding == "zero3" and not quantized)
        saved = bool(found.get("modules_to_save"))
        return {} if pure and saved else {"adapter_dtype": "float32"}
    if program == "trl" and quantized:
        # With float16, the gradient scaler stops at the cast.
        scaled = found.get("autocast_dtype") == "float16"
        return {} if scaled else {"adapter_dtype": "bfloat16"}
    sharded = sharding.startswith(("fsdp", "hybrid"))
    if program == "axolotl" and sharded and found.get("objective") in ("dpo", "grpo"):
        return {"adapter_dtype": OF_WEIGHTS}  # `ensure_dtype`
    if given.get("autocast_adapters") is False and not quantized:
        return {"adapter_dtype": OF_WEIGHTS}  # peft has no such option for quantized weights
    return {}
