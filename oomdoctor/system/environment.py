"""Environment variables, and the folders that depend on them. No other module reads variables.

Nothing is read at import. Values come with their origin, so that `oomdoctor env` can explain why a
run behaves as it does. Secrets never leave this module in clear text. What each variable does, and
which ones are handed on, is data: `oomdoctor/data/variables.toml`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from oomdoctor.package_data import data_of
from oomdoctor.records.job.machine import Setting
from oomdoctor.units import MIB, parse_size

WATCH_FOLDER = "OOMDOCTOR_WATCH"
"""The folder that a watched command shares with `oomdoctor run`, which sets the variable."""
_SIMULATIONS_BYTES = 500 * MIB
_PIP_ELSEWHERE = frozenset({"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV"})
# Threads that spin while they wait take the cores from those that work as soon as another process
# needs a core too: on two busy cores a step took up to 30 times as long. libgomp (torch's wheels)
# and libomp (conda) both know this name. The others are their own names for it.
_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")


@dataclass(frozen=True, slots=True)
class SlurmFacts:
    """What Slurm says about this process; all fields are None outside a job.

    `memory_bytes` is the host memory granted on this node. `on_login_node`: Slurm's commands are
    installed, but this process is not in a job. `ends_at` is when the job's time limit ends it, in
    seconds since 1970.
    """

    job_id: str | None
    node: str | None
    partition: str | None
    gpus: str | None
    memory_bytes: int | None
    on_login_node: bool
    ends_at: float | None = None


@cache
def _known() -> dict[str, Any]:
    return dict(data_of("variables.toml"))


def meanings() -> dict[str, str]:
    """What each variable does that oomdoctor reads; those of `oomdoctor env` come first."""
    return {**_known()["listed"], **_known()["read"]}


def _names(kind: str) -> tuple[str, ...]:
    return tuple(_known()[kind].split())


def variable(name: str) -> str | None:
    """The value of an environment variable; None if it is not set."""
    return os.environ.get(name)


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set variables of this process and those that it starts; None removes one."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def kept_variables(values: Mapping[str, str | None] | None = None) -> Iterator[None]:
    """Set variables for a while; at the end all of them are as they were before."""
    before = dict(os.environ)
    set_variables(values or {})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def allocator_settings() -> str | None:
    """The settings of PyTorch's allocator, in the newer or the older spelling; None without."""
    return variable("PYTORCH_ALLOC_CONF") or variable("PYTORCH_CUDA_ALLOC_CONF")


def launched_number(name: str) -> int | None:
    """A number that a launcher or Slurm gave this process, such as RANK; None if none did."""
    text = variable(name) or ""
    return int(text) if text.isascii() and text.isdigit() else None


def all_variables() -> dict[str, str]:
    """All environment variables: for a process that gets them, and to know what to hide."""
    return dict(os.environ)


def case_variables() -> dict[str, str]:
    """The variables that a case may show: these names and no others."""
    return {name: os.environ[name] for name in _names("case") if name in os.environ}


def home() -> Path:
    """The user's home folder; the current folder if there is none, as in a bare container."""
    try:
        return Path.home()
    except RuntimeError:
        return Path.cwd()


