"""What replays say of other GPUs and settings is what torch does there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emulated_run import Watched

from oomdoctor.snapshot.changes import half_sizes
from oomdoctor.snapshot.device_answer import fragmentation_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.snapshot import read_snapshot
from oomdoctor.snapshot.replays import Runs

SCRIPT = Path(__file__).parents[1] / "examples" / "replayed.py"


@pytest.mark.slow
def test_replays_agree_with_torch(watched: Watched) -> None:
    words = ("python", "train.py", str(watched.folder))
    _, _, error = watched.run("RTX 4090", SCRIPT.read_text(), *words, options=("--steps", "all"))
    result = watched.folder / "ended.json"
    assert result.exists(), error
    snapshot = read_snapshot(watched.folder / "history.pickle")
    (device,) = snapshot.devices
    history = history_of(snapshot, device)
    runs = Runs(history)
    assert runs.note is None
    halves = half_sizes(history, runs.order)
    assert halves is not None
    outcomes = set()
    for settings, rows, limit, fits, peak in json.loads(result.read_text()):
        expandable = settings.endswith("True")
        if rows < 48:
            most, least = (
                runs.run(2**50, expandable=expandable, sizes=sizes).needed_bytes for sizes in halves
            )
            assert least <= peak <= most
            continue
        found = runs.run(limit or 2**50, expandable=expandable)
        assert found.fits == fits, (settings, limit)
        outcomes.add((expandable, limit is None, fits))
        if expandable and limit is None:
            assert fragmentation_of(history).with_expandable_segments_bytes == peak
        if fits:
            assert found.peak_reserved_bytes == peak, (settings, limit)
    assert len(outcomes) == 5  # of expandable segments, all smaller ones fail
