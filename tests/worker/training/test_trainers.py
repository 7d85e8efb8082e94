"""Objectives run TRL's own steps: the losses and the memory are those of its trainers."""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_steps import step_loss
from simulated_steps import quick
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.measuring.meters import CpuMeter
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import build

CPU = torch.device("cpu")
LENGTH = 32


@pytest.fixture(autouse=True)
def _trl() -> None:
    pytest.importorskip("trl.kernels", exc_type=ImportError)


def test_the_step_is_that_of_trl() -> None:
    """The first loss of DPO is log 2, because the policy still is its reference."""
    job = tiny_job(objective="dpo", method="lora")
    setup = build(job, CPU)
    assert type(setup.trainer).__mro__[2].__module__ == "trl.trainer.dpo_trainer"
    batches = micro_batches(setup, job.config, count=2)
    for group in setup.trainer.optimizer.param_groups:
        group["lr"] = 0.01
    losses = [step_loss(setup, batches) for _ in range(4)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-5)
    assert losses[-1] < losses[0] - 1e-3


@pytest.mark.parametrize(
    ("method", "reference", "second"),
    [("full", "default", True), ("full", "precomputed", False), ("lora", "default", False)],
)
def test_only_full_fine_tuning_has_a_second_model(
    method: Any, reference: Any, second: bool
) -> None:
    setup = build(tiny_job(objective="dpo", method=method, reference=reference), CPU)
    assert (setup.reference is not None) == second
    if setup.reference is not None:
        assert all(p.grad is None for p in setup.reference.parameters())
    # One adapter, and no copy of it for the reference.
    names = [name for name, _ in setup.model.named_parameters() if ".ref." in name]
    assert not names


def test_a_reward_model_has_a_single_score() -> None:
    setup = build(tiny_job(objective="reward"), CPU)
    assert setup.task == "sequence-classification"
    assert setup.model.config.num_labels == 1
    assert setup.model.score.out_features == 1


@pytest.mark.parametrize("objective", ["dpo", "reward"])
def test_batches_are_those_of_trl(objective: Any) -> None:
    from importlib import import_module

    module = import_module(f"trl.trainer.{objective}_trainer")
    job = tiny_job(objective=objective, completion_length=20 if objective == "dpo" else 0)
    setup = build(job, CPU)
    batch = micro_batches(setup, job.config, count=2)[1]
    rows = batch["input_ids"].tolist()
    assert len(rows) == 4  # two chosen, two rejected
    given = [
        {"chosen_ids": rows[pair], "rejected_ids": rows[pair + 2], "prompt_ids": []}
        for pair in range(2)
    ]
    if objective == "dpo":  # a chosen and a rejected answer have one prompt
        rows[2:] = [rows[pair][:12] + rows[pair + 2][12:] for pair in range(2)]
        batch["input_ids"] = torch.tensor(rows)
        given = [
            {
                "prompt_ids": rows[pair][:12],
                "chosen_ids": rows[pair][12:],
                "rejected_ids": rows[pair + 2][12:],
            }
            for pair in range(2)
        ]
    theirs = module.DataCollatorForPreference(pad_token_id=0)(given)
    assert set(batch) == set(theirs)
    for name, value in theirs.items():
        assert torch.equal(batch[name], value), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "method"),
    [("dpo", "full"), ("dpo", "lora"), ("reward", "full"), ("grpo", "full"), ("grpo", "lora")],
)
def test_the_peak_is_that_of_trl_as_people_run_it(
    tmp_path: Path, objective: Any, method: Any
) -> None:
    more = {"num_generations": 2, "reference": "kl"} if objective == "grpo" else {}
    job = tiny_job(objective=objective, method=method, **more)
    measure(quick(job), PhaseFile(None))  # libraries make tables at their first use
    mine = measure(quick(job), PhaseFile(None)).peak_allocated_bytes
    meter = CpuMeter(None)
    with meter.recording():
        meter.enter("load", "load")
        trainer = _as_people_do(job, tmp_path)
        models = [m for m in (trainer.model, getattr(trainer, "ref_model", None)) if m is not None]
        # Weights from a file are not seen when they are read.
        meter.trace.adopt([p for m in models for p in (*m.parameters(), *m.buffers())], "weights")
        trainer.train()
    assert meter.trace.peak == mine


