"""What a log tells beside its failures: settings, the model, steps, and memory over time.

Fed line by line; holds a bounded amount however long the log is.
"""

from __future__ import annotations

import re
from collections import deque

from oomdoctor.analysis.oom.figures import size_bytes
from oomdoctor.records.diagnosis import LogFacts, MemorySample, SettingValue

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
    "PYTORCH_CUDA_ALLOC_CONF": "allocator",
    "PYTORCH_ALLOC_CONF": "allocator",
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
_TQDM = re.compile(r"\d+%\|.{0,80}?\| ?(\d+)/(\d+) \[")
_QUIET_BARS = re.compile(
    r"(?:Loading|Map|Filter|Download|Fetching|Generating|Tokeniz|Casting|Saving|Saver|Extract|Packing"
    r"|Creating|Resolving|Upload|Adding|Truncat|Applying|Converting|Formatting|Converting)"
)
_STEP = re.compile(
    r"\b(?:[Gg]lobal[ _])?(?:[Ss]teps?|[Ii]ter(?:ation)?s?|[Bb]atch)\b['\"]?\s*[=:#\[(]?\s*\[?"
    r"(\d{1,9})(?:\s*(?:/|of)\s*(\d{1,9}))?"
)
_LOSS = re.compile(r"\bloss\b", re.IGNORECASE)
_MEMORY = re.compile(
    r"\b(?:max[_ ]?)?(?:gpu|cuda|vram|peak|allocated|reserved|mem(?:ory)?)[\w /()]{0,24}"
    r"['\"]?[=: ]+\s?"
    r"(\d+(?:\.\d+)?)\s?(GiB|MiB|GB|MB|G|M)\b",
    re.IGNORECASE,
)
_NVIDIA_SMI = re.compile(r"(\d+)MiB ?/ ?(\d+)MiB")
_GPU_NAME = re.compile(
    r"\b(?:NVIDIA |Tesla |AMD )?"
    r"((?:A100|H100|H200|B200|A800|H800|A40|A10G?|A6000|L40S?|L4|V100|P100|T4|MI\d{3}X?|GH200|GB10"
    r"|RTX [A-Z]?\d{4}(?: Ti| SUPER)?|GeForce [RG]TX? ?\d{4}(?: Ti| SUPER)?)"
    r"(?:[- ](?:SXM\d|PCIE|PCIe|\d+GB|HBM\d|80GB|40GB))*)\b"
)
_FINISHED = re.compile(
    r"'train_runtime'|Training completed|[Tt]raining (?:is )?(?:finished|complete[d!.]|done)"
    r"|Finished training|All done|train_runtime\s*="
)
_RETRIED = re.compile(
    r"[Rr]etry(?:ing)?|[Ss]kipp(?:ing|ed) (?:the |this )?(?:batch|step|sample|iteration)"
    r"|[Dd]ecreasing batch size|[Rr]educ(?:ing|ed) (?:the )?batch|[Rr]ecover(?:ing|ed)|Resuming"
    r"|falling back|fallback|trying again|halving"
)
_VERSION = re.compile(
    r"\b(torch|transformers|peft|trl|accelerate|bitsandbytes|deepspeed|vllm)(?: version)?[=: ]+v?"
    r"(\d+\.\d+(?:\.\d+)?[\w.+]*)", re.IGNORECASE,
)  # fmt: skip
_MOST_SAMPLES = 64
_SETTING_LINES = 20_000
_LONGEST_QUOTE = 400
_LONGEST_LINE = 20_000


