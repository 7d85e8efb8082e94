"""How many bytes a training needs, in closed form: from the sizes in a config.json, no model built.

Good enough to order remedies and to say what a change gives back; `probe` measures the true
figure. Activations follow what autograd keeps in the decoder layers of transformers (the counting
of Korthikanti et al. 2022, section 4, for gated MLPs, RMS norms in float32 and no dropout).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from oomdoctor.analysis.oom.settings import Setup
from oomdoctor.analysis.shape import shape_of, text_part
from oomdoctor.units import format_bytes

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bytes of optimizer state for each trainable parameter; True: times the width of the weight.
STATE_BYTES: dict[str, tuple[float, bool]] = {
    "adamw_torch": (2, True),
    "adamw_torch_fused": (2, True),
    "adamw_hf": (2, True),
    "adamw_apex_fused": (2, True),
    "adamw_bnb_8bit": (2, False),
    "adamw_8bit": (2, False),
    "lion_8bit": (1, False),
    "lion_32bit": (4, False),
    "paged_adamw_8bit": (0, False),
    "paged_adamw_32bit": (0, False),
    "paged_adamw": (0, False),
    "paged_lion_8bit": (0, False),
    "paged_lion_32bit": (0, False),
    "adafactor": (0, False),
    "sgd": (0, False),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder (or encoder) that the formulas need."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    intermediate: int
    vocabulary: int
    embedding: int
    tied: bool
    gated: bool
    experts: int
    experts_per_token: int
    parameters: int
    model_type: str
    longest: int | None

    @property
    def query_width(self) -> int:
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_width

    @property
    def embedding_parameters(self) -> int:
        """Input embeddings and output head; a tied table counts once."""
        return self.vocabulary * (self.embedding + (0 if self.tied else self.hidden))

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * (self.query_width + self.kv_width)
        mlp = (3 if self.gated else 2) * self.hidden * self.intermediate
        return attention + mlp * max(1, self.experts) + self.hidden * (2 + self.experts)


@dataclass(frozen=True, slots=True)
class Training:
    """A training with every value decided; micro-batch and sequence length may be unknown."""

    micro_batch_size: int | None
    sequence_length: int | None
    method: str
    weights_dtype: str
    autocast: bool
    optimizer: str
    checkpointing: bool
    attention: str
    liger: bool
    lora_rank: int
    quantization: str
    world_size: int
    stage: int
    master_weights: bool  # DeepSpeed keeps 32-bit weights and states beside 16-bit weights
    offload_optimizer: bool

    @property
    def tokens(self) -> int | None:
        if self.micro_batch_size is None or self.sequence_length is None:
            return None
        return self.micro_batch_size * self.sequence_length

    @property
    def compute_bytes(self) -> int:
        """Bytes of an activation: 2 under autocast or in 16-bit weights."""
        return 2 if self.autocast else DTYPE_BYTES[self.weights_dtype]


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the memory with the product that gives it."""

    name: str
    size_bytes: int
    arithmetic: str

    def text(self) -> str:
        """`weights 8,030,261,248 x 2 bytes = 15.0 GiB`."""
        return f"{self.name} {self.arithmetic} = {format_bytes(self.size_bytes)}"


