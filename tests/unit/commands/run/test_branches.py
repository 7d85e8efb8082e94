"""Which branches on an unknown value may change memory, and which outcome needs more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oomdoctor.analysis.own_code import place_of
from oomdoctor.commands.run.branches import asked_of, decisions, unknown_branches


def _read(file: Path, line: int, kind: str, count: int = 3) -> dict[str, Any]:
    place = {"file": str(file), "inner_file": str(file), "line": line, "inner_line": line}
    return {**place, "operator": "item", "read": kind, "open": True, "count": count}


# The code, the line that reads, what it gives; the word, the condition and the outcome.
CHANGES = [
    ("if loss.item() > t:\n    y = net(x)", 1, "number", ("if", "_number > _0", True)),
    ("if loss.item() > .5: a(x)\nelse: b(x)", 1, "number", ("if", "_number > 0.5", None)),
    ("if 2 * loss.item() < t: pass\nelse: b(x)", 1, "number", ("if", "2 * _number < _0", False)),
    ("if not mask.any():\n    y = net(x)", 1, "truth", ("if", "", False)),
    ("if step > 3 and loss > t: y = net(x)", 1, "truth", ("if", "", True)),
    ("l = loss.item()\nif l < best and l > 0: y = net(x)", 1, "number",
     ("if", "_number < _0 and _number > 0", True)),
    ("l = loss.item()\ngood = l < best\nif good: keep.append(x)", 1, "number",
     ("if", "_number < _0", True)),
    ("l = loss.item()\nok = l < best\nok = ok and l > 0\nif ok: y = net(x)", 1, "number",
     ("if", "_number > 0", True)),
    ("y = net(x) if score.item() > .5 else x", 1, "number", ("if", "_number > 0.5", True)),
    ("while score.item() < .9:\n    y = net(x)", 1, "number", ("while", "_number < 0.9", True)),
    ("while True:\n    y = net(x)\n    if done(y).item(): break", 3, "truth",
     ("while", "", False)),
    ("def f():\n    for x in rows:\n        if loss.item() < t: return\n        net(x)", 3,
     "number", ("if", "_number < _0", False)),
    ("if loss.item() < best:\n    best = loss.item()\n    kept = copy.deepcopy(net)", 1, "number",
     ("if", "_number < _0", True)),
    ("if math.exp(loss.item()) < t: net(x)", 1, "number", ("if", "_number < _0", True)),
]  # fmt: skip
HARMLESS = [
    ("if loss.item() < best:\n    best = loss.item(); torch.save(net.state_dict(), p)", "number"),
    ("if loss.item() > 9: logger.warning(f'{loss.item() * 2}'); losses.append(loss.item())",
     "number"),
    ("if loss.item() > 1e4: raise ValueError(str(loss))", "number"),
    ("for x in rows:\n    if loss.item() < t: break\n    net(x)", "number"),
    ("if loss > worst:\n    patience += 1\n    scheduler.step()", "truth"),
    ("if torch.isfinite(loss).all(): net(x)", "truth"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "line", "kind", "decided"), CHANGES)
def test_what_may_change_memory(
    tmp_path: Path, code: str, line: int, kind: str, decided: tuple[str, str, bool | None]
) -> None:
    file = tmp_path / "train.py"
    file.write_text(code)
    read = _read(file, line, kind)
    branches = decisions(read, ())
    assert branches is not None
    assert [(each.word, each.expression, each.wanted) for each in branches] == [decided]
    assert [list(asked_of([read], ()))] == [[place_of(str(file), line)]]


@pytest.mark.parametrize(("code", "kind"), HARMLESS)
def test_what_changes_no_memory_is_quiet(tmp_path: Path, code: str, kind: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(code)
    read = _read(file, 2 if code.startswith("for") else 1, kind)
    assert decisions(read, ()) == ()
    assert asked_of([read], ()) == {}
    assert unknown_branches([read], ()) == ()


@pytest.mark.parametrize(
    ("step", "counts"), [("t += h", True), ("t = t + h", True), ("t = h", False), ("n += 1", False)]
)
def test_a_loop_that_adds_up_what_it_read_is_told(tmp_path: Path, step: str, counts: bool) -> None:
    file = tmp_path / "train.py"
    body = f"while t < 1.:\n    y = net(y)\n    h = y.max().item()\n    {step}\n"
    file.write_text(f"t, h, n = 0., .1, 0\n{body}")
    branches = decisions(_read(file, 4, "number"), ())
    assert any(each.counts for each in branches or ()) == counts


def test_a_loop_that_was_left_at_once_may_hide_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("for x in rows:\n    if loss.item() < t: break\n    net(x)")
    assert decisions(_read(file, 2, "number", count=1), ())


def test_cells_of_a_notebook_are_the_same_in_another_kernel() -> None:
    names = {place_of(f"/tmp/ipykernel_{pid}/123.py", 4) for pid in (77, 78)}
    assert len(names) == 1
