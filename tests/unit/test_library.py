"""`oomdoctor.estimate` and `Preflight`: objects in, the answer of `plan` out."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from example_plans import PLANS

import oomdoctor
from oomdoctor.commands.user_training import read_user_training
from oomdoctor.library import estimate as estimates
from oomdoctor.library.later import Evaluated, LaterPhase, later_phases
from oomdoctor.library.live import (
    evaluated_by,
    frozen_otherwise,
    longest_row,
    row_length,
    target_length,
    training_of,
    write_script,
)
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.report import Report
from oomdoctor.records.report.user_training import YOURS
from oomdoctor.stacks.reading.finish import Overrides
from oomdoctor.units import GIB

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
ROWS = [{"input_ids": [0] * length} for length in (5, 700, 3)]
# Without a GPU, arguments with bf16 can be made only with use_cpu.
ARGUMENTS = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
    "gradient_checkpointing": True,
    "use_cpu": True,
}


def _model(**values: Any) -> Any:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=512, **values)
    return transformers.Qwen2ForCausalLM(config).to(torch.bfloat16)


def _read(folder: Path, *parts: Any) -> TrainConfig:
    """The configuration that `--from` reads out of the written script."""
    script = write_script(training_of(*parts), folder)
    return read_user_training([str(script)], None, Overrides(), None).config


@pytest.fixture(scope="module")
def arguments() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.TrainingArguments("out", **ARGUMENTS)


def test_arguments_and_a_model_are_read_like_a_script(arguments: Any, tmp_path: Path) -> None:
    config = _read(tmp_path, _model(), arguments)
    assert (config.method, config.weights_dtype, config.autocast_dtype) == (
        *("full", "bfloat16", "bfloat16"),
    )
    assert (config.micro_batch_size, config.effective_batch_size) == (2, 8)
    assert config.activation_checkpointing == "full"
    assert "Qwen2ForCausalLM.from_pretrained" in (tmp_path / "training.py").read_text()
    assert (tmp_path / "model" / "config.json").exists()


def _frozen(*parts: str) -> Any:
    model = _model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad = not any(part in name for part in parts)
    return model


def test_the_first_layers_may_be_frozen_by_hand(arguments: Any, tmp_path: Path) -> None:
    model = _frozen("embed_tokens", "layers.0.")
    assert _read(tmp_path, model, arguments).frozen_layers == 1
    assert not frozen_otherwise(training_of(model, arguments))
    assert frozen_otherwise(training_of(_frozen("mlp"), arguments))


def test_adapters_are_those_of_the_model(arguments: Any, tmp_path: Path) -> None:
    adapters = peft.LoraConfig(r=4, lora_alpha=32, target_modules=["q_proj", "v_proj"])
    config = _read(tmp_path, peft.get_peft_model(_model(), adapters), arguments)
    assert (config.method, config.lora_rank, config.lora_alpha) == ("lora", 4, 32)
    assert set(config.lora_targets) == {"q_proj", "v_proj"}
    assert "peft_type" not in (tmp_path / "training.py").read_text()


def test_adapters_and_4_bits_may_be_passed(tmp_path: Path) -> None:
    quantized = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "quant_method": "bitsandbytes"}
    parts = ("Qwen/Qwen2.5-0.5B", {"bf16": True}, peft.LoraConfig(r=8), quantized)
    config = _read(tmp_path, *parts)
    assert (config.method, config.quantization, config.lora_rank) == ("qlora", "nf4", 8)


def test_a_configuration_of_trl_names_its_trainer(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    settings = trl.SFTConfig("out", max_length=640, **ARGUMENTS)
    config = _read(tmp_path, "Qwen/Qwen2.5-0.5B", settings)
    assert config.sequence_length == 640
    assert "SFTTrainer(" in (tmp_path / "training.py").read_text()


def test_a_trainer_has_it_all(arguments: Any, tmp_path: Path) -> None:
    trainer = SimpleNamespace(model=_model(), args=arguments, train=None)
    assert _read(tmp_path, trainer, None).effective_batch_size == 8


@pytest.mark.parametrize(
    ("rows", "length"), [(ROWS, 700), ([{"text": "a"}], None), (iter(ROWS), None), ([], None)]
)
def test_the_longest_row(rows: Any, length: int | None) -> None:
    assert longest_row(rows) == length


def test_the_longest_row_of_a_table_is_that_of_its_own_rows() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS)
    assert longest_row(rows) == 700
    assert longest_row(rows.select([2, 0]).shuffle(seed=0)) == 5
    assert longest_row(rows.rename_column("input_ids", "text")) is None


@pytest.mark.parametrize("args", [None, object()])
def test_without_settings_it_says_what_to_pass(args: Any) -> None:
    with pytest.raises(oomdoctor.OomDoctorError) as raised:
        oomdoctor.estimate("gpt2", args, gpu="T4")
    assert raised.value.exit_code == 2 and "TrainingArguments" in (raised.value.hint or "")


def test_errors_are_those_of_the_command() -> None:
    with pytest.raises(oomdoctor.OomDoctorError, match=r"T44.*neither a known card") as raised:
        oomdoctor.estimate("gpt2", {"bf16": True}, gpu="T44")
    assert raised.value.exit_code == 2


def test_an_error_about_a_setting_does_not_name_the_script_that_nobody_sees() -> None:
    with pytest.raises(oomdoctor.OomDoctorError) as raised:
        oomdoctor.estimate("gpt2", {"per_device_train_batch_size": "two"}, gpu="T4")
    expected = "per_device_train_batch_size must be a whole number, not 'two'"
    assert (raised.value.message, raised.value.hint) == (expected, None)


def test_a_model_of_another_library_is_refused(arguments: Any) -> None:
    with pytest.raises(oomdoctor.OomDoctorError, match="Linear is not a model of transformers"):
        oomdoctor.estimate(torch.nn.Linear(2, 2), arguments, gpu="T4")


def test_a_setting_that_is_not_read_is_a_warning() -> None:
    settings = {"per_device_train_batch_szie": 8, "logging_steps": 1}
    answer = oomdoctor.estimate(_model(), settings, gpu="T4", sequence_length=128)
    (warning,) = [text for text in answer.warnings if "was not read" in text]
    assert warning.startswith("per_device_train_batch_szie was not read: not a setting of")


def test_the_answer_is_that_of_a_simulation(arguments: Any) -> None:
    model = _model()
    answer = oomdoctor.estimate(model, arguments, gpu="T4", sequence_length=128)
    assert answer.fits and answer.gpu == "Tesla T4" and answer.short_bytes == 0
    assert answer.result.trainable_parameters == sum(part.numel() for part in model.parameters())
    assert (answer.result.evidence, answer.result.config.sequence_length) == ("predicted", 128)
    assert 0 < (answer.peak_bytes or 0) < (answer.usable_bytes or 0)


def test_importing_it_is_cheap() -> None:
    code = (
        "import sys, oomdoctor; print(len([m for m in sys.modules if m.startswith('oomdoctor')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 1
    assert callable(oomdoctor.estimate)
    with pytest.raises(AttributeError):
        _ = oomdoctor.nothing


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Replaces the plan; `peak` is what it says, `words` are its options."""
    told: dict[str, Any] = {"peak": GIB}

    def planned(words: list[str]) -> Report:
        report = PLANS["plan"]()
        (result, *_) = (row for row in report.results if row.outcome == "fits")
        usable = report.usable_bytes or 0
        told["words"] = words
        result = replace(
            result,
            label=YOURS,
            outcome="fits" if told["peak"] <= usable else "oom",
            peak_device_bytes=told["peak"],
            peak_reserved_bytes=told["peak"],
        )
        return replace(report, results=(result,))

    monkeypatch.setattr(estimates, "_planned", planned)
    yield told


