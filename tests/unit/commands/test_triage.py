"""Many logs and jobs: a line each, groups, and what is left out of a long log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from oomdoctor.commands import triage as runs
from oomdoctor.commands.explain.explained import explained
from oomdoctor.commands.triage import Item, exit_of, thinned, triage, triaged
from oomdoctor.errors import ExitCode
from oomdoctor.explain.reading.lines.clean import Line
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.triage import TriageKey
from oomdoctor.system.slurm.records import JobRecord
from oomdoctor.system.slurm.site import SiteJob
from oomdoctor.units import MIB

TEXTS = Path(__file__).parents[2] / "data" / "explain"
PROGRESS = [f"{{'loss': {3 - i / 100:.4f}, 'epoch': {i}}}" for i in range(200)]
Made = Callable[..., Item]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A job, and its log if `text` is given."""

    def make(text: str | None, state: str = "FAILED", **more: str) -> Item:
        number = str(len(list(tmp_path.iterdir())))
        log = tmp_path / f"slurm-{number}.out"
        log.write_text(text or "")
        head = JobRecord(
            "sacct", number, state, user=more.get("user", "ada"), requested_bytes=100 * MIB,
            exit_code=more.get("code", "1:0"),
        )  # fmt: skip
        files = () if text is None else (log,)
        job = SiteJob(head, (head.line(),), "train", more.get("partition", "gpu"), None, files)
        return Item(number, files, job)

    return make


def test_a_job_out_of_gpu_memory(made: Made) -> None:
    one = triaged(made((TEXTS / "trace.txt").read_text()))
    assert (one.outcome, one.resource, one.phase) == ("oom", "gpu", "loss")
    assert (one.reason, one.where) == ("logits", "/home/me/train.py:40")
    assert one.line == "TrainingArguments(use_liger_kernel=True)"
    assert (one.user, one.partition, one.state) == ("ada", "gpu", "FAILED")


def test_a_job_out_of_host_memory_says_what_it_requested(made: Made) -> None:
    one = triaged(made("", "OUT_OF_MEMORY"))
    assert (one.outcome, one.cause) == ("oom", "host_memory")
    assert one.line == "#SBATCH --mem=SIZE  # it requested 100 MiB"


@pytest.mark.parametrize(
    ("state", "code", "outcome", "reason"),
    [
        ("TIMEOUT", "0:0", "other", "timeout"),
        ("CANCELLED by 1000", "0:0", "other", "cancelled"),
        ("NODE_FAIL", "0:0", "other", "hardware"),
        ("BOOT_FAIL", "0:0", "other", "hardware"),
        ("PREEMPTED", "0:0", "other", "preemption"),
        ("FAILED", "7:0", "unknown", "exit code 7"),
        ("FAILED", "0:11", "unknown", "signal 11"),
        ("COMPLETED", "0:0", "ended", "completed"),
        ("RUNNING", "0:0", "ended", "running"),
    ],
)
def test_every_state(made: Made, state: str, code: str, outcome: str, reason: str) -> None:
    one = triaged(made("hello", state, code=code))
    assert (one.outcome, one.reason) == (outcome, reason)


def test_a_job_without_output_says_so(made: Made) -> None:
    assert triaged(made(None)).why.endswith("its output was not found")


def test_an_advice_names_the_job(made: Made) -> None:
    item = made("", "CANCELLED by 7")
    assert f"sacct -j {item.source} " in (triaged(item).remedy or "")


@pytest.mark.parametrize(
    ("by", "keys"),
    [("user", ["ada", "bob"]), ("partition", ["gpu"]), ("cause", ["logits", "timeout"])],
)
def test_groups(made: Made, by: TriageKey, keys: list[str]) -> None:
    trace = (TEXTS / "trace.txt").read_text()
    items = [made(trace), made(trace, user="bob"), made("", "TIMEOUT")]
    found = triage(items, since=None, by=by)
    assert [group.key for group in found.groups] == keys
    assert sum(group.jobs for group in found.groups) == 3
    assert sum(group.oom for group in found.groups) == found.oom == 2
    assert (found.other, found.unknown, found.ended) == (1, 0, 0)


def test_exit_codes(made: Made) -> None:
    memory, late, silent = made("", "OUT_OF_MEMORY"), made("", "TIMEOUT"), made("")

    def code(*items: Item) -> ExitCode:
        return exit_of(triage(items, since=None, by=None))

    assert code(memory, late, silent) == ExitCode.OK
    assert code(late) == ExitCode.NO
    assert code(late, silent) == ExitCode.INCONCLUSIVE


def test_several_processes_keep_the_order(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_ALONE", 2)
    items = [made("", "OUT_OF_MEMORY" if number % 2 else "TIMEOUT") for number in range(6)]
    told: list[int] = []
    found = triage(items, since=None, by=None, on_progress=told.append)
    assert [one.source for one in found.jobs] == [item.source for item in items]
    assert [one.outcome for one in found.jobs] == ["other", "oom"] * 3
    assert told == [1, 2, 3, 4, 5, 6]


def test_progress_is_thinned_and_the_answer_stays() -> None:
    trace = (TEXTS / "trace.txt").read_text().splitlines()
    text = [Line(n, words) for n, words in enumerate([*PROGRESS, *trace, *PROGRESS], 1)]
    kept = list(thinned(text))
    assert len(kept) < len(trace) + 40
    assert [line.number for line in kept] == sorted({line.number for line in kept})
    assert kept[0] == text[0]
    assert kept[-1] == text[-1]
    (whole,), (short,) = explained("a", text, Given()), explained("a", kept, Given())
    assert whole == short


def test_logs_alone(tmp_path: Path) -> None:
    log = tmp_path / "a.out"
    log.write_text((TEXTS / "trace.txt").read_text())
    (item,) = runs.items_of([log])
    one = triaged(item)
    assert (one.source, one.job, one.outcome) == (str(log), None, "oom")
    (missing,) = runs.items_of([tmp_path])
    assert "is a folder" in triaged(missing).why
