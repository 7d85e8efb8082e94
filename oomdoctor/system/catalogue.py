"""The built-in facts: architectures of well-known models and specifications of common cards.

The package's data files are read on first use; `scripts/build_catalogue.py` makes them. Neither the
network nor a device is used. So are the recorded prediction errors:
`scripts/evaluation/peak_errors.py --write` makes the file of peaks, `speed.py --write` that of
times.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from typing import Any

from oomdoctor.package_data import data_of
from oomdoctor.records.codec import from_json
from oomdoctor.records.job.machine import GpuFacts
from oomdoctor.records.job.simulation import PeakErrorRecord, SpeedErrorRecord

# Names that are less similar than this are not worth suggesting.
_ALIKE = 0.5
# Words that drivers and people add or leave out.
_MAKER = frozenset({"nvidia", "geforce"})
# If the reported memory differs by more than this, it is another variant or a slice of the card.
# ECC takes 6 %, the driver up to 6 % more.
_MEMORY_TOLERANCE = 0.15
# A name that fits more cards than this is too vague.
_MOST_VARIANTS = 4
_MOST_NEAR = 3  # names to suggest


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model whose config.json is built in.

    `parameters` counts what is trained, tied weights once. `published_parameters` is the exact
    published total, None if only a rounded one is known; `notes` explains the difference.
    `aliases` are ids with the same parameter shapes: context length, RoPE or dtype may differ.
    """

    id: str
    config: Mapping[str, Any]
    auto_class: str
    parameters: int | None
    notes: str
    aliases: tuple[str, ...] = ()
    published_parameters: int | None = None

    def architecture(self) -> str:
        """The transformers class that the config names."""
        return str(self.config["architectures"][0])


@cache
def models() -> tuple[CatalogueModel, ...]:
    """All built-in models, in the order of the data file (by family)."""
    return tuple(from_json(CatalogueModel, row) for row in data_of("models.json"))


@dataclass(frozen=True, slots=True)
class RentedMachine:
    """A machine of a cloud or a notebook service: its card, and how many of it there are."""

    name: str
    card: str
    gpus: int


@cache
def rented_machines() -> Mapping[str, RentedMachine]:
    """All built-in machines by their names in lower case."""
    return {
        name.lower(): RentedMachine(name, card, count)
        for row in data_of("machines.toml")["machines"]
        for card, counts in row["cards"].items()
        for name, count in counts.items()
    }


def find_machine(name: str) -> RentedMachine | None:
    """The machine that is rented under this name (`p4d.24xlarge`); None if it is unknown."""
    return rented_machines().get(" ".join(name.lower().split()).removeprefix("standard_"))


@cache
def gpus() -> tuple[GpuFacts, ...]:
    """All built-in cards, in the order of the data file (by family and generation)."""
    return tuple(from_json(GpuFacts, row) for row in data_of("gpus.json"))


def find_model(name: str) -> CatalogueModel | None:
    """The model with that id or alias, ignoring case, or with that unique tail (`SmolLM2-135M`)."""
    wanted = name.strip().lower()
    for model in models():
        if wanted in _names(model):
            return model
    if "/" in wanted:
        return None
    ends = [m for m in models() if any(n.rpartition("/")[2] == wanted for n in _names(m))]
    return ends[0] if len(ends) == 1 else None


def search_models(text: str) -> tuple[CatalogueModel, ...]:
    """The model with that name; otherwise all with each word of `text` in an id, alias or type."""
    exact = find_model(text)
    if exact is not None:
        return (exact,)
    return tuple(
        model
        for model in models()
        if _has_words(text, (*_names(model), str(model.config["model_type"])))
    )


def nearest_models(name: str) -> tuple[str, ...]:
    """Up to three ids that look like `name`, the most similar first."""
    ids = [name for model in models() for name in (model.id, *model.aliases)]
    return _nearest(name, ((model, (model, model.rpartition("/")[2])) for model in ids))


@cache
def model_types() -> frozenset[str]:
    """The `model_type` of every built-in model: transformers supports them without custom code."""
    return frozenset(str(model.config["model_type"]) for model in models())


@cache
def causal_architectures() -> Mapping[str, str]:
    """The causal language model class of each built-in `model_type` that has one."""
    return {
        str(model.config["model_type"]): model.architecture()
        for model in models()
        if model.auto_class == "AutoModelForCausalLM"
    }


