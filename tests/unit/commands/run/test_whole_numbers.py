"""Numbers that a line reads from the device: those that may become a size are rounded somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.commands.run.whole_numbers import may_become_size, result_may_become_size

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
    "make(*x.tolist())\ndef make(*sizes):\n    return torch.empty(int(sizes[0]))",
    "make(rows=x.item())\ndef make(**more):\n    return torch.empty(int(more['rows']))",
    "make(*x.tolist())\ndef make(a, b):\n    return torch.empty(int(b))",
    "keep(x.item())\ndef keep(m):\n    global n\n    n = m\ndef g():\n    torch.empty(int(n))",
    "y = torch.empty(*map(int, x.tolist()))",
    "size = x.item()\nup = lambda n: int(n)\ny = torch.empty(up(size))",
    "meter.update(size=x.item())\ny = torch.empty(int(meter.size))",
    "s = x.cpu()\ny = rows[s > s.mean()]",
    "s = x.cpu().numpy()\ny = rows[np.where(s > 0)[0]]",
    "y = [row for row, s in zip(rows, x.tolist()) if s > 0.5]",
    "s = x.cpu().numpy()\ny = rows[torch.as_tensor(rng.random() < s)]",
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
    "right = (x.cpu() > 0.5).float().mean()",
    "s = x.cpu()\ny = int(s.shape[0])",
    "s = x.cpu()\ns[s > 1] = 1",
    "if (loss := x.item()) < best:\n    save(int(step))",
    "at = (0, 1) if x.item() < best else (1, 0)\ny = kept[at]",
)
# What a module of the user's does with a number that another gives it.
GIVEN = (
    ("helper.crop(x.item())", "def crop(n):\n    return torch.empty(int(n))"),
    ("State(keep=x.item())", "class State:\n    keep: float\n    def cut(self): int(self.keep)"),
    ("State(x.item())", "class State:\n    keep: float\n    def cut(self): int(self.keep)"),
    ("New(x.item())", "class New:\n    def __init__(self, n): self.rows = torch.empty(int(n))"),
)


def _written(folder: Path, source: str) -> str:
    file = folder / "train.py"
    file.write_text(HEAD + source + "\n")
    return str(file)


@pytest.mark.parametrize("source", ROUNDED)
def test_a_number_that_is_rounded_may_become_a_size(tmp_path: Path, source: str) -> None:
    assert may_become_size(_written(tmp_path, source), 2, own=True)


@pytest.mark.parametrize(
    "source",
    [
        "y = rows[x.cpu().numpy()]",
        "keep = x.cpu()\ny = rows[keep]",
        "keep = x.cpu()\ny = torch.empty(int(keep.sum()))",
    ],
)
def test_truths_select_as_they_are(tmp_path: Path, source: str) -> None:
    file = _written(tmp_path, source)
    assert may_become_size(file, 2, own=True, read="truths")
    assert not may_become_size(file, 2, own=True) or "int(" in source


HOST_LOOP = """\
kept = []
for i, s in enumerate(scores.tolist()):
    if s > 0.5:
        KEEP
"""


@pytest.mark.parametrize(
    ("keep", "read", "may"),
    [
        ("kept.append(i)", "numbers", True),
        ("n += 1", "numbers", True),
        ("kept.append(i)", "number", True),
        ("n += 1", "number", False),  # early stopping counts so
        ("break", "numbers", False),
    ],
)
def test_a_branch_on_a_number_may_keep_elements(
    tmp_path: Path, keep: str, read: str, may: bool
) -> None:
    file = _written(tmp_path, HOST_LOOP.replace("KEEP", keep))
    assert may_become_size(file, 3, own=True, read=read) is may


def test_all_statements_of_a_line_are_looked_at(tmp_path: Path) -> None:
    assert may_become_size(_written(tmp_path, "n = x.item(); m = int(n)"), 2, own=True)
    assert may_become_size(_written(tmp_path, "n = int(x.item()); total += m"), 2, own=True)


METER = """\
total = x.item()
t = shared([count, total])
count = int(t[COUNT])
total = t[TOTAL]
def shared(values):
    t = torch.tensor(values, device="cuda")
    dist.all_reduce(t)
    return t.tolist()
"""


def test_an_element_of_a_list_is_not_another(tmp_path: Path) -> None:
    """As torchvision's loggers put a count and a sum of losses into one tensor."""
    meter = METER.replace("COUNT", "0").replace("TOTAL", "1")
    assert not may_become_size(_written(tmp_path, meter), 2, own=True)


def test_the_element_itself_is_followed(tmp_path: Path) -> None:
    meter = METER.replace("COUNT", "1").replace("TOTAL", "0")
    assert may_become_size(_written(tmp_path, meter), 2, own=True)


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


def test_a_number_that_a_library_keeps_is_not_followed(tmp_path: Path) -> None:
    source = (
        "def log(self):\n    self.loss = x.item()\ndef save(self):\n    return int(self.loss)\n"
        "def cut(x):\n    n = x.item()\n    return x[: int(n)]"
    )
    file = _written(tmp_path, source)
    assert may_become_size(file, 3, own=True)
    assert not may_become_size(file, 3, own=False)
    assert may_become_size(file, 7, own=False)


@pytest.mark.parametrize(("source", "helper"), GIVEN)
def test_a_number_is_followed_into_other_files(tmp_path: Path, source: str, helper: str) -> None:
    other = tmp_path / "helper.py"
    other.write_text(HEAD + helper + "\n")
    file = _written(tmp_path, source)
    assert may_become_size(file, 2, own=True, files=(str(other), file))
    assert not may_become_size(file, 2, own=True)


def test_what_a_library_returns_is_followed(tmp_path: Path) -> None:
    source = "n = metric.compute()\nmetric.update(z)\ny = torch.empty(int(n * 8))\nm = other()"
    file = _written(tmp_path, source)
    lines = (2, 3, 5)
    assert [result_may_become_size(file, line, ()) for line in lines] == [True, False, False]
