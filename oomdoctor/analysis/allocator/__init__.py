"""A pure model of PyTorch's CUDA caching allocator: births and deaths in, reserved bytes out.

It follows the rules of `DeviceCachingAllocator` in c10/cuda/CUDACachingAllocator.cpp and of
`AcceleratorAllocatorConfig` / `CUDAAllocatorConfig`, for torch 2.6 to 2.13. The sources are two
copies of that code, one of about 2.6 and one from early 2026, and the headers of 2.13:

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
the message                 `malloc`, `format_size` (c10/core/Allocator.h): records.py
==========================  ======================================================================

The releases differ in some rules:

- `large_segment_size_mb` was added in January 2026 (pull request 172056); before, it was always
  20 MiB. The model reads the setting; omit it for an older release.
- `max_split_size_mb` and `max_non_split_rounding_mb` once had to exceed 20; now 20 is allowed. The
  model follows the newer rule.
- One division per power of two once kept a size unchanged; now it falls back to 512 bytes, as here.
- A memory fraction of 1 was a limit in the older copy, which also turned garbage collection on; in
  the newer one it is not. Set `limit_bytes` to the whole device to get the older behavior.
- Of free blocks of equal size, releases up to 2.11 use the one with the lowest address, later ones
  the one whose object was made first (`settings.equal_blocks_of`).
- The message of some builds says PYTORCH_ALLOC_CONF, and its last link has changed.

Two things only the driver knows: the address of a new segment (it decides between free blocks of
equal size; `device` has the rule that recorded runs show), and what a process needs outside the
allocator (subtract it from `capacity_bytes`). Each stream has its own pools. The model does not
cover events that delay a free (`record_stream`), private pools of CUDA graphs and `MemPool`, memory
shared between processes, `throw_on_cudamalloc_oom`, pinned memory, or the cudaMallocAsync backend.
"""
