"""A plan from what an earlier one simulated says what a fresh one says, and needs no worker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from analysis_make import request as survey_request
from tiny_models import tiny_folder, tiny_job

from oomdoctor.commands.jobs import simulators
from oomdoctor.commands.plan.run_plan import run_plan
from oomdoctor.commands.probe.run_survey import run_survey
from oomdoctor.records.codec import to_json
from oomdoctor.records.configuration.config import Recipe, Rung, TrainConfig
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import SimulationRequest
from oomdoctor.records.report.plan import PlanRequest, Sweep
from oomdoctor.records.report.report import Report, SurveyRequest
from oomdoctor.system.environment import cache_dir
from oomdoctor.system.store import run_folders

pytestmark = [pytest.mark.usefixtures("one_simulator"), pytest.mark.timeout(900)]
FULL = TrainConfig(sequence_length=64, effective_batch_size=16)
RUNGS = (
    Rung("full", FULL),
    Rung("lora", replace(FULL, method="lora", activation_checkpointing="full")),
    Rung("flash", replace(FULL, attention="flex_attention", sharding="fsdp", offload="parameters")),
)


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., SurveyRequest]:
    model = tiny_folder(tmp_path / "model", "gqa-tied")

    def request(plan: PlanRequest, batch: int = 16, **changes: Any) -> SurveyRequest:
        rungs = tuple(Rung(r.label, replace(r.config, effective_batch_size=batch)) for r in RUNGS)
        return survey_request(
            **{
                "model": ModelRef(str(model)),
                "recipe": Recipe("tiny", "", rungs, "command line"),
                "device": "cuda",
                "sequence_length": 64,
                "effective_batch_size": batch,
                "python": sys.executable,
                "plan": plan,
                **changes,
            }
        )

    return request


def planned(request: SurveyRequest) -> Report:
    folder = run_folders.create("tiny")
    return run_plan(request, folder, on_event=lambda event: None, stop=lambda: None)


def numbers(report: Report) -> Any:
    """All that a report says but times of this run, places, and where its simulations are from."""
    document = to_json(report)
    for key in ("started_at", "elapsed_s", "run_dir", "simulations", "request"):
        del document[key]
    del document["next_commands"], document["next_on_gpu"]  # these say --fresh
    document["machine"].pop("memory_available_bytes")
    for row in document["results"]:
        del row["elapsed_s"], row["cached_at"]
    return document


class Refuses:
    """A worker host that must not be needed."""

    def start(self) -> None:
        raise AssertionError("a worker was started")

    def close(self) -> None:
        pass


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(simulators, "WorkerHost", lambda *_, **__: Refuses())


OTHERS = [
    {"plan": PlanRequest(("A10G",))},
    {"plan": PlanRequest(("20MiB",))},
    {"plan": PlanRequest(("3MiB",))},
    {"plan": PlanRequest(("RTX 3090",)), "headroom": 0.5},
    {"plan": PlanRequest(("L4", "RTX 4090", "30MiB"))},
    {"plan": PlanRequest(("80GiB",))},
    {"plan": PlanRequest(("L4",)), "batch": 12},
    {"plan": PlanRequest(("L4",)), "batch": 48},
    {"plan": PlanRequest(("L4",)), "micro_batch_size": 4},
    {"plan": PlanRequest(("L4",), why="full")},
    {"plan": PlanRequest(("L4",), sweep=Sweep("micro_batch_size", (1, 3, 8, 40)))},
]


@pytest.mark.skipif(
    find_spec("nvidia") is not None,
    reason="with a CUDA build of torch, one of them runs on the emulated card each time",
)
@pytest.mark.slow
def test_every_number_from_the_cache_is_that_of_a_fresh_simulation(
    ask: Callable[..., SurveyRequest], no_worker: Callable[[], None]
) -> None:
    # Not even the weights fit, yet what is recorded serves the others.
    first = planned(ask(PlanRequest(("1KiB",)), batch=512))
    assert first.simulations is not None
    assert (first.simulations.total, first.simulations.from_cache) == (3, 0)
    assert [row.outcome for row in first.results] == ["oom", "oom", "unsupported"]
    kept = {path.name: path.read_bytes() for path in (cache_dir() / "simulations").iterdir()}
    fresh = [numbers(planned(ask(**other, fresh=True))) for other in OTHERS]
    for name, data in kept.items():  # forget what the fresh ones found
        (cache_dir() / "simulations" / name).write_bytes(data)
    no_worker()
    for other, expected in zip(OTHERS, fresh, strict=True):
        report = planned(ask(**other))
        assert numbers(report) == expected, other
        assert report.simulations is not None
        assert report.simulations.from_cache == report.simulations.total
        assert report.simulations.oldest_at is not None
        assert all(row.cached_at for row in report.results)


@pytest.mark.slow
def test_what_is_missing_or_damaged_is_simulated_and_kept(
    ask: Callable[..., SurveyRequest], no_worker: Callable[[], None]
) -> None:
    expected = numbers(planned(ask(PlanRequest(("L4",)))))
    for path in (cache_dir() / "simulations").iterdir():
        path.write_bytes(path.read_bytes()[:-5])
    report = planned(ask(PlanRequest(("L4",))))
    assert numbers(report) == expected
    assert report.simulations is not None and report.simulations.from_cache == 0
    other_kernels = planned(ask(PlanRequest(("T4",))))
    assert other_kernels.simulations is not None
    assert other_kernels.simulations.from_cache == 1  # the rung that is not supported
    no_worker()
    assert numbers(planned(ask(PlanRequest(("L4",))))) == expected
    assert numbers(planned(ask(PlanRequest(("T4",))))) == numbers(other_kernels)


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_a_warning(ask: Callable[..., SurveyRequest]) -> None:
    cache_dir().parent.mkdir(parents=True, exist_ok=True)
    cache_dir().write_text("not a folder")
    report = planned(ask(PlanRequest(("L4",))))
    assert report.exit_code == 0
    assert "not_kept" in [warning.code for warning in report.warnings]


@pytest.mark.slow
def test_a_probe_warns_of_such_a_cache_too(ask: Callable[..., SurveyRequest]) -> None:
    cache_dir().parent.mkdir(parents=True, exist_ok=True)
    cache_dir().write_text("not a folder")
    asked = replace(ask(PlanRequest(("L4",)), batch=1), plan=None, device="cpu")
    folder = run_folders.create("tiny")
    report = run_survey(asked, folder, wait=False, on_event=lambda event: None, stop=lambda: None)
    assert report.exit_code == 0
    assert "not_kept" in [warning.code for warning in report.warnings]


@pytest.mark.slow
def test_the_command_from_the_cache_imports_no_torch(ask: Callable[..., SurveyRequest]) -> None:
    model = ask(PlanRequest(("L4",))).model.name
    plan = ("plan", model, "--recipe", "none", "--rung", "method=full", "--seq-len", "64")
    script = (
        "import sys\n"
        "from oomdoctor.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "assert not {'torch', 'transformers', 'multiprocessing'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", script, *plan, "--verbose", "--gpu"]
    first = subprocess.run([*command, "L4"], capture_output=True, text=True, check=True)
    assert "from cache" not in first.stdout
    again = subprocess.run([*command, "RTX 4090"], capture_output=True, text=True, check=True)
    assert "from cache of 20" in again.stdout
    fresh = subprocess.run([*command, "L4", "--fresh"], capture_output=True, text=True, check=True)
    assert "from cache" not in fresh.stdout


@pytest.mark.slow
def test_one_model_records_all_lengths_of_a_sweep_as_models_of_their_own_would(
    ask: Callable[..., SurveyRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = Sweep("sequence_length", (16, 40, 64, 100))
    launched: list[ProbeJob] = []
    launch = simulators.launch

    def counted(host: Any, job: ProbeJob, *arguments: Any, **options: Any) -> Any:
        launched.append(job)
        return launch(host, job, *arguments, **options)

    monkeypatch.setattr(simulators, "launch", counted)
    together = planned(ask(PlanRequest(("L4",), sweep=lengths), fresh=True))
    # One job for each rung, and one more for each length of the rung that is not supported.
    simulated = [job.simulation for job in launched if job.simulation is not None]
    shared = [len(request.other_lengths) for request in simulated]
    assert sorted(shared, reverse=True) == [3, 3, 3, 0, 0, 0]
    assert together.simulations is not None
    assert together.simulations.from_cache == 0
    monkeypatch.setattr(simulators.Memory, "may_share", lambda self, job: False)
    launched.clear()
    alone = planned(ask(PlanRequest(("L4",), sweep=lengths), fresh=True))
    assert len([job for job in launched if job.simulation is not None]) == 12
    assert numbers(together) == numbers(alone)


def test_a_model_that_keeps_what_it_computed_for_a_length_is_not_shared() -> None:
    memory = simulators.Memory(sys.executable, {})
    job = replace(tiny_job("dense"), mode="simulate", device_type="cuda")
    job = replace(job, simulation=SimulationRequest((1,), ()))
    assert memory.may_share(job)
    rope = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
    model = replace(job.model, config={**job.model.config, **rope})
    assert not memory.may_share(replace(job, model=model))
    own = replace(job.model, config={**job.model.config, "auto_map": {}}, trust_remote_code=True)
    assert not memory.may_share(replace(job, model=own))


def test_the_key_holds_what_shapes_a_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = simulators.Memory(sys.executable, {})
    job = replace(tiny_job("dense"), mode="simulate", device_type="cuda")
    job = replace(job, simulation=SimulationRequest((1, 2), ()))
    key = memory.key(job)
    assert key is not None

    def rung(**changes: Any) -> str | None:
        return memory.key(replace(job, config=replace(job.config, **changes)))

    def model(**changes: Any) -> str | None:
        return memory.key(replace(job, model=replace(job.model, **changes)))

    same = (
        rung(micro_batch_size=7),
        rung(effective_batch_size=64),
        rung(allocator="expandable_segments"),
        model(id="another name", path="/elsewhere", revision="abc"),
        memory.key(replace(job, label="x", simulation=SimulationRequest((4,), (), detail=True))),
    )
    assert set(same) == {key}
    other = [
        rung(sequence_length=job.config.sequence_length + 1),
        rung(method="lora"),
        rung(lora_dropout=0.1),
        model(task="sequence-classification"),
        model(config={**job.model.config, "vocab_size": 7}),
        memory.key(replace(job, seed=1)),
        memory.key(replace(job, simulation=SimulationRequest((1,), (), as_cuda=False))),
        memory.key(replace(job, mode="inspect", device_type="cpu", simulation=None)),
    ]
    monkeypatch.setenv("TORCH_CUDNN_SDPA_ENABLED", "0")
    other.append(memory.key(job))
    assert len({key, *other}) == len(other) + 1
    monkeypatch.setenv("OOMDOCTOR_CACHE_SIZE", "0")
    assert memory.key(job) is None


def test_custom_code_is_a_part_of_the_key(tmp_path: Path) -> None:
    memory = simulators.Memory(sys.executable, {})
    code = tmp_path / "modeling_own.py"
    job = replace(tiny_job("dense"), mode="simulate", simulation=SimulationRequest((1,), ()))

    def key(automatic: str = "modeling_own.Own") -> str | None:
        config = {**job.model.config, "auto_map": {"AutoModel": automatic}}
        own = replace(job.model, config=config, path=str(tmp_path), trust_remote_code=True)
        return memory.key(replace(job, model=own))

    assert key() is None  # the code is somewhere else
    code.write_text("a = 1")
    first = key()
    code.write_text("a = 2")
    assert None is not first != key() is not None
    assert key("someone/else--modeling_own.Own") is None
