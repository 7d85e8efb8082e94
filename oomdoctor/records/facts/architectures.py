"""What differs between model architectures: names of sizes and layers, and quirks of families.

Whatever transformers can tell from a built model is not here; these facts are for code that only
has a config.json, and for names that no library lists.
"""

from __future__ import annotations

from dataclasses import dataclass

# A size -> what families call it in config.json, the usual name first.
SIZE_NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_width": ("head_dim",),
    "intermediate": ("intermediate_size", "n_inner", "d_ff", "ffn_dim"),
    "expert_intermediate": ("moe_intermediate_size",),
    "vocabulary": ("vocab_size",),
    "embedding": ("embedding_size", "word_embed_proj_dim"),
    "positions": ("max_position_embeddings", "n_positions"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "top_k_experts", "moe_top_k"),
}
# Keys of parts that text does not run through.
TOWERS = ("vision_config", "audio_config", "speech_config")
# Activations of MLPs that have a gate.
GATED_ACTIVATIONS = ("silu", "swish", "gelu_pytorch_tanh")
# Activations that transformers computes by several operations, each of which autograd saves.
COMPOSED_ACTIVATIONS = ("gelu_new", "gelu_fast")
# Keys of config.json that only models with layer norms have; the others have RMS norms.
LAYER_NORM_KEYS = ("layer_norm_epsilon", "layer_norm_eps", "layer_norm_elementwise_affine")
# The version of transformers from which the experts of a layer are one tensor. bitsandbytes
# quantizes linear layers only, so it leaves these experts as they are.
EXPERTS_STACKED_SINCE = 5

# Part of a layer -> a pattern of the attribute names that transformers' layers give it.
LAYER_PARTS = {
    "attention": r"attn|attention",
    "mlp": r"mlp|moe|feed_?forward|ffn|^ff$|densereludense",
}
# The linear layers of a decoder layer, and what families call them.
ROLES = ("q", "k", "v", "o", "gate", "up", "down")
ROLES_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("q_proj", "query"), ("q",)),
    **dict.fromkeys(("k_proj", "key"), ("k",)),
    **dict.fromkeys(("v_proj", "value"), ("v",)),
    **dict.fromkeys(("o_proj", "out_proj", "dense"), ("o",)),
    **dict.fromkeys(("qkv_proj", "c_attn", "query_key_value", "Wqkv"), ("q", "k", "v")),
    **dict.fromkeys(("gate_proj", "w1"), ("gate",)),
    **dict.fromkeys(("up_proj", "w3", "fc1", "c_fc", "dense_h_to_4h"), ("up",)),
    **dict.fromkeys(("down_proj", "w2", "fc2", "dense_4h_to_h"), ("down",)),
    "gate_up_proj": ("gate", "up"),
}


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


_ROWS = (
    Family("gpt2", tied=True),
    Family("gpt_neo", tied=True),
    Family("gemma", tied=True, wide_norms=True),
    Family("gemma2", tied=True, norms=4, wide_norms=True),
    Family("gemma3_text", tied=True, norms=4, wide_norms=True, head_norms=True),
    Family("qwen3", head_norms=True),
    Family("qwen3_moe", head_norms=True),
    Family("olmo2", head_norms=True),
    Family("t5", tied=True),
    Family("bart", tied=True),
    Family("opt", tied=True),
    Family("bloom", tied=True),
    Family("falcon", tied=True),
    Family("bert", tied=True),
    Family("albert", tied=True),
    Family("distilbert", tied=True),
    Family("electra", tied=True),
    Family("roberta", tied=True, positions_after_padding=True),
    Family("xlm-roberta", tied=True, positions_after_padding=True),
    Family("camembert", tied=True, positions_after_padding=True),
    Family("longformer", tied=True, positions_after_padding=True),
    Family("gpt_oss", stacked_experts=True),
    Family("llama4_text", stacked_experts=True),
    Family("granitemoe", stacked_experts=True),
    Family("granitemoeshared", stacked_experts=True),
    Family("jetmoe", tied=True, stacked_experts=True),
)
_PLAIN = Family("")
FAMILIES = {row.model_type: row for row in _ROWS}

# Parts of a model's name or type for which liger-kernel has a fused linear cross-entropy.
LIGER_FAMILIES = (
    "llama", "mistral", "mixtral", "gemma", "qwen", "phi3", "granite", "olmo", "glm4", "smollm",
)  # fmt: skip


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
