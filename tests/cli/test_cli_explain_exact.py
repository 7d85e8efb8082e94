"""`oomdoctor explain --exact`: which failure is simulated, with which model, and what stays of it.

The simulation itself is replaced; tests/commands/test_exact.py is about that.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_models import tiny_folder

from oomdoctor.commands import user_training
from oomdoctor.commands.explain import exact
from oomdoctor.commands.explain.exact import Checked
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.diagnosis import Diagnosis
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.system.store.run_list import stored_runs

FAILED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total "
    "capacity of 4.00 GiB of which 0.40 GiB is free. Including non-PyTorch memory, this process "
    "has 3.60 GiB memory in use. Of the allocated memory 3.00 GiB is allocated by PyTorch, and "
    "100.00 MiB is reserved by PyTorch but unallocated.\n"
)
GPT2 = "openai-community/gpt2"
SIZES = ["--micro-batch", "4", "--seq-len", "512"]
LOOK_ALIKE = "RuntimeError: Expected all tensors to be on the same device, but found two devices\n"


class Simulations:
    """What is asked of a simulation; `answer` makes its result."""

    def __init__(self) -> None:
        self.asked: list[tuple[Diagnosis, ModelRef, Path]] = []
        self.answer: Callable[[Diagnosis, Path, Any], Checked] = lambda found, *_: Checked(
            replace(found, simulated_bytes=1)
        )

    def check(
        self,
        found: Diagnosis,
        model: ModelRef,
        python: str,
        folder: RunFolder,
        *,
        stop: Any,
        **_: Any,
    ) -> Checked:
        del python
        assert folder.path.is_dir()
        self.asked.append((found, model, folder.path))
        return self.answer(found, folder.path, stop)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Simulations:
    """In a folder with a folder like a model, which a text must not make us open."""
    found = Simulations()
    monkeypatch.setattr(exact, "check", found.check)
    (tmp_path / "here" / GPT2).mkdir(parents=True)
    (tmp_path / "here" / GPT2 / "config.json").write_text("no JSON")
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return found


def explained(cli: Any, text: str, *words: str) -> tuple[int, dict[str, Any]]:
    Path("log").write_text(text)
    ended = cli("explain", "log", "--exact", "--json", *words)
    return ended.code, json.loads(ended.out)


@pytest.mark.parametrize("named_by", ["the log", "a file", "an option"])
def test_a_name_in_a_text_opens_nothing(cli: Any, simulated: Simulations, named_by: str) -> None:
    text, words = FAILED.format("1.53"), list(SIZES)
    if named_by == "the log":
        text = f"model_name_or_path: {GPT2}\n{text}"
    elif named_by == "a file":
        Path("train.yaml").write_text(f"model_name_or_path: {GPT2}\n")
        words += ["--config", "train.yaml"]
    else:
        words += ["--model", "gpt2"]
    code, document = explained(cli, text, *words)
    ((_, model, folder),) = simulated.asked
    assert model == ModelRef(name=GPT2, source="catalogue")
    assert (code, document["warnings"]) == (0, [])
    assert not list(stored_runs()) and not folder.exists()


def test_libraries_that_simulate_say_what_the_file_means(
    cli: Any, simulated: Simulations, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"parser": "trl 1.16.0", "values": None, "fault": None}
    monkeypatch.setattr(user_training, "_answers", lambda asked, *_, **__: [answer for _ in asked])
    Path("train.py").write_text(
        "from trl import SFTConfig, SFTTrainer\n"
        "args = SFTConfig(per_device_train_batch_size=4, max_length=512)\n"
        f'SFTTrainer("{GPT2}", args=args).train()\n'
    )
    explained(cli, FAILED.format("1.53"), "--config", "train.py")
    ((found, _, _),) = simulated.asked
    assert found.config is not None and found.config.loss == "chunked"


def test_a_folder_that_you_name_is_used(cli: Any, simulated: Simulations, tmp_path: Path) -> None:
    path = str(tiny_folder(tmp_path / "model"))
    explained(cli, FAILED.format("1.53"), *SIZES, "--model", path)
    ((_, model, _),) = simulated.asked
    assert model == ModelRef(name=path, source="local")


def test_of_several_logs_the_first_failure_is_simulated(cli: Any, simulated: Simulations) -> None:
    Path("other").write_text(LOOK_ALIKE)
    Path("last").write_text(f"model_name_or_path: {GPT2}\n{FAILED.format('2.00')}")
    Path("log").write_text(f"model_name_or_path: {GPT2}\n{FAILED.format('1.53')}")
    ended = cli("explain", "other", "log", "last", "--exact", "--json", *SIZES)
    document = json.loads(ended.out)
    ((found, _, _),) = simulated.asked
    assert found.source == "log"
    assert [one["simulated_bytes"] for one in document["diagnoses"]] == [None, 1, None]


def test_ctrl_c_prints_what_is_known(cli: Any, simulated: Simulations) -> None:
    def answer(found: Diagnosis, folder: Path, stop: Any) -> Checked:
        del folder
        os.kill(os.getpid(), signal.SIGINT)
        return Checked(replace(found, simulated_bytes=7), "interrupted", stop())

    simulated.answer = answer
    text = f"model_name_or_path: {GPT2}\n{FAILED.format('1.53')}"
    code, document = explained(cli, text, *SIZES)
    assert (code, document["exit_code"], document["status"]) == (130, 130, "interrupted")
    assert document["diagnoses"][0]["simulated_bytes"] == 7
    (warning,) = document["warnings"]
    assert warning["code"] == "not_exact" and "some sizes are computed" in warning["message"]


def test_files_that_the_reason_names_stay(cli: Any, simulated: Simulations) -> None:
    simulated.answer = lambda found, folder, _: Checked(found, f"it crashed; see {folder}/log")
    text = f"model_name_or_path: {GPT2}\n{FAILED.format('1.53')}"
    _, document = explained(cli, text, *SIZES)
    ((_, _, folder),) = simulated.asked
    assert folder.is_dir() and str(folder) in document["warnings"][0]["message"]


@pytest.mark.usefixtures("simulated")
def test_the_next_command_simulates_again(cli: Any) -> None:
    text = f"model_name_or_path: {GPT2}\n{FAILED.format('1.53')}"
    _, document = explained(cli, text, *SIZES, "--python", sys.executable)
    words = shlex.split(document["next_commands"][0])
    assert "--exact" in words and words[words.index("--python") + 1] == sys.executable
    _, document = explained(cli, LOOK_ALIKE)
    assert document["next_commands"] == []
