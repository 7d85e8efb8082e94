"""The script that scores `explain` reads examples of both shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "evaluation" / "score_explain.py"
TEXT = (
    'Traceback (most recent call last):\n  File "train.py", line 10, in <module>\n'
    "    loss.backward()\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 31.73 GiB of which 618.19 MiB is free.\n"
)
TRUTH = {"is_oom": True, "resource": "gpu", "phase": "backward"}
APART = {
    "title": "a run",
    "text": TEXT,
    "features": [],
    "truth": {**TRUTH, "kind": "gpu_caching_allocator", "tried_bytes_text": "2.00 GiB"},
}
BESIDE = {
    "source": "a/b#1",
    "text": TEXT,
    **TRUTH,
    "phase_accept": [],
    "numbers": {"requested": 2 * 2**30, "total": None},
    "cause_accept": ["activations"],
    "cause_defensible": [],
    "first_ok": ["batch"],
    "top3_must": ["nowhere to be found"],
    "bad": ["sell the GPU"],
}


def test_both_shapes_are_scored(tmp_path: Path) -> None:
    for name, example in (("1", APART), ("2", BESIDE)):
        (tmp_path / f"{name}.json").write_text(json.dumps(example))
    ended = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "--misses"], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    lines = (line.rsplit(maxsplit=3) for line in ended.stdout.splitlines()[1:] if "%" in line)
    scores = {field: (right, count) for field, right, count, _ in lines}
    assert scores["is_oom"] == scores["phase"] == ("2", "2")
    assert scores["kind"] == scores["cause"] == scores["first remedy"] == ("1", "1")
    assert scores["top 3 remedies"] == ("0", "1")
    assert scores["no bad remedy in the top 3"] == ("1", "1")
    assert "(a/b#1)" in ended.stdout
