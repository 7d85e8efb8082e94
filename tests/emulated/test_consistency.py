"""The same training, asked in every way: the answers never contradict each other.

Trainings of a small model are planned, taken apart, swept, solved, planned on all cards, read
from a script, run on the emulated GPU and explained. Verdict, peak, categories, first change and
smallest card must agree, in the table, markdown, CSV, JSON and HTML.
"""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from emulated_run import Watched
from lent_simulators import SimulatorsByPython
from tiny_text import trainable_folder, words_file
from weekly_rows import weekly

from oomdoctor.cli.main import run
from oomdoctor.records.codec import loads
from oomdoctor.records.report.report import Report
from oomdoctor.render import render_report
from oomdoctor.render.formats import Style
from oomdoctor.units import MIB, format_bytes

_PAGES = ("table", "markdown", "html", "csv")
_STYLE: dict[str, Any] = {"terminal": False, "width": 120, "color": False, "verbose": True}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
    "max_position_embeddings": 2048,
}


@dataclass(frozen=True, slots=True)
class Training:
    """A rung at one micro-batch size on a card, and whether it fits there."""

    name: str
    card: str
    fits: bool
    micro_batch: int
    length: int
    keys: dict[str, str] = field(default_factory=dict)

    def words(self, model: Path) -> list[str]:
        """The arguments of `plan` for it."""
        rung = ",".join(f"{key}={value}" for key, value in self.keys.items())
        sizes = ("--seq-len", self.length, "--micro-batch", self.micro_batch)
        batch = ("--effective-batch", self.micro_batch * 2)
        words = (str(model), "--gpu", self.card, "--recipe", "none", "--rung", rung)
        return [*words, *map(str, (*sizes, *batch))]


TRAININGS = (
    Training(
        "states",
        "RTX 3060",
        True,
        4,
        1024,
        {"activation_checkpointing": "full", "optimizer": "adamw_bnb_8bit"},
    ),
    Training("qlora", "RTX 3060", True, 2, 512, {"method": "qlora", "quantization": "nf4"}),
)
OTHERS = (
    Training("eager", "RTX 3070", False, 16, 1024, {"method": "lora", "attention": "eager"}),
    Training("full-too-large", "RTX 3070", False, 24, 1024, {"method": "full"}),
    Training("full", "RTX 3070", True, 2, 512, {"method": "full"}),
    Training("lora", "T4", True, 4, 512, {"method": "lora", "activation_checkpointing": "full"}),
    Training("qlora-too-large", "RTX 3060", False, 24, 1024, {"method": "qlora"}),
)


@dataclass(frozen=True, slots=True)
class Asked:
    """Runs commands in this process and keeps what they print."""

    capsys: pytest.CaptureFixture[str]
    model: Path
    python: Path

    def __call__(self, *words: str) -> tuple[int, str]:
        """The exit code and stdout of a command."""
        simulates = words[0] == "plan" or "--exact" in words
        code = run([*words, *(("--quiet", "--python", str(self.python)) if simulates else ())])
        out, err = self.capsys.readouterr()
        assert code in (0, 3), err
        return int(code), out

    def document(self, *words: str) -> dict[str, Any]:
        """The JSON of a command; its exit code is the one it names."""
        code, out = self(*words, "--json")
        document: dict[str, Any] = json.loads(out)
        assert document["exit_code"] == code
        return document

    def pages(self, document: dict[str, Any]) -> dict[str, str]:
        """The stored run of a document in the other formats, and as it is shown first."""
        show = ("show", Path(document["run_dir"]).name)
        whole = {name: self(*show, "--format", name, "--verbose")[1] for name in _PAGES}
        return {"short": self(*show)[1], **whole}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that is large enough to run out of memory."""
    return trainable_folder(tmp_path_factory.mktemp("model"), **_SIZES)


@pytest.fixture
def ask(
    capsys: pytest.CaptureFixture[str],
    model: Path,
    cuda_python: Path,
    one_simulator: SimulatorsByPython,
    emulator_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Asked:
    """Every answer is about the libraries that the script runs with."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(emulator_cache))  # or each builds the emulator again
    one_simulator.trusted.add(str(cuda_python))
    return Asked(capsys, model, cuda_python)


