"""From CARD, SIZE or NxCARD to the GPUs of an emulation, and to the processes that see them.

Nothing here asks a driver: the facts are those of the card.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from oomdoctor.analysis.memory.overhead import nccl_bytes
from oomdoctor.commands.devices.cards import Card, card_named
from oomdoctor.emulator import build
from oomdoctor.emulator.card import MAX_DEVICES, Devices, split_count
from oomdoctor.emulator.card import Card as EmulatedCard
from oomdoctor.emulator.enter import entered
from oomdoctor.emulator.interpreter import ask, find_compiler, lacks_cuda_libraries, reason_against
from oomdoctor.errors import OomDoctorError, usage_error
from oomdoctor.package_data import data_of
from oomdoctor.records.capability import capability_numbers
from oomdoctor.records.job.machine import EMULATED, Gpu
from oomdoctor.records.report.report import Warn
from oomdoctor.records.report.warnings import warning
from oomdoctor.system.catalogue import find_machine
from oomdoctor.system.environment import cache_dir, is_emulating, variable
from oomdoctor.system.machine.devices import Device


def uuid_of(index: int) -> str:
    """The UUID of an emulated GPU, as native/session.c spells it."""
    return f"GPU-{uuid.UUID(bytes=b'emulated' + bytes(7) + bytes([index]))}"


UUID = uuid_of(0)  # of the first GPU
BUILDING = "building the emulated GPU for this version of PyTorch (once)"
_SESSION = "emulated"  # the folder of a session in that of its run
_INEXACT = "inexact"  # the file in it that native/failures.c writes


@dataclass(frozen=True, slots=True)
class EmulatedGpus:
    """Some GPUs of one kind: the card as `plan` knows it, and how many there are.

    With `alone`, one rank runs and stands for all.
    """

    card: Card
    count: int
    alone: bool = False

    @property
    def name(self) -> str:
        """The name to show: `8 x NVIDIA H100 80GB HBM3`."""
        return self.card.name if self.count == 1 else f"{self.count} x {self.card.name}"


def emulated_gpus(text: str, *, alone: bool = False) -> EmulatedGpus:
    """The GPUs that `--emulate` names; with `alone` (`--ranks 1`), one rank runs.

    Raises:
        ValueError: the card is unknown, or the number is 0 or above 64.
    """
    count, name = split_count(text)
    machine = find_machine(name)
    if machine is not None:
        count, name = split_count(f"{count * machine.gpus}x{machine.card}")
    card = card_named(name, 0.0)
    check_vendor(card)
    return EmulatedGpus(card, count, alone)


def can_be(card: Card) -> bool:
    """Whether a card can be emulated at all, wherever."""
    return card.facts is None or card.facts.vendor == "NVIDIA"


def check_vendor(card: Card) -> None:
    """Check that a card can be emulated.

    Raises:
        ValueError: it is not a card of NVIDIA.
    """
    if not can_be(card):
        raise ValueError(f"{card.name} is not an NVIDIA card, so it cannot be emulated")


def devices_of(gpus: EmulatedGpus) -> Devices:
    """The GPUs as the emulator takes them; memory as torch reports it."""
    card, facts = gpus.card, gpus.card.facts
    emulated = EmulatedCard(
        name=card.name if facts else f"GPU with {card.name}",
        capability=capability_numbers(card.capability),
        total_bytes=card.total_bytes,
        nvml_total_bytes=max(card.total_bytes, (facts and facts.total_bytes) or 0),
        context_bytes=card.context.likely,
        multiprocessors=facts.multiprocessors if facts else None,
        l2_bytes=facts.l2_bytes if facts else None,
        bus_bits=facts.memory_bus_bits if facts else None,
        nccl_bytes=(nccl_bytes(2), nccl_bytes(MAX_DEVICES)),
    )
    return Devices(emulated, count=gpus.count, alone=gpus.alone)


def device_of(gpus: EmulatedGpus) -> Device:
    """The GPUs, as a driver would report them."""
    card = devices_of(gpus).card
    first, *others = (
        Gpu(
            index=index,
            uuid=uuid_of(index),
            name=card.name + EMULATED,
            total_bytes=card.nvml_total_bytes,
            free_bytes=card.nvml_total_bytes,
            compute_capability=gpus.card.capability,
            processes=(),
            emulated=True,
        )
        for index in range(gpus.count)
    )
    return Device("cuda", first, tuple(others))


def why_not(python: str) -> OomDoctorError | None:
    """Why processes of an interpreter cannot run on an emulated GPU; None if they can."""
    return reason_against(Path(python), variable("CC"))


def needed_to_import(python: str) -> bool:
    """Whether torch can be imported only on the stand-ins for its CUDA libraries."""
    return lacks_cuda_libraries(Path(python)) and not is_emulating() and why_not(python) is None


def check_possible(python: str, option: str) -> None:
    """Check that emulation is possible before anything runs; `option` asked for it.

    Raises:
        OomDoctorError: it is not, with what is missing (exit 5); or this process runs on an
            emulated GPU already (exit 2).
    """
    if is_emulating():
        raise usage_error(
            "already_emulated",
            f"{option}: this process already runs on an emulated GPU",
            f"leave out {option}",
        )
    reason = why_not(python)
    if reason is not None:
        raise reason


def value_warnings(python: str) -> list[Warn]:
    """That values of small tensors are unknown in processes of an interpreter, and why."""
    reason = without_values(python)
    return [] if reason is None else [warning("no_values", reason=reason)]


def without_values(python: str) -> str | None:
    """Why values of small tensors are unknown with an interpreter that can be emulated, or None."""
    compiler = find_compiler(variable("CC"))
    if compiler is None:
        return None
    return build.without_values(ask(Path(python)), compiler, cache_dir() / "emulator")


@contextmanager
def emulating(
    gpus: EmulatedGpus,
    python: str,
    folder: Path,
    path: str | None = None,
    on_build: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, str]]:
    """The variables to add for processes of an interpreter that shall see these GPUs.

    `folder` is that of the run; the session is a folder in it, which goes in the end. What was not
    exact stays beside it (`inexact_parts`). `path` is the PATH of the processes; None: ours.
    `on_build` is called if the stand-in libraries must be built first.

    Raises:
        OomDoctorError: the stand-in libraries cannot be built (exit 5).
    """
    session, cache = folder / _SESSION, cache_dir() / "emulator"
    session.mkdir(exist_ok=True)
    try:
        devices, compiler = devices_of(gpus), variable("CC")
        with entered(
            Path(python), devices, session, cache, compiler, path=path, on_build=on_build
        ) as entry:
            yield entry.variables
    finally:
        with suppress(OSError):  # there may be what earlier sessions in this folder noted
            noted = (session / _INEXACT).read_text(encoding="utf-8")
            with (folder / _INEXACT).open("a", encoding="utf-8") as kept:
                kept.write(noted)
        shutil.rmtree(session, ignore_errors=True)


def inexact_parts(*folders: Path) -> list[Warn]:
    """What emulated runs in these folders used that only the real libraries know the size of.

    While a run's session is open, what was noted so far.
    """
    noted: list[str] = []
    for place in (place for folder in folders for place in (folder, folder / _SESSION)):
        with suppress(OSError):
            noted += (place / _INEXACT).read_text(encoding="utf-8").split()
    parts = data_of("inexact.toml")
    texts = [parts[name] for name in dict.fromkeys(noted) if name in parts]
    return [warning("inexact", parts="; ".join(texts))] if texts else []
