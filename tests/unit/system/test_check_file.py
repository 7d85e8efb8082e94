"""`oomdoctor.toml`: what it says, and every error with the name of its check."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.commands.devices.emulated import emulated_gpus
from oomdoctor.errors import OomDoctorError
from oomdoctor.system.check_file import CheckFile, read_checks

GOOD = """
baseline = "memory.json"

[defaults]
gpu = ["RTX 4090", "2xH100"]
max_growth = "5%"
environment = {TOKENIZERS_PARALLELISM = "false", LAYERS = 2}

[[check]]
name = "sft"
command = "python train.py --config 'my sft.yaml'"
max_peak = "20GiB"
steps = 3

[[check]]
name = "lora"
command = ["torchrun", "train.py"]
gpu = "24GiB"
max_peak = "80%"
time_limit = "5m"
"""


def _read(folder: Path, text: str) -> CheckFile:
    path = folder / "oomdoctor.toml"
    path.write_text(text)
    return read_checks(path, emulated_gpus)


def test_a_check_for_each_card_with_the_defaults(tmp_path: Path) -> None:
    file = _read(tmp_path, GOOD)
    assert file.baseline == tmp_path / "memory.json"
    titles = [(check.name, check.gpu) for check in file.checks]
    assert titles == [("sft", "RTX 4090"), ("sft", "2xH100"), ("lora", "24GiB")]
    sft, _, lora = file.checks
    assert sft.command == ("python", "train.py", "--config", "my sft.yaml")
    assert sft.options == ("--steps", "3") and sft.max_growth == 0.05
    assert (lora.max_peak, lora.limit_s) == ("80%", 300.0)
    assert lora.environment == {"TOKENIZERS_PARALLELISM": "false", "LAYERS": "2"}


ROW = '[[check]]\nname = "a"\ncommand = "python a.py"\ngpu = "T4"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it has no [[check]]"),
        ("[check]\nname = 3", "check: is a list of tables"),
        ("x = [", "is not TOML"),
        (ROW + "budget = 3", "a: unknown key budget"),
        (ROW + 'max_peek = "2GiB"', "did you mean max_peak?"),
        (ROW + 'max_peak = "lots"', "a: max_peak: 'lots' is not a size"),
        (ROW + 'max_growth = "double"', "a: max_growth: "),
        (ROW + 'time_limit = "soon"', "a: time_limit: "),
        (ROW + "environment = 1", "a: environment: is a table"),
        (ROW.replace("T4", "T44"), "a: gpu: 'T44' is neither a known card"),
        (ROW.replace('gpu = "T4"\n', ""), "a: has no gpu"),
        (ROW.replace('command = "python a.py"\n', ""), "a: has no command"),
        (ROW.replace('"python a.py"', "[]"), "a: command: is a command"),
        (ROW.replace('"python a.py"', '"python \'a.py"'), "a: command: "),
        (ROW.replace("a.py", "a.py && rm x"), "a: command: runs without a shell, so && is"),
        (ROW.replace("python", "X='1 2' python"), 'write environment = {X = "1 2"}'),
        (ROW + "steps = 0", "a: steps: '0' is not a whole number of at least 1"),
        (ROW + "ranks = 2", "a: ranks: '2' is not one of all, 1"),
        (ROW + "weights = 'none'", "a: weights: 'none' is not one of real, synthetic"),
        (ROW + "values = 'x'", "a: values: is max, half or a number"),
        (ROW.replace('name = "a"\n', ""), "check 1: has no name"),
        (ROW + ROW, "a: is there twice for T4"),
        ("baseline = 3\n" + ROW, "baseline: is the name of a file"),
    ],
)
def test_an_error_names_its_check(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(OomDoctorError, match=r"oomdoctor\.toml") as raised:
        _read(tmp_path, text)
    assert words in raised.value.message and raised.value.exit_code == 2


def test_an_unknown_key_of_all_checks_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(OomDoctorError) as raised:
        _read(tmp_path, f'[defaults]\nmax_peek = "2GiB"\n{ROW}max_peak = "200%"')
    assert raised.value.message.count("unknown key") == 1
    assert "defaults: unknown key max_peek (did you mean max_peak?)" in raised.value.message
    assert "a: max_peak: '200%' is not a percentage below 100%; write 80%" in raised.value.message


def test_a_path_of_the_interpreter_starts_at_the_file(tmp_path: Path) -> None:
    written = {"cuda/bin/python": str(tmp_path / "cuda/bin/python"), "python3": "python3"}
    for python, meant in written.items():
        (check,) = _read(tmp_path, f"{ROW}python = '{python}'").checks
        assert check.options == ("--python", meant)


def test_without_a_file_there_is_one_to_copy(tmp_path: Path) -> None:
    with pytest.raises(OomDoctorError) as raised:
        read_checks(tmp_path / "oomdoctor.toml", emulated_gpus)
    assert "there is no" in raised.value.message and "[[check]]" in (raised.value.hint or "")