@pytest.mark.parametrize(
    "training", [*TRAININGS, *(weekly(one) for one in OTHERS)], ids=lambda training: training.name
)
def test_every_way_to_ask_gives_the_same_answer(
    ask: Asked, training: Training, watched: Watched, tmp_path: Path
) -> None:
    words = training.words(ask.model)
    plan = ask.document("plan", *words)
    (row,) = plan["results"]
    assert (row["outcome"] == "fits") is training.fits, row["reason"]
    assert plan["exit_code"] == (0 if training.fits else 3)
    _same_on(ask.pages(plan), row)
    _why(ask, words, row)
    _sweep_and_solve(ask, training, words, row)
    smallest = _all_cards(ask, training, words, row)
    script = tmp_path / "train.py"
    run_name = Path(plan["run_dir"]).name
    script.write_text(ask("export", row["label"], "--to", "trainer", "--run", run_name)[1])
    _from_script(ask, training, script, plan)
    text = _emulated(training, script, watched, row, smallest)
    _emulated_pages(watched, row, smallest)
    if text is not None:
        _explained(ask, script, text, plan, smallest)


def _same_on(pages: dict[str, str], row: dict[str, Any]) -> None:
    """The formats of a report say the same of a row: verdict, peak, and what it consists of."""
    named = [size for name, size in row["breakdown"].items() if size and name != "other_bytes"]
    for name, text in pages.items():
        sizes = [row["peak_device_bytes"], *(named if name != "short" else ())]
        assert row["label"] in text, name
        if name == "csv":
            (line,) = csv.DictReader(io.StringIO(text))
            assert line["outcome"] == row["outcome"]
            assert {str(size) for size in sizes} <= set(line.values())
        else:
            assert [size for size in sizes if format_bytes(size) not in text] == [], name
            assert ("Does not fit" in text) is (row["outcome"] == "oom"), name


def _said_on(pages: dict[str, str], size: int, *, in_csv: bool = True) -> None:
    """A size is on each page."""
    said = {name: str(size) if name == "csv" else format_bytes(size) for name in pages}
    names = [name for name in pages if in_csv or name != "csv"]
    assert [name for name in names if said[name] not in pages[name]] == []


def _why(ask: Asked, words: list[str], row: dict[str, Any]) -> None:
    document = ask.document("plan", *words, "--why", row["label"])
    (same,) = document["results"]
    for key in ("label", "key", "outcome", "peak_device_bytes", "peak_phase", "breakdown"):
        assert same[key] == row[key], key
    _same_on(ask.pages(document), row)


def _sweep_and_solve(ask: Asked, training: Training, words: list[str], row: dict[str, Any]) -> None:
    """The peak at the size of the training, and on which side of the limit it is."""
    free = [word for word in words if word not in ("--micro-batch", str(training.micro_batch))]
    at = training.micro_batch
    swept = ask.document("plan", *free, "--sweep", f"micro-batch={at},{2 * at}")
    (line,) = swept["sweep"]["lines"]
    same = line["peaks"][0]
    _said_on(ask.pages(swept), row["peak_device_bytes"])
    assert (same["fits"], same["peak_device_bytes"]) == (training.fits, row["peak_device_bytes"])
    solved = ask.document("plan", *free, "--solve", "micro-batch")
    (line,) = solved["solve"]["lines"]
    assert (line["largest"] >= at) is training.fits
    _said_on(ask.pages(solved), line["peak_device_bytes"])


def _all_cards(ask: Asked, training: Training, words: list[str], row: dict[str, Any]) -> int:
    """The card says the same among all cards; returns the memory of the smallest that fits."""
    place = words.index("--gpu")
    document = ask.document("plan", *words[:place], "--all-gpus", *words[place + 2 :])
    cards = document["cards"]
    (own,) = (card for card in cards if card["name"].endswith(training.card))
    (pick,) = (pick for pick in own["picks"].values() if pick is not None)
    assert (pick["fits"], pick["peak_device_bytes"]) == (training.fits, row["peak_device_bytes"])
    # torch has kernels from 7.5 on; a run on a card with bfloat16 may use them.
    least = (8, 0) if _capability(own) >= (8, 0) else (7, 5)
    fitting = [card for card in cards if card["fitting"] and _capability(card) >= least]
    pages = ask.pages(document)
    refused = [pages[name].partition("Nothing fits on")[2] for name in ("table", "markdown")]
    names = [{name.strip(" .") for name in re.split("[,;:]", text)} for text in refused]
    assert [training.card in each for each in names] == 2 * [not training.fits]
    smallest = min(fitting, key=lambda card: (card["memory_bytes"], card["total_bytes"]))
    return int(smallest["total_bytes"])


def _capability(card: dict[str, Any]) -> tuple[int, ...]:
    return tuple(map(int, card["compute_capability"].split(".")))


