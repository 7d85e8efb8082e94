"""What code ran a row of several GPUs: the adaptations that it needs, or why none do."""

from __future__ import annotations

from collections.abc import Iterator

from published.code import NotExpressibleError, Row, adaptations

# The allocator is that of the torch that runs.
_OF_SIMULATIONS = frozenset({"lowest of equal blocks"})
_FUSED = "foak_fused_ce_rmsnorm_rope"
_KNOWN_FEATURES = frozenset({"chunked_ce", "liger_flce"})


def check_many(row: Row) -> None:
    """Raises NotExpressibleError: kernels or kinds of parallelism that no rung has."""
    if "parallel" in str(row["sharding"]):
        raise NotExpressibleError("context, tensor or pipeline parallel, which no rung has")
    features = {str(feature) for feature in row.get("features") or ()}
    features = {f for f in features if not f.startswith("cpu_offload")} - _KNOWN_FEATURES
    if runs_as_it_was(row):
        features.discard(_FUSED)
    if features:
        names = ", ".join(sorted(features))
        raise NotExpressibleError(f"kernels or code that no adaptation gives: {names}")


def runs_as_it_was(row: Row) -> bool:
    """Whether the row's own libraries can be had: those of fms-acceleration's benchmark."""
    return row.get("stack") == "fms"


def is_fused(row: Row) -> bool:
    """Whether a row ran with the fused kernels of fms-acceleration."""
    return _FUSED in (row.get("features") or ())


def engine_adaptations(row: Row, *, own: bool) -> Iterator[str]:
    """The names in `old_code.engines.ENGINE_ADAPTATIONS` under which the row runs.

    With its `own` libraries, a row only differs from a rung in what it sets.
    """
    if own:
        yield "reentrant checkpoints"
        if is_fused(row):
            yield "fused kernels and head" if "liger_flce" in row["features"] else "fused kernels"
        return
    names = [name for name in adaptations(row) if name not in _OF_SIMULATIONS]
    of_group = _OF_GROUPS.get(str(row.get("group")))
    yield from of_group(row, names) if of_group else names


def _of_fsdp_qlora(_: Row, names: list[str]) -> Iterator[str]:
    yield from ("fp32 logits kept" if name == "shifted logits" else name for name in names)


def _of_lit_gpt(row: Row, names: list[str]) -> Iterator[str]:
    if row["config"]["model_type"] == "llama":
        yield from names
    else:
        yield from ("lit-gpt's loss" if name == "lit-gpt" else name for name in names)
        yield from ("adapters within layers", "adapters like the base")
    yield "longest batch first"


def _of_ml_engineering(row: Row, names: list[str]) -> Iterator[str]:
    yield from (*names, "outputs kept", "overlapped reduction")
    if "ZeRO-3" in row["sharding"]:
        yield "whole model before ZeRO"
    if row.get("cpu_offload"):
        yield "idle host"


def _of_torchtitan(_: Row, names: list[str]) -> Iterator[str]:
    yield from (name for name in names if name != "shifted logits")
    yield "operators recomputed"


_OF_GROUPS = {
    "answerai-fsdp-qlora": _of_fsdp_qlora,
    "litgpt": _of_lit_gpt,
    "stas-ml-engineering": _of_ml_engineering,
    "torchtitan": _of_torchtitan,
}
