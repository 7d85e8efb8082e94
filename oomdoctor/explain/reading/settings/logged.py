"""What a log tells of a training's set-up: arguments, the model, the card and library versions.

Read where a program announces them, near the start or at a restart. Names are mapped to those of
transformers' TrainingArguments where they exist; the first value that is told stays.
"""

from __future__ import annotations

import re

from oomdoctor.explain.reading.prefixes import split_line
from oomdoctor.records.diagnosis import SettingValue

# Names as printed -> the name of transformers' TrainingArguments, of a recipe, or our own word.
_NAMES = {
    "per_device_train_batch_size": "per_device_train_batch_size",
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "micro_batch_size": "per_device_train_batch_size",
    "train_batch_size": "train_batch_size",
    "batch_size": "batch_size",
    "per_device_eval_batch_size": "per_device_eval_batch_size",
    "eval_accumulation_steps": "eval_accumulation_steps",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "max_steps": "max_steps",
    "num_train_epochs": "num_train_epochs",
    "max_seq_length": "sequence_length",
    "max_seq_len": "sequence_length",
    "max_length": "sequence_length",
    "sequence_len": "sequence_length",
    "seq_length": "sequence_length",
    "model_max_length": "model_max_length",
    "cutoff_len": "sequence_length",
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "gradient_checkpointing": "gradient_checkpointing",
    "activation_checkpointing": "gradient_checkpointing",
    "packing": "packing",
    "bf16": "bf16",
    "fp16": "fp16",
    "mixed_precision": "mixed_precision",
    "torch_dtype": "torch_dtype",
    "dtype": "torch_dtype",
    "optim": "optim",
    "optimizer": "optim",
    "attn_implementation": "attn_implementation",
    "_attn_implementation": "attn_implementation",
    "flash_attention": "flash_attention",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "lora_r": "lora_rank",
    "lora_rank": "lora_rank",
    "lora_alpha": "lora_alpha",
    "finetuning_type": "finetuning_type",
    "adapter": "adapter",
    "use_liger_kernel": "use_liger_kernel",
    "num_generations": "num_generations",
    "deepspeed": "deepspeed",
    "zero_stage": "zero_stage",
    "fsdp": "fsdp",
    "num_processes": "num_processes",
    "world_size": "world_size",
    "device_map": "device_map",
    "tensor_parallel_size": "tensor_parallel_size",
    "dataloader_num_workers": "dataloader_num_workers",
    "dataloader_pin_memory": "dataloader_pin_memory",
    "auto_find_batch_size": "auto_find_batch_size",
    "torch_compile": "torch_compile",
    "max_prompt_length": "max_prompt_length",
    "max_completion_length": "max_completion_length",
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "intermediate_size": "intermediate_size",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "vocab_size": "vocab_size",
}
# The banner that transformers' Trainer prints when it starts.
_BANNERS = {
    "Instantaneous batch size per device": "per_device_train_batch_size",
    "Gradient Accumulation steps": "gradient_accumulation_steps",
    "Total train batch size": "total_train_batch_size",
    "Total optimization steps": "max_steps",
    "Num examples": "num_examples",
    "Num Epochs": "num_train_epochs",
    "Number of trainable parameters": "trainable_parameters",
}
_BANNER = re.compile(rf"({'|'.join(_BANNERS)})(?: \([^)\n]{{0,80}}\))? = ([\d,]+)")
_VALUE = r"(?:'([^'\n]{0,200})'|\"([^\"\n]{0,200})\"|([^\s,;)}\]'\"|]{1,200}))"
_SETTING = re.compile(rf"(?<![\w.-])([A-Za-z_]\w*)['\"]?\s*[=:]\s*{_VALUE}")
_ARGUMENT = re.compile(rf"--([A-Za-z_]\w*)[ =]+{_VALUE}")
_MODEL = re.compile(
    r"(?:model_name_or_path|pretrained_model_name_or_path|base_model(?:_name_or_path)?|_name_or_path"
    r"|model_name|model_id|model_path|\bmodel)['\"]?\s*[=:]\s*['\"]?([\w.~-]{0,100}/?[\w.-]{1,100}/[\w./-]{1,300})"
    r"|models--([\w.-]+?--[\w.-]+?)/"
    r"|from_pretrained\(\s*['\"]([\w./-]+)['\"]"
)
_PEFT = re.compile(r"trainable params: ([\d,]+) \|\| all params: ([\d,]+)")
_GPU_NAME = re.compile(
    r"\b(?:NVIDIA |Tesla |AMD )?"
    r"((?:A100|H100|H200|B200|A800|H800|A40|A10G?|A6000|L40S?|L4|V100|P100|T4|MI\d{3}X?|GH200|GB10"
    r"|RTX [A-Z]?\d{4}(?: Ti| SUPER)?|GeForce [RG]TX? ?\d{4}(?: Ti| SUPER)?)"
    r"(?:[- ](?:SXM\d|PCIE|PCIe|\d+GB|HBM\d|80GB|40GB))*)\b"
)
_VERSION = re.compile(
    r"\b(torch|transformers|peft|trl|accelerate|bitsandbytes|deepspeed|vllm)(?: version)?[=: ]+v?"
    r"(\d+\.\d+(?:\.\d+)?[\w.+]*)", re.IGNORECASE,
)  # fmt: skip
# A variable of its own syntax: commas and colons belong to the value.
_ALLOCATOR = re.compile(
    r"PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF['\"]?\]?\s*[=:,]\s*['\"]?([a-z_]\w*:[\w:,.\[\]-]+)"
)
_ANNOUNCED = re.compile(
    r"per_device_train_batch_size|Running training|trainable params|TrainingArgument|_ALLOC_CONF"
)
# What stands for a value in quoted code, whatever it is.
_EXPRESSION = re.compile(r"\(|^(?:self|args|config|cfg|kwargs|params?|model|module|tensor|os)\.")
_MODEL_DTYPE = re.compile(r"from_pretrained|from_config|config\b", re.IGNORECASE)
_NEAR_START = 20_000  # lines in which a program is thought to tell its settings
_AFTER_NOTICE = 200  # and after a line that tells some
_LONGEST_QUOTE = 400


