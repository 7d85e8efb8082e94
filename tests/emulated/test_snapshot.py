"""Snapshots that torch itself writes, of trainings whose tensors are known by name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
from emulated_run import Watched
from weekly_rows import weekly

from oomdoctor.snapshot.blocks import Lives
from oomdoctor.snapshot.device_answer import device_of
from oomdoctor.snapshot.history import history_of
from oomdoctor.snapshot.reading.events import Events
from oomdoctor.snapshot.reading.snapshot import read_snapshot

SCRIPT = Path(__file__).parents[1] / "examples" / "named_tensors.py"
RIGHT = 0.95  # of the bytes at the peak
MODEL = """
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
config = LlamaConfig(hidden_size=512, intermediate_size=1408, num_hidden_layers=6,
    num_attention_heads=8, num_key_value_heads=4, vocab_size=8000)
AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained("model")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoint")
    subprocess.run([sys.executable, "-c", MODEL], cwd=folder, check=True, capture_output=True)
    return folder / "model"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "loop"),
    [
        ("full", "trainer"),
        weekly("lora", "plain"),
        ("qlora", "trainer"),
        weekly("full", "plain"),
        weekly("lora", "trainer"),
        weekly("qlora", "plain"),
    ],
)
def test_what_held_the_memory_at_the_peak_is_named(
    watched: Watched, model: Path, method: str, loop: str
) -> None:
    words = ("python", "train.py", method, loop, str(model), str(watched.folder))
    _, _, error = watched.run("RTX 4090", SCRIPT.read_text(), *words, options=("--steps", "all"))
    truth_file = watched.folder / "truth.json"
    assert truth_file.exists(), error
    truth = json.loads(truth_file.read_text())
    snapshot = read_snapshot(watched.folder / "memory_snapshot.pickle")
    (device,) = snapshot.devices
    history = history_of(snapshot, device)
    answer = device_of(history)
    assert answer.peak_allocated_bytes == truth["peak"]
    assert answer.peak is not None and answer.steps == 4
    assert answer.growth is None and not answer.truncated

    lives, categories = history.lives, history.categories
    known = _known(lives, device.events, truth["notes"])
    scores = {lives.blocks.size[block] for block, names in known.items() if "logits" in names}
    right: dict[bool, int] = defaultdict(int)
    wrong = []
    for block in lives.blocks.alive(answer.peak.event):
        named, size = categories.of(block).category, lives.blocks.size[block]
        names = known.get(block, {"temporary", "other"})
        names |= {"logits"} if {size, 2 * size, size // 2} & scores else set()
        right[named in names] += size
        if named not in names:
            wrong.append((size, named, names))
    share = right[True] / sum(right.values())
    assert share >= RIGHT, (share, sorted(wrong, key=lambda one: -one[0])[:9])


def _known(lives: Lives, events: Events, notes: list[tuple[str, int, int]]) -> dict[int, set[str]]:
    """What the script noted of each block: by its address, while it was alive."""
    at_address: dict[int, list[int]] = defaultdict(list)
    for block, born in enumerate(lives.blocks.born):
        if born >= 0:
            at_address[events.address[born]].append(block)
    known: dict[int, set[str]] = defaultdict(set)
    for category, address, at_us in notes:
        for block in at_address[address]:
            born, died = lives.blocks.born[block], lives.blocks.died[block]
            ends = events.at_us[died] if died < len(events) else at_us
            if events.at_us[born] <= at_us <= ends:
                known[block].add(category)
    return known
