"""`oomdoctor explain --config`: files, commands and scripts that say the training."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.cli.main import run
from oomdoctor.commands import user_training
from oomdoctor.commands.user_training import read_user_training
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.user_training import by_reason
from oomdoctor.stacks.reading.finish import Overrides


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "axolotl.yaml",
            "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 4\nsequence_len: 4960\n"
            "gradient_checkpointing: true\n",
        ),
        (
            "args.json",
            '{"model_name_or_path": "meta-llama/Llama-3.1-8B", "max_length": 4960,\n'
            '"per_device_train_batch_size": 4, "gradient_checkpointing": true}',
        ),
        (
            "train.toml",
            'model_name_or_path = "meta-llama/Llama-3.1-8B"\nmax_length = 4960\n'
            "per_device_train_batch_size = 4\ngradient_checkpointing = true\n",
        ),
    ],
)
def test_config_files(
    name: str, text: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert run(["explain", str(trace), "--config", str(file)]) == 0
    out = capsys.readouterr().out
    assert "4 x 4960 x 128256 x 4 bytes: fp32 logits" in out
    assert "activation checkpointing:" not in out


PLAIN_SCRIPT = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.1-8B")
args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, bf16=True)
Trainer(model=model, args=args, train_dataset=rows).train()
"""
_FILES = {
    "sft.yaml": "model_name_or_path: meta-llama/Llama-3.1-8B\nmax_length: 4960\nuse_peft: true\n"
    "dataset_name: a/b\n",
    "train.py": PLAIN_SCRIPT,
    "quantized.yaml": "base_model: meta-llama/Llama-3.1-8B\nadapter: qlora\nload_in_4bit: true\n"
    "sequence_len: 4096\nmicro_batch_size: 2\n",
}


_NAMELESS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process "
    "has 22.40 GiB memory in use. Of the allocated memory 21.50 GiB is allocated by PyTorch, and "
    "300.00 MiB is reserved by PyTorch but unallocated.\n"
)


@pytest.mark.parametrize(
    ("name", "library", "line"),
    [
        ("sft.yaml", "trl", "add per_device_train_batch_size: "),
        ("train.py", "transformers", "args = TrainingArguments("),
        ("quantized.yaml", "transformers", "micro_batch_size: 1 (line 5)"),  # of axolotl
    ],
)
def test_the_file_says_which_program_the_log_does_not_name(
    name: str, library: str, line: str, tmp_path: Path, cli: Any
) -> None:
    """The lines to type were those of transformers and of PyTorch, and Next forgot the file."""
    log, file = tmp_path / "oom.txt", tmp_path / name
    log.write_text(_NAMELESS)
    file.write_text(_FILES[name])
    result = cli("explain", str(log), "--config", str(file), "--json")
    assert result.code == 0
    report = json.loads(result.out)
    assert report["diagnoses"][0]["framework"] == library
    assert f"oomdoctor plan --from {file} --gpu 23.64GiB" in report["next_commands"]
    table = cli("explain", str(log), "--config", str(file)).out
    assert line in table
    assert "pytorch " not in table


@pytest.mark.parametrize(
    ("said", "key", "lines"),
    [
        ("axolotl.cli.train: started", "axolotl", "micro_batch_size: 2\ngradient_accumulation_"),
        ("llamafactory-cli train", "llama-factory", "per_device_train_batch_size: 2\ngradient_a"),
    ],
)
def test_a_set_for_a_log_has_the_settings_of_its_program(
    said: str, key: str, lines: str, tmp_path: Path, cli: Any
) -> None:
    """The lines of a set were TrainingArguments(...) for programs that read a file."""
    log = tmp_path / "oom.txt"
    log.write_text(f"{said}\n{_NAMELESS}")
    words = ("--model", "Qwen/Qwen2.5-7B", "--micro-batch", "8", "--seq-len", "4096")
    (found,) = json.loads(cli("explain", str(log), *words, "--json").out)["diagnoses"]
    (first, *_) = [one for one in found["remedies"] if "+" in one["key"]]
    assert next(iter(first["lines"])) == key
    assert first["lines"][key].startswith(lines)
    assert "TrainingArguments" not in cli("explain", str(log), *words).out.split("Other rem")[0]


def test_what_a_file_cannot_say_comes_last(trace: Path, tmp_path: Path, cli: Any) -> None:
    """Offload was third, with a line of DeepSpeed, which the file has no place for."""
    file = tmp_path / "axolotl.yaml"
    file.write_text(
        "base_model: meta-llama/Llama-3.1-8B\nmicro_batch_size: 4\nsequence_len: 4960\n"
        "datasets:\n  - path: a/b\n"
    )
    report = json.loads(cli("explain", str(trace), "--config", str(file), "--json").out)
    remedies = report["diagnoses"][0]["remedies"]
    unsaid = [(one["note"] or "").endswith("yaml has no setting for it") for one in remedies]
    assert sorted(unsaid) == unsaid and any(unsaid)
    for one, not_said in zip(remedies, unsaid, strict=True):
        assert not (not_said and "axolotl.yaml" in one["lines"])
    offload = next(one for one in remedies if one["key"] == "offload_optimizer")
    assert remedies.index(offload) >= unsaid.index(True)


