"""The Python behind a command: itself, the shebang of a launcher, or PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.commands.run.interpreter import chosen_python, found_command, path_of, python_of
from oomdoctor.errors import OomDoctorError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH with a Python, some launchers, and other programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    texts = {
        "python": "",
        "python3.11": "",
        "torchrun": "#!/venv/bin/python3\nimport sys\n",
        "accelerate": "#!/usr/bin/env python3.11\n",
        "deepspeed": "#!/bin/sh\n'''exec' \"/a long/venv/bin/python\" \"$0\" \"$@\"\n' '''\n",
        "train.sh": "#!/bin/bash\npython train.py\n",
        "srun": "\x7fELF",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.parametrize(
    ("command", "python"),
    [
        (("python", "x.py"), "{bin}/python"),
        (("python3.11", "-m", "torch.distributed.run"), "{bin}/python3.11"),
        (("torchrun", "x.py"), "/venv/bin/python3"),
        (("accelerate", "launch", "x.py"), "{bin}/python3.11"),
        (("deepspeed", "x.py"), "/a long/venv/bin/python"),
        (("srun", "-n1", "torchrun", "x.py"), "/venv/bin/python3"),
        (("train.sh",), "{bin}/python"),
    ],
)
def test_the_interpreter_is_found(programs: Path, command: tuple[str, ...], python: str) -> None:
    assert str(python_of(command)) == python.format(bin=programs)


def test_a_link_is_not_followed(programs: Path, tmp_path: Path) -> None:
    link = tmp_path / "venv-python"
    link.symlink_to(programs / "python")
    assert chosen_python(str(link), ("true",)) == link


def test_launchers_beside_the_named_python_come_first(programs: Path, tmp_path: Path) -> None:
    beside = tmp_path / "cuda" / "bin"
    beside.mkdir(parents=True)
    for name in ("python", "torchrun"):
        (beside / name).touch(0o755)
    path = path_of(beside / "python")
    assert found_command("torchrun", path) == beside / "torchrun"
    assert found_command("accelerate", path) == programs / "accelerate"


def test_without_a_python_it_has_to_be_named(programs: Path) -> None:
    (programs / "python").unlink()
    with pytest.raises(OomDoctorError) as raised:
        chosen_python(None, ("train.sh",))
    assert raised.value.exit_code == 5 and raised.value.hint == "name it: --python PATH"


def test_a_program_that_cannot_be_run(programs: Path) -> None:
    (programs / "train.sh").chmod(0o644)
    with pytest.raises(OomDoctorError) as raised:
        found_command(str(programs / "train.sh"))
    assert raised.value.exit_code == 2 and "chmod +x" in (raised.value.hint or "")
