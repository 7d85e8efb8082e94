"""TRL: `SFTConfig` and `ModelConfig`, as `trl sft --config FILE` reads them.

Names are those of TRL 1.16, with older ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.names.peft import (
    BITS,
    STORAGE,
    adapted,
    in_four_bits,
    lora_rows,
    quant_type,
    variants,
)
from oomdoctor.stacks.names.row import LEFT_OUT, Read, Row, Write, listed, table, words_of
from oomdoctor.stacks.names.scripts import SCRIPT
from oomdoctor.stacks.names.values import (
    decimal,
    flagged,
    given,
    if_on,
    integer,
    number,
    on_if,
    only_if,
    switched,
    target_words,
    targets,
    word,
)
from oomdoctor.stacks.partial_config import PartialConfig, RungKeys, only
from oomdoctor.stacks.programs.arguments import ARGUMENTS, FROM_PRETRAINED
from oomdoctor.stacks.programs.program import Program, facts


def _pads_to(value: object) -> PartialConfig:
    """`pad_to_multiple_of`: its "auto" is none on a GPU."""
    word = str(value).strip().lower()
    return {} if word in ("none", "null", "auto") else {"pads_to": integer(value)}


def _multiple(config: TrainConfig) -> object:
    """1 is the length of the longest row."""
    known = {"longest": 1, "max_length": config.sequence_length}
    return known.get(config.padding, LEFT_OUT)


def is_packed(config: TrainConfig) -> bool:
    """Whether documents are packed into rows."""
    return config.packing == "packed"


def is_flat(config: TrainConfig) -> bool:
    """Whether a batch is one row without padding."""
    return config.packing == "padding_free"


def _loss_type(value: object) -> PartialConfig:
    """Only this value has one meaning in all releases: from 1.16 on, "nll" is in chunks too."""
    return {"loss": "chunked"} if str(value).strip().lower() == "chunked_nll" else {}


MODEL_CONFIG = FROM_PRETRAINED | table(
    "trl_model",
    (
        Row("use_peft", ("use_peft",), switched("use_peft"), adapted, ("use_lora",)),
        *lora_rows("lora_r", "lora_alpha", "lora_dropout", "lora_rank"),
        only_if(
            Row(
                "lora_target_modules",
                ("lora_targets",),
                targets,
                target_words,
                ("target_modules",),
            ),
            adapted,
        ),
        *variants("use_dora", "use_rslora", "lora_modules_to_save"),
        *BITS,
        only_if(Row("bnb_4bit_quant_type", (), quant_type, lambda _: "nf4"), in_four_bits),
        only_if(
            Row(
                "use_bnb_nested_quant",
                ("double_quant",),
                flagged("double_quant"),
                lambda config: config.double_quant,
                ("use_nested_quant", "bnb_4bit_use_double_quant"),
            ),
            in_four_bits,
        ),
        STORAGE,
    ),
)


# Whether the log-probabilities of DPO's reference are computed before.
PRECOMPUTED = Row(
    "precompute_ref_log_probs",
    ("reference",),
    if_on({"objective": "dpo", "reference": "precomputed"}),
    on_if(lambda config: config.reference == "precomputed"),
)


# The weight of the reference: GRPO has one only above 0.
beta = given("beta", decimal)


def beta_of(config: TrainConfig) -> object:
    """TRL's default of DPO, and what GRPO usually has where it has a reference."""
    if config.objective == "grpo":
        return 0.04 if config.reference == "kl" else 0.0
    return 0.1 if config.objective == "dpo" else LEFT_OUT


def _prompt(config: TrainConfig) -> object:
    if config.objective != "grpo" or not config.completion_length:
        return LEFT_OUT
    return config.sequence_length - config.completion_length


def _of_grpo(key: str) -> Read:
    return lambda value: {} if value is None else {"objective": "grpo", **only(key, integer(value))}


def _with_vllm(value: object) -> Write:
    return lambda config: value if config.vllm_gpu_memory_utilization else LEFT_OUT