def _from_script(ask: Asked, training: Training, script: Path, plan: dict[str, Any]) -> None:
    (row,) = plan["results"]
    words = ("plan", "--from", str(script), "--gpu", training.card, "--recipe", "none")
    document = ask.document(*words)
    (yours,) = document["results"]
    assert document["exit_code"] == plan["exit_code"]
    for key in ("outcome", "peak_device_bytes", "breakdown"):
        assert yours[key] == row[key], key
    pages = ask.pages(document)
    _said_on(pages, row["peak_device_bytes"])
    if not training.fits:
        (remedy,) = plan["cards"][0]["remedies"]
        first = document["yours"]["changes"][0]
        assert (first["change"], first["peak_device_bytes"]) == (
            remedy["change"],
            remedy["peak_device_bytes"],
        )
        _said_on(pages, first["peak_device_bytes"], in_csv=False)  # it has no changes


def _emulated(
    training: Training, script: Path, watched: Watched, row: dict[str, Any], smallest: int
) -> str | None:
    """The script needs what the plan says on the emulated card; returns its error if it fails."""
    data = words_file(script.parent / "train.txt", training.micro_batch * 8 * training.length)
    command = ("python", "train.py", "--data", str(data))
    told = () if training.fits else ("--stop-at-oom",)
    report, _, error = watched.run(training.card, script.read_text(), *command, options=told)
    (rank,) = report.ranks
    assert (rank.outcome == "fits") is training.fits, error
    if training.fits:
        assert rank.peak_reserved_bytes == row["peak_reserved_bytes"]
        assert rank.peak_device_bytes == row["peak_device_bytes"]
        assert rank.peak_phase == row["peak_phase"]
        assert report.smallest_gpu is not None and report.smallest_gpu.total_bytes == smallest
        return None
    assert report.smallest_gpu is None
    start, end = error.index("Traceback"), error.index("torch.OutOfMemoryError")
    return error[start : error.index("\n", end)]


def _emulated_pages(watched: Watched, row: dict[str, Any], smallest: int) -> None:
    """The formats of the run say its peak, and which card would do."""
    report = loads(Report, (watched.folder / "report.json").read_text())
    pages = {name: render_report(report, name, Style(**_STYLE)) for name in _PAGES}
    if row["outcome"] == "oom":
        words = {name: text for name, text in pages.items() if name != "csv"}
        assert all("would do" not in text for text in words.values())
        assert all(re.search("(?i)ran out", text) for text in words.values())
        (line,) = csv.DictReader(io.StringIO(pages["csv"]))
        assert line["outcome"] != "fits"
        return
    _said_on(pages, row["peak_device_bytes"])
    _said_on(pages, smallest, in_csv=False)


def _explained(ask: Asked, script: Path, text: str, plan: dict[str, Any], smallest: int) -> None:
    """`explain --exact` simulates the same training, and begins with the same change."""
    (script.parent / "error.txt").write_text(text)
    (row,), (card,) = plan["results"], plan["cards"]
    words = ("explain", str(script.parent / "error.txt"), "--model", str(ask.model))
    words += ("--config", str(script), "--exact")
    document = ask.document(*words)
    (diagnosis,) = document["diagnoses"]
    # The message says sizes to 0.01 GiB, the context among them.
    assert abs(diagnosis["simulated_bytes"] - row["peak_device_bytes"]) < 32 * MIB
    terms = [line for line in diagnosis["needs"] if re.match("(quantized )?weights|adapters", line)]
    held = sum(_size(line.rpartition(" = ")[2]) for line in terms)
    assert held == pytest.approx(row["breakdown"]["weights_bytes"], rel=0.01)
    (remedy,), first = card["remedies"], diagnosis["remedies"][0]
    after = dict(pair.split("=") for pair in remedy["rung"].split(","))
    changes = {key: value for key, value in after.items() if str(row["config"][key]) != value}
    assert {key: str(value) for key, value in first["changes"].items()} == changes
    assert first["frees_bytes"] == remedy["frees_bytes"]
    assert first["leaves_bytes"] <= diagnosis["room_bytes"]
    pages = {name: ask(*words, "--format", name)[1] for name in _PAGES}
    sizes = [diagnosis["simulated_bytes"], first["leaves_bytes"]]
    if any(remedy["key"] == "bigger_card" for remedy in diagnosis["remedies"]):
        sizes.append(smallest)
    for size in sizes:
        _said_on(pages, size, in_csv=False)
    assert [name for name, text in pages.items() if first["change"] not in text] == []


def _size(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