def find_gpu(name: str, total_bytes: int | None = None) -> GpuFacts | None:
    """The card that a device or a person calls `name`; None if it is unknown or ambiguous.

    `NVIDIA GeForce`, punctuation and case do not matter. Part of a name is enough if it fits only
    one card ("4090"). `total_bytes`, the memory that the device reports, selects among variants
    with the same name; if it fits none (a MIG slice, a laptop part), the card is unknown. Without
    it, the variant with exactly this name is chosen. The name of a rented machine stands for its
    card.
    """
    machine = find_machine(name)
    if machine is not None:
        name = machine.card
    words = _words(name)
    called = [gpu for gpu in gpus() if words in _gpu_names(gpu)] or _gpus_with(frozenset(words))
    if total_bytes is not None:
        off = ((gpu, abs(total_bytes / _memory(gpu) - 1)) for gpu in called)
        called = [gpu for gpu, share in off if share <= _MEMORY_TOLERANCE]
    shared = frozenset[tuple[str, ...]].intersection(*map(_gpu_names, called)) if called else None
    if not shared:
        return None
    if total_bytes is not None:
        return min(called, key=lambda gpu: abs(_memory(gpu) - total_bytes))
    return next((gpu for gpu in called if _words(gpu.name) in shared), called[0])


def gpu_variants(name: str) -> tuple[GpuFacts, ...]:
    """The few cards of one architecture that share a name such as `H100`, the smallest first.

    Empty if the name is unknown or too vague.
    """
    called = _gpus_with(frozenset(_words(name)))
    if len(called) > _MOST_VARIANTS or len({gpu.compute_capability for gpu in called}) != 1:
        return ()
    return tuple(sorted(called, key=_memory))


def search_gpus(text: str) -> tuple[GpuFacts, ...]:
    """The card with exactly that name; otherwise all with each word of `text` in their names.

    The name of a rented machine stands for its card.
    """
    machine = find_machine(text)
    words = _words(text if machine is None else machine.card)
    exact = [gpu for gpu in gpus() if _words(gpu.name) == words]
    return tuple(exact) or tuple(
        gpu for gpu in gpus() if _has_words(text, (gpu.name, *gpu.aliases, gpu.vendor))
    )


def nearest_gpus(name: str) -> tuple[str, ...]:
    """Up to three names of cards or machines that look like `name`, the most similar first."""
    words = frozenset(_words(name))
    parts = [g.name for g in gpus() if words and words <= frozenset(_words(g.name))]
    candidates = [(gpu.name, (gpu.name, *gpu.aliases)) for gpu in gpus()]
    candidates += [(machine.name, (machine.name,)) for machine in rented_machines().values()]
    return tuple(dict.fromkeys((*parts, *_nearest(name, candidates))))[:_MOST_NEAR]


def _names(model: CatalogueModel) -> tuple[str, ...]:
    return tuple(name.lower() for name in (model.id, *model.aliases))


def _nearest(name: str, candidates: Iterable[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    wanted = name.strip().lower()
    tail = wanted.rpartition("/")[2]
    scores: dict[str, float] = {}
    for shown, spellings in candidates:
        pairs = [(wanted, s.lower()) for s in spellings] + [(tail, s.lower()) for s in spellings]
        score = max(SequenceMatcher(None, a, b).ratio() for a, b in pairs)
        if score >= _ALIKE:
            scores[shown] = max(score, scores.get(shown, 0.0))
    return tuple(sorted(scores, key=lambda shown: -scores[shown])[:_MOST_NEAR])


def _has_words(text: str, names: tuple[str, ...]) -> bool:
    """Whether each word is in one of the names; case, spaces and punctuation do not matter."""
    plain = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in names]
    words = [re.sub(r"[^a-z0-9]", "", word) for word in text.lower().split()]
    return any(words) and all(any(word in name for name in plain) for word in words)


def _words(name: str) -> tuple[str, ...]:
    """`NVIDIA A100-SXM4-80GB` as ("a100", "sxm4", "80gb"); `rtx4090` as ("rtx", "4090")."""
    spread = re.sub(r"\b(rtx|gtx|rx)(?=\d)", r"\1 ", name.lower())
    return tuple(word for word in re.findall(r"[a-z0-9]+", spread) if word not in _MAKER)


def _gpu_names(gpu: GpuFacts) -> frozenset[tuple[str, ...]]:
    return frozenset(_words(name) for name in (gpu.name, *gpu.aliases))


def _gpus_with(words: frozenset[str]) -> list[GpuFacts]:
    """The cards with all these words in one of their names, and the fewest other words."""
    extra: dict[str, int] = {}
    for gpu in gpus():
        sizes = [len(name) - len(words) for name in _gpu_names(gpu) if words <= frozenset(name)]
        if words and sizes:
            extra[gpu.name] = min(sizes)
    fewest = min(extra.values(), default=0)
    return [gpu for gpu in gpus() if extra.get(gpu.name) == fewest]


def _memory(gpu: GpuFacts) -> int:
    return gpu.total_bytes or gpu.memory_bytes


@cache
def peak_errors() -> tuple[PeakErrorRecord, ...]:
    """The errors of every kind of predicted peak, and those of the emulated GPU."""
    return tuple(from_json(PeakErrorRecord, row) for row in data_of("peak_errors.json"))


@cache
def speed_errors() -> tuple[SpeedErrorRecord, ...]:
    """The error of every kind of predicted speed that was compared with measurements."""
    return tuple(from_json(SpeedErrorRecord, row) for row in data_of("speed_errors.json"))