def _as_people_do(job: ProbeJob, folder: Path) -> Any:
    """TRL's trainer on texts and a saved model, with the rung's settings."""
    import transformers
    import trl
    from datasets import Dataset

    objective, method = job.config.objective, job.config.method
    config = transformers.LlamaConfig(**job.model.config)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    kind = {"dpo": "DPO", "reward": "Reward", "grpo": "GRPO"}[objective]
    arguments = getattr(trl, f"{kind}Config")(
        output_dir=tempfile.mkdtemp(dir=folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=2,
        optim="adamw_torch_fused",
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **_own_arguments(objective),
    )
    half = LENGTH // 2
    data = {
        "prompt": [_words(half, row) + " " for row in range(16)],
        "chosen": [_words(half - 1, row + 7) + " </s>" for row in range(16)],
        "rejected": [_words(half - 1, row + 90) + " </s>" for row in range(16)],
    }
    more: dict[str, Any] = {}
    if objective == "grpo":
        data = {"prompt": [_words(half, row) for row in range(16)]}
        more["reward_funcs"] = lambda completions, **_: [float(len(c)) for c in completions]
    if method == "lora":
        from peft import LoraConfig

        more["peft_config"] = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    loader, labels = transformers.AutoModelForCausalLM, {}
    if objective == "reward":
        loader, labels = transformers.AutoModelForSequenceClassification, {"num_labels": 1}
    model = loader.from_pretrained(folder, dtype=torch.float32, **labels)
    return getattr(trl, f"{kind}Trainer")(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(data),
        processing_class=_tokenizer(),
        **more,
    )


def _own_arguments(objective: str) -> dict[str, Any]:
    if objective != "grpo":
        return {"max_length": LENGTH}
    half = LENGTH // 2
    return {
        "num_generations": 2,
        "max_completion_length": half,
        "beta": 0.04,
        "generation_kwargs": {"min_new_tokens": half},
    }


def _words(count: int, first: int) -> str:
    return " ".join(f"w{(first + place) % 500}" for place in range(count))


def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "</s>": 1, **{f"w{number}": number + 2 for number in range(500)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>")


def test_grpo_scores_completions_that_were_generated_before() -> None:
    job = tiny_job(objective="grpo", num_generations=2, completion_length=20)
    setup = build(job, CPU)
    assert type(setup.trainer).__mro__[2].__module__ == "trl.trainer.grpo_trainer"
    assert setup.reference is None  # TRL's beta is 0 unless there is a KL term
    batch = micro_batches(setup, job.config, count=2)[1]
    assert batch["prompt_ids"].shape == (2, 12)
    assert batch["completion_ids"].shape == (2, 20)
    loss = step_loss(setup, [batch])
    # The advantage of every token is 1, and the policy has not changed since.
    assert loss == pytest.approx(-1.0)
    (note,) = setup.notes
    assert note == "the training step only, without generation"
    kl = build(tiny_job(objective="grpo", num_generations=2, reference="kl"), CPU)
    assert kl.reference is not None


def test_without_trl_the_line_to_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'oomdoctor\[trl\]'"):
        build(tiny_job(objective="dpo"), CPU)


def test_the_loss_in_chunks_is_that_of_the_model() -> None:
    plain, chunked = (build(tiny_job(loss=loss), CPU) for loss in ("default", "chunked"))
    assert type(chunked.trainer).__mro__[2].__module__ == "trl.trainer.sft_trainer"
    batches = micro_batches(plain, plain.config, count=2)
    for setup in (plain, chunked):  # their defaults differ
        for group in setup.trainer.optimizer.param_groups:
            group["lr"] = 1e-4
    for _ in range(2):  # the second loss depends on the first gradients
        one, other = (step_loss(each, [dict(b) for b in batches]) for each in (plain, chunked))
        assert other == pytest.approx(one, rel=1e-5)


def test_a_loss_changes_no_dtype_of_adapters() -> None:
    pytest.importorskip("bitsandbytes")
    rung: dict[str, Any] = {"method": "qlora", "quantization": "nf4"}
    setup = build(tiny_job(loss="chunked", **rung), CPU)
    learn = [each.dtype for each in setup.model.parameters() if each.requires_grad]
    assert learn and set(learn) == {torch.float32}


def test_the_loss_in_chunks_needs_trl_and_a_causal_language_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UnsupportedError, match='masked-lm; use loss = "default"'):
        build(tiny_job("encoder", loss="chunked"), CPU)
    with pytest.raises(UnsupportedError, match="lm_head"):
        build(tiny_job(loss="chunked", method="lora", lora_targets=("lm_head",)), CPU)
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'oomdoctor\[trl\]'"):
        build(tiny_job(loss="chunked"), CPU)


def test_objectives_are_for_causal_language_models() -> None:
    for objective in ("dpo", "reward", "grpo"):
        with pytest.raises(UnsupportedError, match="causal language models"):
            build(tiny_job("encoder", objective=objective), CPU)