def _begin(preflight: Any, arguments: Any, rows: Any = None) -> None:
    loader = SimpleNamespace(dataset=rows)
    preflight.on_train_begin(arguments, None, None, model=_model(), train_dataloader=loader)


def test_preflight_lets_pass_what_fits(arguments: Any, answered: dict[str, Any]) -> None:
    preflight = oomdoctor.Preflight(gpu="T4")
    assert isinstance(preflight, transformers.TrainerCallback)
    _begin(preflight, arguments, ROWS)
    words = answered["words"]
    assert words[words.index("--seq-len") + 1] == "700" and words[words.index("--gpu") + 1] == "T4"
    assert preflight.estimate.fits and "fits on" in str(preflight.estimate)


def test_preflight_reads_the_evaluation_of_the_trainer_that_calls_it(
    arguments: Any, answered: dict[str, Any]
) -> None:
    """Of the same rows, those whose logits are kept for metrics need more."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = transformers.TrainingArguments("out", eval_strategy="steps", **ARGUMENTS)

    class Calling:
        args, eval_dataset, preprocess_logits_for_metrics = settings, ROWS * 20, None

        def __init__(self, metrics: Any) -> None:
            self.compute_metrics = metrics

        def train(self) -> int:
            preflight = oomdoctor.Preflight(gpu="T4")
            _begin(preflight, settings, ROWS)
            (phase,) = preflight.estimate.later
            return int(phase.at_least_bytes)

    assert Calling(len).train() > Calling(None).train()


def test_preflight_stops_what_does_not_fit(arguments: Any, answered: dict[str, Any]) -> None:
    answered["peak"] = 500 * GIB
    with pytest.raises(oomdoctor.OomDoctorError, match=r"does not fit.*short by") as raised:
        _begin(oomdoctor.Preflight(gpu="T4"), arguments)
    assert raised.value.exit_code == 3


def test_a_borderline_answer_is_no_yes(arguments: Any, answered: dict[str, Any]) -> None:
    answer = oomdoctor.estimate(_model(), arguments, gpu="T4")
    near = replace(answer, result=replace(answer.result, borderline=True))
    assert not near.fits and near.short_bytes == 0 and str(near).startswith("borderline on ")


def test_generation_keeps_keys_and_values() -> None:
    result, model = _result(), _model().config.to_dict()
    settings = {"eval_strategy": "epoch", "predict_with_generate": True}
    (short,) = later_phases(settings, result, model, "causal-lm")
    settings |= {"generation_max_length": 1 << 20}
    (long,) = later_phases(settings, result, model, "causal-lm")
    assert short.name == "generation" and long.at_least_bytes > short.at_least_bytes


@pytest.mark.parametrize(
    ("sharding", "settings", "saves"),
    [
        ("fsdp", {}, True),
        ("zero3", {}, True),
        ("fsdp", {"fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}, False),
        ("ddp", {}, False),
        ("zero1", {}, False),
    ],
)
def test_only_whole_tensors_that_are_sharded_are_gathered(
    sharding: Any, settings: dict[str, Any], saves: bool
) -> None:
    result, model = _result(), _model().config.to_dict()
    sharded = replace(result, config=replace(result.config, world_size=2, sharding=sharding))
    names = [phase.name for phase in later_phases(settings, sharded, model, "causal-lm")]
    assert names == (["saving"] if saves else [])


def test_each_data_set_of_a_trainer_is_evaluated() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"input_ids": [1] * 9, "labels": [1] * 4}] * 3)
    trainer = SimpleNamespace(eval_dataset={"a": rows, "b": ROWS}, compute_metrics=len)
    first, second = evaluated_by(trainer)
    assert first == Evaluated(rows=3, longest=9, target=4, keeps_logits=True)
    assert (second.rows, second.longest, second.target) == (3, 700, None)
    trainer.preprocess_logits_for_metrics = len
    assert not evaluated_by(trainer)[0].keeps_logits
    assert evaluated_by("gpt2") == ()
    numbers = datasets.Dataset.from_list([{"input_ids": [1], "labels": 1}])
    assert longest_row(numbers, "labels") is None


@pytest.mark.parametrize(
    ("settings", "tokens"),
    [({}, 700), ({"max_length": 1024}, 700), ({"max_length": 512}, 512),
     ({"pad_to_multiple_of": 64}, 704)],
)  # fmt: skip
def test_rows_are_as_long_as_the_longest_one_but_not_longer_than_they_may_be(
    settings: dict[str, int], tokens: int
) -> None:
    assert row_length(ROWS, training_of(_model(), settings)) == tokens
    assert row_length([{"text": "a"}], training_of(_model(), settings)) is None


def test_an_encoder_decoder_is_planned_for_the_longer_of_source_and_target() -> None:
    sizes = {"d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    config = transformers.T5Config(**sizes, vocab_size=512, decoder_start_token_id=0)
    training = training_of(transformers.T5ForConditionalGeneration(config), {})
    rows = [{"input_ids": [1] * 8, "labels": [1] * 30}]
    assert row_length(rows, training) == 30
    assert target_length(SimpleNamespace(train_dataset=rows), training) == 30
    assert target_length(SimpleNamespace(train_dataset=rows), training_of(_model(), {})) is None


def test_a_training_whose_evaluation_does_not_fit_is_refused(
    arguments: Any, answered: dict[str, Any]
) -> None:
    answer = oomdoctor.estimate(_model(), arguments, gpu="T4")
    too_large = (answer.usable_bytes or 0) + GIB
    later = replace(answer, later=(LaterPhase("evaluation", too_large),))
    assert answer.fits and not later.fits and later.short_bytes == GIB
    assert "evaluation needs at least" in str(later) and "short by 1.00 GiB" in str(later)


def _result() -> ProbeResult:
    row = next(row for row in PLANS["plan"]().results if row.breakdown is not None)
    return replace(row, peak_device_bytes=10 * GIB, peak_reserved_bytes=8 * GIB)


def test_preflight_looks_at_what_is_free(
    arguments: Any, answered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (GIB // 4, 16 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: GIB // 4)
    with pytest.raises(oomdoctor.OomDoctorError, match="short by 512 MiB"):
        _begin(oomdoctor.Preflight(), arguments)
    _begin(oomdoctor.Preflight(gpu="T4"), arguments)  # another card is not this one


def test_preflight_does_not_stop_a_training_that_it_cannot_judge(
    arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(words: list[str]) -> Report:
        raise oomdoctor.OomDoctorError("x", "no such thing")

    monkeypatch.setattr(estimates, "_planned", refused)
    with pytest.warns(UserWarning, match="no estimate: no such thing"):
        _begin(oomdoctor.Preflight(gpu="T4"), arguments)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A GPU with 16 GiB; `peak` is what PyTorch reserved at most since the last reset."""
    told = {"peak": 9 * GIB}
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda, "reset_peak_memory_stats", lambda _: told.update(peak=GIB))
    monkeypatch.setattr(cuda, "max_memory_reserved", lambda _: told["peak"])
    properties = SimpleNamespace(total_memory=16 * GIB)
    monkeypatch.setattr(cuda, "get_device_properties", lambda _: properties)
    return told


