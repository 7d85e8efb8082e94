"""Why a survey cannot even begin, as errors for people."""

from __future__ import annotations

from pathlib import Path

from oomdoctor.errors import OomDoctorError, machine_error, model_error
from oomdoctor.records.model import ModelSpec
from oomdoctor.records.result import Attempt
from oomdoctor.system import catalogue


def check_weights(spec: ModelSpec) -> None:
    """A checkpoint is needed: say at once if there can be none.

    Raises:
        OomDoctorError: the model is known by its facts alone (exit 4).
    """
    hint = "leave out --weights pretrained: synthetic weights need the same memory and time"
    if spec.source == "catalogue":
        raise model_error(
            "no_weights", f"{spec.id} was found only as built-in facts, without weights", hint
        )
    if spec.source == "local" and spec.path is not None:
        names = ("*.safetensors", "*.bin", "*.index.json")
        if not any(any(Path(spec.path).glob(name)) for name in names):
            raise model_error("no_weights", f"{spec.path} holds a config.json but no weights", hint)


def inspection_error(attempt: Attempt, spec: ModelSpec, python: str) -> OomDoctorError:
    """Why the worker could not even declare the model, as an error for people."""
    told = attempt.reason or "the worker gave no reason"
    if attempt.outcome == "unsupported" and "trust_remote_code" in told:
        return model_error(
            "remote_code",
            f"{spec.id} is built by code of its own, which is not run unasked",
            "read that code, then add --trust-remote-code",
        )
    if attempt.outcome == "unsupported":
        return model_error(
            "unsupported_architecture",
            f"{spec.id}: {told}",
            f"a newer transformers may know it: {python} -m pip install -U transformers",
        )
    if "No module named" in told:
        return machine_error(
            "library_missing",
            f"the interpreter {python} cannot measure: {told}",
            f"install what you train with: {python} -m pip install torch transformers accelerate "
            "peft bitsandbytes; or name another interpreter by --python",
        )
    if "Torch not compiled with CUDA" in told or "No CUDA GPUs" in told or "NVIDIA driver" in told:
        return machine_error(
            "torch_without_cuda",
            f"torch cannot use the GPU: {told}",
            "install the CUDA build of torch, or measure on the CPU with --device cpu",
        )
    if attempt.outcome in ("failed", "oom", "host_oom"):
        nearest = ", ".join(catalogue.nearest_models(spec.id))
        known = f"; models known to build: {nearest}" if nearest else ""
        return model_error(
            "model_cannot_be_built",
            f"{spec.id} cannot be built from its config.json: {told}",
            f"check the values in config.json{known}",
        )
    return machine_error("worker_failed", f"the worker could not look at {spec.id}: {told}")
