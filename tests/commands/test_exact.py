"""`explain --exact`: the training and its remedies are simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from analysis_make import result
from weekly_rows import weekly

from oomdoctor.analysis.changes.sets import ChangeSet
from oomdoctor.analysis.changes.table import TABLE as CHANGES
from oomdoctor.analysis.command_line import rung_text
from oomdoctor.commands.explain import exact
from oomdoctor.commands.explain.exact import Checked, unknown
from oomdoctor.commands.plan.run_plan import run_plan
from oomdoctor.errors import ExitCode
from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies.closing import told
from oomdoctor.explain.remedies.sets import of_simulation
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.explain.training.known import Given
from oomdoctor.records.configuration.config import Rung, TrainConfig
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.job.result import ProbeResult
from oomdoctor.records.report.diagnosis import Diagnosis, Remedy
from oomdoctor.records.report.report import Report, SurveyRequest, bare_report
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.reading.finish import finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.system.models.hub import resolve
from oomdoctor.system.store.run_folders import RunFolder
from oomdoctor.system.store.run_list import stored_runs
from oomdoctor.units import GIB, MIB, parse_size

MESSAGE = (
    'File "train.py", line 7, in <module>\n    loss = model(**batch).loss\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total "
    "capacity of {} GiB of which 0.40 GiB is free. Including non-PyTorch memory, this process has "
    "3.60 GiB memory in use. Of the allocated memory 3.00 GiB is allocated by PyTorch, and 100.00 "
    "MiB is reserved by PyTorch but unallocated.\n"
)


def explained(capacity: str, *words: str, folder: Path, before: str = "") -> dict[str, Any]:
    """What is explained in a folder; temporary files go to its folder `tmp`."""
    (folder / "tmp").mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", "explain", "-", "--exact", "--json", *words],
        input=before + MESSAGE.format(capacity),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.slow
def test_remedies_of_a_model_that_the_log_names_are_simulated(tmp_path: Path) -> None:
    decoy = tmp_path / "openai-community" / "gpt2"
    decoy.mkdir(parents=True)
    (decoy / "config.json").write_text("a folder of this name must not be opened")
    named = "model_name_or_path: openai-community/gpt2\nper_device_train_batch_size: 16\n"
    document = explained("4.00", "--seq-len", "1024", folder=tmp_path, before=named)
    (found,) = document["diagnoses"]
    assert document["warnings"] == []
    assert (found["model"], found["room_bytes"]) == ("openai-community/gpt2", 4 * GIB)
    peak = found["simulated_bytes"]
    assert peak > 4 * GIB
    simulated = [one for one in found["remedies"] if one["basis"] == "predicted"]
    assert len(simulated) >= 3
    for one in simulated:
        assert one["frees_bytes"] == max(0, peak - one["leaves_bytes"])
        assert one["enough"] == (one["leaves_bytes"] <= 4 * GIB)
    order = [one["enough"] for one in simulated]
    assert order == sorted(order, reverse=True)  # what is enough comes first
    batch = next(one for one in simulated if one["changes"].get("micro_batch_size"))
    assert batch["enough"] and batch["changes"]["micro_batch_size"] < 16
    assert not list(stored_runs()) and not any((tmp_path / "tmp").glob("oomdoctor-explain-*"))


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "length"), [(16, 512), weekly(12, 640)])
def test_the_first_remedy_is_what_a_plan_of_the_same_rung_names(
    batch: int, length: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By arithmetic alone, the micro-batch was cut further than it has to be."""
    failed = diagnosed(micro_batch_size=batch, sequence_length=length)
    assert failed.config is not None
    heard: dict[str, Any] = {"on_event": lambda event: None, "stop": lambda: None}
    asked: list[SurveyRequest] = []

    def plan(request: SurveyRequest, folder: RunFolder, **words: Any) -> Report:
        asked.append(request)
        return run_plan(request, folder, **words)

    monkeypatch.setattr(exact, "run_plan", plan)
    model = ModelRef("gpt2", source="catalogue")
    (tmp_path / "exact").mkdir()
    (tmp_path / "plan").mkdir()
    answer = exact.check(failed, model, sys.executable, RunFolder(tmp_path / "exact"), **heard)
    first, *others = answer.diagnosis.remedies
    assert first.enough and all(one.changes != first.changes for one in others)
    request = asked[0]
    assert request.plan is not None
    alone = replace(
        request,
        recipe=replace(request.recipe, rungs=request.recipe.rungs[:1]),
        plan=replace(request.plan, suggest=True),
    )
    report = run_plan(alone, RunFolder(tmp_path / "plan"), **heard)
    named = report.cards[0].remedies[0]
    changed = TrainConfig(**{**asdict(failed.config), **first.changes})
    assert named.rung == rung_text(changed, alone)
    assert named.peak_device_bytes == first.leaves_bytes


def test_without_a_model_sizes_are_computed_and_the_reason_is_said(tmp_path: Path) -> None:
    document = explained("4.00", folder=tmp_path)
    assert document["diagnoses"][0]["simulated_bytes"] is None
    (warning,) = document["warnings"]
    assert warning["code"] == "not_exact" and "--model MODEL" in warning["message"]


