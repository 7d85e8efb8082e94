"""FSDP: `fsdp` and `fsdp_config` of transformers; accelerate and axolotl share the inner names."""

from __future__ import annotations

from oomdoctor.records.config import TrainConfig, is_fsdp
from oomdoctor.stacks.names.row import LEFT_OUT, NotTakenError, Read, Row, Write
from oomdoctor.stacks.names.values import flag, integer
from oomdoctor.stacks.partial_config import PartialConfig, only

STRATEGIES = {
    "full_shard": "fsdp",
    "shard_grad_op": "fsdp_grad_op",
    "hybrid_shard": "hybrid",
    "no_shard": "ddp",
    "1": "fsdp",
    "2": "fsdp_grad_op",
    "3": "ddp",
    "4": "hybrid",
}
WORDS = {"fsdp": "full_shard", "fsdp_grad_op": "shard_grad_op", "hybrid": "hybrid_shard"}


def strategy(value: object) -> PartialConfig:
    """A sharding strategy by name or by number."""
    word = str(value).strip().lower()
    if word in STRATEGIES:
        return {"fsdp_strategy": STRATEGIES[word]}
    raise NotTakenError(f"a rung has no sharding strategy {value}")


def reshard(value: object) -> PartialConfig:
    """`reshard_after_forward`: a switch for FSDP 2, a strategy for FSDP 1."""
    if value is None:
        return {}
    try:
        return {"fsdp_reshard": flag(value)}
    except ValueError:
        return strategy(value)


def _word(value: object) -> PartialConfig:
    """`fsdp`: a switch, or words such as `full_shard auto_wrap offload`."""
    words = value if isinstance(value, list) else str(value or "").split()
    words = [str(word).strip().lower() for word in words]
    if not words or words in (["false"], ["none"]):
        return {}
    found: PartialConfig = {"fsdp": True}
    for word in words:
        if word in STRATEGIES:
            found |= strategy(word)
        elif word == "offload":
            found["fsdp_offload"] = True
        elif word not in ("auto_wrap", "true"):
            raise NotTakenError(f"a rung has no FSDP option {word}")
    return found


def _written_word(config: TrainConfig) -> object:
    if not is_fsdp(config):
        return LEFT_OUT
    by_mesh = config.sharding == "hybrid" and config.fsdp_version == 2
    offload = " offload" if config.offload == "parameters" else ""
    return f"{'full_shard' if by_mesh else WORDS[config.sharding]} auto_wrap{offload}"


FSDP_WORD = Row("fsdp", ("fsdp",), _word, _written_word)


def _on(key: str) -> Read:
    return lambda value: {} if value is None else only(key, flag(value))


def _of_fsdp(write: Write) -> Write:
    return lambda config: write(config) if is_fsdp(config) else LEFT_OUT


def _of_first(write: Write) -> Write:
    return lambda config: (
        write(config) if is_fsdp(config) and config.fsdp_version == 1 else LEFT_OUT
    )


def version(value: object) -> PartialConfig:
    """1 is `FullyShardedDataParallel`, 2 is `fully_shard`."""
    number = integer(value)
    if number not in (1, 2):
        raise ValueError(f"must be 1 or 2, not {value!r}")
    return {"fsdp_version": number}


def backward_prefetch(value: object) -> PartialConfig:
    """Which weights FSDP 1 gathers ahead in the backward pass."""
    word = str(value or "").strip().lower()
    if word in ("no_prefetch", "none", ""):
        return {"prefetch": "none"}
    if word == "backward_post":
        raise NotTakenError("a rung gathers before the backward pass of a layer")
    return {}


def forward_prefetch(value: object) -> PartialConfig:
    """Whether FSDP 1 gathers ahead in the forward pass."""
    return {"prefetch": "forward"} if value is not None and flag(value) else {}


def shards_again(config: TrainConfig) -> object:
    """`reshard_after_forward` of a rung."""
    if config.fsdp_version == 2:
        return config.sharding != "fsdp_grad_op"
    return WORDS[config.sharding]


def prefetched(config: TrainConfig) -> str:
    """`backward_prefetch` of a rung."""
    return "no_prefetch" if config.prefetch == "none" else "backward_pre"


def rows(head: str, prefix: str, *, upper: bool = False) -> tuple[Row, ...]:
    """The rows of an `fsdp_config`: each name with `head.prefix`; the other spelling is read."""

    def case(text: object) -> object:
        return text.upper() if upper and isinstance(text, str) else text

    def row(name: str, keys: tuple[str, ...], read: Read, write: Write | None) -> Row:
        other = "fsdp_" if not prefix else ""
        return Row(f"{head}.{prefix}{name}", keys, read, write, (f"{head}.{other}{name}",))

    offload = "offload_params" if upper else "cpu_offload"
    return (
        row("version", ("fsdp_version",), version, _of_fsdp(lambda c: c.fsdp_version)),
        row(
            "reshard_after_forward",
            ("fsdp_reshard", "fsdp_strategy"),
            reshard,
            _of_fsdp(lambda c: case(shards_again(c))),
        ),
        row("sharding_strategy", ("fsdp_strategy",), strategy, None),
        row(
            offload,
            ("fsdp_offload",),
            _on("fsdp_offload"),
            _of_fsdp(lambda c: c.offload == "parameters"),
        ),
        row(
            "cpu_offload" if upper else "offload_params",
            ("fsdp_offload",),
            _on("fsdp_offload"),
            None,
        ),
        row("activation_checkpointing", ("fsdp_checkpointing",), _on("fsdp_checkpointing"), None),
        row(
            "backward_prefetch",
            ("prefetch",),
            backward_prefetch,
            _of_first(lambda c: case(prefetched(c))),
        ),
        row(
            "forward_prefetch",
            ("prefetch",),
            forward_prefetch,
            _of_first(lambda c: c.prefetch == "forward"),
        ),
    )


FSDP_CONFIG = rows("fsdp_config", "")
# How FSDP wraps, loads and saves, which leaves the peak of a step alone where layers are units.
NEUTRAL = (
    "auto_wrap_policy",
    "cpu_ram_efficient_loading",
    "limit_all_gathers",
    "state_dict_type",
    "sync_module_states",
    "transformer_layer_cls_to_wrap",
    "use_orig_params",
    "final_state_dict_type",
    "save_optimizer_state",
)
