"""A plan that the limits of a login node would end is refused, with the line to type."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from analysis_make import request as survey_request

from oomdoctor.commands.devices import startup_errors
from oomdoctor.commands.jobs import simulators
from oomdoctor.errors import ExitCode, OomDoctorError, machine_error
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import Attempt
from oomdoctor.records.report.plan import PlanRequest
from oomdoctor.system.environment import SlurmFacts
from oomdoctor.system.machine.limits import HostLimit
from oomdoctor.units import GIB, MIB

REQUEST = survey_request(device="cuda", plan=PlanRequest(("T4",)))


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the limits of this machine, and whether it is a login node of Slurm."""

    def limit(*found: HostLimit, login: bool = False) -> None:
        monkeypatch.setattr(startup_errors, "host_limits", lambda: found)
        facts = SlurmFacts(None, None, None, None, None, login)
        monkeypatch.setattr(startup_errors, "slurm", lambda: facts)

    return limit


def refusal() -> OomDoctorError:
    with pytest.raises(OomDoctorError) as caught:
        startup_errors.check_limits(REQUEST)
    assert (caught.value.code, caught.value.exit_code) == ("host_limit", ExitCode.MACHINE_UNFIT)
    return caught.value


ADDRESSES = partial(HostLimit, "addresses", "`ulimit -v` allows each process this much")
MEMORY = partial(HostLimit, "memory", "the cgroup user-7.slice allows this much")
TASKS = partial(HostLimit, "tasks", "`ulimit -u` allows 40")


def test_enough_of_everything(limited: Callable[..., None]) -> None:
    limited(ADDRESSES(4 * GIB), MEMORY(700 * MIB), TASKS(24))
    assert startup_errors.check_limits(REQUEST) == ()


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (ADDRESSES(900 * MIB - 1), "each process this much; it needs at least 900 MiB"),
        (MEMORY(700 * MIB - 1), "user-7.slice allows this much; it needs at least 700 MiB"),
        (TASKS(23), "allows 40; it needs at least 24 of them"),
    ],
)
def test_too_little_of_one(limited: Callable[..., None], limit: HostLimit, words: str) -> None:
    limited(ADDRESSES(4 * GIB), MEMORY(4 * GIB), limit)
    assert refusal().message.endswith(words)


@pytest.mark.parametrize(
    ("limit", "login", "start"),
    [
        (ADDRESSES(1, can_be_raised=True), True, "raise it: ulimit -Sv unlimited && oomdoctor "),
        (TASKS(1, can_be_raised=True), True, "raise it: ulimit -Su unlimited && oomdoctor plan "),
        (MEMORY(1), True, "run it in a job: srun --cpus-per-task=2 --mem=4G oomdoctor plan "),
        (MEMORY(1), False, "run it where the limit is higher, such as in a job with 4 GiB: oomd"),
    ],
)
def test_the_hint_is_the_line_to_type(
    limited: Callable[..., None], limit: HostLimit, login: bool, start: str
) -> None:
    limited(limit, login=login)
    hint = refusal().hint or ""
    assert hint.startswith(start)
    assert "--gpu T4" in hint


def test_few_addresses_are_worth_a_warning(limited: Callable[..., None]) -> None:
    limited(ADDRESSES(4 * GIB - 1), login=True)
    (warning,) = startup_errors.check_limits(REQUEST)
    assert warning.code == "few_addresses"
    assert "srun --cpus-per-task=2 --mem=4G oomdoctor plan " in warning.message


def test_an_error_of_a_limit_gets_the_line_to_type(limited: Callable[..., None]) -> None:
    limited(MEMORY(GIB), login=True)
    error = startup_errors.with_remedy(machine_error("host_oom", "killed", "see the log"), REQUEST)
    assert (error.code, error.message) == ("host_oom", "killed")
    assert "srun --cpus-per-task=2 --mem=4G oomdoctor plan " in (error.hint or "")
    other = machine_error("library_missing", "no torch", "install it")
    assert startup_errors.with_remedy(other, REQUEST) is other
    limited()
    assert (
        startup_errors.with_remedy(replaced := machine_error("host_oom", "x"), REQUEST) is replaced
    )


@pytest.mark.parametrize(("available", "hosts"), [(1535 * MIB, 1), (1536 * MIB, 2)])
def test_where_memory_is_short_one_worker_simulates(
    monkeypatch: pytest.MonkeyPatch, available: int, hosts: int
) -> None:
    monkeypatch.setattr(simulators, "available_memory", lambda: available)
    monkeypatch.setattr(simulators.os, "sched_getaffinity", lambda pid: set(range(64)))
    assert simulators._how_many() == hosts


def test_a_package_that_the_model_needs_is_to_be_installed() -> None:
    reason = "needs timm: pip install timm"
    attempt = Attempt(TrainConfig(), "unsupported", None, None, None, reason, 1.0)
    spec = ModelSpec("m", "local", "M", "m", "causal-lm", {})
    error = startup_errors.inspection_error(attempt, spec, "python")
    assert (error.code, error.message) == (
        "library_missing",
        "m needs timm, which is not installed",
    )
    assert error.hint == "python -m pip install timm"
