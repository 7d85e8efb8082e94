"""A file without an end, or with a key without an end, is refused in little time and memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.system.price_file import read_prices
from oomdoctor.system.recipes.recipes import check_recipe, load_recipe
from oomdoctor.system.settings_file import read_with_text
from oomdoctor.system.toml_text import MOST_PARTS, toml_of

MOST_BYTES = 1 << 30
KEY = ".".join(["a"] * 20_000)
SIZES = {"sequence_length": None, "effective_batch_size": None, "micro_batch_size": None}


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))


def ended(*words: str) -> subprocess.CompletedProcess[str]:
    """A command that may have 1 GiB and 60 s."""
    return subprocess.run(
        [sys.executable, "-m", "oomdoctor", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=_limited,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("recipes", "check", "/dev/zero"),
        ("plan", "x/y", "--recipe", "/dev/zero", "--gpu", "L4"),
        ("plan", "x/y", "--gpu", "L4", "--price", "/dev/zero"),
        ("explain", "--config", "/dev/zero", "--", "/dev/null"),
    ],
)
def test_a_device_has_no_end(words: tuple[str, ...]) -> None:
    done = ended(*words)
    assert done.returncode == 2, done.stderr
    assert "larger than" in done.stderr


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json"])
def test_a_file_of_a_model_with_5_gb(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 5 << 30)
    done = ended("plan", str(tmp_path), "--gpu", "L4")
    assert done.returncode == 4, done.stderr


def test_a_pipe_in_the_place_of_a_config_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert ended("plan", str(tmp_path), "--gpu", "L4").returncode == 4


@pytest.mark.parametrize(
    "text",
    [
        f"{KEY} = 1\n",
        f"[{KEY}]\n",
        f"[[{KEY}]]\n",
        f"x = {{{KEY} = 1}}\n",
        f'"\\"".{KEY} = "x"\n',
        '".".' * 20_000 + "a = 1\n",
        f'x = {{a = """\n""", {KEY} = "y"}}\n',
        " . ".join(["a"] * 20_000) + " = 1\n",
    ],
)
def test_a_key_of_20_000_parts(text: str, tmp_path: Path) -> None:
    """It took 11 s."""
    file = tmp_path / "a.toml"
    file.write_text(text)
    began = time.process_time()
    with pytest.raises(OomDoctorError, match=f"more than {MOST_PARTS} parts"):
        read_with_text(file, "--config")
    assert f"more than {MOST_PARTS} parts" in check_recipe(file)[0]
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "text",
    [
        f"x = '{KEY}'\n# {KEY}\n",
        f'x = "{KEY}"\n',
        f'x = """\n{KEY}\n"""\n',
        f"x = '''\n{KEY}'\n'''\n",
        f"x = [{'1.5, ' * 1000}]\n",
        "a.b = 1.5\n",
        f'x = "\\"{KEY}"\n',
    ],
)
def test_many_points_are_no_key(text: str) -> None:
    assert toml_of(text)


@pytest.mark.parametrize("unit", ['\\"', '"""', "'''", '"', "'", '"""\\', "\\", "a.", '""'])
def test_the_length_of_keys_is_looked_at_in_linear_time(unit: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError):
        toml_of(unit * (1 << 18))
    assert time.process_time() - began < 3


def test_a_recipe_that_no_file_can_be() -> None:
    with pytest.raises(OomDoctorError) as error:
        load_recipe("x" * 5000, **SIZES)  # type: ignore[arg-type]
    assert error.value.exit_code == 2


def test_a_recipe_from_a_pipe_is_read() -> None:
    read, write = os.pipe()
    os.write(write, b"[[rung]]\nmethod = 'lora'\n")
    os.close(write)
    try:
        assert check_recipe(Path(f"/dev/fd/{read}")) == ()
    finally:
        os.close(read)


def test_prices_that_are_too_large() -> None:
    with pytest.raises(ValueError, match="larger than 1 MiB"):
        read_prices(Path("/dev/zero"))