def diagnosed(text: str = MESSAGE.format("4.00"), **given: Any) -> Diagnosis:
    incidents, facts = scan(lines([text.encode()]))
    model = resolve(ModelRef(name="gpt2", source="catalogue"))
    (found,) = diagnose("log", incidents, facts, Given(model=model, **given))
    return found


def test_what_a_simulation_has_to_know() -> None:
    known = diagnosed(micro_batch_size=4, sequence_length=512)
    assert unknown(known) is None
    assert known.config is not None and known.config.sequence_length == 512
    assert "--micro-batch N" in (unknown(diagnosed(micro_batch_size=4)) or "")
    sharded = diagnosed(
        micro_batch_size=4, sequence_length=512, settings={"zero_optimization": {"stage": 3}}
    )
    assert "sharded" in (unknown(sharded) or "")
    assert "how much memory" in (unknown(replace(known, room_bytes=None)) or "")
    assert "GPU memory" in (unknown(replace(known, resource="host")) or "")


def test_the_room_is_what_the_training_could_have() -> None:
    assert diagnosed().room_bytes == 4 * GIB
    assert diagnosed(MESSAGE.format("6.00")).room_bytes == 4 * GIB  # others hold 2 GiB
    assert diagnosed("torch.OutOfMemoryError: CUDA out of memory.\n").room_bytes is None


class Plans:
    """Plans that predict the peak of each rung as `peaks` says, by a part of its label.

    A pair of peaks is one with expandable segments too. `stop` says that it is over after so many
    plans.
    """

    def __init__(self, peaks: dict[str, Any], after: int = 9) -> None:
        self.peaks, self.after = peaks, after
        self.requests: list[SurveyRequest] = []

    def run(self, request: SurveyRequest, folder: RunFolder, **_: Any) -> Report:
        self.requests.append(request)
        assert request.plan is not None
        (gpu,) = request.plan.gpus
        rows = [self._row(rung, parse_size(gpu)) for rung in request.recipe.rungs]
        bare = bare_report("plan", "ok", 0, datetime.now(UTC), 1.0)
        return replace(bare, results=tuple(row for row in rows if row is not None))

    def stop(self) -> ExitCode | None:
        return ExitCode.INTERRUPTED if len(self.requests) >= self.after else None

    def _row(self, rung: Rung, room: int) -> ProbeResult | None:
        found = next((peak for part, peak in self.peaks.items() if part in rung.label), None)
        if found is None:
            return None
        expandable = rung.config.allocator == "expandable_segments"
        peak = found[expandable] if isinstance(found, tuple) else found
        near = ("borderline: may be off by 2%",) if abs(peak - room) < GIB // 10 else ()
        return replace(
            result(rung.label, "fits" if peak <= room else "oom"),
            config=rung.config,
            peak_device_bytes=peak,
            peak_reserved_bytes=peak - GIB // 2,
            peak_allocated_bytes=min(peak, found[-1] if isinstance(found, tuple) else peak) - GIB,
            notes=near,
            borderline=bool(near),
        )


