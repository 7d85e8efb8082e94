"""Tell a simulated step that a row holds several documents, which only the values would say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from oomdoctor.worker.simulating.device import answers
from oomdoctor.worker.simulating.replacing import replaced

if TYPE_CHECKING:
    import torch


@contextmanager
def several_in_a_row(several: bool) -> Iterator[None]:
    """With `several`, transformers finds that the position ids of a row restart."""
    import transformers

    masks = getattr(transformers, "masking_utils", None)
    find = getattr(masks, "find_packed_sequence_indices", None)
    if find is None or not several:
        yield
        return

    def found(position_ids: torch.Tensor) -> torch.Tensor | None:
        with answers.negative():
            indices: torch.Tensor | None = find(position_ids)
        return indices

    # It asks whether the last token still belongs to the first document, and nobody computed that.
    with replaced(masks, "find_packed_sequence_indices", found):
        yield
