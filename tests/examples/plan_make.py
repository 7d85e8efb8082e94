"""A measurement for the tests of plans, with only its peak spelled out."""

from __future__ import annotations

from oomdoctor.records.job.measurement import Measurement


def measured(device: int, kept: int = 0) -> Measurement:
    """A peak of `device` bytes: 100 are the context, the allocator keeps `kept` beside tensors."""
    return Measurement(
        peak_allocated_bytes=device - kept - 100,
        peak_reserved_bytes=None,
        peak_device_bytes=device,
        overhead_bytes=100,
        peak_rss_bytes=None,
        peak_phase="backward",
        phases={},
        first_step={},
        steady={},
        breakdown=None,
        allocation_retries=None,
        managed_bytes=0,
        timing=None,
        attention_kernel=None,
        trainable_parameters=1,
        parameters=1,
        losses=(),
        skipped_optimizer_steps=0,
        notes=(),
        versions={},
    )