class SettingsReader:
    """Gathers settings from the lines of one log; `feed` every line, in order."""

    def __init__(self) -> None:
        self.settings: dict[str, SettingValue] = {}
        self.evidence: dict[str, tuple[str, ...]] = {}
        self.versions: dict[str, str] = {}
        self.model: str | None = None
        self.gpu: str | None = None
        self._left = _NEAR_START
        self._before = ""  # the line before, for a sentence that was wrapped

    def feed(self, text: str) -> None:
        """Read one line."""
        if self._left <= 0:
            if not _ANNOUNCED.search(text):
                return
            self._left = _AFTER_NOTICE
        self._left -= 1
        if "=" in text or ":" in text or "--" in text:
            self._named(text)
        if self.gpu is None and (match := _GPU_NAME.search(text)):
            self.gpu = match[0]
            self._quote("gpu_name", text)
        self._before = text

    def _named(self, text: str) -> None:
        for match in _SETTING.finditer(text):
            if match[1] in _NAMES and not (match[1] == "dtype" and _of_a_call(text)):
                self._set(_NAMES[match[1]], match[2] or match[3] or match[4] or "", text)
        if "--" in text:
            for match in _ARGUMENT.finditer(text):
                if match[1] in _NAMES:
                    self._set(_NAMES[match[1]], match[2] or match[3] or match[4] or "", text)
        if "ALLOC_CONF" in text and not _advised(self._before, text):
            for match in _ALLOCATOR.finditer(text):
                self._set("allocator", match[1], text)
        if " = " in text and (banner := _BANNER.search(text)):
            self._set(_BANNERS[banner[1]], banner[2], text)
        if "odel" in text or "_name_or_path" in text or "from_pretrained" in text:
            self._named_model(text)
        if (peft := _PEFT.search(text)) is not None:
            self.settings["trainable_parameters"] = int(peft[1].replace(",", ""))
            self.settings["all_parameters"] = int(peft[2].replace(",", ""))
            self._quote("trainable_parameters", text)
        if "orch" in text or "ransformers" in text or "ersion" in text:
            for version in _VERSION.finditer(text):
                self.versions.setdefault(version[1].lower(), version[2])

    def _set(self, name: str, raw: str, text: str) -> None:
        value = None if _EXPRESSION.search(raw) else _value(raw.strip())
        if value is not None and name not in self.settings:
            self.settings[name] = value
            self._quote(name, text)

    def _named_model(self, text: str) -> None:
        if self.model is None and (match := _MODEL.search(text)) is not None:
            self.model = match[1] or match[3] or match[2].replace("--", "/", 1)
            self._quote("model_id", text)

    def _quote(self, key: str, text: str) -> None:
        self.evidence[key] = (text.strip()[:_LONGEST_QUOTE],)


def _of_a_call(text: str) -> bool:
    """Whether `dtype=` is the argument of some function in quoted code, not of a model."""
    return "dtype=torch." in text and not _MODEL_DTYPE.search(text)


def _advised(before: str, text: str) -> bool:
    """Whether a line only repeats PyTorch's hint: try setting NAME=VALUE to avoid fragmentation.

    The sentence may be wrapped before the name; `before` is the line that stands there.
    """
    ahead, _, behind = split_line(text).text.partition("PYTORCH_")
    sentence = re.sub(r"[^a-z]+", "", split_line(before[-80:]).text + ahead)
    return sentence.endswith("trysetting") or " to avoid" in behind


def _value(raw: str) -> SettingValue | None:
    lowered = raw.lower()
    if not raw or lowered in ("none", "null", "...", "auto"):
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    number = raw.replace(",", "")
    if re.fullmatch(r"-?\d{1,18}", number):
        return int(number)
    if re.fullmatch(r"-?\d{1,18}\.\d{1,18}(?:e[+-]?\d{1,3})?", number):
        return float(number)
    return raw.strip("'\"")
