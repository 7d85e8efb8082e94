"""An estimate of what a training needs, for a program that asks before it trains.

`oomdoctor plan` answers, in another process: nothing is left in the caller's, whatever it has
loaded, and no GPU is touched.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oomdoctor.errors import ExitCode, OomDoctorError, usage_error
from oomdoctor.library.later import READ, LaterPhase, later_phases
from oomdoctor.library.live import (
    config_of,
    evaluated_by,
    frozen_otherwise,
    row_length,
    target_length,
    training_of,
    write_script,
)
from oomdoctor.records.codec import CodecError, loads
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import YOURS
from oomdoctor.system.environment import variable, worker_environment
from oomdoctor.units import format_bytes

_FROZEN = (
    "some parameters are frozen, and not the first layers with the embeddings; all count as trained"
)
_TARGET = (
    "targets are simulated with {length:,} tokens, as sources, but the longest of the data set has "
    "{target:,}: the steps need less"
)
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a training needs on a card; it prints as a sentence.

    `peak_bytes` is what nvidia-smi would show for the fullest GPU, None if it is not known, and
    `usable_bytes` what the card has for it. `result` has the rest: the peak by phase and category,
    the speed, the reason where there is no answer. `report` is the document of `plan --json`.
    `later` are evaluation, generation and saving, with what they need at least.
    """

    gpu: str
    peak_bytes: int | None
    usable_bytes: int | None
    warnings: tuple[str, ...]
    result: ProbeResult
    report: Report
    later: tuple[LaterPhase, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it surely fits; of the later phases, what they need at least."""
        return self.result.surely_fits and self._too_large is None

    @property
    def short_bytes(self) -> int:
        """By how many bytes the card is too small; 0 if it fits or the peak is unknown."""
        if self.peak_bytes is None or self.usable_bytes is None or self.fits:
            return 0
        most = max(self.peak_bytes, *(phase.at_least_bytes for phase in self.later), 0)
        return max(0, most - self.usable_bytes)

    @property
    def _too_large(self) -> LaterPhase | None:
        """The later phase that needs most, if the card is too small for it."""
        largest = max(self.later, key=lambda phase: phase.at_least_bytes, default=None)
        if largest is None or self.usable_bytes is None:
            return None
        return largest if largest.at_least_bytes > self.usable_bytes else None

    def __str__(self) -> str:
        later = self._too_large
        if later is not None and self.result.surely_fits:
            needs, short = format_bytes(later.at_least_bytes), format_bytes(self.short_bytes)
            usable = format_bytes(self.usable_bytes)
            return (
                f"does not fit on {self.gpu}: {later.name} needs at least {needs} of {usable}, "
                f"short by {short}"
            )
        peak, usable = format_bytes(self.peak_bytes), format_bytes(self.usable_bytes)
        if self.fits:
            return f"fits on {self.gpu}: {peak} of {usable}"
        if self.short_bytes:
            short = format_bytes(self.short_bytes)
            return f"does not fit on {self.gpu}: needs {peak} of {usable}, short by {short}"
        if self.result.outcome == "fits":
            return f"borderline on {self.gpu}: {peak} of {usable}, within the error of the estimate"
        why = self.result.reason or self.result.outcome
        return f"not known whether it fits on {self.gpu}: {why}"


def estimate(
    model: Any,
    args: Any = None,
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    sequence_length: int | None = None,
    peft_config: Any = None,
    quantization_config: Any = None,
) -> Estimate:
    """What a training needs on a card, predicted without the card.

    Args:
        model: A Hugging Face id, a folder with config.json, a model of transformers or peft, or a
            Trainer, also of TRL, which has the rest. Weights are not copied.
        args: TrainingArguments, a configuration of TRL such as SFTConfig, or a dict of settings.
        gpu: A card or a size, as `plan --gpu` takes it. Default: the GPU of this machine.
        gpus: How many. Default: as the settings say, else 1.
        sequence_length: Tokens per row. Default: the longest row of a Trainer's data set if it has
            tokens, but at most `max_length` of the settings; else that, or as `plan`.
        peft_config: LoraConfig. Default: that of the model.
        quantization_config: BitsAndBytesConfig. Default: that of the model.

    Raises:
        OomDoctorError: with the text of the command, if the model, a setting or the card is wrong.
    """
    trainer = model
    training = training_of(model, args, peft_config, quantization_config)
    length = sequence_length
    if length is None:
        length = row_length(getattr(trainer, "train_dataset", None), training)
    with tempfile.TemporaryDirectory(prefix="oomdoctor-estimate-") as folder:
        words = ["--from", str(write_script(training, Path(folder))), "--recipe", "none"]
        words += ["--gpu", gpu] if gpu is not None else []
        words += ["--gpus", str(gpus)] if gpus is not None else []
        words += ["--seq-len", str(length)] if length is not None else []
        answer = _answer(_planned(words), gpu)
    if frozen_otherwise(training):
        answer = replace(answer, warnings=(*answer.warnings, _FROZEN))
    config, facts = config_of(training), answer.report.model
    length, target = answer.result.config.sequence_length, target_length(trainer, training)
    if target is not None and target < length:
        told = _TARGET.format(length=length, target=target)
        answer = replace(answer, warnings=(*answer.warnings, told))
    if config is None or facts is None:
        return answer
    evaluated = evaluated_by(trainer)
    later = later_phases(training.args, answer.result, config, facts.task, evaluated)
    return replace(answer, later=later)


def _planned(words: list[str]) -> Report:
    """The report of `oomdoctor plan`; an error does not name the script, which nobody can see.

    Raises:
        OomDoctorError: that of the command, or it gave no report (exit 1).
    """
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "plan", *words, "--json", "--quiet"],
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    try:
        report = loads(Report, ended.stdout)
    except CodecError:
        said = (ended.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise OomDoctorError("internal", f"oomdoctor plan gave no report: {said}") from None
    if report.errors:
        error = report.errors[0]
        script = re.escape(words[words.index("--from") + 1])
        line = re.compile(rf"(?:--from: )?{script}:\d+: ")
        message = line.sub("", error.message)
        hint = error.hint if message == error.message else None
        raise OomDoctorError(error.code, message, hint, ExitCode(report.exit_code))
    return report


def _environment() -> dict[str, str]:
    """The caller's, without what a launcher such as torchrun adds; its GPUs stay visible."""
    environment = worker_environment(None)
    visible = variable(_VISIBLE)
    if visible is None:
        del environment[_VISIBLE]
    else:
        environment[_VISIBLE] = visible
    return environment


def _answer(report: Report, asked: str | None) -> Estimate:
    result = next((row for row in report.results if row.label == YOURS), None)
    if result is None:
        raise usage_error("no_answer", "oomdoctor plan has no answer for this training")
    gpu = report.machine.gpu_name if report.machine is not None else None
    read = report.request.user_training if report.request is not None else None
    not_read = [
        f"{setting.name} was not read: {setting.reason}"
        for setting in (() if read is None else read.not_taken)
        if setting.matters and setting.name not in READ
    ]
    return Estimate(
        gpu=gpu or asked or "this machine",
        peak_bytes=result.peak_device_bytes,
        usable_bytes=report.usable_bytes,
        warnings=(*(warn.message for warn in report.warnings), *not_read),
        result=result,
        report=report,
    )
