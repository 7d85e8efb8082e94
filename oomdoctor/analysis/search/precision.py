"""The 16-bit type that a card has: bfloat16, or float16 on cards older than Ampere.

Cards below compute capability 8.0 emulate bfloat16, which is slower than float32. Training there
uses float16 with a gradient scaler.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

from oomdoctor.records.configuration.config import Rung, TrainConfig, steps_in_backward
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.facts.dtypes import has_bfloat16


def ladder_for(rungs: Sequence[Rung], capability: str | None) -> tuple[Rung, ...]:
    """The rungs for a card of this compute capability; unchanged if it has bfloat16 or is unknown.

    Two rungs may become one. Rungs whose type is fixed stay as they are.
    """
    if has_bfloat16(capability):
        return tuple(rungs)
    fixed = {rung.config.rung_key(): rung for rung in rungs if not rung.follows_card}
    labels = {rung.label for rung in fixed.values()}
    ladder: dict[str, Rung] = {}
    for rung in rungs:
        own = in_float16(rung)
        key = own.config.rung_key()
        if rung.follows_card and (key in ladder or key in fixed):
            continue
        if rung.follows_card and own.label in labels:
            number = next(n for n in count(2) if f"{own.label}-{n}" not in labels)
            own = replace(own, label=f"{own.label}-{number}")
        labels.add(own.label)
        ladder[key] = own
    return tuple(ladder.values())


def in_float16(rung: Rung) -> Rung:
    """The rung with float16 instead of bfloat16, if its type follows the card.

    Frozen weights may be float16. Weights that are trained stay in float32, because the gradient
    scaler cannot unscale float16 gradients. A step in the backward pass cannot use the scaler at
    all, so such a rung computes in float32.
    """
    config = rung.config
    if not rung.follows_card or not uses_bfloat16(config):
        return rung
    if steps_in_backward(config):
        plain = replace(config, weights_dtype="float32", autocast_dtype="none")
        return replace(rung, label=_label(rung, plain, "fp32"), config=plain)
    frozen = config.method != "full" and config.weights_dtype != "float32"
    config = replace(
        config, weights_dtype="float16" if frozen else "float32", autocast_dtype="float16"
    )
    return replace(rung, label=_label(rung, config), config=config)


def uses_bfloat16(config: TrainConfig) -> bool:
    """Whether weights or matrix products are in bfloat16."""
    return "bfloat16" in (config.weights_dtype, config.autocast_dtype)


def emulated(rungs: Iterable[Rung], capability: str | None) -> tuple[str, ...]:
    """The labels of the rungs whose bfloat16 a card of this compute capability emulates."""
    if has_bfloat16(capability):
        return ()
    return tuple(rung.label for rung in rungs if uses_bfloat16(rung.config))


def _label(rung: Rung, config: TrainConfig, word: str = "fp16") -> str:
    """A label that says the type: generated again, or with the word after the method."""
    generated = label_of(rung.config)
    if rung.label.startswith(generated):  # words of its sizes may follow
        return label_of(config) + rung.label.removeprefix(generated)
    if "bf16" in rung.label:
        return rung.label.replace("bf16", word)
    head, plus, rest = rung.label.partition("+")
    return f"{head}-{word}{plus}{rest}"
