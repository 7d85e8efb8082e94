"""The bounds for evaluation, generation and saving, next to runs of Trainers.

What a run allocates at most above its weights and states is never below its bound, and a bound is
at most a tenth below it where logits decide.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from emulated_bench import RTX_4090, Bench
from emulated_run import Watched, torchrun
from example_plans import PLANS
from weekly_rows import weekly

from oomdoctor.emulator.card import Devices
from oomdoctor.library.later import Evaluated, later_phases
from oomdoctor.records.job.model import Task
from oomdoctor.records.job.result import ProbeResult

# Only the sizes of the vocabulary and the rows matter to the bounds.
MAKE = """
import json
import torch, transformers
from transformers import TrainingArguments, Trainer
SIZES = dict(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
             intermediate_size=512, vocab_size=32768, pad_token_id=0)
DECODER = dict(SIZES, tie_word_embeddings=False)
SEQ2SEQ = dict(d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4, vocab_size=32768,
               decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)

def model(kind, dtype):
    if kind == "seq2seq":
        return transformers.T5ForConditionalGeneration(transformers.T5Config(**SEQ2SEQ)).to(dtype)
    classes = {"decoder": transformers.Qwen2ForCausalLM,
               "classifier": transformers.Qwen2ForSequenceClassification}
    return classes[kind](transformers.Qwen2Config(**DECODER)).to(dtype)

def rows(count, length, kind="decoder", target=None):
    labels = {"decoder": [5] * length, "classifier": 1, "seq2seq": [5] * (target or length)}
    return [{"input_ids": [5] * length, "labels": labels[kind]} for _ in range(count)]

def collate(samples):
    return {name: torch.tensor([row[name] for row in samples]) for name in samples[0]}

class Watch(transformers.TrainerCallback):
    def __init__(self):
        self.told = {}

    def on_step_end(self, args, state, control, **_):
        self.told["peak"] = torch.cuda.max_memory_reserved()
        self.told["held"] = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()

    def on_evaluate(self, args, state, control, **_):
        self.told["evaluation"] = torch.cuda.max_memory_allocated() - self.told["held"]

SAID = dict(report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            max_steps=2, eval_steps=2, eval_strategy="steps", output_dir="out",
            per_device_train_batch_size=1, per_device_eval_batch_size=4)
"""
RUN = """
def run(kind, dtype, metrics, shortened, count, length, target, settings):
    arguments, trainer = TrainingArguments, Trainer
    if kind == "seq2seq":
        arguments, trainer = transformers.Seq2SeqTrainingArguments, transformers.Seq2SeqTrainer
    watch = Watch()
    trainer(
        model=model(kind, getattr(torch, dtype)), args=arguments(**(SAID | settings)),
        data_collator=collate, callbacks=[watch], train_dataset=rows(4, 64, kind),
        eval_dataset=rows(count, length, kind, target),
        compute_metrics=(lambda _: {}) if metrics else None,
        preprocess_logits_for_metrics=(lambda logits, _: logits.argmax(-1)) if shortened else None,
    ).train()
    return watch.told["evaluation"]
