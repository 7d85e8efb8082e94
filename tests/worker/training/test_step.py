"""The step is transformers' own: same losses, whatever the micro-batch and checkpointing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_steps import step_loss
from tiny_configs import CONFIGS
from tiny_models import tiny_job

from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.measuring.measure import measure
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.training.batch import micro_batches
from oomdoctor.worker.training.build import build
from oomdoctor.worker.training.step import evaluation_step

CPU = torch.device("cpu")
STEPS = 3


def losses_of(job: ProbeJob) -> list[float]:
    """The loss of each of a few optimizer steps over the same whole effective batch."""
    setup = build(job, CPU)
    batches = micro_batches(setup, job.config, count=job.config.accumulation_steps())
    return [step_loss(setup, batches) for _ in range(STEPS)]


# Not seq2seq: T5 takes the number of items and ignores it, so the Trainer itself does not scale its
# loss. That the step then does what the Trainer does is the test after the next.
@pytest.mark.parametrize("kind", ["dense", "gqa-tied", "sliding-window", "conv1d"])
def test_accumulation_does_not_change_the_loss(kind: str) -> None:
    whole = losses_of(tiny_job(kind, micro_batch_size=4))
    assert losses_of(tiny_job(kind, micro_batch_size=1)) == pytest.approx(whole, rel=1e-4)
    assert whole[-1] < whole[0]  # it learns


@pytest.mark.parametrize("kind", CONFIGS)
def test_checkpointing_does_not_change_the_loss(kind: str) -> None:
    plain = losses_of(tiny_job(kind))
    try:
        again = losses_of(tiny_job(kind, activation_checkpointing="full"))
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert again == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "method", "reason"),
    [
        ("batch-norms", "full", "set micro_batch_size to 2 or more"),
        (
            "reversible",
            "lora",
            "no gradient reach what is trained; set modules_to_save=word_embeddings",
        ),
    ],
)
def test_a_step_that_no_training_can_run_says_why(kind: str, method: str, reason: str) -> None:
    pytest.importorskip("transformers", minversion="5.0")
    with pytest.raises(UnsupportedError, match=reason):
        losses_of(tiny_job(kind, micro_batch_size=1, method=method))


@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_classifier_without_a_loss_is_trained_with_cross_entropy(method: str) -> None:
    """As a Trainer with `compute_loss_func`; accumulation does not change it."""
    pytest.importorskip("transformers", minversion="5.24")
    job = tiny_job("without-loss", method=method)
    assert "compute_loss_func" in " ".join(build(job, CPU).notes)
    losses = losses_of(job)
    assert losses[0] > 0
    assert losses[-1] < losses[0]  # it learns


def test_a_class_that_cannot_run_its_own_code_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Llama 4 with images in transformers 5.24, which asks its text model for images."""
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama.LlamaModel, "forward", lambda *_, **__: None)
    with pytest.raises(UnsupportedError, match=r"the code of this class fails.*modeling_llama"):
        losses_of(tiny_job("dense"))


def test_a_value_that_config_json_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As classes with a decoder read `decoder_start_token_id`, which older releases all had."""
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(
        modeling_llama.LlamaModel, "forward", lambda self, **_: self.config.codebook_length
    )
    with pytest.raises(UnsupportedError, match=r"config\.json has no codebook_length, which"):
        losses_of(tiny_job("dense"))


def test_a_token_that_config_json_leaves_empty_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As classes with a decoder put `decoder_start_token_id` before the labels."""
    from transformers.models.llama import modeling_llama

    def shift(self: torch.nn.Module, input_ids: torch.Tensor, **_: object) -> None:
        input_ids[:, 0] = None

    monkeypatch.setattr(modeling_llama.LlamaModel, "forward", shift)
    with pytest.raises(UnsupportedError, match="no decoder_start_token_id or pad_token_id"):
        losses_of(tiny_job("dense"))


