// What the caching allocator hands out holds nothing that is known: compiled code and libraries take
// memory without an operator that on_end would see.
#include "values_torch.h"

#include <c10/cuda/CUDACachingAllocator.h>

namespace emulated {
bool watch_memory() {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  try {
    if (!allocator::get()->initialized()) return false;
    allocator::get()->attachAllocatorTraceTracker([](const allocator::TraceEntry& entry) {
      const auto action = entry.action_;
      if (action == allocator::TraceEntry::ALLOC || action == allocator::TraceEntry::FREE_COMPLETED)
        emu_values_drop(static_cast<uint64_t>(entry.addr_), static_cast<size_t>(entry.size_));
    });
    return true;
  } catch (...) { // not this allocator: on_end does it
    return false;
  }
}
} // namespace emulated
