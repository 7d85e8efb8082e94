"""The model that the user named (`ModelRef`) and the one that was found (`ModelSpec`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from oomdoctor.records.configuration.config import TrainConfig, sequences_per_sample

ModelSource = Literal["local", "cache", "hub", "catalogue"]
SourceChoice = Literal["auto", ModelSource]
Task = Literal[
    "causal-lm", "masked-lm", "sequence-classification", "seq2seq-lm", "image-classification",
    "image-text-to-text", "speech-seq2seq", "ctc", "audio-classification", "embedding",
]  # fmt: skip
TaskChoice = Literal["auto", Task]
AUTO_CLASSES: dict[Task, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "sequence-classification": "AutoModelForSequenceClassification",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "image-classification": "AutoModelForImageClassification",
    "image-text-to-text": "AutoModelForImageTextToText",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "ctc": "AutoModelForCTC",
    "audio-classification": "AutoModelForAudioClassification",
    "embedding": "AutoModel",
}
"""What transformers makes a model of each task with."""
ON_SOUND: tuple[Task, ...] = ("speech-seq2seq", "ctc", "audio-classification")
"""The tasks whose rows are recordings."""
ON_TEXT_ALONE: tuple[Task, ...] = ("masked-lm", "sequence-classification", "seq2seq-lm")
"""The tasks that train a class on text alone that takes images or sound as well."""
WITHOUT_LENGTH: tuple[Task, ...] = ("image-classification", "ctc", "audio-classification")
"""The tasks whose rows have no sequence length."""
OF_PAIRS: tuple[Task, ...] = ("embedding",)
"""The tasks whose samples are pairs of sequences, in two tensors."""


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
    """A model that was found, with all that another process needs to build it offline.

    `config` is the content of config.json. `parameters` counts tied weights once; None until they
    are counted (from the catalogue or by a build on the meta device). `path` is the local folder
    with config.json (a folder or a cache snapshot), None for facts from the catalogue. `pooling` is
    how sentence-transformers makes an embedding of those of tokens, if its files say it.
    `quantized` is the `quantization_config` of config.json, which `config` does not have.
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
    pooling: str | None = None
    quantized: Mapping[str, Any] | None = None

    @property
    def quant_method(self) -> str | None:
        """How the checkpoint is quantized, such as `gptq`; None if it is not."""
        return None if self.quantized is None else str(self.quantized.get("quant_method"))


def sequences_in_sample(config: TrainConfig, task: Task | None) -> int:
    """Sequences that a sample has, of the objective or of the task."""
    return 2 if task in OF_PAIRS else sequences_per_sample(config)


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Parameters of a model by the role that decides their size, counted on the meta device.

    `linear` are weights of linear layers that quantization replaces (not the output head),
    `embedding` the input embeddings and the output head (tied weights once), `rest` everything
    else (norms, biases, convolutions, stacked experts). `total = linear + embedding + rest`.
    `routed_experts` of these belong to routed experts, of which each token uses
    `experts_per_token` of `experts` (0, 0, 0 for a dense model). `buffers_bytes` are the
    registered buffers in the configured dtype.
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
    """Layers of a list: `prefix` layers, then `units` times `period` layers, then a tail.

    `kinds` has a word for each layer; equal words mean equal layers. `units` is 0 if nothing
    repeats. A list may be several stacks, one after the other; `start` is the first layer of this.
    """

    path: str
    kinds: tuple[str, ...]
    prefix: int
    period: int
    units: int
    start: int = 0

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.kinds)


_FLOAT = "__float__"
_NO_JSON = ("Infinity", "-Infinity", "NaN")


def config_of_json(text: str) -> Any:
    """The content of a config.json.

    JSON has no Infinity and no NaN, so they become what transformers 5 writes for them:
    {"__float__": "Infinity"}.

    Raises:
        json.JSONDecodeError: the text is not JSON.
        ValueError: it has a number of more than 4,300 digits.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=lambda name: {_FLOAT: name})


def with_floats(config: Mapping[str, Any]) -> Any:
    """The content with Infinity and NaN as numbers, which every transformers reads."""
    return json.loads(
        json.dumps(dict(config)),
        object_hook=lambda part: float(part[_FLOAT]) if part.get(_FLOAT) in _NO_JSON else part,
    )