# What the configurations of DPO, reward models and GRPO have beside those of SFT.
OBJECTIVES = table(
    "trl_objectives",
    (
        PRECOMPUTED,
        Row("beta", ("beta",), beta, beta_of),
        Row(
            "center_rewards_coefficient",
            ("objective",),
            lambda value: {} if value is None else {"objective": "reward"},
        ),
        Row(
            "num_generations",
            ("num_generations",),
            _of_grpo("num_generations"),
            lambda c: c.num_generations if c.objective == "grpo" else LEFT_OUT,
        ),
        Row(
            "max_completion_length",
            ("completion_length",),
            _of_grpo("completion_length"),
            lambda c: c.completion_length or LEFT_OUT if c.objective == "grpo" else LEFT_OUT,
        ),
        number("max_prompt_length", "prompt_length", write=_prompt),
        Row("use_vllm", ("use_vllm",), switched("use_vllm"), _with_vllm(True)),
        Row("vllm_mode", ("vllm_mode",), word("vllm_mode"), _with_vllm("colocate")),
        Row(
            "vllm_gpu_memory_utilization",
            ("vllm_share",),
            given("vllm_share", decimal),
            lambda c: c.vllm_gpu_memory_utilization or LEFT_OUT,
        ),
        Row(
            "vllm_enable_sleep_mode", ("vllm_sleeps",), switched("vllm_sleeps"), lambda _: LEFT_OUT
        ),
    ),
)
SFT_CONFIG = ARGUMENTS | table(
    "trl_sft",
    (
        number("max_length", "sequence_length", "max_seq_length"),
        Row(
            "activation_offloading",
            ("activation_offloading",),
            flagged("activation_offloading"),
            on_if(lambda config: config.offload == "activations"),
        ),
        Row("packing", ("trl_packing",), switched("trl_packing"), is_packed),
        Row("packing_strategy", ("trl_packing_strategy",), word("trl_packing_strategy")),
        Row("pad_to_multiple_of", ("pads_to",), _pads_to, _multiple),
        Row("padding_free", ("trl_padding_free",), switched("trl_padding_free"), on_if(is_flat)),
        # Without Liger's kernels, `loss_type` says how the loss is computed.
        Row(
            "use_liger_kernel",
            ("loss",),
            if_on({"loss": "liger"}),
            lambda config: config.loss == "liger",
            ("use_liger", "use_liger_loss"),
        ),
        Row(
            "loss_type",
            ("loss",),
            _loss_type,
            lambda config: "chunked_nll" if config.loss == "chunked" else LEFT_OUT,
        ),
    ),
)
TRL = SFT_CONFIG | OBJECTIVES | MODEL_CONFIG


def _adapters(given: PartialConfig, found: RungKeys) -> str | None:
    """It casts those of a quantized model; with float16, the gradient scaler stops at the cast."""
    scaled = found.get("autocast_dtype") == "float16"
    return "bfloat16" if found["method"] == "qlora" and not scaled else None


_CHUNKED_SINCE = (1, 16)  # `SFTTrainer` calls `add_fused_lm_head` for all losses
_TRAINER = "SFTTrainer"


def in_chunks(document: Document, settings: Mapping[str, object]) -> str | None:
    """The installed TRL, if its loss is computed in chunks for these settings; else None.

    A step with this loss needs TRL, so without an installed one the usual loss is taken. The same
    holds for a script that defines its trainer, whose loss may be another one.
    """
    library = document.parser or document.library
    if document.path.endswith(".py") and _TRAINER not in document.calls:
        return None
    found = re.fullmatch(r"trl (\d+)\.(\d+).*", library or "")
    if found is None or (int(found[1]), int(found[2])) < _CHUNKED_SINCE:
        return None
    plain = settings.get("objective", "default") == "default" and "loss" not in settings
    sharded_by_zero = str(settings.get("sharding", "")).startswith("zero")
    if not plain or sharded_by_zero or document.values.get("loss_type") == "dft":
        return None
    return library


CONFIGS = words_of("trl trainers")
"""The configurations of its trainers, and what they train for."""
TRAINERS = tuple(f"{name.removesuffix('Config')}Trainer" for name in CONFIGS)
# Other trainers, whose steps a rung does not have.
OTHER_CONFIGS = listed(
    "BCOConfig CPOConfig GKDConfig KTOConfig NashMDConfig ORPOConfig OnlineDPOConfig PPOConfig "
    "PRMConfig RLOOConfig XPOConfig"
)
PROGRAM = Program(
    **facts("trl"),
    names=TRL,
    script=TRL | SCRIPT,
    classes=frozenset((*CONFIGS, *TRAINERS)) | OTHER_CONFIGS,
    adapters=_adapters,
)
