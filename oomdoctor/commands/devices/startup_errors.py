"""Why a run cannot start: no weights, a model that cannot be built, limits of a login node."""

from __future__ import annotations

from pathlib import Path

from oomdoctor.analysis.command_line import command_line
from oomdoctor.commands.jobs.launch import NO_HOST_MEMORY
from oomdoctor.errors import OomDoctorError, machine_error, model_error
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import Attempt
from oomdoctor.records.report.report import SurveyRequest, Warn
from oomdoctor.records.report.warnings import warning
from oomdoctor.system import catalogue
from oomdoctor.system.environment import slurm
from oomdoctor.system.machine.limits import HostLimit, Kind, host_limits, tightest
from oomdoctor.units import GIB, MIB, format_bytes

# Measured with torch 2.13 on Linux: below this, a worker cannot load its libraries. A worker takes
# 460 to 640 MiB of memory, up to 10 GiB of addresses for a moment, and up to 9 threads, most idle.
_LEAST: dict[Kind, int] = {"addresses": 900 * MIB, "memory": 700 * MIB, "tasks": 24}
_ENOUGH_ADDRESSES = 4 * GIB


def check_weights(spec: ModelSpec) -> None:
    """Check at once that the model has a checkpoint.

    Raises:
        OomDoctorError: there are no weights (exit 4).
    """
    hint = "drop --weights pretrained: synthetic weights need the same memory and time"
    if spec.source == "catalogue":
        raise model_error(
            "no_weights", f"{spec.id} is known only from built-in facts, without weights", hint
        )
    if spec.source == "local" and spec.path is not None:
        names = ("*.safetensors", "*.bin", "*.index.json")
        if not any(any(Path(spec.path).glob(name)) for name in names):
            raise model_error("no_weights", f"{spec.path} has a config.json but no weights", hint)


def inspection_error(attempt: Attempt, spec: ModelSpec, python: str) -> OomDoctorError:
    """The error for a model that the worker could not build, with a hint for the user."""
    reason = attempt.reason or "no reason given"
    if attempt.outcome == "unsupported" and "trust_remote_code" in reason:
        return model_error(
            "remote_code",
            f"{spec.id} needs custom code from the hub",
            "read that code, then pass --trust-remote-code to allow it",
        )
    if attempt.outcome == "unsupported" and reason.startswith("needs "):
        what, _, install = reason.partition(": ")
        return machine_error(
            "library_missing", f"{spec.id} {what}, which is not installed", f"{python} -m {install}"
        )
    if attempt.outcome == "unsupported":
        allow = "" if spec.trust_remote_code else "; or --trust-remote-code, if it has its own code"
        return model_error(
            "unsupported_architecture",
            f"{spec.id}: {reason}",
            f"upgrade transformers: {python} -m pip install -U transformers{allow}",
        )
    if "No module named" in reason:
        return machine_error(
            "library_missing",
            f"a library is missing for {python}: {reason}",
            f"install what you train with: {python} -m pip install torch transformers accelerate "
            "peft bitsandbytes; or pass another interpreter with --python",
        )
    if (
        "Torch not compiled with CUDA" in reason
        or "No CUDA GPUs" in reason
        or "NVIDIA driver" in reason
    ):
        return machine_error(
            "torch_without_cuda",
            f"torch cannot use the GPU: {reason}",
            "install the CUDA build of torch, or measure on the CPU with --device cpu",
        )
    if attempt.outcome == "host_oom" or any(words in reason for words in NO_HOST_MEMORY):
        limit = tightest("addresses", host_limits())
        told = f"; {limit.words}" if limit is not None and limit.words not in reason else ""
        return machine_error(
            "host_oom",
            f"the worker failed on {spec.id}: {reason}{told}",
            "run it where more memory is allowed, such as in a job with 4 GiB",
        )
    if attempt.outcome in ("failed", "oom"):
        nearest = ", ".join(catalogue.nearest_models(spec.id))
        similar = f"; models known to build: {nearest}" if nearest else ""
        return model_error(
            "model_cannot_be_built",
            f"{spec.id} cannot be built from its config.json: "
            f"{reason.removeprefix('ValueError: ')}",
            f"check the values in config.json{similar}",
        )
    return machine_error("worker_failed", f"the worker failed on {spec.id}: {reason}")


def check_limits(request: SurveyRequest) -> tuple[Warn, ...]:
    """Refuse a plan that the limits on this process would end, and warn of one that may.

    Raises:
        OomDoctorError: a limit leaves too little for one worker (exit 5).
    """
    limits = host_limits()
    for kind, least in _LEAST.items():
        limit = tightest(kind, limits)
        if limit is not None and limit.left < least:
            needed = f"{least} of them" if kind == "tasks" else format_bytes(least)
            raise machine_error(
                "host_limit",
                f"a plan cannot run here: {limit.words}; it needs at least {needed}",
                _remedy(limit, request),
            )
    addresses = tightest("addresses", limits)
    if addresses is None or addresses.left >= _ENOUGH_ADDRESSES:
        return ()
    remedy = _remedy(addresses, request)
    return (warning("few_addresses", limit=addresses.words, remedy=remedy),)


def with_remedy(error: OomDoctorError, request: SurveyRequest) -> OomDoctorError:
    """The error of a worker that a limit ended; its hint is the command line to type."""
    limits = host_limits()
    limit = tightest("addresses", limits) or tightest("memory", limits)
    if error.code not in ("host_limit", "host_oom") or limit is None:
        return error
    return machine_error(error.code, error.message, _remedy(limit, request))


def _remedy(limit: HostLimit, request: SurveyRequest) -> str:
    command = command_line(request)
    if limit.can_be_raised:
        option = "v" if limit.kind == "addresses" else "u"
        return f"raise it: ulimit -S{option} unlimited && {command}"
    if slurm().on_login_node:
        return f"run it in a job: srun --cpus-per-task=2 --mem=4G {command}"
    return f"run it where the limit is higher, such as in a job with 4 GiB: {command}"
