"""The script that scores `explain` reads examples of both shapes."""

from __future__ import annotations

import json
import re
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
    table, reading = ended.stdout.split("field", 1)
    assert re.search(r"^memory failure recognized +1 of 1 +100.0% +21% to 100%", table, re.M)
    for right in ("first cause right", "first remedy right"):
        assert re.search(rf"^{right} +1 of 1", table, re.M)
    assert re.search(r"^cure among the first three +0 of 1", table, re.M)
    assert re.search(r"^harmful among the first three +0 of 1", table, re.M)
    assert "cure among the first three: wanted nowhere to be found" in table
    assert "a/b#1" in table
    for right in ("is_oom", "phase", "kind"):
        assert re.search(rf"^{right} +1 +1 +100.0%", reading, re.M)
