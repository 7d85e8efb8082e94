"""Training runs with a measured speed, and their simulation: what `speed` compares.

The rows of tests/data/published_speed.json have the settings of a run, its `tokens_per_s`, the
`source` it was read from and in `note` and `trust` what was not stated there. They are expressed as
they ran, with the adaptations of `old_kernels`; a row whose engine no rung expresses is left out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cases.case import NO_LIMIT, Case, LeftOut, simulated
from cases.each_case import Fault, run_each
from cases.measured import FOLDER, measured_cases
from oomdoctor.analysis.speed.throughput import tokens_per_s
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.costs import Calibration
from oomdoctor.records.job.measurement import Timing
from oomdoctor.records.job.model import ModelRef, ModelSpec
from oomdoctor.records.job.simulation import Slower, Target
from oomdoctor.system.catalogue import find_gpu
from oomdoctor.system.models.hub import resolve

FILE = Path(__file__).parents[3] / "tests" / "data" / "published_speed.json"
_WAITS = 1.99  # times as long beside a host that takes twice as long
_ARCHITECTURES = {
    "qwen2": "Qwen2ForCausalLM",
    "granite": "GraniteForCausalLM",
    "gpt_bigcode": "GPTBigCodeForCausalLM",
}
# SXM or PCIe is not stated; the peak is the same, the bandwidth differs by 5 %.
_GPUS = {"A100 80GB": "A100-SXM4-80GB"}


@dataclass(frozen=True, slots=True)
class Stack:
    """How the runs of one source differ from a rung of today. `dropout` is LoRA's.

    `adaptations` are names in `old_code.adaptations`, `kernels` in `old_code.kernels`.
    """

    name: str
    dropout: float
    adaptations: tuple[str, ...]
    kernels: tuple[str, ...]
    kbit_prepare: str = "peft"


# By repository. Dropout: scripts/benchmarks/scenarios.yaml; finetune.py LoraArguments;
# src/llmtuner/hparams/finetuning_args.py, which casts no norms either.
_STACKS = {
    "foundation-model-stack/fms-acceleration": Stack(
        "fms", 0.1, ("shifted logits",), ("whole recompute",)
    ),
    "QwenLM/Qwen": Stack("qwen", 0.05, (), ("whole recompute", "adapters like the base", "Qwen 1")),
    "hiyouga/LLaMA-Factory": Stack(
        "llamafactory", 0.0, ("shifted logits",), ("whole recompute",), kbit_prepare="none"
    ),
}
_ZERO_3 = "DeepSpeed ZeRO-3, whose engine gathers and frees parameters on the host"


@dataclass(frozen=True, slots=True)
class Run:
    """A case with the tokens a second it reached. `survey` names the runs to rank it with.

    A run that does not count is shown and ranked, but is no evidence: what it did is not all known.
    """

    case: Case
    tokens_per_s: float
    survey: str
    kernels: tuple[str, ...] = ()
    counts: bool = True

    @property
    def id(self) -> str:
        """As the row or the fixture names it."""
        return self.case.id

    @property
    def adaptations(self) -> tuple[str, ...]:
        """What its code did differently, for memory and for time."""
        return self.case.adaptations + self.kernels


@dataclass(frozen=True, slots=True)
class Speed:
    """A run, its predicted times and what the rest waits for there; or why there are none."""

    run: Run
    timing: Timing | None
    slower: Slower
    fault: str | None = None

    @property
    def predicted(self) -> float:
        """Tokens a second."""
        assert self.timing is not None
        return tokens_per_s(self.timing, self.run.case.config)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.run.tokens_per_s - 1


def published_runs(path: Path = FILE) -> Iterator[Run | LeftOut]:
    """Every row of the file, in its order."""
    for row in json.loads(path.read_text()):
        repository = row["source"].removeprefix("github:").split()[0]
        stack = _STACKS[repository]
        if "ZeRO-3" in row["note"]:
            yield LeftOut(row["id"], _ZERO_3)
            continue
        case = Case(
            id=row["id"],
            origin="published",
            stack=stack.name,
            model=_model(row),
            config=_config(row, stack),
            gpu=_GPUS.get(row["gpu"], row["gpu"]),
            readings=(),
            adaptations=stack.adaptations,
        )
        survey = f"{stack.name}, {row['gpu']}"
        yield Run(case, row["tokens_per_s"], survey, stack.kernels, row["trust"] != "low")


def measured_runs(folder: Path = FOLDER) -> Iterator[Run]:
    """Every timed rung of our own fixtures; each fixture is a survey."""
    speeds = {}
    for path in folder.rglob("*.json"):
        for result in json.loads(path.read_text())["report"]["results"]:
            name = f"{path.parent.name}/{path.stem}"
            speeds[f"{name} {result['label']}"] = (result["tokens_per_s"], name)
    for case in measured_cases(folder):
        speed, name = speeds[case.id]
        if case.readings and speed is not None:
            yield Run(case, speed, name)


def speeds_of(
    runs: Iterable[Run], *, processes: int, on_done: Callable[[Speed], None] = lambda _: None
) -> list[Speed]:
    """Every run predicted, in order; one that cannot be is told with its fault."""
    found = []
    for run, speed in run_each(predict, list(runs), processes):
        if isinstance(speed, Fault):
            speed = Speed(run, None, "device", speed.reason)
        on_done(speed)
        found.append(speed)
    return found


def predict(run: Run) -> Speed:
    """One run simulated on its card, and beside a host that takes twice as long.

    Raises:
        UnsupportedError: the libraries or the simulator cannot run it.
    """
    from old_code.kernels import KERNELS

    gpu = find_gpu(run.case.gpu)
    card = Target(run.case.gpu, NO_LIMIT, NO_LIMIT, 0, gpu)
    slow = replace(card, name="slow host", calibration=Calibration(launch=2.0))
    with contextlib.ExitStack() as stack:
        for name in run.kernels:
            stack.enter_context(KERNELS[name].apply(run.case.config))
        (size,) = simulated(run.case, (card, slow)).sizes
    timing, slowed = (predicted.timing for predicted in size.devices)
    if timing is None or slowed is None:
        return Speed(run, None, "device", "a peak of the card is not known")
    waits = slowed.micro_step_s > _WAITS * timing.micro_step_s
    return Speed(run, timing, "host" if waits else "device")


def _model(row: dict[str, Any]) -> ModelSpec:
    if row["config"] is None:
        return resolve(ModelRef(row["model_id"], source="catalogue"))
    kind = row["config"]["model_type"]
    architecture = _ARCHITECTURES[kind]
    config = row["config"] | {"architectures": [architecture]}
    return ModelSpec(row["model_id"], "catalogue", architecture, kind, "causal-lm", config)


def _config(row: dict[str, Any], stack: Stack) -> TrainConfig:
    lora = {}
    if row["method"] != "full":
        # Qwen's list has every linear layer of its model.
        all_linear = stack.name == "qwen" or isinstance(row["lora_targets"], str)
        lora = {
            "lora_rank": row["lora_r"],
            "lora_dropout": stack.dropout,
            "lora_targets": "all-linear" if all_linear else tuple(row["lora_targets"]),
        }
    quantized = {}
    if row["quant"] is not None:
        quantized = {"quantization": row["quant"], "kbit_prepare": stack.kbit_prepare}
    return TrainConfig(
        method=row["method"],
        weights_dtype=row["weights_dtype"],
        autocast_dtype=row["autocast"] or "none",
        optimizer=row["optimizer"],
        attention=row["attn"],
        activation_checkpointing="full" if row["grad_ckpt"] else "none",
        micro_batch_size=row["micro_batch"],
        sequence_length=row["seq_len"],
        effective_batch_size=row["micro_batch"] * row["grad_accum"],
        **lora,
        **quantized,
    )