def sizes_of(config: Mapping[str, Any], parameters: int | None = None) -> Sizes | None:
    """The sizes of a config.json, None where the formulas do not know the architecture."""
    text, shape = text_part(config), shape_of(config)
    if None in (shape.layers, shape.hidden, shape.heads, shape.vocabulary):
        return None
    assert shape.layers and shape.hidden and shape.heads and shape.vocabulary  # for the checker
    model_type = str(text.get("model_type") or config.get("model_type") or "")
    experts = _first(text, "num_local_experts", "num_experts", "n_routed_experts") or 0
    wide = _first(text, "intermediate_size", "n_inner", "d_ff", "ffn_dim") or 4 * shape.hidden
    if experts:
        wide = _first(text, "moe_intermediate_size") or wide
    tied = text.get("tie_word_embeddings", config.get("tie_word_embeddings"))
    sizes = Sizes(
        layers=shape.layers * (2 if shape.encoder_decoder else 1),
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=_first(text, "num_key_value_heads") or shape.heads,
        head_width=int(_first(text, "head_dim") or shape.head_width or 1),
        intermediate=wide,
        vocabulary=shape.vocabulary,
        embedding=shape.embedding or shape.hidden,
        # What transformers assumes where the config is silent.
        tied=bool(tied) if tied is not None else model_type in _TIED,
        gated=str(text.get("hidden_act") or text.get("hidden_activation") or "")
        in ("silu", "swish", "gelu_pytorch_tanh"),
        experts=experts,
        experts_per_token=_first(text, "num_experts_per_tok") or 0,
        parameters=0,
        model_type=model_type,
        longest=_first(text, "max_position_embeddings", "n_positions"),
    )
    counted = sizes.embedding_parameters + sizes.layers * sizes.layer_parameters + sizes.hidden
    return _with_parameters(sizes, parameters or counted)


def weights(sizes: Sizes, training: Training) -> Term:
    """The weights on one device."""
    each = DTYPE_BYTES[training.weights_dtype]
    if training.method == "qlora":
        rest = sizes.embedding_parameters
        linear = sizes.parameters - rest
        packed = 0.5 + 1 / 64 * (1 + 4 / 256) if training.quantization != "int8" else 1
        size = round(linear * packed) + rest * each
        text = f"{linear:,} x {packed:.3g} byte + {rest:,} x {each} bytes"
        return Term("quantised weights", size, text)
    return _shared("weights", sizes.parameters, each, training.world_size * (training.stage >= 3))


def trainable(sizes: Sizes, training: Training) -> int:
    """Parameters that learn; of LoRA those of adapters on all linear layers."""
    if training.method == "full":
        return sizes.parameters
    edges = 2 * (sizes.hidden + sizes.query_width) + 2 * (sizes.hidden + sizes.kv_width)
    edges += (3 if sizes.gated else 2) * (sizes.hidden + sizes.intermediate)
    return sizes.layers * training.lora_rank * edges


def gradients(sizes: Sizes, training: Training) -> Term:
    """One gradient a trainable parameter, in the type of its weight (adapters: 4 bytes)."""
    each = DTYPE_BYTES[training.weights_dtype] if training.method == "full" else 4
    count = trainable(sizes, training)
    return _shared("gradients", count, each, training.world_size * (training.stage >= 2))


def optimizer_states(sizes: Sizes, training: Training) -> Term:
    """States on the device; an optimizer that is not in the table counts as Adam in 32 bits."""
    if training.offload_optimizer:
        return Term("optimizer states", 0, "kept in host memory")
    known, follows = STATE_BYTES.get(training.optimizer, (8, False))
    width = DTYPE_BYTES[training.weights_dtype] if training.method == "full" else 4
    each = known * width if follows else known
    if training.master_weights:
        each = 12  # Rajbhandari et al. 2020, section 3.1: 32-bit weight, momentum and variance
    shards = training.world_size * (training.stage >= 1)
    return _shared("optimizer states", trainable(sizes, training), each, shards)


def activations(sizes: Sizes, training: Training) -> Term | None:
    """What autograd keeps between forward and backward; None without batch and length."""
    tokens = training.tokens
    if tokens is None:
        return None
    layer = layer_bytes_per_token(sizes, training)
    if training.checkpointing:
        kept = sizes.hidden * training.compute_bytes
        size = tokens * (sizes.layers * kept + layer)
        parts = f"{sizes.layers} layers x {kept:,} + {layer:,} bytes recomputed"
        text = f"{tokens:,} tokens x ({parts})"
    else:
        size = tokens * sizes.layers * layer
        text = f"{tokens:,} tokens x {sizes.layers} layers x {layer:,} bytes"
    return Term("activations", size, text)