def test_files_that_disagree_are_said(trace: Path, tmp_path: Path, cli: Any) -> None:
    """`plan` refuses them; a report about a failure says so and takes the training file's."""
    (tmp_path / "zero.json").write_text(json.dumps({"train_micro_batch_size_per_gpu": 2}))
    file = tmp_path / "sft.yaml"
    file.write_text(_FILES["sft.yaml"] + "per_device_train_batch_size: 4\ndeepspeed: zero.json\n")
    assert cli("plan", "--from", str(file), "--gpu", "L4").code == 2
    document = json.loads(cli("explain", str(trace), "--config", str(file), "--json").out)
    messages = [one["message"] for one in document["warnings"]]
    (note,) = [one for one in messages if "zero.json:1 says" in one]
    assert note.endswith(f"the settings of {file} are taken")
    assert "4 x 4960 x 128256" in json.dumps(document)


@pytest.mark.parametrize("name", _FILES)
def test_a_file_means_what_it_means_to_plan(
    name: str, trace: Path, tmp_path: Path, cli: Any
) -> None:
    """What no setting says is the default of the program that reads the file."""
    file = tmp_path / name
    file.write_text(_FILES[name])
    document = json.loads(cli("explain", str(trace), "--config", str(file), "--json").out)
    (found,) = document["diagnoses"]
    planned = read_user_training([str(file)], None, Overrides(), None)
    assert found["config"] == json.loads(json.dumps(asdict(planned.config)))
    reasons = by_reason(planned.assumed, planned.config)
    assert reasons and set(reasons) <= set(found["assumed"])


