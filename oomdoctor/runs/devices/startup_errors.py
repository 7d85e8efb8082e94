"""The errors of a survey or a plan that cannot start, each with a hint."""

from __future__ import annotations

from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error, model_error
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.result import Attempt
from oomdoctor.system import catalogue


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
    if attempt.outcome == "host_oom":
        return machine_error(
            "host_oom",
            f"the worker failed on {spec.id}: {reason}",
            "run it where more memory is allowed, such as in a job with 4 GiB",
        )
    if attempt.outcome in ("failed", "oom"):
        nearest = ", ".join(catalogue.nearest_models(spec.id))
        known = f"; models known to build: {nearest}" if nearest else ""
        return model_error(
            "model_cannot_be_built",
            f"{spec.id} cannot be built from its config.json: "
            f"{reason.removeprefix('ValueError: ')}",
            f"check the values in config.json{known}",
        )
    return machine_error("worker_failed", f"the worker failed on {spec.id}: {reason}")
