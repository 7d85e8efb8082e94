"""The output of a command is kept in bounded form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from oomdoctor.commands.explain.explained import with_training
from oomdoctor.commands.run.diagnosis import diagnoses_of, micro_batch_of
from oomdoctor.commands.run.process import streams
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.commands.run.session import WatchRequest
from oomdoctor.explain.training.known import Given

OOM = (
    b"Traceback (most recent call last):\n"
    b'  File "train.py", line 7, in <module>\n'
    b"    loss = model(x)\n"
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    b"capacity of 16.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process "
    b"has 15.00 GiB memory in use. Of the allocated memory 14.00 GiB is allocated by PyTorch, and "
    b"100.00 MiB is reserved by PyTorch but unallocated.\n"
)


def _tail(*chunks: bytes) -> Tail:
    kept = Tail()
    for chunk in chunks:
        kept.add(chunk)
    return kept


def _request(*command: str) -> WatchRequest:
    return WatchRequest(command, None, None, "all")


def test_short_output_is_kept_whole() -> None:
    assert _tail(b"one\n", b"two").text() == "one\ntwo"


def test_the_start_and_the_end_of_long_output_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(streams, "_HEAD_BYTES", 100)
    monkeypatch.setattr(streams, "_TAIL_BYTES", 200)
    kept = _tail(*(f"line {i}\n".encode() for i in range(10_000))).text()
    assert kept.startswith("line 0\n") and kept.endswith("line 9999\n")
    assert len(kept) < 400


def test_a_failure_is_explained_with_the_settings_of_the_command() -> None:
    command = ("python", "train.py", "--per_device_train_batch_size", "8", "--bf16")
    (found,) = diagnoses_of(_tail(b"starting\n", OOM), _request(*command))
    assert found.is_oom and found.source == "output"
    assert found.where is not None and (found.where.file, found.where.line) == ("train.py", 7)
    changes = " ".join(line for remedy in found.remedies for line in remedy.lines.values())
    assert "per_device_train_batch_size=4" in changes


@pytest.mark.parametrize(
    "start", [("torchrun", "--nproc-per-node", "8", "train.py"), ("python", "-m", "my.training")]
)
def test_the_micro_batch_size_is_read_behind_any_start(start: tuple[str, ...]) -> None:
    assert micro_batch_of((*start, "--per_device_train_batch_size=8", "--bf16")) == 8


def test_output_without_a_failure_has_no_diagnosis() -> None:
    assert diagnoses_of(_tail(b"step 1\n"), _request("true")) == ()


SCRIPT = """\
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-360M")
args = TrainingArguments("out", per_device_train_batch_size=8, bf16=True)
Trainer(model=model, args=args, train_dataset=rows).train()
"""


@pytest.mark.parametrize("shell", [False, True])
def test_the_script_of_the_command_is_read(shell: bool, tmp_path: Path, monkeypatch) -> None:
    """A run said less of a training than `explain --config COMMAND` says of its output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.sh").write_text("python train.py\n")
    command = ("bash", "job.sh") if shell else ("python", "train.py")
    (found,) = diagnoses_of(_tail(b"starting\n", OOM), _request(*command))
    assert found.model == "HuggingFaceTB/SmolLM2-360M"
    remedy = next(one for one in found.remedies if one.key == "checkpointing")
    assert "add gradient_checkpointing=True to TrainingArguments(...)" in remedy.lines["train.py"]
    given, _ = with_training(Given(), Path("train.py"), sys.executable, parse=False)
    assert given.training is not None and not given.training.length_known
    assert found.config is not None and found.config == given.training.config


@pytest.mark.parametrize("code", ["x = 1\n" * 400, "a\0b"], ids=["long", "with a null byte"])
def test_code_in_the_command_is_no_file(code: str) -> None:
    """The name was too long for a file, and the summary of the run was lost."""
    (found,) = diagnoses_of(_tail(b"starting\n", OOM), _request("python", "-c", code))
    assert found.is_oom and found.config is None


def test_a_shell_script_among_the_options_is_not_the_command(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "hook.sh").write_text("echo done\n")
    (found,) = diagnoses_of(
        _tail(b"starting\n", OOM), _request("torchrun", "--rdzv-conf", "hook.sh", "train.py")
    )
    assert found.model == "HuggingFaceTB/SmolLM2-360M"