@pytest.mark.parametrize("kind", ["dense", "seq2seq"])
def test_the_losses_are_those_of_a_real_trainer(kind: str) -> None:
    from transformers import Trainer, TrainingArguments

    job = tiny_job(kind, micro_batch_size=2, effective_batch_size=4)
    mine = losses_of(job)
    setup = build(job, CPU)
    rows = micro_batches(setup, job.config.with_micro_batch(1), count=4)
    data = [{name: tensor[0] for name, tensor in row.items()} for row in rows] * STEPS
    arguments = TrainingArguments(
        output_dir="unused",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=STEPS,
        logging_steps=1,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        optim="adamw_torch_fused",
    )
    model = build(job, CPU).model

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    trainer = InOrder(model=model, args=arguments, train_dataset=data)
    trainer.train()
    theirs = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert mine == pytest.approx(theirs, rel=2e-4)


RUNGS: dict[str, dict[str, Any]] = {
    "bf16": {"weights_dtype": "bfloat16"},
    "amp-bf16": {"autocast_dtype": "bfloat16"},
    "foreach": {"optimizer": "adamw_torch"},
    "8bit": {"optimizer": "adamw_bnb_8bit"},
    "adafactor": {"optimizer": "adafactor"},
    "sgd": {"optimizer": "sgd"},
    "lion": {"optimizer": "lion_8bit"},
    "eager": {"attention": "eager"},
    "lora": {"method": "lora", "lora_rank": 4},
    "lora-bf16": {"method": "lora", "weights_dtype": "bfloat16", "autocast_dtype": "bfloat16"},
    "lora-attention": {"method": "lora", "lora_targets": "attention"},
    "lora-list": {"method": "lora", "lora_targets": ("q_proj", "v_proj")},
    "lora-ckpt": {"method": "lora", "activation_checkpointing": "full"},
    "qlora": {"method": "qlora", "quantization": "nf4", "weights_dtype": "bfloat16"},
    "qlora-single-quant": {
        "method": "qlora",
        "quantization": "nf4",
        "double_quant": False,
        "weights_dtype": "bfloat16",
        "autocast_dtype": "bfloat16",
        "activation_checkpointing": "full",
    },
    "qlora-norms": {
        "method": "qlora",
        "quantization": "nf4",
        "kbit_prepare": "norms",
        "weights_dtype": "bfloat16",
        "autocast_dtype": "bfloat16",
    },
    "int8": {"method": "qlora", "quantization": "int8", "autocast_dtype": "bfloat16"},
}


@pytest.mark.parametrize("name", RUNGS)
def test_every_technique_trains_here(name: str) -> None:
    try:
        losses = losses_of(tiny_job("dense", **RUNGS[name]))
    except UnsupportedError as error:
        assert "bitsandbytes" in str(error) or "8bit" in str(error)
        pytest.skip(str(error))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"optimizer": "paged_adamw_8bit"}, "GPU"),
        ({"autocast_dtype": "float16"}, "GPU"),
        ({"attention": "flash_attention_2"}, "GPU"),
        ({"loss": "liger"}, "[Ll]iger"),
        ({"sharding": "zero3", "world_size": 2}, "DeepSpeed needs a GPU"),
        ({"sharding": "tensor_parallel", "world_size": 2}, "needs GPUs"),
        ({"sharding": "pipeline_parallel", "world_size": 2}, "run --emulate"),
        ({"offload": "parameters"}, "zero3"),
        ({"offload": "optimizer", "optimizer": "adamw_bnb_8bit"}, "adamw_torch_fused"),
        ({"optimizer": "galore_adamw_8bit"}, "galore_adamw_8bit"),
        ({"method": "lora", "lora_targets": ("nowhere",)}, "nowhere"),
    ],
)
def test_what_cannot_run_here_says_why(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        build(tiny_job("dense", **changes), CPU)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_task_evaluates(kind: str) -> None:
    job = tiny_job(kind)
    setup = build(job, CPU)
    batch = micro_batches(setup, job.config, count=1)[0]
    assert evaluation_step(setup, batch) > 0
    assert setup.model.training


def test_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    measure(tiny_job(job_timing_limit_s=0.0), PhaseFile(None))
    # torch keeps one cache for all processes.
    assert [path for path in tmp_path.iterdir() if "torchinductor" not in path.name] == []
