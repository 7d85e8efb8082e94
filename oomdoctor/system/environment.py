"""Environment variables, and the folders that depend on them. No other module reads variables.

Nothing is read at import. Values come with their origin, so that `oomdoctor env` can explain why a
run behaves as it does. Secrets never leave this module in clear text. The state folder is
three lines here; platformdirs would be one more dependency and would not save any.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.records.machine import Setting
from oomdoctor.units import MIB, parse_size

HIDDEN = "(hidden)"
WATCH_FOLDER = "OOMDOCTOR_WATCH"
"""The folder that a watched command shares with `oomdoctor run`, which sets the variable."""
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|KEY", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/@\s]*@")
# What each variable does, in the order of `oomdoctor env`, which docs/ shows as a table.
MEANINGS = {
    "XDG_STATE_HOME": "The folder that holds oomdoctor/runs and what earlier probes learned.",
    "HF_HOME": "The Hugging Face folder: the cache and the saved token. Default: "
    "huggingface in XDG_CACHE_HOME.",
    "HF_HUB_CACHE": "The Hugging Face cache. Models are looked up here before on the hub.",
    "HF_TOKEN": "The token for gated models, never shown. HUGGING_FACE_HUB_TOKEN and the file "
    "HF_TOKEN_PATH count too.",
    "HF_ENDPOINT": "The address of the hub, for a mirror.",
    "HF_HUB_OFFLINE": "1 means that the hub is never contacted. TRANSFORMERS_OFFLINE=1 counts too.",
    "CUDA_VISIBLE_DEVICES": "The GPUs that oomdoctor may choose from.",
    "CUDA_DEVICE_ORDER": "How `--device cuda:N` counts: fastest first, or PCI_BUS_ID.",
    "CUDA_LAUNCH_BLOCKING": "1 makes the CPU wait for every kernel, which slows a step down.",
    "NVIDIA_TF32_OVERRIDE": "0 forbids TF32, even if the training turns it on.",
    "PYTORCH_ALLOC_CONF": "Settings of PyTorch's allocator, in the newer spelling.",
    "PYTORCH_CUDA_ALLOC_CONF": "Settings of PyTorch's allocator.",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "1 turns the caching allocator off: slower, and other peaks.",
    "OMP_NUM_THREADS": "CPU threads of torch; matters for `--device cpu`.",
    "OMP_WAIT_POLICY": "How CPU threads of torch wait. Workers use PASSIVE unless you set it.",
}
_STEERING = tuple(MEANINGS)[tuple(MEANINGS).index("CUDA_VISIBLE_DEVICES") :]
# Also read, but not listed by `oomdoctor env`.
ONLY_READ = {
    "OOMDOCTOR_DEBUG": "1 prints the traceback behind an error.",
    "NO_COLOR": "Any value turns colors off, also if FORCE_COLOR is set.",
    "FORCE_COLOR": "Any value turns colors on, also in a pipe; 0 turns them off.",
    "COLUMNS": "The width of the page in columns.",
    "CUBLAS_WORKSPACE_CONFIG": "The size of the cuBLAS workspaces that a simulation counts.",
    "OOMDOCTOR_CACHE_SIZE": "The most that kept simulations may take, such as 1GiB. 0 keeps none. "
    "Default: 500MiB.",
    "OOMDOCTOR_RUNS_LIMIT": "How many runs and cases to keep: a number, an age or a size, such as "
    "200,90d,5GiB. After a run, older ones are deleted. Default: all are kept.",
    "XDG_CACHE_HOME": "The folder that holds oomdoctor/simulations, which later plans use, and "
    "oomdoctor/environments, which `plan --with` makes.",
    "OOMDOCTOR_EMULATED": "The session of emulated GPUs that this process runs on. oomdoctor sets "
    "it itself.",
    "TERM": "dumb turns colors and moving progress lines off.",
}
# The only variables that are written into the case of a failed run.
CASE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "NCCL_BUFFSIZE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_CUMEM_ENABLE",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "OMP_NUM_THREADS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_NTASKS",
    "SLURM_GPUS_ON_NODE",
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU",
)
_SIMULATIONS_BYTES = 500 * MIB
_SHAPING = (
    *("TORCH", "PYTORCH", "TRANSFORMERS", "ACCELERATE", "PEFT", "BNB", "BITSANDBYTES", "LIGER"),
    *("FLASH", "TRITON", "CUBLAS", "CUDNN", "USE_", "DISABLE_", "PYTHONPATH"),
)
_PIP_ELSEWHERE = frozenset({"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV"})
_SLURM = (
    "SLURM_JOB_ID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_NODELIST",
    "SLURMD_NODENAME",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_GPUS_ON_NODE",
    "SLURM_CPUS_ON_NODE",
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU",
)
# A launcher's variables would make accelerate and torch join a process group that does not exist.
_LAUNCHER_NAMES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
_LAUNCHER_PREFIXES = (
    "ACCELERATE_",
    "DEEPSPEED_",
    "FSDP_",
    "TORCHELASTIC_",
    "PMI_",
    "OMPI_COMM_WORLD_",
    "MV2_COMM_WORLD_",
)
_QUIET_WORKER = {
    # is_available() and device_count() through NVML: no CUDA context before the fork.
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "BITSANDBYTES_NOWELCOME": "1",
}
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
    """A number that a launcher gave this process, such as RANK; None if it gave none."""
    text = variable(name) or ""
    return int(text) if text.isdigit() else None


def all_variables() -> dict[str, str]:
    """All environment variables, for what must know secrets in order to hide them."""
    return dict(os.environ)


def case_variables() -> dict[str, str]:
    """The variables that a case may show: these names and no others."""
    return {name: os.environ[name] for name in CASE_VARIABLES if name in os.environ}


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
    given = Path(variable("XDG_STATE_HOME") or "")
    base = given if given.is_absolute() else home() / ".local" / "state"
    return base / "oomdoctor"


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/oomdoctor`, else `~/.cache/oomdoctor`; it may not exist yet."""
    given = Path(variable("XDG_CACHE_HOME") or "")
    base = given if given.is_absolute() else home() / ".cache"
    return base / "oomdoctor"


