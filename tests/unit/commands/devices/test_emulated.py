"""The emulated GPUs that a request names, and that no driver is asked about them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomdoctor.commands.devices import emulated
from oomdoctor.commands.devices.device import known_card
from oomdoctor.emulator import interpreter
from oomdoctor.emulator.card import Devices
from oomdoctor.errors import ExitCode, OomDoctorError
from oomdoctor.system.catalogue import gpus
from oomdoctor.units import GIB


def test_a_card_has_its_published_facts() -> None:
    gpus = emulated.emulated_gpus("4090")
    devices, card = emulated.devices_of(gpus), gpus.card
    assert card.facts is not None
    assert (devices.count, devices.card.capability) == (1, (8, 9))
    assert devices.card.total_bytes == card.total_bytes < devices.card.nvml_total_bytes
    assert devices.card.nvml_total_bytes == card.facts.total_bytes
    assert devices.card.context_bytes == card.context.likely
    assert devices.card.multiprocessors == 128


def test_a_rented_machine_has_all_of_its_gpus() -> None:
    gpus = emulated.emulated_gpus("p4d.24xlarge")
    assert (gpus.count, gpus.card.name) == (8, "NVIDIA A100-SXM4-40GB")
    assert emulated.emulated_gpus("Colab T4").count == 1
    assert emulated.emulated_gpus("Kaggle 2xT4").count == 2
    assert emulated.emulated_gpus("2xp4d.24xlarge").count == 16
    with pytest.raises(ValueError, match="not 72"):
        emulated.emulated_gpus("9xp4d.24xlarge")


def test_a_size_is_a_card_without_a_name() -> None:
    gpus = emulated.emulated_gpus("80GiB")
    devices, card = emulated.devices_of(gpus), gpus.card
    assert card.facts is None
    assert devices.card.name == "GPU with 80.0 GiB"
    assert devices.card.total_bytes == devices.card.nvml_total_bytes == 80 * GIB


def test_several_cards_may_be_named() -> None:
    assert emulated.emulated_gpus("8xL4").count == 8
    assert emulated.emulated_gpus("2x 24GiB").count == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("RTX 4091", "did you mean"),
        ("", "neither a known card nor a size"),
        ("65xL4", "1 to 64"),
        ("0xL4", "1 to 64"),
        ("AMD Instinct MI300X", "not an NVIDIA card"),
    ],
)
def test_what_cannot_be_emulated_says_why(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        emulated.emulated_gpus(text)


def test_every_card_of_nvidia_can_be_emulated() -> None:
    for facts in gpus():
        if facts.vendor == "NVIDIA":
            devices = emulated.devices_of(emulated.emulated_gpus(facts.name))
            assert devices.card.total_bytes <= devices.card.nvml_total_bytes, facts.name


def test_the_device_says_that_it_is_emulated_and_is_still_known() -> None:
    gpus = emulated.emulated_gpus("RTX 4090")
    gpu = emulated.device_of(gpus).gpu
    assert gpu is not None
    assert gpu.emulated
    assert gpu.name.endswith(" (emulated)")
    assert bytes.fromhex(gpu.uuid.removeprefix("GPU-").replace("-", "")).startswith(b"emulated")
    assert known_card(gpu.name, gpu.total_bytes) == gpus.card.facts


def test_an_emulation_inside_an_emulation_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OOMDOCTOR_EMULATED", str(tmp_path))
    with pytest.raises(OomDoctorError) as caught:
        emulated.check_possible("python3", "--emulate")
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_cpu_build_says_how_to_make_another(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = replace(interpreter.ask(Path(sys.executable)), cuda=None)
    monkeypatch.setattr(interpreter, "ask", lambda _: ours)
    with pytest.raises(OomDoctorError) as caught:
        emulated.check_possible(sys.executable, "--emulate")
    assert caught.value.exit_code == ExitCode.MACHINE_UNFIT
    assert "not a CUDA build" in caught.value.message
    assert "pip install --no-deps torch==" in (caught.value.hint or "")


@pytest.mark.parametrize("place", ["", "emulated"])
def test_what_was_not_exact_is_told_while_the_session_is_open_and_later(
    place: str, tmp_path: Path
) -> None:
    assert emulated.inexact_parts(tmp_path) == []
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "inexact").write_text("cusolver\ncudnn_rnn\ncusolver\n")
    (told,) = emulated.inexact_parts(tmp_path)
    assert told.code == "inexact"
    assert told.message.count("cuSOLVER") == 1 and "RNNs" in told.message


def test_what_several_sessions_in_a_folder_noted_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def entered(python: Path, devices: Devices, folder: Path, *_: Any, **__: Any) -> Iterator[Any]:
        (folder / "inexact").write_text("cusolver\n" if devices.count == 1 else "cufft\n")
        yield SimpleNamespace(variables={})

    monkeypatch.setattr(emulated, "entered", entered)
    for text in ("T4", "2xT4"):
        with emulated.emulating(emulated.emulated_gpus(text), sys.executable, tmp_path):
            pass
    (told,) = emulated.inexact_parts(tmp_path)
    assert "cuSOLVER" in told.message and "cuFFT" in told.message
