"""The tensors that a training allocates, by their dimensions, and buffers of a fixed size."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.package_data import data_of


@dataclass(frozen=True, slots=True)
class Kind:
    """A tensor by its dimensions: letters that stand for sizes, such as "B S V".

    `widths` are the possible bytes per element. `phases` are the ones that allocate it. `hint` is
    what the frames show at that moment. Without a hint the phase must match; a kind that few models
    have (`needs_hint`) must have both.
    """

    name: str
    dimensions: str
    widths: tuple[int, ...]
    phases: tuple[str, ...]
    hint: str
    needs_hint: bool = False


_TABLE = data_of("tensors.toml")
KINDS = tuple(
    Kind(**row | {"widths": tuple(row["widths"]), "phases": tuple(row["phases"])})
    for row in _TABLE["kind"]
)
# The family that usually has a vocabulary of this size.
VOCABULARIES = {int(size): family for size, family in _TABLE["vocabularies"].items()}
# Bytes, name and hint of buffers whose size does not depend on the model.
BUCKETS = tuple((row["bytes"], row["name"], row["hint"]) for row in _TABLE["bucket"])
