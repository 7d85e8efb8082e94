"""Published training speeds as configurations: the rows of tests/data/published_rates.jsonl.

A row has the settings of a run, its source, how far it can be trusted, and the seconds of a step.
A row that no configuration expresses is left out with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from old_code.kernels import IN_TRITON, OWN_CAUSAL

from cases.case import Case, LeftOut
from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.model import ModelRef, ModelSpec, Task
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.models.hub import resolve

FILE = Path(__file__).parents[3] / "tests" / "data" / "published_rates.jsonl"
Row = dict[str, Any]
# Names of cards that say less, or more, than the catalogue does.
_GPUS = {
    "NVIDIA A100 80GB": "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 40GB": "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100 SXM": "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 PCIe": "NVIDIA A100 80GB PCIe",
    # A cloud whose machines with four A100, as the source used too, have these.
    "NVIDIA A100 (80GB or 40GB not stated)": "NVIDIA A100-PCIE-40GB",
    "NVIDIA H100 80GB": "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 80GB SXM": "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 80GB SXM (HBM3)": "NVIDIA H100 80GB HBM3",
    "NVIDIA H200 141GB SXM": "NVIDIA H200",
    "NVIDIA GH200 SXM": "NVIDIA GH200 480GB",
    "NVIDIA GH200 (listed as 80GB)": "NVIDIA GH200 480GB",
    "NVIDIA B200 (listed as 192GB)": "NVIDIA B200",
    "NVIDIA GB300": "NVIDIA B300 SXM6 AC",
    "NVIDIA RTX PRO 6000 Blackwell 96GB": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    "NVIDIA V100": "Tesla V100-SXM2-16GB",
    "NVIDIA V100 SXM2": "Tesla V100-SXM2-16GB",
}
_MODELS = {
    "NousResearch/Llama-3.2-1B": "meta-llama/Llama-3.2-1B",
    "NousResearch/Llama-2-70b-hf": "meta-llama/Llama-2-70b-hf",
}
_NORMS, _LOSS = "fused norms and rotations", "fused loss"
# By what a row says of its kernels, without "accelerated-peft-bnb". Liger's loss includes the
# output layer, with as many products.
_FAST_KERNELS = {"": (), "none": (), "foak": (_NORMS, _LOSS), "foak-liger": (_NORMS, _LOSS)}
_TRUSTED = ("high", "medium")
_TRANSFORMERS_OF_IMAGES = ("beit", "deit", "poolformer", "swin", "vit", "volo", "xcit")
# Runs whose times include more than training, by a word of their group and of their container.
# - Every 15 steps, train_model_simple_with_timing of github rasbt/LLMs-from-scratch
#   ch05/10_llm-training-speed evaluates twice within the time that it measures, and each evaluation
#   starts the processes of a loader.
# - The averages of lambdal's old logs are of 14 to 104 steps with the first ones, which take
#   seconds: 8 x RTX 2080 Ti reach 4.4 steps/s at the end and 2.3 on average (github
#   lambdal/deeplearning-benchmark pytorch/results/8x2080Ti_trt/PyTorch_bert_base_squad_FP16).
_MORE_THAN_TRAINING = (("raschka", ""), ("lambda", "20.01-class"))


@dataclass(frozen=True, slots=True)
class Rate:
    """A run with the seconds it took for an optimizer step, or for its micro-steps alone.

    Those of a `bound` include more than training (loading of data, evaluations, the first steps),
    so they are at least the time.
    """

    row: Row
    case: Case
    gpu: GpuFacts
    measured_s: float
    updates: bool = True
    bound: bool = False
    kernels: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether the row judges predictions."""
        return self.row["trust"] in _TRUSTED and not self.bound


class NotExpressedError(Exception):
    """Why no configuration expresses a row."""


