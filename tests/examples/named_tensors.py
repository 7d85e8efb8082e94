"""A training that says of its tensors what they are: named_tensors.py METHOD LOOP MODEL FOLDER.

It writes a memory snapshot and, for each tensor that was seen, its category, the address of its
storage and when it was seen (microseconds since 1970).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

METHOD, LOOP, MODEL = sys.argv[1:4]
FOLDER = Path(sys.argv[4])
ROWS, LENGTH, STEPS = 4, 256, 4
notes: list[tuple[str, int, int]] = []


def note(category: str, tensor: Any) -> None:
    """Remember a tensor of the GPU."""
    if isinstance(tensor, torch.Tensor) and tensor.is_cuda and tensor.untyped_storage().nbytes():
        now = time.time_ns() // 1000
        notes.append((category, tensor.untyped_storage().data_ptr(), now))


def saved(tensor: torch.Tensor) -> torch.Tensor:
    """Remember what autograd keeps for the backward pass."""
    note("activations", tensor)
    return tensor


def keeping() -> Any:
    """Where what autograd keeps is remembered."""
    return torch.autograd.graph.saved_tensors_hooks(saved, lambda tensor: tensor)


def built() -> Any:
    """The model as the method trains it."""
    extra: dict[str, Any] = {}
    if METHOD == "qlora":
        from transformers import BitsAndBytesConfig

        extra["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
    model = AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.bfloat16, device_map={"": 0}, **extra
    )
    if METHOD != "full":
        from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training

        if METHOD == "qlora":
            model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear"))
    return model


def after_backward(model: Any) -> None:
    """Remember the gradients."""
    for parameter in model.parameters():
        note("gradients", parameter.grad)


def after_step(optimizer: Any) -> None:
    """Remember the states of the optimizer."""
    for state in getattr(optimizer, "optimizer", optimizer).state.values():
        for tensor in state.values():
            note("optimizer", tensor)


def plain_loop(model: Any, ids: torch.Tensor) -> None:
    """Train in a loop of our own."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    for step in range(STEPS):
        batch = ids[step * ROWS : (step + 1) * ROWS].cuda()
        with keeping():
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        after_backward(model)
        optimizer.step()
        after_step(optimizer)
        optimizer.zero_grad()


class Noting(TrainerCallback):
    """Remembers what the Trainer has made."""

    def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        """Remember the gradients."""
        after_backward(model)

    def on_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        """Remember the states."""
        after_step(optimizer)


class Keeping(Trainer):
    """Remembers what autograd keeps."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Run the forward pass."""
        with keeping():
            return super().compute_loss(*args, **kwargs)


def trainer(model: Any, ids: torch.Tensor) -> None:
    """Train with transformers' Trainer."""
    rows = [{"input_ids": row, "labels": row} for row in ids]
    settings = TrainingArguments(
        str(FOLDER / "out"), per_device_train_batch_size=ROWS, max_steps=STEPS, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Keeping(model, settings, train_dataset=rows, callbacks=[Noting()]).train()  # type: ignore[arg-type]


def main() -> None:
    """Train and write both files."""
    # Native frames, as by default, take long to be named: only where nothing else takes long.
    stacks = "all" if (METHOD, LOOP) == ("full", "plain") else "python"
    torch.cuda.memory._record_memory_history(stacks=stacks, max_entries=1_000_000)
    model = built()
    for tensor in (*model.parameters(), *model.buffers()):
        note("weights", tensor.data)
        state = getattr(tensor, "quant_state", None)
        for part in (state, getattr(state, "state2", None)):
            note("weights", getattr(part, "absmax", None))
    (head,) = (module for name, module in model.named_modules() if name.endswith("lm_head"))
    head.register_forward_hook(lambda module, args, output: note("logits", output))
    ids = torch.randint(0, model.config.vocab_size, (ROWS * STEPS, LENGTH))
    {"plain": plain_loop, "trainer": trainer}[LOOP](model, ids)
    torch.cuda.memory._dump_snapshot(str(FOLDER / "memory_snapshot.pickle"))
    peak = torch.cuda.max_memory_allocated()
    (FOLDER / "truth.json").write_text(json.dumps({"peak": peak, "notes": notes}))


if __name__ == "__main__":
    main()