"""
MIXED = {"bf16": True}
PLAIN: dict[str, Any] = {
    "kind": "decoder",
    "dtype": "float32",
    "metrics": False,
    "shortened": False,
    "count": 16,
    "length": 256,
    "target": None,
    "settings": MIXED,
}
GENERATED = {"predict_with_generate": True, "generation_max_length": 64}
TASKS: dict[str, Task] = {
    "decoder": "causal-lm",
    "classifier": "sequence-classification",
    "seq2seq": "seq2seq-lm",
}
RANKS = """
import os
rank = int(os.environ["RANK"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
watch = Watch()
settings = SAID | json.loads(SETTINGS)
trainer = Trainer(
    model=model("decoder", torch.float32), args=TrainingArguments(**settings),
    data_collator=collate, callbacks=[watch], train_dataset=rows(4, 64),
    eval_dataset=rows(20, 256), compute_metrics=lambda _: {},
)
trainer.train()
torch.cuda.reset_peak_memory_stats()
trainer.save_model("saved")
watch.told["saving"] = torch.cuda.max_memory_allocated() - watch.told["held"]
if not rank:
    json.dump(watch.told, open("told.json", "w"))
"""
CASES: dict[str, dict[str, Any]] = {
    "float32": {"settings": {}},
    "mixed": {},
    "metrics": {"metrics": True},
    "bfloat16": {"dtype": "bfloat16", "settings": {}, "metrics": True},
    "accumulated": {"metrics": True, "settings": {**MIXED, "eval_accumulation_steps": 2}},
    "listed": {"metrics": True, "settings": {**MIXED, "eval_do_concat_batches": False}},
    "one by one": {"metrics": True, "settings": {**MIXED, "eval_accumulation_steps": 1}},
    "partial": {"metrics": True, "count": 10},
    "longer": {"length": 512},
    "shortened": {"metrics": True, "shortened": True},
    "classifier": {"kind": "classifier", "metrics": True},
    "target": {"kind": "seq2seq", "target": 128, "settings": {**MIXED, **GENERATED}},
    "beams": {
        "kind": "seq2seq",
        "target": 2,
        "settings": {**MIXED, **GENERATED, "generation_num_beams": 8},
    },
}
# Where it is not logits that decide, a bound may be far below.
LOOSE = ("classifier", "beams")
SIZES = {
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 32768,
    "tie_word_embeddings": False,
    "model_type": "qwen2",
}
T5 = {
    "d_model": 256,
    "d_kv": 64,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 32768,
    "model_type": "t5",
    "is_encoder_decoder": True,
    "tie_word_embeddings": True,
}


def _result(case: dict[str, Any]) -> ProbeResult:
    row = next(row for row in PLANS["plan"]().results if row.breakdown is not None)
    mixed = "bf16" in case["settings"]
    config = replace(
        row.config,
        method="full",
        weights_dtype=case["dtype"],
        autocast_dtype="bfloat16" if mixed else "none",
        sequence_length=64,
    )
    # Of the linear layers and, of the decoder, of the two ends.
    layer = 4 * 256 * 256 + 3 * 256 * 512
    ends = 32768 * 256 * (2 if case["kind"] == "decoder" else 1)
    if case["kind"] == "seq2seq":
        layer = 2 * (4 * 256 * 256 + 2 * 256 * 512) + 4 * 256 * 256
    return replace(row, config=config, trainable_parameters=2 * layer + ends)


def _bound(case: dict[str, Any]) -> int:
    """What the evaluation adds at least to weights and states."""
    keeps = case["metrics"] and not case["shortened"]
    model = T5 if case["kind"] == "seq2seq" else SIZES
    evaluated = Evaluated(case["count"], case["length"], case["target"], keeps_logits=keeps)
    said = {"per_device_eval_batch_size": 4, "eval_strategy": "steps", **case["settings"]}
    (added,) = _added(_result(case), said, (evaluated,), TASKS[case["kind"]], model).values()
    return added


def _added(
    result: ProbeResult,
    said: dict[str, Any],
    evaluated: tuple[Evaluated, ...],
    task: Task = "causal-lm",
    model: dict[str, Any] = SIZES,
) -> dict[str, int]:
    """What each phase has at least, above weights and states."""
    told = later_phases(said, result, model, task, evaluated)
    (nothing, *_) = later_phases({"eval_strategy": "steps"}, result, model, "embedding")
    return {phase.name: phase.at_least_bytes - nothing.at_least_bytes for phase in told}


@pytest.fixture(scope="module")
def added(bench: Bench) -> dict[str, int]:
    """What each evaluation allocated at most, above what there was before it, in one process."""
    cases = {name: PLAIN | case for name, case in CASES.items()}
    code = f"{MAKE}{RUN}\ncases = json.loads({json.dumps(json.dumps(cases))})\n"
    code += "tell(added={name: run(**case) for name, case in cases.items()})"
    return dict(bench.run(code, Devices(RTX_4090), HF_HUB_OFFLINE="1")["added"])


@pytest.mark.parametrize("name", CASES)
def test_an_evaluation_needs_its_bound(added: dict[str, int], name: str) -> None:
    bound = _bound(PLAIN | CASES[name])
    assert bound <= added[name]
    assert name in LOOSE or bound >= 0.9 * added[name], (bound, added[name])


SHARDED = {
    "fsdp": "full_shard auto_wrap",
    "fsdp_config": {
        "version": 2,
        "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"],
        "state_dict_type": "FULL_STATE_DICT",
    },
}


@pytest.mark.parametrize("sharding", ["fsdp", weekly("ddp")])
def test_ranks_gather_logits_and_weights(watched: Watched, sharding: str) -> None:
    settings = {**MIXED, **(SHARDED if sharding == "fsdp" else {})}
    script = MAKE + RANKS.replace("SETTINGS", repr(json.dumps(settings)))
    watched.run("2xRTX 4090", script, *torchrun(2), options=("--steps", "all"))
    told = json.loads((watched.folder / "told.json").read_text())

    result = _result(PLAIN)
    config = replace(result.config, world_size=2, sharding=sharding)
    result = replace(result, config=config)
    evaluated = (Evaluated(rows=20, longest=256, keeps_logits=True),)
    said = {"per_device_eval_batch_size": 4, "eval_strategy": "steps", **settings}
    held = _added(result, said, evaluated)
    assert 0.9 * told["evaluation"] <= held["evaluation"] <= told["evaluation"]
    # Of the shards, nothing is copied on the GPU but the whole embedding.
    assert held.get("saving", 0) == (32768 * 256 * 4 if sharding == "fsdp" else 0)
    assert told["saving"] == pytest.approx(held.get("saving", 0), abs=2**20)