def rows_of(path: Path = FILE) -> list[Row]:
    """The published rows, training and kernels."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def source_of(row: Row) -> str:
    """The repository that published a row."""
    return str(row["source"].removeprefix("github:").split()[0])


def family_of(row: Row) -> str:
    """The kind of model that a row trained, and of a language model also how."""
    model, method = row["model"].lower(), row["method"].lower()
    if any(word in model for word in _TRANSFORMERS_OF_IMAGES):
        return "vision transformer"
    if "bert" in model:
        return "encoder"
    if "image" in method or "resnet" in model:
        return "convolutional network"
    how = "QLoRA" if "qlora" in method else "LoRA" if "lora" in method else "full"
    return f"language model, {how}"


def gpu_of(row: Row) -> GpuFacts:
    """The card of a row.

    Raises:
        NotExpressedError: it is not in the catalogue.
    """
    gpu = find_gpu(_GPUS.get(row["gpu"], row["gpu"]))
    if gpu is None:
        raise NotExpressedError("its card is not in the catalogue")
    return gpu


def training_rates(rows: list[Row]) -> Iterator[Rate | LeftOut]:
    """The training rows as configurations."""
    for row in rows:
        if row["kind"] != "train":
            continue
        try:
            yield _rate(row)
        except NotExpressedError as error:
            yield LeftOut(row["id"], str(error))


def _rate(row: Row) -> Rate:
    expressed = _GROUPS.get(row["group"])
    if expressed is None:
        raise NotExpressedError(_NOT_EXPRESSED[row["group"]])
    gpu = gpu_of(row)
    if "step_s" not in row:
        raise NotExpressedError("its rows have unknown lengths")
    model, settings, adapted = expressed(row)
    shared: dict[str, Any] = {
        "micro_batch_size": row["micro_batch"],
        "effective_batch_size": row["micro_batch"] * row.get("grad_accum", 1) * row["n_gpus"],
        "sequence_length": row.get("seq_len", 2048),
        "world_size": row["n_gpus"],
        "compile": bool(row.get("compile")),
        "activation_checkpointing": "full" if row.get("ckpt") is True else "none",
        **({"sharding": "ddp"} if row["n_gpus"] > 1 else {}),
    }
    said = json.dumps(row["precision"])
    tf32 = ("TF32",) if "TF32" in said and "no TF32" not in said else ()
    return Rate(
        row,
        Case(
            id=row["id"],
            origin="published",
            stack=row["group"],
            model=model,
            config=TrainConfig(**{**shared, **settings}),
            gpu=gpu.name,
            readings=(),
            adaptations=tuple(name for name in adapted if name == "shifted logits"),
        ),
        gpu,
        row["step_s"],
        updates="no optimizer" not in row["method"].lower(),
        bound=_has_more_than_training(row),
        kernels=tuple(name for name in (*adapted, *tf32) if name != "shifted logits"),
    )


def _has_more_than_training(row: Row) -> bool:
    container = row.get("versions", {}).get("container", "")
    return ("loader" in row["data"] and "no loader" not in row["data"]) or any(
        row["group"] == group and word in container for group, word in _MORE_THAN_TRAINING
    )


Expressed = tuple[ModelSpec, dict[str, Any], tuple[str, ...]]  # model, settings, adaptations


def _fms(row: Row) -> Expressed:
    if not row["data"].startswith("packed"):
        raise NotExpressedError("its rows have unknown lengths")
    if "gptq" in row["method"]:
        raise NotExpressedError("GPTQ weights and their Triton kernel")
    if "moe" in row["kernels"] or "Mixtral" in row["model"] or "expert" in row["parallelism"]:
        raise NotExpressedError("experts run in a loop or by ScatterMoE")
    kernels = row["kernels"].removeprefix("accelerated-peft-bnb").strip("-")
    kernels = kernels.replace("foak-fast-kernels", "foak")
    if kernels not in _FAST_KERNELS:
        raise NotExpressedError(f"kernels {row['kernels']}")
    precision, lora = row["precision"], row.get("lora", {})
    settings: dict[str, Any] = {
        "weights_dtype": precision["weights"],
        "autocast_dtype": precision.get("autocast") or "none",
        "optimizer": "adamw_torch",
        "attention": "flash_attention_2",
        **({"sharding": "fsdp"} if row["n_gpus"] > 1 else {}),
    }
    if "lora" in row["method"]:
        targets = lora.get("targets", "all-linear")
        settings |= {
            "method": "lora",
            "lora_rank": int(lora.get("r", 16)),
            "lora_dropout": float(lora.get("dropout", 0.1)),
            "lora_targets": _targets(targets),
        }
    if "qlora" in row["method"]:
        # framework_plugin_bnb.py of the plugin has no casts to float32.
        settings |= {"method": "qlora", "quantization": "nf4", "kbit_prepare": "none"}
        if row["n_gpus"] > 1:
            settings["quant_storage"] = precision["weights"]
    return (
        catalogued(row["model"]),
        settings,
        ("shifted logits", "whole recompute", *_FAST_KERNELS[kernels]),
    )


def _targets(said: str | list[str]) -> str | tuple[str, ...]:
    words = said.split() if isinstance(said, str) else said
    known = tuple(word for word in words if word != "c_attn")  # of santacoder
    return "all-linear" if words == ["all-linear"] else known


def _llm_foundry(row: Row) -> Expressed:
    if "fp8" in row["gpu"]:
        raise NotExpressedError("FP8, for which no time is estimated")
    arch = row["arch"]
    model = _gpt2(
        row["model"],
        arch["n_layers"],
        arch["d_model"],
        arch["n_heads"],
        arch["vocab"],
        length=row["seq_len"],
    )
    pure = row["precision"]["mp_mode"] == "PURE"
    settings = {
        "weights_dtype": "float32",
        "autocast_dtype": "bfloat16",
        "reduce_dtype": "bfloat16" if pure else "float32",
        "optimizer": "adamw_torch",
        "attention": "flash_attention_2",
        "sharding": "fsdp_grad_op" if "SHARD_GRAD_OP" in row["parallelism"] else "fsdp",
    }
    model.config["activation_function"] = "gelu"  # one kernel, as in MPT
    return model, settings, (IN_TRITON, "norms in low precision")


def _stas(row: Row) -> Expressed:
    settings: dict[str, Any] = {"weights_dtype": "bfloat16", "optimizer": "adamw_torch"}
    if row["n_gpus"] > 1:
        raise NotExpressedError("DeepSpeed with custom kernels, or states on the host")
    return catalogued(row["model"]), settings, ()


def _raschka(row: Row) -> Expressed:
    arch = row["arch"]
    model = _gpt2(
        row["model"],
        arch["n_layer"],
        arch["d_model"],
        arch["n_head"],
        arch["vocab"],
        length=row["seq_len"],
        dropout=0.1,
        tied=False,
    )
    settings = {
        "weights_dtype": row["precision"]["weights"],
        "optimizer": "adamw_torch_fused" if "fused" in row["optimizer"] else "adamw_torch",
        "attention": "eager" if "eager" in row["attention"] else "sdpa",
    }
    adapted = ["loss in its type"]
    if row["kernels"].startswith("torch"):
        model.config["activation_function"] = "gelu_pytorch_tanh"
    else:
        adapted.append("layer norm by operators")
    if row.get("compile"):
        adapted.append(OWN_CAUSAL)
    return model, settings, tuple(adapted)


def _lambda(row: Row) -> Expressed:
    # apex's O2 keeps the model in float16, and float32 copies in the optimizer.
    weights = "float16" if row["precision"]["weights"].startswith("float16") else "float32"
    autocast = "float16" if weights == "float32" and row["precision"].get("autocast") else "none"
    precision = {"weights_dtype": weights, "autocast_dtype": autocast}
    if "resnet" in row["model"]:
        return _resnet50(), {**precision, "optimizer": "sgd", "image_size": 224}, ()
    name = row["model"].split()[0]
    update = "BertAdam" if row["optimizer"].startswith("BertAdam") else "masters of apex"
    return (
        catalogued(f"google-bert/{name}", "sequence-classification"),
        {**precision, "optimizer": "adamw_torch", "attention": "eager"},
        (update,),
    )


def _deep_learning_examples(row: Row) -> Expressed:
    if "BERT" not in row["model"]:
        raise NotExpressedError("Transformer-XL, which transformers no longer has")
    if row["seq_len"] != 128:
        raise NotExpressedError("its rows have unknown lengths")
    half = row["precision"].get("autocast") is not None
    settings = {
        "weights_dtype": "float32",
        "autocast_dtype": "float16" if half else "none",
        "optimizer": "adamw_torch_fused",
        "attention": "eager",
    }
    # Its head scores the masked tokens only, a seventh.
    model = catalogued("google-bert/bert-large-uncased", "sequence-classification")
    return model, settings, ()


def _fms_fsdp(row: Row) -> Expressed:
    if row.get("ckpt") is not False:
        raise NotExpressedError("an unknown share of its layers is recomputed")
    hybrid = "HSDP" in row["parallelism"]
    settings = {
        "weights_dtype": "float32",
        "autocast_dtype": "bfloat16",
        "optimizer": "adamw_torch",
        "sharding": "hybrid" if hybrid else "fsdp",
    }
    return catalogued(row["model"]), settings, (OWN_CAUSAL,)


def has_public_code(row: Row) -> bool:
    """Whether launched.py runs the code of a row.

    That is training models of timm and of torchvision, single layers, and forward passes.
    """
    if row["kind"] == "train":
        return bool(row["model"].startswith(("timm/", "torchvision/")))
    is_layer = row["kind"] == "layer" and row["model"].startswith(("BertLayer", "T5Block"))
    return is_layer or (row["kind"] == "forward" and row.get("compile") is False)


def _images(_: Row) -> Expressed:
    raise NotExpressedError("launched.py did not run it")


_GROUPS: dict[str, Callable[[Row], Expressed]] = {
    "fms": _fms,
    "llmf": _llm_foundry,
    "stas": _stas,
    "raschka": _raschka,
    "lambda": _lambda,
    "dle": _deep_learning_examples,
    "fmsfsdp": _fms_fsdp,
    "timm": _images,
    "ryu": _images,
    "extra": _images,
}
_NOT_EXPRESSED = {
    "unsloth": "its rows have unknown lengths, and its time includes compiling",
    "mbridge": "Megatron's own layouts and kernels",
    "nemo": "Megatron's own layouts and kernels",
    "titan": "tensor or context parallelism, FP8, or a card that is not in the catalogue",
    "modded": "the optimizer Muon, in custom code",
    "llmtrainer": "implausible by its own source: low trust",
    "issues": "too little is known of the run",
}


def catalogued(name: str, task: Task | None = None) -> ModelSpec:
    wanted = ModelRef(_MODELS.get(name, name), source="catalogue", task=task or "auto")
    try:
        return resolve(wanted)
    except OomDoctorError as error:
        raise NotExpressedError("its model is not in the catalogue") from error


def _gpt2(
    name: str,
    layers: int,
    width: int,
    heads: int,
    words: int,
    *,
    length: int,
    dropout: float = 0.0,
    tied: bool = True,
) -> ModelSpec:
    """A model with learned positions, full heads and a feed-forward part of four widths."""
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_positions": length,
        "vocab_size": words,
        "tie_word_embeddings": tied,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), dropout),
    }
    return ModelSpec(name, "catalogue", "GPT2LMHeadModel", "gpt2", "causal-lm", config)


def _resnet50() -> ModelSpec:
    config: dict[str, Any] = {
        "model_type": "resnet",
        "architectures": ["ResNetForImageClassification"],
        "layer_type": "bottleneck",
        "hidden_sizes": [256, 512, 1024, 2048],
        "depths": [3, 4, 6, 3],
        "num_labels": 1000,
    }
    task: Task = "image-classification"
    return ModelSpec(
        "resnet50", "catalogue", "ResNetForImageClassification", "resnet", task, config
    )
