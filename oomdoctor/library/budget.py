"""A block of code that must stay within a budget of GPU memory, on a real or an emulated GPU."""

from __future__ import annotations

import sys
import warnings
from types import TracebackType
from typing import Any, Self

from oomdoctor.errors import ExitCode, OomDoctorError, usage_error
from oomdoctor.units import format_bytes, parse_limit


class Budget:
    """Fails if PyTorch reserves more on a GPU inside the block than it may.

    with Budget("20GiB"):
        trainer.train()

    `most` is a size, a number of bytes, or a share such as `80%` of each card. What was reserved
    before the block counts. `peak_bytes` is the highest peak of the GPUs, after the block. Peak
    statistics of PyTorch are reset at its start. Where no GPU is used, a warning says so.
    """

    def __init__(self, most: str | int) -> None:
        """Raises OomDoctorError if `most` is neither a size nor a share (exit 2)."""
        self.peak_bytes: int | None = None
        self._most = f"{most}B" if isinstance(most, int) else str(most)
        try:
            parse_limit(self._most, total_bytes=1)
        except ValueError as error:
            raise usage_error("bad_budget", f"Budget: {error}") from None

    def __enter__(self) -> Self:
        for device in _devices():
            _cuda().reset_peak_memory_stats(device)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Judge the block, if it ended without an error.

        Raises:
            OomDoctorError: PyTorch reserved more on a GPU (exit 3).
        """
        peaks = {device: int(_cuda().max_memory_reserved(device)) for device in _devices()}
        self.peak_bytes = max(peaks.values(), default=None)
        if kind is not None:
            return
        if not self.peak_bytes:
            warnings.warn("Budget: no GPU was used, so nothing was measured", stacklevel=2)
        for device, peak in peaks.items():
            most = parse_limit(self._most, _cuda().get_device_properties(device).total_memory)
            if peak > most:
                raise OomDoctorError(
                    "over_budget",
                    f"Budget: GPU {device} reserved {format_bytes(peak)}, "
                    f"{format_bytes(peak - most)} more than {self._most}",
                    "oomdoctor run --emulate CARD --breakdown -- COMMAND says what held it",
                    ExitCode.NO,
                )


def _cuda() -> Any:
    return sys.modules["torch"].cuda


def _devices() -> range:
    """The GPUs that PyTorch has been used on; none before it starts CUDA."""
    if "torch" not in sys.modules or not _cuda().is_initialized():
        return range(0)
    return range(_cuda().device_count())