class FactReader:
    """Gathers the facts of one log; `feed` every line, then `facts`."""

    def __init__(self) -> None:
        self._settings: dict[str, SettingValue] = {}
        self._evidence: dict[str, tuple[str, ...]] = {}
        self._versions: dict[str, str] = {}
        self._model: str | None = None
        self._gpu: str | None = None
        self._first: list[MemorySample] = []
        self._late: deque[tuple[int | None, str]] = deque(maxlen=_MOST_SAMPLES)
        self._readings: list[MemorySample] = []
        self._late_readings: deque[MemorySample] = deque(maxlen=_MOST_SAMPLES)
        self._fed = 0
        self.step: int | None = None
        self.total: int | None = None
        self.moves = 0  # how often a line showed the run going on
        self.last_retry = 0
        self.finished = False
        self.finished_line = 0

    def feed(self, number: int, text: str) -> None:
        """Read one line."""
        if len(text) > _LONGEST_LINE:
            text = text[:_LONGEST_LINE]
        self._fed += 1
        if "%|" in text:
            self._bar(text)
        if "tep" in text or "ter" in text or "oss" in text or "em" in text or "atch" in text:
            self._steps(text)
        if "MiB" in text and (match := _NVIDIA_SMI.search(text)):
            used = int(match[1]) * 1024**2
            self._reading(
                MemorySample(self.step, used, "nvidia_smi", text.strip()[:_LONGEST_QUOTE])
            )
        if "rain" in text and _FINISHED.search(text):
            self.finished, self.finished_line = True, number
            self._quote("finished", text)
        if self._fed <= _SETTING_LINES:
            self._describes(text)

    def retried(self, number: int, text: str) -> None:
        """Note whether a line near a failure says that the run tries on."""
        if _RETRIED.search(text):
            self.last_retry = number

    def _describes(self, text: str) -> None:
        """Settings, the model, the card and versions, which a log tells near its start."""
        if "=" in text or ":" in text or "--" in text:
            self._named(text)
        if self._gpu is None and (match := _GPU_NAME.search(text)):
            self._gpu = match[0]
            self._quote("gpu_name", text)

    def facts(self, line_count: int) -> LogFacts:
        """Everything the fed lines told."""
        first = tuple(self._first)
        late = tuple(sample for at, text in self._late for sample in _sample(at, text))
        early = tuple(self._readings)
        world = self._settings.get("world_size", self._settings.get("num_processes"))
        return LogFacts(
            settings=dict(self._settings),
            model_id=self._model,
            step_memory=first + late,
            last_step=self.step,
            total_steps=self.total,
            gpu_readings=early + tuple(r for r in self._late_readings if r not in early),
            evidence=dict(self._evidence),
            finished=self.finished,
            line_count=line_count,
            gpu_name=self._gpu,
            versions=dict(self._versions),
            world_size=world if isinstance(world, int) and not isinstance(world, bool) else None,
        )

    def _bar(self, text: str) -> None:
        for match in _TQDM.finditer(text):
            if _QUIET_BARS.search(text[max(0, match.start() - 120) : match.start()]):
                continue
            self._progress(int(match[1]), int(match[2]), text)

    def _steps(self, text: str) -> None:
        step: int | None = None
        match = _STEP.search(text)
        if match is not None:
            step = int(match[1])
            total = int(match[2]) if match[2] else None
            if total is not None or _LOSS.search(text):
                self._progress(step, total, text)
        elif "'loss': " in text:
            self.moves += 1
        if ("iB" in text or "GB" in text or "MB" in text) and "Tried to" not in text:
            at = step if match else self.step
            if len(self._first) < _MOST_SAMPLES:
                self._first.extend(_sample(at, text))
            else:
                self._late.append((at, text[:_LONGEST_QUOTE]))

    def _progress(self, step: int, total: int | None, text: str) -> None:
        moved = step != self.step or (total is not None and total != self.total)
        if moved:
            self.moves += 1
            self._quote("last_step", text)
        self.step = step
        if total is not None:
            self.total = total

    def _reading(self, sample: MemorySample) -> None:
        if len(self._readings) < _MOST_SAMPLES:
            self._readings.append(sample)
        else:
            self._late_readings.append(sample)

    def _named(self, text: str) -> None:
        for match in _SETTING.finditer(text):
            if match[1] in _NAMES:
                self._set(_NAMES[match[1]], match[2] or match[3] or match[4] or "", text)
        if "--" in text:
            for match in _ARGUMENT.finditer(text):
                if match[1] in _NAMES:
                    self._set(_NAMES[match[1]], match[2] or match[3] or match[4] or "", text)
        if " = " in text and (banner := _BANNER.search(text)):
            self._set(_BANNERS[banner[1]], banner[2], text)
        if "odel" in text or "_name_or_path" in text or "from_pretrained" in text:
            self._named_model(text)
        if (peft := _PEFT.search(text)) is not None:
            self._settings["trainable_parameters"] = int(peft[1].replace(",", ""))
            self._settings["all_parameters"] = int(peft[2].replace(",", ""))
            self._quote("trainable_parameters", text)
        if "orch" in text or "ransformers" in text or "ersion" in text:
            for version in _VERSION.finditer(text):
                self._versions.setdefault(version[1].lower(), version[2])

    def _set(self, name: str, raw: str, text: str) -> None:
        value = _value(raw.strip())
        if value is not None and name not in self._settings:
            self._settings[name] = value
            self._quote(name, text)

    def _named_model(self, text: str) -> None:
        if self._model is None and (match := _MODEL.search(text)) is not None:
            name = match[1] or match[3] or match[2].replace("--", "/", 1)
            self._model = name
            self._quote("model_id", text)

    def _quote(self, key: str, text: str) -> None:
        self._evidence[key] = (text.strip()[:_LONGEST_QUOTE],)


def _sample(step: int | None, text: str) -> list[MemorySample]:
    memory = _MEMORY.search(text)
    if memory is None:
        return []
    unit = memory[2].upper()
    size = size_bytes(f"{memory[1]} {unit if len(unit) > 1 else unit + 'iB'}")
    quote = text.strip()[:_LONGEST_QUOTE]
    return [] if size is None else [MemorySample(step, size, "step_line", quote)]


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
