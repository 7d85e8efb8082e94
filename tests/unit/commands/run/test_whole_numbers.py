"""Numbers that a line reads from the device: those that may become a size are rounded somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.commands.run.whole_numbers import may_become_size

HEAD = "import math, torch\n"
ROUNDED = (
    "n = int(x.mean().item())",
    "n = int(x.mean())",
    "n = math.ceil(x.item() * 8)",
    "y = torch.arange(x)",
    "y = z[: round(x.item())]",
    "n = x.item()\ny = torch.empty(int(n * 8))",
    "n = x.item()\nm = n * 8\ny = torch.empty(int(m))",
    "lengths = x.tolist()\nfor n in lengths:\n    y = torch.empty(int(n))",
    "a, b = x.tolist()\ny = torch.empty(int(b))",
    "self.n = x.item()\ny = torch.empty(int(self.n))",
    "kept.append(x.item())\ny = torch.empty(int(kept[0]))",
    "if (n := x.item()): y = torch.empty(int(n))",
    "rows = [int(n) for n in x.tolist()]",
    "y = x.cpu().numpy().astype(int)",
    "make(x.item())\ndef make(n):\n    return torch.empty(int(n))",
    "make(rows=x.item())\ndef make(rows):\n    return torch.empty(int(rows))",
    "n = x.item()\ndef make():\n    return torch.empty(int(n))",
)
NOT_ROUNDED = (
    "loss = x.item()",
    "losses.append(x.item())\nfor i in range(len(losses)): pass",
    "total += x.item()\nprint(f'{total:.2f}')",
    "logs['loss'] = round(x.item(), 4)",
    "if x.item() > int(limit): stop()",
    "log(int(step), x.item())",
    "print(int(x.item() * 100))",
    "loss = x.item()\ndef f(loss):\n    return int(loss)",
    "best = int(x.item() < best)",
)


def _written(folder: Path, source: str) -> str:
    file = folder / "train.py"
    file.write_text(HEAD + source + "\n")
    return str(file)


@pytest.mark.parametrize("source", ROUNDED)
def test_a_number_that_is_rounded_may_become_a_size(tmp_path: Path, source: str) -> None:
    assert may_become_size(_written(tmp_path, source), 2, own=True)


@pytest.mark.parametrize("source", NOT_ROUNDED)
def test_a_number_that_stays_one_is_no_size(tmp_path: Path, source: str) -> None:
    assert not may_become_size(_written(tmp_path, source), 2, own=True)


def test_what_a_function_returns_is_followed(tmp_path: Path) -> None:
    source = "def mean(x):\n    return x.mean().item()\ny = torch.empty(int(mean(z)))"
    assert may_become_size(_written(tmp_path, source), 3, own=True)
    other = tmp_path / "other"
    other.mkdir()
    assert not may_become_size(_written(other, source.replace("int(mean(z))", "3")), 3, own=True)
    assert not may_become_size(str(tmp_path / "missing.py"), 3, own=True)


def test_a_number_that_leaves_a_function_of_a_library_is_not_followed(tmp_path: Path) -> None:
    source = (
        "def log(self):\n    self.loss = x.item()\ndef save(self):\n    return int(self.loss)\n"
        "def cut(x):\n    n = x.item()\n    return x[: int(n)]"
    )
    file = _written(tmp_path, source)
    assert may_become_size(file, 3, own=True)
    assert not may_become_size(file, 3, own=False)
    assert may_become_size(file, 7, own=False)