@pytest.mark.parametrize(
    ("most", "peak", "above"),
    [("2GiB", 2, None), ("2GiB", 3, "1.00 GiB"), ("50%", 8, None), ("50%", 9, "1.00 GiB"),
     (2 * GIB, 4, "2.00 GiB")],
)  # fmt: skip
def test_a_budget_of_a_block(
    card: dict[str, int], most: str | int, peak: int, above: str | None
) -> None:
    budget = oomdoctor.Budget(most)
    said = None
    try:
        with budget:
            card["peak"] = peak * GIB
    except oomdoctor.OomDoctorError as error:
        said = error
    assert budget.peak_bytes == peak * GIB
    assert (said is None) is (above is None)
    assert above is None or (above in str(said) and said is not None and said.exit_code == 3)


def test_a_budget_leaves_other_errors_alone(card: dict[str, int]) -> None:
    with pytest.raises(KeyError), oomdoctor.Budget("2GiB"):
        card["peak"] = 9 * GIB
        raise KeyError


def test_a_budget_without_a_gpu_says_so() -> None:
    with pytest.warns(UserWarning, match="no GPU was used"), oomdoctor.Budget("2GiB") as budget:
        pass
    assert budget.peak_bytes is None


@pytest.mark.parametrize("most", ["a lot", None])
def test_a_wrong_budget_is_refused(most: Any) -> None:
    with pytest.raises(oomdoctor.OomDoctorError, match="not a size") as raised:
        oomdoctor.Budget(most)
    assert raised.value.exit_code == 2
