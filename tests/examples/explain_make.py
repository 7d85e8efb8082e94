"""Incidents, facts and models for the tests of what `explain` answers."""

from __future__ import annotations

from typing import Any

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.training.known import Given
from oomdoctor.records.job.measurement import OomEvent
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.report.diagnosis import Diagnosis, Frame, Incident, LogFacts, MemorySample
from oomdoctor.units import GIB, MIB

LLAMA_8B: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
LAYER = (
    Frame("train.py", 40, "<module>", "trainer.train()"),
    Frame("/site-packages/transformers/trainer.py", 2500, "training_step", "loss = self.compute_"),
    Frame("/s/transformers/models/llama/modeling_llama.py", 700, "forward", "outputs = self.model"),
    Frame("/s/transformers/models/llama/modeling_llama.py", 500, "forward", "hidden = layer(x)"),
    Frame("/s/transformers/models/llama/modeling_llama.py", 300, "forward", "self.mlp(x)"),
)
LOSS = (
    *LAYER[:3],
    Frame("/s/transformers/loss/loss_utils.py", 50, "ForCausalLMLoss", "logits = logits.float()"),
)
ADAM = (
    Frame("train.py", 50, "main", "optimizer.step()"),
    Frame("/s/torch/optim/adamw.py", 130, "_init_group", 'state["exp_avg"] = torch.zeros_like(p)'),
)


def llama(**changes: Any) -> ModelSpec:
    """Llama 3.1 8B as a config tells it."""
    config = LLAMA_8B | changes
    return ModelSpec("meta-llama/Llama-3.1-8B", "catalogue", "LlamaForCausalLM", "llama",
                     "causal-lm", config, 8_030_261_248)  # fmt: skip


def gib(number: float) -> int:
    """A figure as a message prints it, in bytes."""
    return round(number * GIB)


def event(**changes: Any) -> OomEvent:
    """A full 80 GB card that is asked for another 2 GiB."""
    values: dict[str, Any] = {
        "message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "dialect": "cuda_caching_allocator",
        "phase": "unknown",
        "requested_bytes": gib(2),
        "capacity_bytes": gib(79.25),
        "free_bytes": gib(1),
        "process_bytes": gib(78.25),
        "allocated_bytes": gib(77),
        "reserved_unallocated_bytes": 300 * MIB,
        "other_processes_bytes": 0,
    }
    return OomEvent(**(values | changes))


def incident(**changes: Any) -> Incident:
    """An incident; keys of its event start with `event_`."""
    numbers = {k.removeprefix("event_"): v for k, v in changes.items() if k.startswith("event_")}
    values: dict[str, Any] = {
        "event": event(**numbers),
        "look_alike": None,
        "resource": "gpu",
        "frames": (),
        "phase": "unknown",
        "where": None,
        "lines": ("RuntimeError: out of memory",),
        "rank": None,
        "line_number": 10,
        "step": None,
        "survived": False,
    }
    return Incident(**(values | {k: v for k, v in changes.items() if not k.startswith("event_")}))


def samples(*gibs: float) -> tuple[MemorySample, ...]:
    """Memory of steps 0, 1, ... in GiB."""
    return tuple(
        MemorySample(step, gib(size), "step_line", f"step {step} mem {size} GiB")
        for step, size in enumerate(gibs)
    )


def answer(
    found: Incident | None = None,
    *,
    facts: LogFacts | None = None,
    given: Given | None = None,
    **changes: Any,
) -> Diagnosis:
    """The diagnosis of one incident."""
    made = incident(**changes) if found is None else found
    return diagnose("log.txt", (made,), facts or LogFacts(), given or Given())[0]


def causes(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Cause and confidence, ranked."""
    return [(cause.cause, cause.confidence) for cause in diagnosis.causes]


def changes(diagnosis: Diagnosis) -> list[str]:
    """The changes that are advised, in order."""
    return [remedy.change for remedy in diagnosis.remedies]
