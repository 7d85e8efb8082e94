"""A training by transformers.Trainer alone: `trainer_run.py SPEC OUT`, both JSON files.

The yardstick of `truth.py` and the naive way of `survey_vs_naive.py`. It imports nothing of
oomdoctor on purpose: what both sides shared could not be found wrong by comparing them.

SPEC: `config` (a rung with an integer micro_batch_size), `checkpoint` (folder; made with random
weights from its config.json when it holds none), `device` (cuda | cpu), `steps`, `warmup_steps`,
`profile_steps` (CPU: further steps under the profiler), `cap_bytes` (CUDA allocator, or null),
`seed`. With `steps` 0 only the checkpoint is made. OUT: see `main`.
"""

from __future__ import annotations

import itertools
import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


class Rows:
    """Full-length random rows, as many as the steps need, made when asked for."""

    def __init__(self, count: int, length: int, vocabulary: int, seed: int) -> None:
        self.count, self.length, self.vocabulary, self.seed = count, length, vocabulary, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        ids = torch.randint(self.vocabulary, (self.length,), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def make_checkpoint(folder: Path, device: str) -> None:
    """Random weights in bf16 for the config.json in `folder`, saved as transformers saves them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)


def load_model(spec: dict[str, Any]) -> Any:
    """The model of the rung as the libraries' own documentation says to load it."""
    import torch
    import transformers

    rung, on_gpu = spec["config"], spec["device"] == "cuda"
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    settings: dict[str, Any] = {
        "dtype" if version >= (4, 56) else "torch_dtype": getattr(torch, rung["weights_dtype"]),
        "attn_implementation": rung["attention"],
    }
    if rung["quantization"] == "int8":
        settings["quantization_config"] = transformers.BitsAndBytesConfig(load_in_8bit=True)
    elif rung["quantization"] == "nf4":
        compute = rung["autocast_dtype"]
        settings["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=rung["double_quant"],
            bnb_4bit_compute_dtype=getattr(
                torch, rung["weights_dtype"] if compute == "none" else compute
            ),
        )
    if on_gpu:
        settings["device_map"] = {"": 0}
    model = transformers.AutoModelForCausalLM.from_pretrained(spec["checkpoint"], **settings)
    return model if rung["method"] == "full" else with_adapter(model, rung)


def with_adapter(model: Any, rung: dict[str, Any]) -> Any:
    """LoRA on the model, after peft's preparation of a quantised base."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

    if rung["quantization"] != "none" and rung["kbit_prepare"] == "peft":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    adapter = LoraConfig(
        r=rung["lora_rank"],
        lora_alpha=rung["lora_alpha"],
        lora_dropout=rung["lora_dropout"],
        target_modules=rung["lora_targets"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapter)


def make_trainer(model: Any, spec: dict[str, Any], steps: int, folder: str) -> tuple[Any, Any]:
    """A Trainer over `steps` optimizer steps, and the callback that holds the step times."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    rung = spec["config"]
    on_gpu = spec["device"] == "cuda"

    class Clock(TrainerCallback):
        """The end of every step; at the first after warm-up and at the last the GPU is idle."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            if on_gpu and len(self.ends) + 1 in (spec["warmup_steps"], steps):
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    clock = Clock()
    size, effective = rung["micro_batch_size"], rung["effective_batch_size"]
    checkpointing: dict[str, Any] = {}
    if rung["activation_checkpointing"] == "full":
        # transformers 5 calls it otherwise and still knows these names.
        checkpointing["gradient_checkpointing"] = True
        checkpointing["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=size,
        gradient_accumulation_steps=effective // size,
        optim=rung["optimizer"],
        bf16=rung["autocast_dtype"] == "bfloat16",
        fp16=rung["autocast_dtype"] == "float16",
        use_liger_kernel=rung["loss"] == "liger",
        use_cpu=not on_gpu,
        seed=spec["seed"],
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **checkpointing,
    )
    vocabulary = model.config.get_text_config().vocab_size
    rows = Rows(steps * effective, rung["sequence_length"], vocabulary, spec["seed"])
    return Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[clock]), clock


def profiled_peak(spec: dict[str, Any], folder: str) -> tuple[int, int]:
    """(peak, held before) in bytes of the CPU allocator over a few steps of a fresh Trainer.

    What training allocates comes from the profiler's record of every call of PyTorch's CPU
    allocator, temporaries inside operators included. Weights and buffers were there before it
    started and are added.
    """
    from torch.profiler import ProfilerActivity, profile

    model = load_model(spec)
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in [*model.parameters(), *model.buffers()]
    }
    held = sum(storages.values()) + quantisation_bytes(model)
    trainer, _ = make_trainer(model, spec, spec["profile_steps"], folder)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        trainer.train()
    trace = Path(folder) / "trace.json"
    recorded.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    totals = [e["args"]["Total Allocated"] for e in events if e.get("name") == "[memory]"]
    return held + max(totals), held


def quantisation_bytes(model: Any) -> int:
    """Bytes of the block constants that bitsandbytes keeps beside each four-bit weight."""
    total = 0
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            for part in (state.absmax, state.code, state.offset):
                if hasattr(part, "untyped_storage"):
                    total += part.untyped_storage().nbytes()
            state = state.state2
    return total


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Train; seconds of each step after warm-up, and the peaks."""
    import torch

    on_gpu = spec["device"] == "cuda"
    if on_gpu and spec["cap_bytes"]:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, spec["cap_bytes"] / total))
    checkpoint = Path(spec["checkpoint"])
    if not list(checkpoint.glob("*.safetensors")):
        make_checkpoint(checkpoint, spec["device"])
        if on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    if spec["steps"] == 0:
        return {}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        model = load_model(spec)
        found["load_s"] = time.perf_counter() - begin
        trainer, clock = make_trainer(model, spec, spec["steps"], folder)
        trainer.train()
        ends = clock.ends[spec["warmup_steps"] - 1 :]
        found["step_s"] = [after - before for before, after in itertools.pairwise(ends)]
        if on_gpu:
            found["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
            found["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        found["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        del trainer, model
        if not on_gpu and spec["profile_steps"]:
            found["peak_allocated_bytes"], found["held_bytes"] = profiled_peak(spec, folder)
    return found


def main(arguments: list[str]) -> int:
    """Write what `run` found: load_s, step_s, peak_allocated_bytes, peak_reserved_bytes (CUDA),
    peak_rss_bytes, held_bytes (CPU). An out-of-memory is an exit code 1 and a traceback."""
    spec = json.loads(Path(arguments[0]).read_text())
    Path(arguments[1]).write_text(json.dumps(run(spec)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
