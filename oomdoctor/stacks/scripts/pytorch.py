"""A rung as a plain training loop: no Trainer and no accelerate."""

from __future__ import annotations

from dataclasses import replace

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.stacks.rung import StackRung, not_in
from oomdoctor.stacks.scripts import model as models
from oomdoctor.stacks.scripts.code import Part, call, function, lines, literal
from oomdoctor.stacks.scripts.parts import SAVE, check_said, script
from oomdoctor.stacks.scripts.trainer import launch


def render(rung: StackRung) -> str:
    """The script.

    Raises:
        OomDoctorError: a plain loop cannot express the rung (exit 3).
    """
    config = rung.config
    _check(rung)
    if not rung.epochs.is_integer():  # the loop has whole epochs
        rung = replace(rung, beside={**rung.beside, "epochs": 1})
    scaled = _scaled(config)
    parts = [
        Part('device = torch.device("cuda" if torch.cuda.is_available() else "cpu")'),
        Part('torch.set_float32_matmul_precision("high")' if config.tf32 else ""),
        function("collate"),
        function("read_ahead"),
        _micro_step(config),
        models.tokenizer(rung),
        models.loading(rung),
        models.adapter(config),
        models.float8(config),
        models.liger(config),
        # Quantized weights are made on the device; others are moved there.
        Part("" if config.quantization != "none" else "model.to(device)"),
        _checkpointing(rung),
        models.part_checkpointing(config),
        Part("model.train()"),
        models.optimizer(rung),
        lines("loader"),
        lines("steps_left"),
        Part("scaler = torch.amp.GradScaler(device.type)" if scaled else ""),
        Part("model.compile()" if config.compile else ""),
        _loop(config),
        Part(SAVE),
    ]
    return script(rung, "plain PyTorch", parts, launch(rung))


def _check(rung: StackRung) -> None:
    check_said(rung, "pytorch")
    if (moved := rung.config.offload) != "none":
        instead = "use --to trl" if moved == "activations" else "use --to deepspeed"
        raise not_in("pytorch", f"offload = {moved}", instead)


def _scaled(config: TrainConfig) -> bool:
    return config.autocast_dtype == "float16"


def _checkpointing(rung: StackRung) -> Part:
    settings = models.checkpointing_settings(rung)
    if settings is None:
        return Part()
    start = models.checkpointing_name(rung)
    inner = {"use_reentrant": settings.pop("use_reentrant")}
    arguments = {f"{start}_kwargs": literal(inner)} | {k: literal(v) for k, v in settings.items()}
    return Part(call(f"model.{start}_enable", arguments, indent=4))


def _micro_step(config: TrainConfig) -> Part:
    forward = "loss = model(**micro, num_items_in_batch=predicted).loss"
    if config.autocast_dtype != "none":
        precision = f"torch.autocast(predicted.device.type, dtype=torch.{config.autocast_dtype})"
        forward = f"with {precision}:\n        {forward}"
    scaler = "\n    scaler: torch.amp.GradScaler," if _scaled(config) else ""
    backward = "scaler.scale(loss).backward()" if _scaled(config) else "loss.backward()"
    return function("micro_step", forward=forward, scaler=scaler, backward=backward)


def _loop(config: TrainConfig) -> Part:
    if not _scaled(config):
        return lines("loop", scaler="", unscale="", step="optimizer.step()")
    step = "scaler.step(optimizer)\n        scaler.update()"
    unscale = "scaler.unscale_(optimizer)\n        "
    return lines("loop", scaler=", scaler", unscale=unscale, step=step)
