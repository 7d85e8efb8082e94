"""Facts about this process and its devices for the record."""

from __future__ import annotations

import sysconfig
from contextlib import suppress
from pathlib import Path
from typing import Any

_LIBRARIES = (
    *("torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes", "deepspeed"),
    *("lightning", "pytorch-lightning", "liger-kernel", "flash-attn", "xformers", "triton"),
    *("unsloth", "axolotl", "torchao", "transformer-engine", "megatron-core"),
)


def versions() -> dict[str, str | None]:
    """The versions of the libraries that decide how much memory a training needs."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def torch_release() -> list[int]:
    """The version of torch, such as [2, 12]."""
    import torch

    return [int(part) for part in torch.__version__.split("+")[0].split(".")[:2]]


def architectures() -> list[str]:
    """The kinds of GPU that this build of torch has kernels for, such as sm_80."""
    import torch

    return list(torch.cuda.get_arch_list())


def library_folders() -> list[str]:
    """Folders whose code is not the user's: the standard library, and installed packages."""
    import site

    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    with suppress(AttributeError):
        found += [*site.getsitepackages(), site.getusersitepackages()]
    return sorted(set(found))


def outside_bytes(device: int) -> int:
    """Bytes of the device that are in use, but not by this process's allocator."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def device_facts(device: int) -> dict[str, Any]:
    """What the device is. `uuid` is spelled as the driver does; None before torch 2.4."""
    import torch

    found = torch.cuda.get_device_properties(device)
    uuid = getattr(found, "uuid", None)
    return {
        "name": found.name,
        "uuid": None if uuid is None else f"GPU-{uuid}",
        "total_bytes": int(found.total_memory),
        "capability": f"{found.major}.{found.minor}",
    }


def resident_bytes() -> int | None:
    """The host memory of this process; None where /proc does not say."""
    with suppress(OSError, ValueError, IndexError):
        import resource

        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return None
