"""One rank of a training by transformers' Trainer and DeepSpeed: `zero_training.py SPEC OUT`.

It imports nothing of oomdoctor. SPEC is a JSON file with `model` (a Llama config), `rung`, `zero`
(DeepSpeed's zero_optimization, or null for the same step on one GPU without an engine). OUT is a
prefix: each rank writes OUT.RANK.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

reset = torch.cuda.reset_peak_memory_stats


def model_of(spec: dict[str, Any], device: torch.device) -> Any:
    """The model with weights of the rung's type; ZeRO-3 shards it while it is built."""
    config = AutoConfig.for_model(**spec["model"])
    dtype = getattr(torch, spec["rung"]["weights_dtype"])

    def build() -> Any:
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")

    if spec["zero"] is not None and spec["zero"]["stage"] == 3:
        model = build()
    else:
        with device:
            model = build()
    if rank := spec["rung"].get("lora_rank"):
        from peft import LoraConfig, get_peft_model

        adapter = LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")
        wide = spec["rung"].get("adapters") == "float32"  # as peft makes them by default
        model = get_peft_model(model, adapter, autocast_adapter_dtype=wide)
        model.enable_input_require_grads()
    return model


def alone(spec: dict[str, Any]) -> dict[str, Any]:
    """What the step holds besides weights and gradients, on one GPU.

    `backward` has for each gradient the elements made so far and the most held since the last one,
    with the gradient itself.
    """
    rung, device = spec["rung"], torch.device("cuda", 0)
    model = model_of(spec, device).train()
    if rung["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [p for p in model.parameters() if p.requires_grad]
    ids = torch.zeros(rung["micro_batch_size"], rung["length"], dtype=torch.long, device=device)

    def held(*, without: int = 0) -> int:
        found = torch.cuda.max_memory_allocated() - weights - without
        reset()
        return found

    weights = sum(p.nbytes for p in model.parameters())
    weights += sum(b.nbytes for b in model.buffers()) + ids.nbytes
    model(input_ids=ids, labels=ids).loss.backward()  # makes the workspaces
    model.zero_grad()
    kept = torch.cuda.memory_allocated() - weights
    reset()
    loss = model(input_ids=ids, labels=ids).loss
    forward, made, gradients = held(), 0, 0
    backward: list[tuple[int, int]] = []

    def note(parameter: torch.nn.Parameter) -> None:
        nonlocal made, gradients
        made += parameter.numel()
        backward.append((made, held(without=gradients)))
        assert parameter.grad is not None
        gradients += parameter.grad.nbytes

    for parameter in trained:
        parameter.register_post_accumulate_grad_hook(note)
    loss.backward()
    return {"kept": kept, "forward": forward, "backward": backward}


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Full-length rows."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.zeros(self.length, dtype=torch.long)
        return {"input_ids": ids, "labels": ids}


def together(spec: dict[str, Any], out: str) -> dict[str, Any]:
    """The peak of each phase of each step of DeepSpeed's engine."""
    rung = spec["rung"]
    settings = {
        "zero_optimization": spec["zero"],
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    arguments = TrainingArguments(
        output_dir=f"{out}.folder",
        per_device_train_batch_size=rung["micro_batch_size"],
        gradient_accumulation_steps=rung["accumulation"],
        max_steps=3,
        bf16=rung["bf16"],
        optim=rung["optimizer"],
        gradient_checkpointing=rung["checkpointing"],
        deepspeed=settings,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    import deepspeed

    events: list[tuple[str, int]] = []

    def mark(phase: str) -> None:
        events.append((phase, torch.cuda.max_memory_allocated()))
        reset()

    # DeepSpeed resets the counters while it starts, which would hide the peak of loading.
    torch.cuda.reset_peak_memory_stats = lambda *_: None
    model = model_of(spec, arguments.device)
    mark("build")
    started = deepspeed.initialize

    def initialize(*args: Any, **kwargs: Any) -> Any:
        mark("build")
        found = started(*args, **kwargs)
        mark("load")
        return found

    deepspeed.initialize = initialize
    for name, phase in (("forward", "forward"), ("backward", "backward"), ("step", "optimizer")):
        _watch(deepspeed.DeepSpeedEngine, name, phase, mark)
    Trainer(model=model, args=arguments, train_dataset=Rows(rung["length"])).train()
    phases: dict[str, int] = {}
    for phase, peak in events:
        phases[phase] = max(phases.get(phase, 0), peak)
    return {"phases": {name: phases[name] for name in phases if name != "between"}}


def _watch(engine: Any, name: str, phase: str, mark: Any) -> None:
    inner = getattr(engine, name)

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        mark("between")
        try:
            return inner(self, *args, **kwargs)
        finally:
            mark(phase)

    setattr(engine, name, run)


def main() -> None:
    spec, out = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), sys.argv[2]
    found = alone(spec) if spec["zero"] is None else together(spec, out)
    rank = int(os.environ.get("RANK", "0"))
    Path(f"{out}.{rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
