"""A measurement for the tests of plans, with only its peak spelled out."""

from __future__ import annotations

from oomdoctor.records.measurement import Measurement


def measured(least: int) -> Measurement:
    """What a device has to give is `least`, of which 100 bytes are the context."""
    return Measurement(
        peak_allocated_bytes=least - 100,
        peak_reserved_bytes=None,
        peak_device_bytes=least,
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
