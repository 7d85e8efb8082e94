"""PyTorch's CUDA caching allocator as a pure model: births and deaths in, reserved bytes out.

Modelled are the rules of `DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp and of
`AcceleratorAllocatorConfig` / `CUDAAllocatorConfig`, for torch 2.6 to 2.13. They were read in two
copies of the source, one of about 2.6 and one from early 2026, and in the headers of 2.13:

==========================  ======================================================================
rule                        function there, module here
==========================  ======================================================================
rounding to 512 bytes       `round_size`, `roundup_power2_next_division`: sizes.py
size of a new segment       `get_allocation_size`: sizes.py
two pools, best fit         `get_pool`, `BlockComparatorSize`, `get_free_block`: pool.py, caching.py
splitting                   `should_split`, `alloc_found_block`: caching.py
merging                     `free_block`, `try_merge_blocks`: caching.py
max_split_size_mb           `get_free_block`, `release_available_cached_blocks`: caching.py, pool.py
garbage collection          `garbage_collect_cached_blocks`, `Block::gc_count`: pool.py
full: release and retry     `malloc`, `alloc_block`, `release_cached_blocks`: caching.py
memory fraction             `setMemoryFraction`, `alloc_block`: caching.py (`limit_bytes`)
expandable segments         `find_expandable_block`, `map_block`, `unmap_block`,
                            `try_allocate_expandable_block`, `ExpandableSegment`: expandable.py
PYTORCH_CUDA_ALLOC_CONF     `parseArgs` of both configurations: settings.py
the message                 `malloc`, `format_size` (c10/core/Allocator.h): message.py
==========================  ======================================================================

What the releases do differently, and how to get either:

- `large_segment_size_mb` came in January 2026 (pull request 172056); before, it was 20 MiB for
  all. The setting is read; leave it out for an older release.
- `max_split_size_mb` and `max_non_split_rounding_mb` had to exceed 20 once, later 20 itself is
  allowed. The newer rule is read.
- One division a power of two once kept a size as it was; now it falls back to 512 bytes, as here.
- A memory fraction of 1 was a limit (and let garbage be collected) in the older copy; in the newer
  it is none. Give `limit_bytes` of the whole device to get the former.
- The message of some builds says PYTORCH_ALLOC_CONF, and its last link has moved.

Two things only the driver knows: where a new segment lies (here above all earlier ones, which
decides between free blocks of equal size) and what a process costs outside the allocator (take it
off `capacity_bytes`). Left out are streams other than the default one and their events, private
pools of CUDA graphs and `MemPool`, memory shared between processes, `throw_on_cudamalloc_oom`,
pinned memory and the other backend, cudaMallocAsync.
"""

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.message import out_of_memory_message
from oomdoctor.analysis.allocator.records import (
    Fragmentation,
    Mark,
    OutOfDeviceMemory,
    OutOfMemory,
    Point,
    Replay,
    Segment,
    Span,
    Window,
)
from oomdoctor.analysis.allocator.replay import replay
from oomdoctor.analysis.allocator.settings import AllocatorSettings

__all__ = [
    "AllocatorSettings",
    "CachingAllocator",
    "Fragmentation",
    "Mark",
    "OutOfDeviceMemory",
    "OutOfMemory",
    "Point",
    "Replay",
    "Segment",
    "Span",
    "Window",
    "out_of_memory_message",
    "replay",
]