@pytest.mark.parametrize(
    ("installed", "logged", "loss", "reason"),
    [
        ("1.16.0", "", "chunked", "in chunks in trl 1.16.0)"),
        ("1.15.2", "", "default", None),
        (None, "", "chunked", "in chunks in trl 1.16.0, assumed as none is installed)"),
        ("1.15.2", "trl==1.17.1", "chunked", "in chunks in trl 1.17.1, which the log names)"),
        ("1.16.0", "- TRL version: 1.15.0", "default", None),
        (None, "trl==1.15.0", "default", None),
    ],
)
def test_the_release_of_trl_that_is_known_best_decides_about_the_loss(
    installed: str | None,
    logged: str,
    loss: str,
    reason: str | None,
    tmp_path: Path,
    cli: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`explain` said 86 GiB for a file for which `plan` said 31, because only one asked."""
    parser = None if installed is None else f"trl {installed}"
    answer = {"parser": parser, "values": None, "fault": None}
    monkeypatch.setattr(
        user_training, "_answers", lambda asked, *_, **__: [dict(answer) for _ in asked]
    )
    log, file = tmp_path / "oom.txt", tmp_path / "sft.yaml"
    log.write_text(f"{logged}\n{_NAMELESS}")
    file.write_text(_FILES["sft.yaml"] + "bf16: true\n")
    result = cli("explain", str(log), "--config", str(file), "--json")
    (found,) = json.loads(result.out)["diagnoses"]
    planned = read_user_training([str(file)], None, Overrides(), "python")
    assert found["config"]["loss"] == loss
    said = [line for line in found["assumed"] if "loss chunked" in line]
    assert [line.endswith(reason) for line in said] == ([] if reason is None else [True])
    if not logged:
        assert planned.config.loss == loss
        assert set(said) <= set(by_reason(planned.assumed, planned.config))
    logits = any(line.startswith("logits") for line in found["needs"])
    assert logits is (loss == "default")


def test_a_traceback_shows_how_trl_computes_the_loss(tmp_path: Path, cli: Any) -> None:
    file = tmp_path / "sft.yaml"
    file.write_text(_FILES["sft.yaml"])
    log = tmp_path / "oom.txt"
    frames = {
        "default": 'transformers/loss/loss_utils.py", line 68, in ForCausalLMLoss',
        "chunked": 'trl/kernels/chunked_logprob.py", line 300, in forward',
    }
    for loss, frame in frames.items():
        log.write_text(
            "Traceback (most recent call last):\n"
            f'  File "/env/site-packages/{frame}\n    x = y.float()\n{_NAMELESS}'
        )
        result = cli("explain", str(log), "--config", str(file), "--json")
        (found,) = json.loads(result.out)["diagnoses"]
        assert found["config"]["loss"] == loss


_ENGINE = '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}'


@pytest.mark.parametrize(
    ("name", "text", "needs"),
    [
        (
            "accelerate.yaml",
            "distributed_type: FSDP\nnum_processes: 4\nfsdp_config:\n  fsdp_version: 2\n",
            "weights 8,030,261,248 x 2 bytes / 4 devices",
        ),
        ("zero.json", _ENGINE, "activations 8,192 tokens x 32 layers"),
        (
            "sft.yaml",
            "model_name_or_path: a/b\nmax_length: 512\ndeepspeed: zero.json\n",
            "activations 2,048 tokens x 32 layers x 8,192 bytes (checkpoints)",
        ),
    ],
)
def test_a_file_of_an_engine_gives_a_whole_training(
    name: str, text: str, needs: str, trace: Path, tmp_path: Path, cli: Any
) -> None:
    """On how many GPUs may be open, other than for plan."""
    (tmp_path / "zero.json").write_text(_ENGINE)
    file = tmp_path / name
    file.write_text(text)
    words = ("explain", str(trace), "--model", "meta-llama/Llama-3.1-8B", "--config", str(file))
    (found,) = json.loads(cli(*words, "--json").out)["diagnoses"]
    planned = read_user_training(
        [str(file)],
        ModelRef("meta-llama/Llama-3.1-8B", source="catalogue"),
        Overrides(gpus=None if "accelerate" in name else 2, micro_batch_size=4),
        None,
    )
    assert set(by_reason(planned.assumed, planned.config)) <= set(found["assumed"])
    assert any(line.startswith(needs) for line in found["needs"]), found["needs"]


def test_a_command_says_the_training(trace: Path, tmp_path: Path, cli: Any) -> None:
    file = tmp_path / "job.sh"
    file.write_text("trl sft --model_name_or_path meta-llama/Llama-3.1-8B --use_peft --lora_r 8\n")
    (found,) = json.loads(cli("explain", str(trace), "--config", str(file), "--json").out)[
        "diagnoses"
    ]
    assert (found["model"], found["config"]["lora_rank"]) == ("meta-llama/Llama-3.1-8B", 8)
    refused = cli("explain", str(trace), "--apply", str(file), "--write")
    assert refused.code == 2 and "is a command, not a file of settings" in refused.err
    assert file.read_text().startswith("trl sft")


@pytest.mark.parametrize("suffix", [".yaml", ".py"])
def test_a_deepspeed_file_that_a_file_names_is_read_where_it_is_here(
    suffix: str, trace: Path, tmp_path: Path, cli: Any
) -> None:
    engine = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
    texts = {
        ".yaml": "model_name_or_path: meta-llama/Llama-3.1-8B\nmax_length: 4960\nbf16: true\n"
        "per_device_train_batch_size: 4\ndeepspeed: ",
        ".py": PLAIN_SCRIPT.replace("bf16=True)", "bf16=True, deepspeed=ENGINE)"),
    }
    file = tmp_path / f"train{suffix}"

    def explained(value: str) -> str:
        text = texts[suffix]
        file.write_text(text.replace("ENGINE", value) if "ENGINE" in text else text + value + "\n")
        ended = cli("explain", str(trace), "--config", str(file))
        assert ended.code == 0, ended.err
        return str(ended.out)

    elsewhere = explained('"engine.json"')
    inline = explained(json.dumps(engine))
    (tmp_path / "engine.json").write_text(json.dumps(engine))
    there = explained('"engine.json"')
    assert there.replace('"engine.json"', json.dumps(engine)) == inline != elsewhere


def test_no_checkpointing_is_assumed_where_the_program_turns_it_off(
    trace: Path, tmp_path: Path, cli: Any
) -> None:
    file = tmp_path / "train.py"
    file.write_text(PLAIN_SCRIPT)
    words = ("explain", str(trace), "--seq-len", "4960")
    assumed = cli(*words, "--config", str(file)).out
    assert "activation checkpointing, because" not in assumed
    known = ("--model", "meta-llama/Llama-3.1-8B", "--micro-batch", "4")
    assert "activation checkpointing, because" in cli(*words, *known).out


def test_a_config_for_an_unknown_model_is_a_warning(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("base_model: nobody/nothing\n")
    assert run(["explain", str(trace), "--config", str(file)]) == 0
    assert "add --model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.yaml", "a: [1\n"), ("a.json", "{"), ("a.toml", "a ="), ("a.yaml", "- 1\n"),
     ("a.yaml", "a" * 9_000_000)],
)  # fmt: skip
def test_bad_config(
    name: str, text: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert run(["explain", str(trace), "--config", str(file)]) == 2
    assert f"--config: {file}" in capsys.readouterr().err


def test_a_config_never_runs_what_it_names(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "made"
    file = tmp_path / "evil.yaml"
    file.write_text(f"a: !!python/object/apply:os.mkdir [{str(made)!r}]\n")
    assert run(["explain", str(trace), "--config", str(file)]) == 2
    assert not made.exists()
    assert f"--config: {file}: line 1" in capsys.readouterr().err
