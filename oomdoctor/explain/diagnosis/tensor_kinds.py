"""The tensors that a training allocates, by their dimensions, and buffers of a fixed size."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.units import MIB

# Vocabulary sizes of common families, for when only batch and length are known.
VOCABULARIES = {
    30522: "BERT",
    32000: "Llama 2, Mistral",
    32064: "Phi-3",
    49152: "SmolLM, StarCoder",
    50257: "GPT-2",
    50304: "GPT-2 padded, Pythia",
    100352: "Phi-4",
    128256: "Llama 3",
    131072: "Mistral Nemo",
    151936: "Qwen, small",
    152064: "Qwen, large",
    248320: "Qwen 3.5",
    256000: "Gemma",
    262144: "Gemma 3",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A tensor by its dimensions: letters that stand for sizes, such as "B S V".

    `widths` are the possible bytes per element. `phases` are the ones that allocate it. `hint` is
    what the frames show at that moment. Without a hint the phase must match; a kind that few models
    have (`needs_hint`) must have both.
    """

    name: str
    dimensions: str
    widths: tuple[int, ...]
    phases: tuple[str, ...]
    hint: str
    needs_hint: bool = False


# Letters: B batch, S sequence, V vocabulary, E embedding width, H hidden, A heads, D head width,
# K key-value heads, I intermediate, Q query width, G = 2 x I, X experts, L layers, P parameters.
_STEP = ("forward", "backward")
KINDS: tuple[Kind, ...] = (
    Kind(
        "logits",
        "B S V",
        (4, 2),
        ("loss", "forward", "backward", "eval"),
        r"loss_utils|cross_entropy|log_softmax|lm_head|logits|\.float\(\)|fixed_cross",
    ),
    Kind(
        "shifted logits",
        "B S-1 V",
        (4, 2),
        ("loss", "forward", "backward", "eval"),
        r"shift_logits|cross_entropy|\[\.\.\., :-1",
    ),
    Kind(
        "attention scores of one layer (eager attention)",
        "B A S S",
        (4, 2),
        (*_STEP, "eval", "generate"),
        r"eager_attention|softmax|matmul\(q|torch\.matmul|attn_weights|baddbmm|bmm",
    ),
    Kind("causal mask", "B 1 S S", (4, 2, 1), ("forward", "eval", "generate"), r"mask"),
    Kind(
        "MLP intermediate of one layer",
        "B S I",
        (4, 2),
        (*_STEP, "eval", "generate"),
        r"mlp|gate_proj|up_proj|down_proj|act_fn|feed_forward|intermediate|c_fc|fc1|gelu|silu",
    ),
    Kind("gate and up projection of one layer", "B S G", (4, 2), _STEP, r"gate_up", True),
    Kind(
        "hidden states",
        "B S H",
        (4, 2),
        (*_STEP, "eval", "generate"),
        r"norm|residual|hidden_states|embed",
    ),
    Kind("queries of one layer", "B S Q", (4, 2), _STEP, r"q_proj|query|c_attn|rotary"),
    Kind(
        "keys or values of one layer",
        "B K S D",
        (4, 2),
        ("generate", "forward"),
        r"cache|k_proj|v_proj|key_states|value_states",
    ),
    Kind(
        "output head or embedding table, or a copy of it",
        "V H",
        (4, 2),
        ("load", "init", "save"),
        r"lm_head|embed|tie_weights|resize",
    ),
    Kind(
        "gradient of the output head or of the embedding",
        "V H",
        (4, 2),
        ("backward", "clip"),
        r"embedding|backward|clip_grad|unscale",
    ),
    Kind(
        "optimizer state or temporary of the embedding",
        "V H",
        (4, 2),
        ("optimizer",),
        r"adam|foreach|exp_avg|zeros_like|optim",
    ),
    Kind("one copy of lm_head", "V H", (4, 2), ("loss", "forward"), r"lm_head|F\.linear|float"),
    Kind(
        "MLP weight of one layer",
        "I H",
        (4, 2),
        ("load", "init", "optimizer", "backward"),
        r"proj|mlp|_apply|load|adam|foreach|to\(",
    ),
    Kind(
        "stacked expert weights of one layer",
        "X G H",
        (4, 2),
        ("load", "init", "optimizer", "backward"),
        r"experts|load|adam",
    ),
    Kind(
        "flat buffer of all trainable parameters",
        "P",
        (4, 2),
        ("init", "load", "optimizer", "backward", "save"),
        r"flatten|flat_|stage_1_and_2|stage3|_broadcast|allreduce|all_reduce",
    ),
    Kind(
        "flat buffer of one layer's parameters",
        "W",
        (4, 2),
        ("init", "forward", "backward", "optimizer"),
        r"fsdp|flat_param|unshard|all_gather",
    ),
)
# Buffers whose size is a library default, independent of the model.
BUCKETS: tuple[tuple[int, str, str], ...] = (
    (5 * 10**8 * 2, "DeepSpeed bucket of 5e8 elements in 16 bits", r"deepspeed"),
    (5 * 10**8 * 4, "DeepSpeed bucket of 5e8 elements in 32 bits", r"deepspeed"),
    (2 * 10**8 * 2, "DeepSpeed bucket of 2e8 elements in 16 bits", r"deepspeed"),
    (25 * MIB, "gradient bucket of DistributedDataParallel", r"distributed|reducer"),
)
