"""Host memory that the ranks of one node hold: an estimate from what each engine keeps there.

Every rank is a process. The data loader's workers, the page cache and the CUDA
libraries' own host memory (hundreds of MiB a rank on a real GPU) come on top.

What is pinned, PyTorch rounds up to a power of two (CachingHostAllocator), so DeepSpeed's flat
buffers may take up to twice their size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from oomdoctor.analysis.memory.closed_form import (
    shards_of,
    state_width,
    trained_bytes_of,
    weights_bytes,
)
from oomdoctor.records.configuration.adapters import compute_dtype
from oomdoctor.records.configuration.config import TrainConfig, is_fsdp, is_zero, uses_host
from oomdoctor.records.facts.choices import AUTO
from oomdoctor.records.facts.dtypes import FLOAT32_BYTES, dtype_bytes
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.units import format_bytes

# One rank that has imported torch, transformers, peft, bitsandbytes and DeepSpeed and touched the
# emulated GPU: 424 MiB of proportional set size (torch 2.12.1+cu130, transformers 5.23,
# DeepSpeed 0.19.8). 381 MiB with the CPU build of torch 2.13 and without DeepSpeed.
PROCESS_BYTES = 424 << 20


@dataclass(frozen=True, slots=True)
class HostPart:
    """One kind of host memory of a node: while the model is loaded (`loading`) or afterwards.

    None means both.
    """

    name: str
    size_bytes: int
    loading: bool | None = False


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The peak of a node's host memory, and what all ranks of the node hold, by kind."""

    ranks: int
    parts: tuple[HostPart, ...]

    @property
    def peak_bytes(self) -> int:
        """The larger of loading and training; processes and buffers are there in both."""
        return max(self._total(loading=True), self._total(loading=False))

    def text(self) -> str:
        """What the peak consists of, the largest part first."""
        loading = self._total(loading=True) > self._total(loading=False)
        parts = sorted(self._at(loading=loading), key=lambda part: -part.size_bytes)
        named = [f"{part.name} {format_bytes(part.size_bytes)}" for part in parts]
        ranks = "1 rank" if self.ranks == 1 else f"{self.ranks} ranks"
        when = " while loading" if loading else ""
        return f"host memory of a node with {ranks}{when}: {', '.join(named)}"

    def _total(self, *, loading: bool) -> int:
        return sum(part.size_bytes for part in self._at(loading=loading))

    def _at(self, *, loading: bool) -> list[HostPart]:
        then = (part for part in self.parts if part.loading in (None, loading))
        return [part for part in then if part.size_bytes]


def is_known(config: TrainConfig) -> bool:
    """Whether the host memory of a node is of interest, and can be predicted.

    What activations take there is not known.
    """
    if config.activation_checkpointing == "offload" or config.offload == "activations":
        return False
    moved = config.rollout_offload != "none" or config.critic in ("host", "weights")
    return config.sharding != "none" or uses_host(config) or moved


def host_memory(config: TrainConfig, counts: ParameterCounts, trainable: int | None) -> HostMemory:
    """The host memory of a node of this training.

    `trainable` is the number of parameters with gradients; for full training all, if unknown.
    Not counted are activations there (see `is_known`), and a checkpoint that each rank reads whole
    first, as FSDP does without `cpu_ram_efficient_loading`.
    """
    ranks = min(config.world_size, config.gpus_per_node)
    trained = counts.total if trainable is None else trainable
    parts = [HostPart("processes", ranks * PROCESS_BYTES, None), *_loading(config, counts, ranks)]
    each = _states(config, counts, trained) | _while_generating(config, counts, trained)
    parts += [HostPart(name, ranks * size) for name, size in each.items()]
    return HostMemory(ranks, tuple(parts))


