"""The memory of a device: by the allocator's counters or its trace, peaks and snapshots."""
