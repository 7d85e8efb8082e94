"""The first code of a watched process: it waits for torch, and hides nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import oomdoctor

PACKAGE = Path(oomdoctor.__file__).parent
HOOK = PACKAGE / "monitor" / "inside" / "entry" / "sitecustomize.py"

_TORCH = """
class cuda:
    queued = []
    @classmethod
    def _lazy_call(cls, action):
        cls.queued.append(action)
__version__ = "2.12.1"
"""


def _run(tmp_path: Path, code: str, *others: Path, watched: bool = True) -> str:
    library = tmp_path / "lib"
    library.mkdir()
    (library / "oomdoctor").symlink_to(PACKAGE)
    (library / HOOK.name).symlink_to(HOOK)
    (tmp_path / "watch.json").write_text('{"steps": "steady", "patience": 20}')
    path = os.pathsep.join([str(library), *map(str, others)])
    environment = {"PYTHONPATH": path} | ({"OOMDOCTOR_WATCH": str(tmp_path)} if watched else {})
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    return ended.stdout.strip()


def _fake_torch(tmp_path: Path, text: str = _TORCH) -> Path:
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "torch.py").write_text(text)
    return folder


def test_it_waits_behind_the_initialization_of_cuda(tmp_path: Path) -> None:
    code = "import torch; print(len(torch.cuda.queued))"
    assert _run(tmp_path, code, _fake_torch(tmp_path)) == "1"


def test_looking_for_torch_does_not_end_the_wait(tmp_path: Path) -> None:
    code = (
        "import importlib.util as u; u.find_spec('torch'); import torch; "
        "print(len(torch.cuda.queued), type(torch.__spec__.loader).__name__)"
    )
    assert _run(tmp_path, code, _fake_torch(tmp_path)) == "1 SourceFileLoader"


def test_a_process_without_torch_loads_only_the_finder(tmp_path: Path) -> None:
    code = (
        "import sys, json, email.message; "
        "print([name for name in sorted(sys.modules) if name.startswith('oomdoctor')])"
    )
    inside = "oomdoctor.monitor.inside"
    loaded = ["oomdoctor", "oomdoctor.monitor", inside, f"{inside}.imports"]
    assert _run(tmp_path, code) == str(loaded)


def test_an_unwatched_process_is_left_alone(tmp_path: Path) -> None:
    code = "import torch; print(len(torch.cuda.queued))"
    assert _run(tmp_path, code, _fake_torch(tmp_path), watched=False) == "0"


def test_a_torch_that_is_not_ours_to_know_does_no_harm(tmp_path: Path) -> None:
    assert _run(tmp_path, "import torch; print('fine')", _fake_torch(tmp_path, "x = 1")) == "fine"


def test_the_sitecustomize_that_it_hides_still_runs(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys; sys.was_here = True; place = 'other'")
    code = "import sys, sitecustomize; print(sys.was_here, sitecustomize.place)"
    assert _run(tmp_path, code, other) == "True other"
