"""`plan --with`: pip makes an environment from a folder of tiny wheels, without a network."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oomdoctor.cli import plan_request as plan_requests
from oomdoctor.cli.streams.carry_out import make_environment
from oomdoctor.errors import OomDoctorError
from oomdoctor.system.interpreters import make
from oomdoctor.system.interpreters.pip import Helper, Stopped
from oomdoctor.system.interpreters.venvs import (
    environments_dir,
    folder_of,
    interpreter_with,
    kept_environments,
)

EINOPS = ("einops==99.1",)


def _wheel(folder: Path, name: str, version: str, code: str, *requires: str) -> None:
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", code)
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        wheel.writestr(f"{info}/METADATA", about)
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(autouse=True)
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place where pip looks."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    _wheel(folder, "einops", "99.1", "ANSWER = 42", "sentencepiece>=98")
    _wheel(folder, "sentencepiece", "98.0", "")
    _wheel(folder, "timm", "99.0", "raise RuntimeError('built for another world')")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_USER", "1")  # would fail in an environment
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(make, "_COMPANIONS", ())
    monkeypatch.setattr(make, "_IMPORTED", ("einops", "timm"))  # the real ones take seconds
    return folder


def _helper(lines: list[str], stopped: Callable[[], bool] = lambda: False) -> Helper:
    return Helper(say=lines.append, stopped=stopped)


def _left() -> list[str]:
    """What is in the folder of environments, hidden files included."""
    return sorted(p.name for p in environments_dir().glob("*"))


def test_an_environment_has_what_was_asked_for_and_shares_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    make.make_ready(EINOPS, _helper(lines))
    assert lines[0].startswith("making an environment with einops==99.1 (once; kept in ")
    code = (
        "import einops, sentencepiece, typer, sys; from importlib.metadata import version; "
        "print(version('einops'), version('sentencepiece'), einops.ANSWER, sys.prefix)"
    )
    python = interpreter_with(EINOPS)
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["99.1", "98.0", "42", str(folder_of(EINOPS))]
    assert [kept.versions for kept in kept_environments()] == [EINOPS]
    assert kept_environments()[0].size_bytes > 0

    def no_pip(*_: object) -> None:
        raise AssertionError("pip was used again")

    monkeypatch.setattr(make, "install", no_pip)
    again: list[str] = []
    make.make_ready(EINOPS, _helper(again))
    assert again == []


def test_two_at_once_make_one() -> None:
    said: list[list[str]] = [[], []]
    threads = [
        threading.Thread(target=make.make_ready, args=(EINOPS, _helper(lines))) for lines in said
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _left() == [folder_of(EINOPS).name]
    assert sum(line.startswith("making") for lines in said for line in lines) == 1


def test_who_waited_for_a_lock_that_is_gone_takes_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environments_dir().mkdir(parents=True)
    lock = environments_dir() / f".{folder_of(EINOPS).name}.lock"
    tries: list[bool] = []
    lock_file = make.take_lock

    def gone_at_first(file: Any, *, quiet: bool) -> bool:
        if not tries:
            lock.unlink()  # by the process that held it
        tries.append(lock_file(file, quiet=quiet))
        return tries[-1]

    monkeypatch.setattr(make, "take_lock", gone_at_first)
    with make._alone(folder_of(EINOPS), _helper([])):
        assert len(tries) == 2
        assert lock.exists()
    assert _left() == []


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        (("einops==98.7",), "unknown_version", "pip finds no einops==98.7"),
        (("timm==99.0",), "versions_unusable", "timm cannot be imported: RuntimeError: built for"),
        (("einops==99.1", "sentencepiece==97"), "unknown_version", "no sentencepiece==97"),
    ],
)
def test_a_failed_environment_is_removed(asked: tuple[str, ...], code: str, says: str) -> None:
    with pytest.raises(OomDoctorError) as caught:
        make.make_ready(asked, _helper([]))
    assert (caught.value.code, int(caught.value.exit_code)) == (code, 2)
    assert says in caught.value.message
    assert _left() == []


def test_a_stop_ends_pip_and_leaves_nothing() -> None:
    lines: list[str] = []
    with pytest.raises(Stopped):
        make.make_ready(EINOPS, _helper(lines, stopped=lambda: bool(lines)))
    assert _left() == []


def test_ctrl_c_promises_no_results(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: tuple[str, ...], helper: Helper) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert helper.stopped()
        raise Stopped

    monkeypatch.setattr(make, "make_ready", interrupted)
    with pytest.raises(OomDoctorError) as caught:
        make_environment(EINOPS, quiet=False)
    assert (caught.value.code, int(caught.value.exit_code)) == ("interrupted", 130)
    said = capfd.readouterr().err
    assert "stopping: no environment will be made (once more to quit at once)" in said
    assert "results" not in said


def test_no_pip_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "PathFinder", SimpleNamespace(find_spec=lambda name: None))
    with pytest.raises(OomDoctorError) as caught:
        make.make_ready(EINOPS, _helper([]))
    assert (caught.value.code, int(caught.value.exit_code)) == ("no_pip", 5)
    assert _left() == []


def test_a_folder_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(OomDoctorError) as caught:
        make.make_ready(EINOPS, _helper([]))
    assert (caught.value.code, int(caught.value.exit_code)) == ("environment_unwritable", 5)


def test_versions_that_are_installed_need_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import version

    asked = (f"transformers=={version('transformers')}",)
    lines: list[str] = []
    make.make_ready(asked, _helper(lines))
    assert lines == [] and _left() == []


PLAN = ("plan", "gpt2", "--gpu", "T4", "--json")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--with", "transformers"), "--with: 'transformers' needs one exact version"),
        (
            ("--with", "torch==2.6.0", "--python", "/bin/sh"),
            "--with: cannot be combined with --python",
        ),
    ],
)
def test_wrong_options_are_usage_errors(
    cli: Callable[..., Any], words: tuple[str, ...], says: str
) -> None:
    ended = cli(*PLAN, *words)
    assert ended.code == 2 and says in ended.err


def test_probe_says_where_the_option_is(cli: Callable[..., Any]) -> None:
    ended = cli("probe", "gpt2", "--with", "torch==2.6.0")
    assert ended.code == 2 and "oomdoctor plan MODEL --with" in ended.err


def test_an_old_version_is_remarked(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_requests, "minimum_versions", lambda: {"einops": "99.2"})
    ended = cli(*PLAN, "--with", "einops==98.7")
    assert "note: --with einops==98.7: oomdoctor is tested with 99.2" in ended.err
    assert json.loads(ended.out)["errors"][0]["code"] == "unknown_version"


def test_env_lists_what_is_kept(cli: Callable[..., Any]) -> None:
    assert "plan --with" not in cli("env").out
    make.make_ready(EINOPS, _helper([]))
    assert "einops==99.1" in cli("env").out
    kept = json.loads(cli("env", "--json").out)
    assert "einops==99.1" in json.dumps(kept)
