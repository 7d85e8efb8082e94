"""The keys of a rung: what each is called, when it means something, and what it does to memory.

A key is a field of `TrainConfig`, whose docstring says what it is, and one row of
`data/rung_keys.toml`. The rows stand in the order of the words of a label, the short name of a
rung: how it differs from what people expect of its method. Two rungs that train differently have
different labels. Only the micro-batch size is left out: a rung is tried at several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args

from oomdoctor.package_data import data_of, in_tuples
from oomdoctor.records.configuration.config import FSDP, ZERO, TrainConfig
from oomdoctor.records.facts.attention import ATTENTIONS
from oomdoctor.records.facts.choices import AutocastDtype, Method, Objective, Sharding
from oomdoctor.records.facts.dtypes import dtype_word
from oomdoctor.records.facts.optimizers import OPTIMIZERS

Group = Literal["Method", "Adapters", "Memory and speed", "Objective", "Data", "GPUs", "Sizes"]
Order: TypeAlias = Literal["more", "less", "none"] | tuple[Any, ...]

MEANS_NOTHING = "means nothing with"
_SCRIPTS = {
    "any": ("trainer", "trl", "pytorch", "unsloth"),
    "trainers": ("trainer", "trl"),  # their Trainer has the Accelerator that engines need
}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a rung.

    - `word`: what a label says where the value is not the default: a text for `{}`, or a text by
      value; `_WORDS` has functions. Empty if the head of the label or the word of another key says
      it.
    - `when`: with which values of another key it means anything. Where it does not, its value is
      `settles`, by default the default of the field.
    - `needs`: why another value is refused there, also by value; unless it is `needed_alone`, only
      on several GPUs. Without it, the value is dropped; a rung that names the key is refused all
      the same (`dropped_faults`).
    - `least`: the smallest number that is accepted.
    - `memory`: what a larger value surely does to memory at each moment of a step (`more`, `less`),
      or the values from those that need least to those that need most; `none` if it changes no
      memory. None if nothing is certain.
    - `names`: what programs and people call the key; `values`: what they call its values.
    - `refused`: values of programs that no rung has, with the reason and what to use.
    - `scripts`: the kinds of scripts that can say it. `elsewhere`: what says it, if that is not the
      file of a program.
    - `instead`: what is taken where a program combines the key with what a rung cannot.
    """

    name: str
    group: Group
    word: str | Mapping[Any, str] = ""
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    needs: str | Mapping[str, str] | None = None
    needed_alone: bool = True
    least: int | None = None
    memory: Order | None = None
    names: tuple[str, ...] = ()
    values: Mapping[str, tuple[str, ...]] | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()
    elsewhere: str | None = None
    instead: tuple[Any, ...] = ()

    def default(self) -> Any:
        """The value of a rung that does not name the key."""
        return getattr(_PLAIN, self.name)

    @property
    def settles(self) -> Callable[[TrainConfig], Any] | None:
        """What the value is where the key means nothing, if that is not the default."""
        return _unsloths_autocast if self.name == "autocast_dtype" else None

    def means(self, config: TrainConfig) -> bool:
        """Whether the key means anything beside the other keys."""
        return all(getattr(config, name) in values for name, values in self.when.items())

    def said(self, config: TrainConfig) -> str:
        """The word in a label, if the value is not the default; empty if there is none."""
        value = getattr(config, self.name)
        if value == self.default():
            return ""
        if self.name in _WORDS:
            return _WORDS[self.name](config)
        if isinstance(self.word, str):
            return self.word.format(value)
        return self.word.get(value, str(value).replace("_", "-"))

    def fault(self, config: TrainConfig) -> str | None:
        """Why the value is refused beside the other keys, as far as the row says."""
        value = getattr(config, self.name)
        if self.least is not None and value < self.least:
            return f"must be at least {self.least}"
        if self.needs is None or value == self.default() or self.means(config):
            return None
        if not self.needed_alone and config.sharding == "none":
            return None
        needs = self.needs if isinstance(self.needs, str) else self.needs[value]
        return needs.format(config=config)


@lru_cache(maxsize=4096)
def settled(config: TrainConfig) -> TrainConfig:
    """The same training with each key that means nothing in it at its default."""
    for key in KEYS.values():  # a row comes after those that decide whether it means something
        if not key.means(config):
            value = key.default() if key.settles is None else key.settles(config)
            config = replace(config, **{key.name: value})
    return config


def usual_autocast(method: Method, objective: Objective = "default") -> AutocastDtype:
    """The mixed precision that ladders train a method with, beside weights in bfloat16."""
    return "none" if (method, objective) == ("full", "default") else "bfloat16"


def row_faults(config: TrainConfig) -> list[tuple[str, str]]:
    """What the rows of the keys refuse, as (key, sentence)."""
    return [(key.name, fault) for key in KEYS.values() if (fault := key.fault(config)) is not None]


def dropped_faults(config: TrainConfig, named: Iterable[str]) -> list[tuple[str, str]]:
    """The named keys whose values would be dropped, as (key, what makes it mean nothing)."""
    rest = settled(config)
    lost = [KEYS[name] for name in named if getattr(config, name) != getattr(rest, name)]
    return [(key.name, f"{MEANS_NOTHING} {_decided_by(key, rest)}") for key in lost]


