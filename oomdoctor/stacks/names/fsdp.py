"""FSDP: `fsdp` and `fsdp_config` of transformers; accelerate and axolotl share the inner names."""

from __future__ import annotations

from oomdoctor.records.configuration.config import TrainConfig, is_fsdp
from oomdoctor.stacks.engines import fsdp_settings
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, Write, words_of
from oomdoctor.stacks.names.values import among, flag, if_on, integer, switched, word
from oomdoctor.stacks.partial_config import PartialConfig

STRATEGIES = words_of("fsdp strategy")


def strategy(value: object) -> PartialConfig:
    """A sharding strategy by name or by number."""
    if (name := word(value)) in STRATEGIES:
        return {"fsdp_strategy": STRATEGIES[name]}
    raise NotTakenError(f"oomdoctor has no sharding strategy {value}")


def reshard(value: object) -> PartialConfig:
    """`reshard_after_forward`: a switch for FSDP 2, a strategy for FSDP 1."""
    if value is None:
        return {}
    try:
        return {"fsdp_reshard": flag(value)}
    except ValueError:
        return strategy(value)


def fsdp_words(value: object) -> PartialConfig:
    """`fsdp`: a switch, or words such as `full_shard auto_wrap offload`."""
    words = value if isinstance(value, list) else str(value or "").split()
    words = list(map(word, words))
    if not words or words in (["false"], ["none"]):
        return {}
    said: PartialConfig = {"fsdp": True}
    for option in words:
        if option in STRATEGIES:
            said |= strategy(option)
        elif option == "offload":
            said["fsdp_offload"] = True
        elif option not in ("auto_wrap", "true"):
            raise NotTakenError(f"oomdoctor has no FSDP option {option}")
    return said


def version(value: object) -> PartialConfig:
    """1 is `FullyShardedDataParallel`, 2 is `fully_shard`."""
    number = integer(value)
    if number not in (1, 2):
        raise ValueError(f"must be 1 or 2, not {value!r}")
    return {"fsdp_version": number}


def rows(*, of_launcher: bool = False) -> tuple[Row, ...]:
    """The rows of `fsdp_config`; of accelerate, names begin with `fsdp_` and words are in capitals.

    The other spelling of a name is read, too.
    """
    prefix, other = ("fsdp_", "")[:: 1 if of_launcher else -1]

    def written(name: str) -> Write:
        def write(config: TrainConfig) -> object:
            value = fsdp_settings(config).get(name, LEFT_OUT) if is_fsdp(config) else LEFT_OUT
            return value.upper() if of_launcher and isinstance(value, str) else value

        return write

    def row(name: str, keys: tuple[str, ...], read: Read, write: Write | None = None) -> Row:
        older = (f"fsdp_config.{other}{name}",)
        return Row(f"fsdp_config.{prefix}{name}", keys, read, write, older)

    offload, older = ("offload_params", "cpu_offload")[:: 1 if of_launcher else -1]
    again = ("fsdp_reshard", "fsdp_strategy")
    backward = among("fsdp backward prefetch", {"prefetch": "none"})
    forward = if_on({"prefetch": "forward"}, {})
    return (
        row("version", ("fsdp_version",), version, written("version")),
        row("reshard_after_forward", again, reshard, written("reshard_after_forward")),
        row("sharding_strategy", ("fsdp_strategy",), strategy),
        row(offload, ("fsdp_offload",), switched("fsdp_offload"), written("cpu_offload")),
        row(older, ("fsdp_offload",), switched("fsdp_offload")),
        row("activation_checkpointing", ("fsdp_checkpointing",), switched("fsdp_checkpointing")),
        row("backward_prefetch", ("prefetch",), backward, written("backward_prefetch")),
        row("forward_prefetch", ("prefetch",), forward, written("forward_prefetch")),
    )


FSDP_CONFIG = rows()