def checked(
    found: Diagnosis, plans: Plans, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Checked:
    monkeypatch.setattr(exact, "run_plan", plans.run)
    model = ModelRef("gpt2", source="catalogue")
    heard = {"on_event": lambda event: None, "stop": plans.stop}
    return exact.check(found, model, sys.executable, RunFolder(folder), **heard)


@pytest.fixture
def failed() -> Diagnosis:
    """In 16 bits: no remedy is borderline."""
    loaded = "model = AutoModelForCausalLM.from_pretrained('gpt2', dtype=torch.bfloat16)\n"
    text = loaded + MESSAGE.format("6.00")
    return diagnosed(text, micro_batch_size=16, sequence_length=1024)


def test_memory_of_other_processes_counts(
    failed: Diagnosis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans = Plans({"the training": 7 * GIB, "smaller micro-batch": 5 * GIB, "": 3 * GIB})
    after = checked(failed, plans, monkeypatch, tmp_path).diagnosis
    (request,) = plans.requests
    assert request.plan is not None and request.plan.gpus == ("4GiB",)
    assert request.model == ModelRef("gpt2", source="catalogue")
    found = {one.change: one.enough for one in after.remedies if one.basis == "predicted"}
    small = next(change for change in found if "smaller micro-batch" in change)
    assert found.pop(small) is False  # it would fit 6 GiB
    assert set(found.values()) == {True}


def test_a_borderline_row_says_so(
    failed: Diagnosis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans = Plans({"the training": 4 * GIB + MIB, "smaller micro-batch": 4 * GIB - MIB, "": GIB})
    after = checked(failed, plans, monkeypatch, tmp_path).diagnosis
    near = [one for one in after.remedies if "borderline: may be off" in (one.note or "")]
    assert [("smaller micro-batch" in one.change, one.enough) for one in near] == [(True, True)]
    assert after.oddities[-1].endswith("the training is borderline: may be off by 2%")
    assert not any((one.note or "").startswith("borderline;") for one in after.remedies)


def test_the_order_is_that_of_a_diagnosis_without_what_is_ruled_out(
    failed: Diagnosis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What could not be simulated once came after what costs more."""
    enough = [one.change for one in failed.remedies if one.enough]
    first, second = enough[:2]
    plans = Plans({"the training": 7 * GIB, second: 2 * GIB, "GPU": 3 * GIB})
    after = checked(failed, plans, monkeypatch, tmp_path).diagnosis.remedies
    assert [one.change for one in after if one.enough][:2] == [first, second]
    plans = Plans({"the training": 7 * GIB, first: 5 * GIB, "": 2 * GIB})
    after = checked(failed, plans, monkeypatch, tmp_path).diagnosis.remedies
    assert [one.change for one in after if one.change in enough[1:]] == enough[1:]
    assert [one.enough for one in after if one.change == first] == [False]


def test_what_frees_nothing_in_a_simulation_is_no_remedy(
    failed: Diagnosis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It was listed with "frees 0 B", also where the simulation needed more than before."""
    first, *others = [one.change for one in failed.remedies if one.changes]
    plans = Plans({"the training": 7 * GIB, first: 8 * GIB, "": 6 * GIB})
    after = checked(failed, plans, monkeypatch, tmp_path).diagnosis.remedies
    assert {one.change for one in after if one.changes} == set(others)
    plans = Plans({"the training": 3 * GIB, "": 3 * GIB})  # the message may be of another moment
    after = checked(failed, plans, monkeypatch, tmp_path).diagnosis.remedies
    assert {first, *others} <= {one.change for one in after}


def test_every_change_of_the_search_has_a_row(failed: Diagnosis) -> None:
    """`explain --exact` ended with an internal error where a plan names unquantized weights."""
    assert failed.config is not None
    for change in CHANGES:
        found = ChangeSet((change,), (0,), failed.config)
        assert told(of_simulation(found), "lora", {}).change


def test_a_file_is_searched_as_a_plan_of_it_is(failed: Diagnosis) -> None:
    """The first change could be one that the file cannot say, such as optimizer offload."""
    values = {"base_model": "gpt2", "micro_batch_size": 16, "sequence_len": 1024}
    training = finished(draft_of([Document("a.yml", values, asked="axolotl")]), dict)
    offers, _ = exact._Search(failed, training).ways(training.config)
    found = {change.key for change in CHANGES if offers(change)}
    assert "smaller_batch" in found and "offload_optimizer" not in found


def test_segments_that_are_enough_have_their_place_and_come_once(
    failed: Diagnosis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = replace(failed, evidence=(*failed.evidence, "try PYTORCH_ALLOC_CONF=.."))
    row = TABLE["expandable_segments"]
    told = replace(told, remedies=(*told.remedies, Remedy(row.change, GIB, "measured", {})))
    plans = Plans({"the training": (5 * GIB, 4 * GIB), "8-bit": (5 * GIB, 3 * GIB), "": 2 * GIB})
    after = checked(told, plans, monkeypatch, tmp_path).diagnosis
    (first,) = [one for one in after.remedies if one.change == row.change]
    others = [one for one in after.remedies if one is not first]
    assert (first.leaves_bytes, first.enough) == (4 * GIB, True)
    assert "smaller micro-batch" in after.remedies[0].change  # as `plan` tries them
    assert first.lines["shell"] == "export PYTORCH_ALLOC_CONF=expandable_segments:True"
    assert first.changes == {"allocator": "expandable_segments"}
    both = next(one for one in others if one.change.endswith("with expandable segments"))
    assert both.enough and both.changes["allocator"] == "expandable_segments"
    assert both.lines["shell"].endswith(first.lines["shell"]) and "AdamW" in both.lines["pytorch"]


def test_a_training_that_fits_by_simulation_is_said(
    failed: Diagnosis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    after = checked(failed, Plans({"": 2 * GIB}), monkeypatch, tmp_path)
    assert after.fault is None and "fits in 4.00 GiB" in after.diagnosis.oddities[-1]


def test_an_interruption_leaves_what_is_known(
    failed: Diagnosis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plans = Plans({"the training": (7 * GIB, 4 * GIB), "smaller micro-batch": 3 * GIB}, after=1)
    after = checked(failed, plans, monkeypatch, tmp_path)
    assert (after.interrupted, len(plans.requests)) == (ExitCode.INTERRUPTED, 1)
    assert after.fault is not None and after.diagnosis.simulated_bytes == 7 * GIB
    assert [one.basis for one in after.diagnosis.remedies].count("predicted") == 1
    nothing = checked(failed, Plans({}, after=0), monkeypatch, tmp_path)
    assert nothing.interrupted == ExitCode.INTERRUPTED and nothing.diagnosis == failed
    assert nothing.fault is not None and "interrupted" in nothing.fault


def test_no_such_interpreter(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(MESSAGE.format("4.00"))
    words = ["explain", str(log), "--exact", "--python", "nowhere"]
    ended = subprocess.run(
        [sys.executable, "-m", "oomdoctor", *words], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2 and "is not a program" in ended.stderr
