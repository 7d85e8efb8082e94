"""What differs between model architectures, as `data/architectures.toml` has it.

Whatever transformers can tell from a built model is not here; these facts are for code that only
has a config.json, and for names that no library lists.
"""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.package_data import data_of, in_tuples, rows_of

_DATA = in_tuples(data_of("architectures.toml"))
SIZE_NAMES: dict[str, tuple[str, ...]] = _DATA["sizes"]
PATTERN_KINDS: dict[str, str] = _DATA["pattern_kinds"]
TOWERS: tuple[str, ...] = _DATA["towers"]
GATED_ACTIVATIONS: tuple[str, ...] = _DATA["gated_activations"]
COMPOSED_ACTIVATIONS: tuple[str, ...] = _DATA["composed_activations"]
LAYER_NORM_KEYS: tuple[str, ...] = _DATA["layer_norm_keys"]
LIGER_FAMILIES: tuple[str, ...] = _DATA["liger_families"]
WITHOUT_SDPA: tuple[str, ...] = _DATA["without_sdpa"]
SOUND_KEYS: tuple[str, ...] = _DATA["sound_keys"]
VISION_KEYS: tuple[str, ...] = _DATA["vision_keys"]
HEADS: dict[str, tuple[str, ...]] = _DATA["heads"]
WRITES_TEXT: tuple[str, ...] = (*HEADS["causal-lm"], *_DATA["writes_text"])
ROLES_OF: dict[str, tuple[str, ...]] = _DATA["roles"]
# The version of transformers from which the experts of a layer are one tensor. bitsandbytes
# quantizes linear layers only, so it leaves these experts as they are.
EXPERTS_STACKED_SINCE = 5

# Part of a layer -> a pattern of the attribute names that transformers' layers give it.
LAYER_PARTS = {
    "attention": r"attn|attention",
    "mlp": r"mlp|moe|feed_?forward|ffn|^ff$|densereludense",
}
# The linear layers of a decoder layer.
ROLES = ("q", "k", "v", "o", "gate", "up", "down")


@dataclass(frozen=True, slots=True)
class Family:
    """The quirks of one `model_type`.

    `tied` says that the output head shares the input embeddings where config.json does not say.
    `positions_after_padding` says that positions are counted from the padding id, which leaves
    fewer for a row. `norms` is the number of norms of a layer over its hidden width. `wide_norms`
    says that they multiply with their weight in 32 bits, `head_norms` that queries and keys have
    norms, too. `stacked_experts` says that the experts of a layer are one tensor in every version
    of transformers.
    """

    model_type: str
    tied: bool = False
    positions_after_padding: bool = False
    norms: int = 2
    wide_norms: bool = False
    head_norms: bool = False
    stacked_experts: bool = False


_PLAIN = Family("")
FAMILIES = {row.model_type: row for row in rows_of(Family, "architectures.toml")}


def family_of(model_type: str) -> Family:
    """The quirks of a model type; none for a type without a row."""
    return FAMILIES.get(model_type, _PLAIN)


def experts_stacked(model_type: str, transformers: str | None) -> bool | None:
    """Whether the experts of a layer are one tensor, which bitsandbytes does not quantize.

    `transformers` is the version; None is returned if only that would tell.
    """
    if family_of(model_type).stacked_experts:
        return True
    if transformers is None:
        return None
    return int(transformers.partition(".")[0]) >= EXPERTS_STACKED_SINCE
