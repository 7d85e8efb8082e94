"""Leaks in genuine histories are named with their line, and clean loops are not accused."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from emulated_run import Watched

from oomdoctor.records.report.snapshot import GrowthKind, SnapshotDevice
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPT = EXAMPLES / "loops.py"
PARTS = ("loop_model.py", "leaks.py", "clean_loops.py")  # which the script imports
# With OOMDOCTOR_THOROUGH=1 there are more loops, of 200 steps each, which takes minutes.
THOROUGH = os.environ.get("OOMDOCTOR_THOROUGH") == "1"
STEPS = "200" if THOROUGH else "24"
LEAKS: dict[str, GrowthKind | None] = {
    "kept_graph": "graph",
    "kept_outputs": "outputs",
    "more_groups": "optimizer",
    "evaluation_keeps_logits": "evaluation",
    "hooks": "activations",
    "kept_cache": "kv_cache",
    "kept_exception": "exception",
    "freed_in_part": "tensors",
    "fragments": "fragmentation",
}
CLEAN = [
    "longer_and_longer",
    "averages_weights",
    "flushes",
    "ring",
    "masks_for_lengths",
    "experts",
    "unfreezes",
]
MORE_LEAKS: dict[str, GrowthKind | None] = {
    "kept_batches": "tensors",
    "one_long_evaluation": "evaluation",
    "starts_late": "tensors",
    "each_epoch": "tensors",
    "pins": None,  # a snapshot says nothing of the host's memory
}
MORE_CLEAN = [
    "plain",
    "momentum",
    "accumulated",
    "zeroed",
    "mixed",
    "checkpointed",
    "other_lengths",
    "evaluates",
    "logs_losses",
    "recurrent",
    "two_optimizers",
    "generates",
    "skips_a_batch",
    "images",
    "only_evaluates",
]
if THOROUGH:
    LEAKS |= MORE_LEAKS
    CLEAN += MORE_CLEAN


def answers(watched: Watched, names: list[str]) -> dict[str, SnapshotDevice]:
    """What is said of each loop, all of which run in one process."""
    for part in PARTS:
        shutil.copy(EXAMPLES / part, watched.folder)
    words = ("python", "train.py", str(watched.folder), STEPS, *names)
    _, _, error = watched.run("RTX 4090", SCRIPT.read_text(), *words, options=("--steps", "all"))
    found = {}
    for name in names:
        path = watched.folder / f"{name}.pickle"
        assert path.exists(), error
        snapshot = read_snapshot(path)
        (device,) = snapshot.devices
        found[name] = device_of(history_of(snapshot, device))
    return found


@pytest.mark.slow
def test_leaks_are_named_with_their_line_and_clean_loops_are_not_accused(watched: Watched) -> None:
    found = answers(watched, [*LEAKS, *CLEAN])
    accused = {name: found[name].growth for name in CLEAN if found[name].growth is not None}
    assert accused == {}
    lines = (EXAMPLES / "leaks.py").read_text().splitlines()
    for name, kind in LEAKS.items():
        grown = found[name].growth
        assert (None if grown is None else grown.kind) == kind, (name, grown)
        if grown is None or kind == "fragmentation":
            continue
        places = [place for place in (grown.where, *grown.called_from) if place is not None]
        named = {place.line for place in places if Path(place.file).name == "leaks.py"}
        mark = re.compile(rf"# (?:keeps|makes) {name}\b")
        marked = {number for number, line in enumerate(lines, start=1) if mark.search(line)}
        assert marked & named, (name, grown)