def layer_bytes_per_token(sizes: Sizes, training: Training) -> int:
    """Bytes one layer keeps of a token."""
    width = training.compute_bytes
    norms = 2 * sizes.hidden * (4 + 2 * width)
    attention = width * (2 * sizes.query_width + 2 * sizes.kv_width)
    if training.attention == "eager" and training.sequence_length:
        # Scores, their softmax in float32 and its cast: one row of all heads for each token.
        attention += (2 * width + 4) * sizes.heads * training.sequence_length
    experts = max(1, sizes.experts_per_token)
    mlp = width * (4 if sizes.gated else 2) * sizes.intermediate * experts
    return norms + attention + mlp


def logits(sizes: Sizes, training: Training) -> Term | None:
    """The output of the head, its float32 copy, the log-softmax and its gradient."""
    tokens = training.tokens
    if tokens is None:
        return None
    if training.liger:
        return Term("logits", 0, "computed in chunks by the fused loss")
    width = training.compute_bytes
    each = 12 + (width if width < 4 else 0)
    parts = f"({width} + 4 + 4 + 4)" if width < 4 else "(4 + 4 + 4)"
    text = f"{tokens:,} tokens x {sizes.vocabulary:,} x {parts} bytes"
    return Term("logits", tokens * sizes.vocabulary * each, text)


def terms(sizes: Sizes, training: Training) -> tuple[Term, ...]:
    """All parts that can be computed, the certain ones first."""
    sure = (weights, gradients, optimizer_states)
    found = [part(sizes, training) for part in sure]
    for unsure in (activations, logits):
        term = unsure(sizes, training)
        if term is not None:
            found.append(term)
    return tuple(found)


def training_of(setup: Setup, config: Mapping[str, Any]) -> tuple[Training, tuple[str, ...]]:
    """The training with defaults where nothing is known, and what was assumed, in sentences."""
    assumed: list[str] = []
    text = text_part(config)

    def known(name: str, default: Any, words: str) -> Any:
        value = getattr(setup, name)
        if value is None:
            assumed.append(words)
            return default
        return value

    method = known("method", "full", "full fine-tuning (no adapter in sight)")
    stored = str(text.get("torch_dtype") or text.get("dtype") or "bfloat16").removeprefix("torch.")
    stored = stored if stored in DTYPE_BYTES else "bfloat16"
    dtype = known("weights_dtype", stored, f"weights in {stored}, as the checkpoint is stored")
    optimizer = known("optimizer", "adamw_torch_fused", "AdamW of torch")
    on = known("checkpointing", False, "no activation checkpointing")
    attention = known("attention", "sdpa", "attention by sdpa")
    for name, word in (("micro_batch_size", "batch"), ("sequence_length", "sequence length")):
        if getattr(setup, name) is None:
            option = "--micro-batch" if name == "micro_batch_size" else "--seq-len"
            assumed.append(f"nothing about the {word}: give {option}")
    training = Training(
        micro_batch_size=setup.micro_batch_size,
        sequence_length=setup.sequence_length,
        method=method,
        weights_dtype=dtype,
        autocast=setup.autocast_dtype in ("bfloat16", "float16"),
        optimizer=optimizer,
        checkpointing=bool(on),
        attention=attention,
        liger=bool(setup.liger),
        lora_rank=setup.lora_rank or 16,
        quantization=setup.quantization or "nf4",
        world_size=setup.world_size or 1,
        stage=setup.sharding(),
        master_weights=setup.zero_stage is not None and setup.autocast_dtype is not None,
        offload_optimizer=bool(setup.offload_optimizer),
    )
    return training, tuple(assumed)


# Families whose configuration class ties the output head unless the file says otherwise.
_TIED = frozenset(
    {"gpt2", "gemma", "gemma2", "gemma3_text", "bert", "t5", "opt", "bloom", "gpt_neo"}
)


def _first(text: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = text.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _with_parameters(sizes: Sizes, parameters: int) -> Sizes:
    return replace(sizes, parameters=parameters)


def _shared(name: str, count: int, each: float, shards: int) -> Term:
    text = f"{count:,} x {each:g} byte{'' if each == 1 else 's'}"
    if shards > 1:
        return Term(name, round(count * each / shards), f"{text} / {shards} devices")
    return Term(name, round(count * each), text)
