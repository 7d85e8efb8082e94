"""The case of a run: what is in it, what never is, and how it is read and packed."""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_runs import ran_out

from oomdoctor.commands.run.case import write_case
from oomdoctor.commands.run.process.command import Ended
from oomdoctor.commands.run.process.streams import Tail
from oomdoctor.commands.run.rank_records import Process
from oomdoctor.commands.run.seen_outside import Samples, Seen
from oomdoctor.errors import OomDoctorError
from oomdoctor.system.store import cases
from oomdoctor.system.store.run_list import stored_runs

EARLIER = Path(__file__).parents[3] / "data" / "earlier" / "before-retries-run.json"
TOKEN = "planted-token-0123456789"
OTHER = "another-secret-value"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state folder, and secrets in the environment, the command, the output and the files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("WANDB_API_KEY", TOKEN)
    monkeypatch.setenv("SOME_PRIVATE_THING", OTHER)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    return tmp_path / "state"


def _written(folder: Path, given: Path | None = None) -> Any:
    folder.mkdir()
    (folder / "snapshot-11-0.pickle").write_bytes(b"\x80\x04" + TOKEN.encode() + b".")
    log = folder / "live.jsonl"
    log.write_text(json.dumps({"command": ["python", f"--key={TOKEN}"]}) + "\n")
    failed = {"device": 0, "snapshot": "snapshot-11-0.pickle"}
    record = {"ooms": [failed, failed], "live_log": str(log), "versions": {"torch": "2.12.1"}}
    tail = Tail()
    tail.add(f"logged in as {TOKEN}\nRuntimeError: hf_AbCdEfGhIjKlMnOpQrStUv\n".encode())
    words = ("python", "train.py", f"--hf_token={TOKEN}x", "--password", "p4ssw0rd")
    report = replace(ran_out(), command_line=words)
    page = lambda one: f"{one.run_dir} {' '.join(one.command_line)}"  # noqa: E731
    seen = Seen(folder, Ended(1, None), tail, Samples(), (), (Process(0, record),))
    return write_case(report, seen, given, page)


def test_a_case_holds_the_evidence_and_no_secret(state: Path, tmp_path: Path) -> None:
    report = _written(tmp_path / "session")
    case = Path(report.run_dir)
    assert case.parent == state / "oomdoctor" / "cases" and "-train-" in case.name
    assert sorted(path.name for path in case.iterdir()) == [
        "case.json",
        "environment.json",
        "memory-rank0.jsonl",
        "output.log",
        "report.txt",
        "snapshot-rank0-gpu0.pickle",
    ]
    drawn = f"oomdoctor snapshot {case}/snapshot-rank0-gpu0.pickle --html timeline.html"
    assert drawn in report.next_commands
    for path in case.iterdir():
        found = path.read_bytes()
        for secret in (TOKEN, OTHER, "p4ssw0rd", "hf_AbCd"):
            assert secret.encode() not in found, (path.name, secret)
    environment = json.loads((case / "environment.json").read_text())
    assert environment["variables"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert not {"PATH", "HOME", "WANDB_API_KEY"} & environment["variables"].keys()
    assert environment["versions"] == {"torch": "2.12.1"}
    assert not any(path.stat().st_mode & 0o077 for path in [case, *case.iterdir()])


def test_a_case_is_shown_by_name_by_folder_and_from_a_zip(state: Path, tmp_path: Path) -> None:
    case = Path(_written(tmp_path / "session").run_dir)
    packed = tmp_path / "case.zip"
    (case / "link").symlink_to("/etc/passwd")
    assert cases.pack(case, packed) == packed.stat().st_size
    with zipfile.ZipFile(packed) as archive:
        names = archive.namelist()
    assert f"{case.name}/case.json" in names and f"{case.name}/link" not in names
    reports = [cases.open_case(name)[0] for name in (case.name, str(case), str(packed))]
    assert reports[0] == reports[1] == reports[2]
    assert reports[0].status == "no" and "(hidden)" in " ".join(reports[0].command_line)
    assert [one.name for one in stored_runs()] == [case.name] == list(cases.case_names())


def test_a_damaged_case_still_has_its_text(state: Path, tmp_path: Path) -> None:
    case = Path(_written(tmp_path / "session").run_dir)
    (case / "case.json").write_text("{}")
    with pytest.raises(OomDoctorError) as raised:
        cases.open_case(case.name)
    assert raised.value.exit_code == 5 and str(case / "report.txt") in (raised.value.hint or "")
    assert next(stored_runs()).problem is not None


def test_a_case_of_an_earlier_version_is_still_read(state: Path) -> None:
    case = state / "oomdoctor" / "cases" / "20261123-014500-train-a1b2"
    case.mkdir(parents=True)
    shutil.copy(EARLIER, case / "case.json")
    assert [one.problem for one in stored_runs()] == [None]
    report, _ = cases.open_case(case.name)
    assert [device.retry_cost for device in report.devices] == [None, None]
    assert report.devices[0].oom is not None and report.devices[1].growth is not None


def test_a_zip_that_holds_no_case(tmp_path: Path) -> None:
    path = tmp_path / "other.zip"
    for content in (b"no archive", None):
        if content is None:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("deep/in/case.json", "{}")
        else:
            path.write_bytes(content)
        with pytest.raises(OomDoctorError) as raised:
            cases.open_case(str(path))
        assert raised.value.exit_code == 5


def test_a_folder_of_choice(state: Path, tmp_path: Path) -> None:
    given = tmp_path / "a" / "b"
    report = _written(tmp_path / "session", given)
    assert report.run_dir == str(given) and (given / "case.json").exists()
    assert f"oomdoctor show {given} --zip b.zip" in report.next_commands
