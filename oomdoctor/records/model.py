"""What was asked for (`ModelRef`) and what it turned out to be (`ModelSpec`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ModelSource = Literal["local", "cache", "hub", "catalogue"]
SourceChoice = Literal["auto", "local", "cache", "hub", "catalogue"]
Task = Literal[
    "causal-lm", "masked-lm", "sequence-classification", "seq2seq-lm", "image-classification"
]
TaskChoice = Literal[
    "auto",
    "causal-lm",
    "masked-lm",
    "sequence-classification",
    "seq2seq-lm",
    "image-classification",
]


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model as the user named it: a folder, a hub id or a catalogue id."""

    name: str
    revision: str | None = None
    task: TaskChoice = "auto"
    source: SourceChoice = "auto"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model that was found: enough to build it in another process without the network.

    `config` is the content of config.json. `parameters` counts tied weights once and is None until
    somebody counted (catalogue fact or a build on the meta device). `path` is the local folder
    that holds config.json (local folder or cache snapshot), None for catalogue facts.
    """

    id: str
    source: ModelSource
    architecture: str
    model_type: str
    task: Task
    config: Mapping[str, Any]
    parameters: int | None = None
    revision: str | None = None
    path: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model by the role that decides their bytes, counted on the meta device.

    `linear` are weights of linear layers that quantisation replaces (not the output head),
    `embedding` the input embeddings and the output head (tied weights once), `rest` everything
    else (norms, biases, convolutions, stacked experts). `total = linear + embedding + rest`.
    `routed_experts` is the share of these that belongs to routed experts, of which only
    `experts_per_token` of `experts` work on a token (0, 0, 0 for a dense model). `buffers_bytes`
    are the registered buffers in the configured dtype.
    """

    total: int
    linear: int
    embedding: int
    rest: int
    buffers_bytes: int
    routed_experts: int = 0
    experts: int = 0
    experts_per_token: int = 0


@dataclass(frozen=True, slots=True)
class LayerStack:
    """A list of layers: `prefix` layers, then `units` times `period` layers, then a tail.

    `kinds` has a word for each layer; equal words mean equal layers. `units` is 0 where nothing
    repeats.
    """

    path: str
    kinds: tuple[str, ...]
    prefix: int
    period: int
    units: int

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.kinds)