def simulations_limit() -> int:
    """The most bytes that kept simulations may take; 0 keeps none. A wrong value is ignored."""
    given = (variable("OOMDOCTOR_CACHE_SIZE") or "").strip()
    if given == "0":
        return 0
    try:
        return parse_size(given) if given else _SIMULATIONS_BYTES
    except ValueError:
        return _SIMULATIONS_BYTES


def runs_limit() -> str | None:
    """The limit of the history as it was written; None if all runs are kept."""
    return (variable("OOMDOCTOR_RUNS_LIMIT") or "").strip() or None


def shaping_variables() -> dict[str, str]:
    """The variables that may change what torch and the libraries above it do."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_SHAPING)}


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


def is_true(name: str) -> bool:
    """Whether a variable is switched on, in a spelling that huggingface_hub accepts."""
    return (variable(name) or "").upper() in {"1", "ON", "YES", "TRUE"}


def settings() -> tuple[Setting, ...]:
    """Every variable that affects oomdoctor or the libraries below it, with its value and origin.

    The origin is "environment", "default" or the file that holds a token. None means not set and
    without a default. Tokens, and credentials in addresses, are hidden.
    """
    rows = [
        _setting("XDG_STATE_HOME", str(home() / ".local" / "state")),
        _setting("HF_HOME", str(hf_home())),
        _setting("HF_HUB_CACHE", str(hf_home() / "hub")),
        _token(),
        _setting("HF_ENDPOINT", "https://huggingface.co"),
        _offline(),
        *(_setting(name) for name in _STEERING),
    ]
    rows += [_setting(name) for name in _SLURM if variable(name) is not None]
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
        ends_at=_number("SLURM_JOB_END_TIME") if job_id is not None else None,
    )


def installer_environment() -> dict[str, str]:
    """The environment of pip, without what would make it install somewhere else."""
    kept = {name: value for name, value in os.environ.items() if name not in _PIP_ELSEWHERE}
    return kept | {"PIP_USER": "0", "PYTHONUNBUFFERED": "1"}


def command_environment(added: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that is watched: the user's, and what watching needs."""
    return {**os.environ, **added}


def worker_environment(gpu_uuid: str | None) -> dict[str, str]:
    """The environment of a worker process, which sees one GPU, or none for the CPU.

    The user's settings are kept. Removed or switched off, because they would disturb a measurement:
    launcher variables (torchrun, accelerate, MPI), progress bars, telemetry, experiment trackers.
    Threads sleep while they wait, unless the user chose how they wait.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _LAUNCHER_NAMES and not name.startswith(_LAUNCHER_PREFIXES)
    }
    patient = {} if any(name in kept for name in _WAITING) else _PATIENT
    return kept | _QUIET_WORKER | patient | {"CUDA_VISIBLE_DEVICES": gpu_uuid or ""}


def _setting(name: str, default: str | None = None) -> Setting:
    value = variable(name)
    if value is None:
        return Setting(name, default, "default")
    return Setting(name, _masked(name, value), "environment")


def _masked(name: str, value: str) -> str:
    if value and _SECRET.search(name):
        return HIDDEN
    return _USERINFO.sub(f"{HIDDEN}@", value)


def _token() -> Setting:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if variable(name):
            origin = "environment" if name == "HF_TOKEN" else f"environment ({name})"
            return Setting("HF_TOKEN", HIDDEN, origin)
    given = variable("HF_TOKEN_PATH")
    path = Path(given).expanduser() if given else hf_home() / "token"
    try:
        found = bool(path.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        found = False
    return Setting("HF_TOKEN", HIDDEN, str(path)) if found else Setting("HF_TOKEN", None, "default")


def _offline() -> Setting:
    if not variable("HF_HUB_OFFLINE") and is_true("TRANSFORMERS_OFFLINE"):
        return Setting("HF_HUB_OFFLINE", "1", "environment (TRANSFORMERS_OFFLINE)")
    return _setting("HF_HUB_OFFLINE", "0")


def _slurm_memory() -> int | None:
    per_node, per_cpu = _number("SLURM_MEM_PER_NODE"), _number("SLURM_MEM_PER_CPU")
    if per_node:  # 0 means all memory of the node, so no limit
        return per_node * MIB
    cpus = _number("SLURM_CPUS_ON_NODE")
    return per_cpu * cpus * MIB if per_cpu and cpus else None


def _number(name: str) -> int | None:
    value = variable(name) or ""
    return int(value) if value.isascii() and value.isdigit() else None
