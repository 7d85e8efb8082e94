"""Whether the user's code makes an optimizer of torch, so that backward passes are no steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.monitor.inside import passes
from oomdoctor.monitor.inside.passes import Passes, makes_an_optimizer


@pytest.mark.parametrize(
    ("code", "makes"),
    [
        ("import torch\no = torch.optim.SGD(w)", True),
        ("import torch.optim as optim\no = optim.AdamW(w)", True),
        ("from torch import optim\no = optim.AdamW(w)", True),
        ("from torch.optim import AdamW as A\ndef f(w):\n    return A(w)", True),
        ("import torch.optim as optim\nw -= g", False),
        ("from torch.optim import lr_scheduler\ns = lr_scheduler.StepLR(o, 3)", False),
        ("import torch\ns = torch.optim.lr_scheduler.StepLR(o, 3)", False),
        ("class SGD: pass\no = SGD(w)", False),
        ("import mine as optim\no = optim.SGD(w)", False),
        ("this is no Python", False),
    ],
)
def test_what_code_makes(tmp_path: Path, code: str, makes: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(code)
    assert makes_an_optimizer(str(file)) is makes


def test_one_rule_says_whether_an_optimizer_is_awaited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that live and those that the code is yet to make were asked for apart."""
    file = tmp_path / "train.py"
    file.write_text("import torch\no = torch.optim.SGD(w)")
    monkeypatch.setattr(passes, "own_files", lambda: [str(file)])
    watch = Passes(lambda: None)
    assert watch.awaits({}, 3) and not watch.take_steps()
    watch._all = passes._LATE
    assert not watch.awaits({}, 3) and watch.take_steps()
