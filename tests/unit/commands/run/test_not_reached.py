"""Which calls of a script come after the line where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oomdoctor.commands.run.places import not_reached

SCRIPT = """\
import torch
def check(model):
    validate(model)
@torch.inference_mode()
def look_at(model):
    model(1)
def train(model):
    evaluate(model)
    for epoch in range(3):
        sample(model)
        for batch in data:
            loss(model).backward()
            optimizer.step()
            model.eval()
        look_at(model)
    torch.save(model.state_dict(), "x")
train(model)
model.generate()
"""


def _record(folder: Path, **changes: Any) -> dict[str, Any]:
    file = folder / "train.py"
    file.write_text(SCRIPT)
    library = "/venv/lib/python3.11/site-packages/torch/optim/optimizer.py"
    frames = [(library, 9), (str(file), 13), (str(file), 17)]
    record = {
        "stopped_in": [{"filename": name, "line": line, "name": "f"} for name, line in frames],
        "library_folders": [],
        "without_gradients": False,
    }
    return record | changes


@pytest.mark.parametrize(
    ("seen", "names"),
    [
        (False, [("look_at", 15), ("save", 16), ("sample", 10), ("generate", 18)]),
        (True, [("look_at", 15), ("save", 16), ("generate", 18)]),  # it may have sampled before
    ],
)
def test_calls_after_the_stop(tmp_path: Path, seen: bool, names: list[tuple[str, int]]) -> None:
    found = not_reached(_record(tmp_path, without_gradients=seen))
    assert [(one.function, one.line) for one in found] == names


def test_a_run_that_was_not_stopped_left_nothing_out(tmp_path: Path) -> None:
    assert not_reached(_record(tmp_path, stopped_in=[])) == ()
    assert not_reached({"library_folders": []}) == ()


INLINE = """\
import torch
model, optimizer = make()
model.train()
for epoch in range(3):
    for batch in data:
        model(batch).backward()
        with torch.no_grad():
            scale.mul_(0.9)
        optimizer.step()
    with torch.no_grad():
        average.copy_(scale)
    with torch.inference_mode():
        for batch in other_data:
            right += model(batch).argmax(-1).eq(1).sum()
"""


def test_code_without_gradients_after_the_stop_counts_if_it_runs_a_model(tmp_path: Path) -> None:
    record = _record(tmp_path)
    (tmp_path / "train.py").write_text(INLINE)
    record["stopped_in"] = [{"filename": str(tmp_path / "train.py"), "line": 9, "name": "f"}]
    after = [(place.function, place.line) for place in not_reached(record)]
    assert after == [("inference_mode", 12)]


STAGES = """\
model.features.requires_grad_(False)
for step, batch in enumerate(data):
    if step == 500:
        model.features.requires_grad_(True)
        optimizer = torch.optim.SGD(model.parameters())
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
        for weight in head.parameters():
            weight.requires_grad = True
        embeddings.requires_grad = False
    critic.requires_grad_(True)
    model(batch).backward()
    optimizer.step()
    if step % 100 == 0:
        points = torch.nn.Parameter(torch.cat([points, points[big]]))
"""


def test_what_lets_more_weights_train_later_was_not_reached(tmp_path: Path) -> None:
    record = _record(tmp_path)
    (tmp_path / "train.py").write_text(STAGES)
    record["stopped_in"] = [{"filename": str(tmp_path / "train.py"), "line": 12, "name": "f"}]
    after = [(place.function, place.line) for place in not_reached(record)]
    assert after == [
        *(("Parameter", 14), ("requires_grad_", 4), ("SGD", 5), ("requires_grad = True", 8))
    ]
