"""Parse PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF) into the settings of the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from oomdoctor.analysis.allocator.sizes import LARGE_SEGMENT, OWN_SEGMENT, ROUNDUP_INTERVALS
from oomdoctor.units import MIB

EqualBlocks = Literal["lowest", "oldest", "oldest_segment"]


def equal_blocks_of(release: tuple[int, int]) -> EqualBlocks:
    """Which of several free blocks of one size a release of torch uses.

    The one with the lowest address (`BlockComparatorSize`, seen in 2.8 to 2.11), the one whose
    object was made first (`BlockComparatorRegistrationCounter` in 2.12), or the one with the lowest
    address in the segment that was reserved first (`BlockComparatorSizeCounterAddress`, pull
    183591, seen in 2.13 to 2.15).
    """
    if release < (2, 12):
        return "lowest"
    return "oldest" if release < (2, 13) else "oldest_segment"


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The settings that affect memory, with PyTorch's defaults.

    `roundup_power2_divisions` has one entry for each power of two from 1 MiB on, or is empty. If
    `max_non_split_rounding_bytes` is None, `large_segment_bytes` is used. The caller, who knows
    the device, computes `limit_bytes` from `per_process_memory_fraction`. `equal_blocks` is not a
    setting but a rule of the release: which of several free blocks of one size is used.
    """

    max_split_size_bytes: int | None = None
    max_non_split_rounding_bytes: int | None = None
    roundup_power2_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float | None = None
    expandable_segments: bool = False
    large_segment_bytes: int = LARGE_SEGMENT
    per_process_memory_fraction: float | None = None
    equal_blocks: EqualBlocks = "lowest"

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """The settings in a text such as `max_split_size_mb:128,expandable_segments:True`.

        Raises:
            ValueError: PyTorch does not know a key or rejects a value, or the backend is not the
                native one.
        """
        items = dict(_items(text))
        values: dict[str, Any] = {}
        # Read first, because it is the minimum of two other keys.
        large = _large_segment(items.pop("large_segment_size_mb", str(LARGE_SEGMENT // MIB)))
        for key, value in items.items():
            if key in _READERS:
                field, read = _READERS[key]
                values[field] = read(value, key, large)
            elif key not in _WITHOUT_EFFECT:
                raise ValueError(f"{key!r} is not a setting of the CUDA allocator")
        if values.pop("backend", "native") != "native":
            raise ValueError("only backend:native is supported, not cudaMallocAsync")
        return cls(large_segment_bytes=large, **values)


# For pinned host memory, locks and graphs: they do not affect device memory.
_WITHOUT_EFFECT = frozenset(
    {
        *("release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_free_catch_all"),
        *("pinned_use_cuda_host_register", "pinned_use_hip_host_register"),
        *("pinned_num_register_threads", "pinned_use_background_threads"),
        *("pinned_reserve_segment_size_mb", "pinned_max_round_threshold_mb"),
        *("pinned_max_cached_size_mb", "graph_capture_record_stream_reuse"),
        "throw_on_cudamalloc_oom",
    }
)
_ITEM = re.compile(r"([^,:\[\]]+):(\[[^\[\]]*\]|[^,:\[\]]+)(?:,|$)")


def _items(text: str) -> Iterator[tuple[str, str]]:
    """The keys and their values; white space is ignored, as in `ConfigTokenizer`."""
    rest = "".join(text.split())
    while rest:
        match = _ITEM.match(rest)
        if match is None:
            raise ValueError(f"allocator settings must be KEY:VALUE,..., not {rest!r}")
        yield match[1], match[2]
        rest = rest[match.end() :]


def _whole(value: str, key: str) -> int:
    if not value.isdecimal():
        raise ValueError(f"{key} must be a whole number, not {value!r}")
    return int(value)


def _large_segment(value: str) -> int:
    size = _whole(value, "large_segment_size_mb") * MIB
    if size <= OWN_SEGMENT:
        raise ValueError(f"large_segment_size_mb must be above {OWN_SEGMENT // MIB}, not {value}")
    return size


def _size(value: str, key: str, large_segment: int) -> int:
    size = _whole(value, key) * MIB
    if size < large_segment:
        raise ValueError(f"{key} must be at least {large_segment // MIB}, not {value}")
    return size


def _number(value: str, key: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{key} must be a number, not {value!r}") from None


def _threshold(value: str, key: str, _large_segment: int) -> float:
    if not 0 < (share := _number(value, key)) < 1:
        raise ValueError(f"{key} must be between 0 and 1, not {value}")
    return share


def _fraction(value: str, key: str, _large_segment: int) -> float:
    if not 0 <= (share := _number(value, key)) <= 1:
        raise ValueError(f"{key} must be from 0 to 1, not {value}")
    return share


def _flag(value: str, key: str, _large_segment: int) -> bool:
    if value not in ("True", "False"):
        raise ValueError(f"{key} must be True or False, not {value!r}")
    return value == "True"


def _backend(value: str, key: str, _large_segment: int) -> str:
    if value not in ("native", "cudaMallocAsync", "hipMallocAsync"):
        raise ValueError(f"{key} must be native or cudaMallocAsync, not {value!r}")
    return value


def _divisions(value: str, key: str, _large_segment: int) -> tuple[int, ...]:
    """One number for every interval, or `[256:1,512:2,>:8]` with boundaries in MiB.

    Intervals below the first boundary take its number; others without a boundary are not divided
    (`parseRoundUpPower2Divisions`).
    """
    if not value.startswith("["):
        return (_power_of_two(value, key),) * ROUNDUP_INTERVALS
    divisions = [0] * ROUNDUP_INTERVALS
    last = None
    for boundary, steps_text in _items(value[1:-1]):
        steps = 0 if steps_text == "0" else _power_of_two(steps_text, key)
        if boundary == ">":
            after = 1 if last is None else last + 1
            divisions[after:] = [steps] * (ROUNDUP_INTERVALS - after)
            continue
        at = min(_power_of_two(boundary, key).bit_length() - 1, ROUNDUP_INTERVALS - 1)
        if last is None:
            divisions[:at] = [steps] * at
        divisions[at] = steps
        last = at
    return tuple(divisions)


def _power_of_two(value: str, key: str) -> int:
    number = _whole(value, key)
    if number < 1 or number & (number - 1):
        raise ValueError(f"{key} must be a power of two, not {value}")
    return number


_READERS: dict[str, tuple[str, Callable[[str, str, int], Any]]] = {
    "backend": ("backend", _backend),
    "max_split_size_mb": ("max_split_size_bytes", _size),
    "max_non_split_rounding_mb": ("max_non_split_rounding_bytes", _size),
    "garbage_collection_threshold": ("garbage_collection_threshold", _threshold),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "expandable_segments": ("expandable_segments", _flag),
    "per_process_memory_fraction": ("per_process_memory_fraction", _fraction),
}