def _decided_by(key: Key, config: TrainConfig) -> str:
    """`method "full"`: the key that decides whether another one means something."""
    (name,) = key.when
    return f'{name} "{getattr(config, name)}"'


def low_rank(config: TrainConfig) -> bool:
    """Whether the optimizer projects gradients to a rank."""
    row = OPTIMIZERS.get(config.optimizer)
    return row is not None and row.low_rank


def _unsloths_autocast(config: TrainConfig) -> AutocastDtype:
    """What Unsloth computes in, whatever the rung says."""
    if config.method == "full" or config.weights_dtype == "float32":
        return "none"
    return config.weights_dtype


def _checkpointing_word(config: TrainConfig) -> str:
    if config.activation_checkpointing == "every_n":
        return f"ckpt-every-{config.checkpoint_every}"
    return f"ckpt-{config.activation_checkpointing}".removesuffix("-full")


def _optimizer_word(config: TrainConfig) -> str:
    row = OPTIMIZERS.get(config.optimizer)
    rank = f"-r{config.optimizer_rank}" if low_rank(config) else ""
    return ((row and row.word) or config.optimizer) + rank


def _sharding_word(config: TrainConfig) -> str:
    version = "1" if config.fsdp_version == 1 else ""
    return f"{config.sharding.replace('_', '-')}{version}x{config.world_size}"


def _targets_word(config: TrainConfig) -> str:
    targets, shared = config.lora_targets, "_proj"
    if isinstance(targets, str):
        return f"targets-{targets}"
    if all(name.endswith(shared) for name in targets):
        return "proj-" + "-".join(name.removesuffix(shared) for name in targets)
    return "targets-" + "-".join(targets)


_WORDS: Mapping[str, Callable[[TrainConfig], str]] = {
    "adapter_dtype": lambda config: f"adapters-{dtype_word(config.adapter_dtype)}",
    "modules_to_save": lambda config: "save-" + "-".join(config.modules_to_save),
    "lora_targets": _targets_word,
    "lora_target_parameters": lambda config: "on-" + "-".join(config.lora_target_parameters),
    "quant_storage": lambda config: f"storage-{dtype_word(config.quant_storage)}",
    "activation_checkpointing": _checkpointing_word,
    "optimizer": _optimizer_word,
    "attention": lambda config: ATTENTIONS[config.attention].word,
    "sharding": _sharding_word,
    "reduce_dtype": lambda config: f"reduce-{dtype_word(config.reduce_dtype)}",
}
_PLAIN = TrainConfig()
_SETS: Mapping[str, tuple[str, ...]] = {
    "several GPUs": tuple(name for name in get_args(Sharding) if name != "none"),
    "FSDP": FSDP,
    "ZeRO": ZERO,
    "low rank": tuple(name for name, row in OPTIMIZERS.items() if row.low_rank),
}


def _key(name: str, row: Mapping[str, Any]) -> Key:
    when = {
        key: tuple(choice for value in values for choice in _SETS.get(value, (value,)))
        for key, values in row.get("when", {}).items()
    }
    scripts = row.get("scripts", ())
    return Key(name, **{**row, "when": when, "scripts": _SCRIPTS.get(scripts, scripts)})


KEYS: Mapping[str, Key] = {
    name: _key(name, row) for name, row in in_tuples(data_of("rung_keys.toml")).items()
}
_SIZE_WORDS = {"sequence_length": "seq", "effective_batch_size": "batch"}


def label_of(config: TrainConfig, sizes: TrainConfig | None = None) -> str:
    """A label such as `qlora-nf4-r16+ckpt+paged8bit`.

    `sizes` has the sequence length and the effective batch size that the rung would have if it
    named none: where it has others, the label says so.
    """
    config = settled(config)
    words = [word for key in KEYS.values() if (word := key.said(config))]
    if sizes is not None:
        words += [
            f"{word}-{getattr(config, name)}"
            for name, word in _SIZE_WORDS.items()
            if getattr(config, name) != getattr(sizes, name)
        ]
    return "+".join([_head(config), *words])


def _head(config: TrainConfig) -> str:
    """The method with its rank and precision."""
    if config.method == "full":
        parts = ["full", dtype_word(config.weights_dtype), _autocast(config)]
    else:
        kind = ("qlora", config.quantization) if config.method == "qlora" else ("lora",)
        parts = [*kind, f"r{config.lora_rank}", *_unusual_precision(config)]
    return "-".join(part for part in parts if part)


def _unusual_precision(config: TrainConfig) -> tuple[str, ...]:
    """What adapters are trained in, if that is not bfloat16 with autocast, as ladders have it."""
    weights, mixed = config.weights_dtype, config.autocast_dtype
    word = "" if weights == "bfloat16" else dtype_word(weights)
    if mixed == "none":
        return (word,) if weights == "float32" else (word, "no-amp")
    if weights == mixed:
        return (word,)
    return (dtype_word(weights), _autocast(config))


def _autocast(config: TrainConfig) -> str:
    mixed = config.autocast_dtype
    return "" if mixed == "none" else f"amp-{dtype_word(mixed)}"
