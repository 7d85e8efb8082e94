"""The machine, its GPUs as the driver reports them, and published facts about cards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DeviceType = Literal["cuda", "cpu"]
# How the name of every emulated GPU ends.
EMULATED = " (emulated)"


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A likely number of bytes and the range that was observed; `source` is the evidence."""

    low: int
    likely: int
    high: int
    source: str


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses memory of a GPU; name and bytes are None if the driver hides them."""

    pid: int
    name: str | None
    used_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver reports it. `index` is NVML's (PCI bus order); `uuid` identifies it.

    An `emulated` GPU runs no kernels: its memory is exact except for what warnings name, its times
    mean nothing.
    """

    index: int
    uuid: str
    name: str
    total_bytes: int
    free_bytes: int | None
    compute_capability: str | None
    processes: tuple[GpuProcess, ...]
    emulated: bool = False


_UNIFIED = frozenset(("GB10",))


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """Published facts about a card. Peaks are dense, in FLOP/s; None if not verified.

    `memory_bytes` is the advertised size, `total_bytes` what the driver reports, and
    `torch_total_bytes` the smallest total that PyTorch has been seen to report. `multiprocessors`,
    `l2_bytes` and `memory_bus_bits` are what CUDA reports; None for AMD cards.
    `nvlink_bytes_per_s` is one direction; None if the card has no NVLink or it is not known.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    compute_capability: str | None
    memory_bytes: int
    total_bytes: int | None
    bandwidth_bytes_per_s: float | None
    fp32_flops: float | None
    tf32_flops: float | None
    fp16_flops: float | None
    bf16_flops: float | None
    fp8_flops: float | None
    notes: str
    torch_total_bytes: int | None = None
    multiprocessors: int | None = None
    l2_bytes: int | None = None
    memory_bus_bits: int | None = None
    nvlink_bytes_per_s: float | None = None
    pcie_generation: int | None = None
    pcie_lanes: int | None = None

    @property
    def shares_host_memory(self) -> bool:
        """Whether the memory of the GPU is the host's."""
        return not _UNIFIED.isdisjoint(self.name.split())


def real_name(name: str) -> str:
    """The name of the card that an emulated GPU stands for; any other name as it is."""
    return name.removesuffix(EMULATED)


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that controls oomdoctor or the libraries, and where it came from."""

    name: str
    value: str | None
    origin: str


@dataclass(frozen=True, slots=True)
class Capability:
    """A library or a hardware feature that some rungs need, and its state on this machine.

    `text` says what it makes possible if the state is "ok", else what is missing and what to do.
    """

    name: str
    version: str | None
    state: Literal["ok", "missing", "unfit"]
    text: str


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the survey ran. `device` is the chosen one: "cuda" or "cpu".

    An `emulated` GPU runs no kernels: its memory is exact except for what warnings name, and there
    are no speeds. With several `gpus`, the facts describe one of them; on the CPU, `gpus` is the
    number of ranks.
    """

    device: DeviceType
    gpu_name: str | None
    gpu_uuid: str | None
    total_bytes: int
    compute_capability: str | None
    driver_version: str | None
    cpu_name: str | None
    cpu_count: int
    memory_bytes: int
    memory_available_bytes: int
    hostname: str
    slurm_job_id: str | None
    other_processes: tuple[GpuProcess, ...]
    versions: Mapping[str, str | None]
    emulated: bool = False
    gpus: int = 1