def state_dir() -> Path:
    """`$XDG_STATE_HOME/oomdoctor`, else `~/.local/state/oomdoctor`; it may not exist yet.

    A relative XDG_STATE_HOME is ignored, as the XDG base directory specification requires.
    """
    return _base_folder("XDG_STATE_HOME", ".local/state") / "oomdoctor"


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/oomdoctor`, else `~/.cache/oomdoctor`; it may not exist yet."""
    return _base_folder("XDG_CACHE_HOME", ".cache") / "oomdoctor"


def _base_folder(name: str, usual: str) -> Path:
    given = Path(variable(name) or "")
    return given if given.is_absolute() else home() / usual


def simulations_limit() -> int:
    """The most bytes that kept simulations may take; 0 keeps none. A wrong value is ignored."""
    given = (variable("OOMDOCTOR_CACHE_SIZE") or "").strip()
    with suppress(ValueError):
        return 0 if given == "0" else parse_size(given)
    return _SIMULATIONS_BYTES


def runs_limit() -> str | None:
    """The limit of the history as it was written; None if all runs are kept."""
    return (variable("OOMDOCTOR_RUNS_LIMIT") or "").strip() or None


def shaping_variables() -> dict[str, str]:
    """The variables that may change what torch and the libraries above it do."""
    heads = _names("shaping")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(heads)}


def is_emulating() -> bool:
    """Whether this process runs on emulated GPUs, as under `oomdoctor run --emulate`."""
    return bool(variable("OOMDOCTOR_EMULATED"))


def hf_home() -> Path:
    """The Hugging Face folder, found in the same order as huggingface_hub does."""
    given = variable("HF_HOME")
    if given:
        return Path(os.path.expandvars(given)).expanduser()
    cache = variable("XDG_CACHE_HOME")
    base = Path(os.path.expandvars(cache)).expanduser() if cache else home() / ".cache"
    return base / "huggingface"


def hf_token_file() -> Path:
    """Where the token of Hugging Face is saved."""
    given = variable("HF_TOKEN_PATH")
    return Path(given).expanduser() if given else hf_home() / "token"


def is_true(name: str) -> bool:
    """Whether a variable is switched on, in a spelling that huggingface_hub accepts."""
    return (variable(name) or "").upper() in {"1", "ON", "YES", "TRUE"}


def settings() -> tuple[Setting, ...]:
    """Every variable that affects oomdoctor or the libraries below it, with its value and origin.

    The origin is "environment", "default" or the file that holds a token. None means not set and
    without a default. Tokens, and credentials in addresses, are hidden.
    """
    listed = tuple(_known()["listed"])
    rows = [
        _setting("XDG_STATE_HOME", str(home() / ".local" / "state")),
        _setting("HF_HOME", str(hf_home())),
        _setting("HF_HUB_CACHE", str(hf_home() / "hub")),
        _token(),
        _setting("HF_ENDPOINT", "https://huggingface.co"),
        _offline(),
        *(_setting(name) for name in listed[listed.index("CUDA_VISIBLE_DEVICES") :]),
    ]
    rows += [_setting(name) for name in _names("slurm") if variable(name) is not None]
    rows += [_setting(name) for name in sorted(os.environ) if name.startswith("OOMDOCTOR_")]
    return tuple(rows)


def slurm() -> SlurmFacts:
    """The Slurm job of this process. Its memory is given in MiB, per node or per CPU."""
    job_id = variable("SLURM_JOB_ID")
    installed = any(shutil.which(command) for command in ("srun", "sinfo"))
    return SlurmFacts(
        job_id=job_id,
        node=variable("SLURMD_NODENAME"),
        partition=variable("SLURM_JOB_PARTITION"),
        gpus=variable("SLURM_JOB_GPUS")
        or variable("SLURM_STEP_GPUS")
        or variable("SLURM_GPUS_ON_NODE"),
        memory_bytes=_slurm_memory(),
        on_login_node=installed and job_id is None,
        ends_at=launched_number("SLURM_JOB_END_TIME") if job_id is not None else None,
    )


def installer_environment() -> dict[str, str]:
    """The environment of pip, without what would make it install somewhere else."""
    kept = {name: value for name, value in os.environ.items() if name not in _PIP_ELSEWHERE}
    return kept | {"PIP_USER": "0", "PYTHONUNBUFFERED": "1"}


def worker_environment(gpu_uuid: str | None) -> dict[str, str]:
    """The environment of a worker process, which sees one GPU, or none for the CPU.

    The user's settings are kept. Removed or switched off, because they would disturb a measurement:
    launcher variables (torchrun, accelerate, MPI), progress bars, telemetry, experiment trackers.
    Threads sleep while they wait, unless the user chose how they wait.
    """
    launcher, heads = _names("launcher"), _names("launcher_prefixes")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in launcher and not name.startswith(heads)
    }
    patient = {} if any(name in kept for name in _WAITING) else _PATIENT
    quiet: dict[str, str] = _known()["worker"]
    return kept | quiet | patient | {"CUDA_VISIBLE_DEVICES": gpu_uuid or ""}


def _setting(name: str, default: str | None = None) -> Setting:
    from oomdoctor.redaction import HIDDEN, is_secret, text_without_secrets

    value = variable(name)
    if value is None:
        return Setting(name, default, "default")
    shown = HIDDEN if is_secret(name, value) else text_without_secrets(value)
    return Setting(name, shown, "environment")


def _token() -> Setting:
    from oomdoctor.redaction import HIDDEN

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if variable(name):
            origin = "environment" if name == "HF_TOKEN" else f"environment ({name})"
            return Setting("HF_TOKEN", HIDDEN, origin)
    path = hf_token_file()
    try:
        has_token = bool(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        has_token = False
    value, origin = (HIDDEN, str(path)) if has_token else (None, "default")
    return Setting("HF_TOKEN", value, origin)


def _offline() -> Setting:
    if not variable("HF_HUB_OFFLINE") and is_true("TRANSFORMERS_OFFLINE"):
        return Setting("HF_HUB_OFFLINE", "1", "environment (TRANSFORMERS_OFFLINE)")
    return _setting("HF_HUB_OFFLINE", "0")


def _slurm_memory() -> int | None:
    per_node, per_cpu = launched_number("SLURM_MEM_PER_NODE"), launched_number("SLURM_MEM_PER_CPU")
    if per_node:  # 0 means all memory of the node, so no limit
        return per_node * MIB
    cpus = launched_number("SLURM_CPUS_ON_NODE")
    return per_cpu * cpus * MIB if per_cpu and cpus else None
