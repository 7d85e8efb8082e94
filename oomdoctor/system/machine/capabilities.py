"""Which libraries are installed, and what they and the GPU make possible.

Versions come from package metadata, so nothing is imported. Whether a library really works is only
known once a rung has used it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from importlib import metadata

from oomdoctor.package_data import data_of
from oomdoctor.records.facts.attention import OF_PACKAGE
from oomdoctor.records.job.machine import Capability, Gpu
from oomdoctor.system.machine.libraries import numbers, versions

_KNOWN = data_of("capabilities.toml")
_ADDS: dict[str, str] = {
    **_KNOWN["first"],
    **{package: f"attention {row.name}" for package, row in OF_PACKAGE.items()},
    **_KNOWN["then"],
}
PACKAGES = tuple(_ADDS)


def installed_versions() -> dict[str, str | None]:
    """The versions of Python and of each package in this interpreter; None if not installed."""
    return {"python": platform.python_version(), **versions(PACKAGES)}


def capabilities(
    installed: Mapping[str, str | None], gpus: tuple[Gpu, ...]
) -> tuple[Capability, ...]:
    """One row per library and hardware feature: what it makes possible, or what is missing."""
    rows = [_library(package, installed.get(package), gpus) for package in PACKAGES]
    rows += [_feature(name, least, adds, gpus) for name, (least, adds) in _KNOWN["cards"].items()]
    return tuple(rows)


def minimum_versions() -> dict[str, str]:
    """The lowest version of each dependency, from oomdoctor's own metadata."""
    try:
        declared = metadata.requires("oomdoctor") or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return {}
    matches = (re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line) for line in declared)
    return {match[1]: match[2] for match in matches if match}


def _library(package: str, version: str | None, gpus: tuple[Gpu, ...]) -> Capability:
    adds, least = _ADDS[package], minimum_versions().get(package)
    if version is None:
        row = OF_PACKAGE.get(package)
        how = (row and row.install) or f"pip install {package}"
        return Capability(package, None, "missing", f"{how} for {adds}")
    if least and numbers(version) < numbers(least):
        text = f"too old: pip install '{package}>={least}' for {adds}"
        return Capability(package, version, "unfit", text)
    if package == "torch" and gpus and version.endswith("+cpu"):
        text = "a build without CUDA, so it cannot use this machine's GPUs"
        return Capability(package, version, "unfit", text)
    capability = OF_PACKAGE[package].capability if package in OF_PACKAGE else ()
    if capability:
        low, high = capability[0], capability[1] if len(capability) > 1 else None
        if not _fit(gpus, low, high):
            kind = low if high else f"{low} or higher"
            text = f"needs a GPU of compute capability {kind}; {_have(gpus)}"
            return Capability(package, version, "unfit", text)
    return Capability(package, version, "ok", adds)


def _feature(name: str, least: str, adds: str, gpus: tuple[Gpu, ...]) -> Capability:
    fit = _fit(gpus, least, None)
    if fit:
        return Capability(name, None, "ok", f"{adds}: {', '.join(fit)}")
    text = f"needs a GPU of compute capability {least} or higher; {_have(gpus)}"
    return Capability(name, None, "unfit" if gpus else "missing", text)


def _fit(gpus: tuple[Gpu, ...], least: str, most: str | None) -> tuple[str, ...]:
    """The names, each once, of the GPUs whose compute capability is in the range."""
    names = {
        gpu.name: None
        for gpu in gpus
        if gpu.compute_capability
        and numbers(least) <= numbers(gpu.compute_capability)
        and (most is None or numbers(gpu.compute_capability) <= numbers(most))
    }
    return tuple(names)


def _have(gpus: tuple[Gpu, ...]) -> str:
    if not gpus:
        return "this machine has no GPU"
    owned = {f"{gpu.name} has {gpu.compute_capability or 'an unknown one'}": None for gpu in gpus}
    return ", ".join(owned)
