"""What a row of fms-acceleration adds to the training: its plugins, and a GPTQ checkpoint.

Its packages are those of the commits that measured. 24bdadb: framework 0.6.1, peft plugin 0.4.1 and
fused kernels 0.6.0, which is younger only in a parameter of Liger's loss. 733992a, for the runs
with transformers 4.45: 0.5.0, 0.3.5 and 0.4.0.
"""

import json
from collections.abc import Iterable
from pathlib import Path

BITS = 4
GROUP = 128  # inputs that share a scale, as in the checkpoints of the rows
QUANTIZED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QUANTIZED_EXPERT = ("w1", "w2", "w3")
KERNELS = {"fast_loss": True, "fast_rms_layernorm": True, "fast_rope_embeddings": True}


def framework(row: dict, folder: Path):
    """The framework with the plugins that a row names, as the benchmark sets them; None without."""
    plugins = _plugins(row)
    if not plugins:
        return None
    from fms_acceleration import AccelerationFramework

    file = folder / "plugins.yaml"  # JSON is YAML
    file.write_text(json.dumps({"plugins": plugins}))
    return AccelerationFramework(str(file))


def _plugins(row: dict) -> dict:
    kernels = dict(KERNELS)
    if "liger" in row["features"]:
        kernels["fast_loss"] = "fused_ce_liger"
    if not row["quant"]:
        return {"training": {"fused_ops_and_kernels": kernels}} if row["features"] else {}
    if row["quant"]["type"] == "gptq":
        base = "auto_gptq"
        settings = {"kernel": "triton_v2", "from_quantized": True, "use_external_lib": False}
    elif row["features"]:
        base, settings = "bitsandbytes", {"quant_type": "nf4", "no_peft_model": False}
    else:
        return {}  # training.py does the little that this plugin does
    plugins = {base: settings}
    if row["features"]:
        plugins["fused_ops_and_kernels"] = {"base_layer": base, "fused_lora": True, **kernels}
    return {"peft": {"quantization": plugins}}


def write_gptq(folder: Path, config) -> None:
    """A checkpoint of one file without data, with the names and shapes that GPTQ gives weights."""
    import torch
    from transformers import AutoModelForCausalLM

    from oomdoctor.monitor.inside.checkpoint import write_shards

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.torch_dtype = torch.float16
    config.save_pretrained(folder)
    settings = {"bits": BITS, "group_size": GROUP, "desc_act": True, "sym": True}
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    write_shards(folder, _gptq_weights(model), float("inf"))


def _gptq_weights(model) -> Iterable[tuple[str, list[int], str, int]]:
    for name, weight in model.named_parameters():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in (*QUANTIZED, *QUANTIZED_EXPERT):
            yield from _gptq_layer(module, *weight.shape)
        else:
            yield name, list(weight.shape), "F16", 2 * weight.numel()


def _gptq_layer(name: str, outputs: int, inputs: int) -> Iterable[tuple[str, list[int], str, int]]:
    packed, groups = 32 // BITS, inputs // GROUP
    yield f"{name}.g_idx", [inputs], "I32", 4 * inputs
    yield f"{name}.qweight", [inputs // packed, outputs], "I32", 4 * inputs * outputs // packed
    yield f"{name}.qzeros", [groups, outputs // packed], "I32", 4 * groups * outputs // packed
    yield f"{name}.scales", [groups, outputs], "F16", 2 * groups * outputs
