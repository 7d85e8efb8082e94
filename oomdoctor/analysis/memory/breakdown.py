"""What a peak of memory consists of, from the bytes of each category."""

from __future__ import annotations

from collections.abc import Mapping

from oomdoctor.records.measurement import Breakdown


def breakdown(parts: Mapping[str, int], peak: int) -> Breakdown:
    """The peak by category; what the allocator holds beyond the parts is "other".

    Those are inputs, temporaries, rounding, blocks that are not split, and workspaces of libraries.
    """
    rest = peak - sum(parts.values())
    return Breakdown(
        weights_bytes=parts["weights"],
        gradients_bytes=parts["gradients"],
        optimizer_bytes=parts["optimizer"],
        activations_bytes=parts["activations"],
        logits_bytes=parts["logits"],
        other_bytes=parts["inputs"] + parts["temporary"] + rest,
    )