def _loading(config: TrainConfig, counts: ParameterCounts, ranks: int) -> list[HostPart]:
    """The weights while they are loaded.

    ddp, ZeRO-1 and ZeRO-2 load to the GPU, a tensor at a time. FSDP loads on the first rank of each
    node; the others only declare their weights. With ZeRO-3 the first rank reads the checkpoint
    (transformers 5, `_load_pretrained_model`), and DeepSpeed moves each rank's shard through host
    memory (`defragment`).
    """
    if not is_fsdp(config) and config.sharding != "zero3":
        return []
    whole = weights_bytes(config, counts)
    moved = whole // shards_of(config) * ranks if config.sharding == "zero3" else 0
    sizes = {"the checkpoint on one rank": whole, "shards on their way": moved}
    return [HostPart(name, size, loading=True) for name, size in sizes.items()]


def _states(config: TrainConfig, counts: ParameterCounts, trained: int) -> dict[str, int]:
    """Bytes of offloaded states on each rank, by kind."""
    if config.offload not in ("optimizer", "parameters"):
        return {}
    if is_zero(config):
        return _of_zero(config, counts, trained)
    each = trained_bytes_of(config)
    width = state_width(config.optimizer, each) or 0
    shard = -(-trained // shards_of(config))
    states = {"optimizer states": shard * width}
    if config.offload == "parameters":
        states["weights"] = weights_bytes(config, counts) // shards_of(config)
        states["gradients"] = shard * each
    return states


def _while_generating(config: TrainConfig, counts: ParameterCounts, trained: int) -> dict[str, int]:
    """What each rank moves to host memory while another model or vLLM has the card.

    The weights of a critic count with their output head, which it does not have.
    """
    whole = replace(
        config, method="full", quantization="none", adapter_dtype="default", reference="default"
    )
    critic = _moved(whole, counts, counts.total)
    parts = {
        "optimizer": {"states moved for vLLM": _moved(config, counts, trained)[1]},
        "all": {"model moved for vLLM": sum(_moved(config, counts, trained))},
    }.get(config.rollout_offload, {})
    of_critic = {"weights": critic[1], "host": sum(critic)}.get(config.critic, 0)
    return parts | {"critic": of_critic}


def _moved(config: TrainConfig, counts: ParameterCounts, trained: int) -> tuple[int, int]:
    """The weights and the optimizer states of a rank; those of DeepSpeed with float32 weights."""
    each = FLOAT32_BYTES if is_zero(config) else trained_bytes_of(config)
    width = (state_width(config.optimizer, each) or 0) + (FLOAT32_BYTES if is_zero(config) else 0)
    copied = config.sharding in ("zero1", "zero2")
    weights = weights_bytes(config, counts) // (1 if copied else shards_of(config))
    return weights, width * trained // shards_of(config)


def _of_zero(config: TrainConfig, counts: ParameterCounts, trained: int) -> dict[str, int]:
    """What stage_1_and_2.py and stage3.py of DeepSpeed 0.19 keep on the host with offload.

    The master weights, their gradients and the moments are in fp32, whatever the model is in.
    """
    short = dtype_bytes(compute_dtype(config))
    shard = -(-trained // config.world_size)
    width = state_width(config.optimizer, FLOAT32_BYTES) or 0
    states = {
        "fp32 weights": _pinned(shard * FLOAT32_BYTES),
        "fp32 gradients": _pinned(shard * FLOAT32_BYTES),
        "optimizer states": shard * width,
        # The buffer of updated weights (stages 1 and 2), or of gradients (stage 3).
        "16-bit buffers": _pinned(shard * short),
    }
    if config.sharding == "zero3":
        # Its master weights and fp32 gradients: only the gradients are pinned.
        states["fp32 weights"] = shard * FLOAT32_BYTES
        if config.offload == "parameters":
            states["weights"] = _pinned(-(-counts.total // config.world_size) * short)
    elif config.micro_batch_size == AUTO or config.accumulation_steps() > 1:
        states["accumulated gradients"] = shard * short
    return states


def _pinned(size: int) -> int:
    """What pinning takes: the next power of two."""
    return 1 << (size - 1).bit_length() if size else 0
