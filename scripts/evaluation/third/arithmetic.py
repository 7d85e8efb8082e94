"""Bounds of a peak by hand: weights, gradients, optimizer states and activations from the shapes.

The lower bound is what has to be alive at the same moment, either at the optimizer's step or at the
start of the backward pass; the upper bound counts every tensor that a layer makes, each once in 32
bits. Both are for the fullest GPU, in bytes of allocated memory. Nothing here was fitted to a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WORKSPACE = 64 << 20  # of cuBLAS, and small tensors: an upper bound
FULL = 16  # bytes of a parameter: weight, gradient and two moments of Adam in 32 bits
MIXED_COPY = 2  # the 16-bit copy of a weight under autocast
FOREACH = 4  # an optimizer that is not fused makes one more copy


@dataclass(frozen=True, slots=True)
class Layers:
    """Equal transformer layers: `gated` has a third matrix in its MLP, `cross` a second attention.

    `keys` is the width of keys and of values, `queries` that of queries; by default both are the
    layer's own. `biased` says that matrices have biases; `norms` counts the vectors of norms.
    """

    count: int
    width: int
    inner: int
    heads: int
    queries: int = 0
    keys: int = 0
    gated: bool = False
    cross: bool = False
    biased: bool = True
    norms: int = 4
    more: int = 0

    @property
    def parameters(self) -> int:
        h, f = self.width, self.inner
        q, k = self.queries or h, self.keys or h
        attention = 2 * h * q + 2 * h * k + (q + 2 * k + h) * self.biased
        mlp = (3 if self.gated else 2) * h * f + (f + h) * self.biased
        each = attention * (2 if self.cross else 1) + mlp + self.norms * h + self.more
        return self.count * each

    def least(self, tokens: int, item: int) -> int:
        """Bytes that the backward pass needs: the inputs of matrices, and of attention and MLP.

        `item` is the size of an element in the matrices' type.
        """
        h, f = self.width, self.inner
        q, k = self.queries or h, self.keys or h
        attention = h + q + 2 * k + q  # input; queries, keys and values; input of the output matrix
        mlp = h + (3 if self.gated else 2) * f
        return self.count * tokens * item * (attention * (2 if self.cross else 1) + mlp)

    def most(self, tokens: int, row: int, *, scores: int = 3) -> int:
        """Bytes of all tensors of a forward pass in 32 bits; `scores` of length x length a head.

        Of each layer: 16 of its width (inputs, norms, attention's four, their outputs, dropouts,
        residuals and gradients of these), and 4 of its inner width.
        """
        h, f = max(self.width, self.queries), self.inner
        vectors = (24 if self.cross else 16) * h + 4 * f
        return 4 * self.count * tokens * (vectors + scores * self.heads * row)


def logits(tokens: int, words: int, *, copies: int = 4) -> int:
    """Logits in 32 bits, their logarithms, their gradient, and a copy that is cast or shifted."""
    return 4 * copies * tokens * words


@dataclass(frozen=True, slots=True)
class Bounds:
    """`least` and `most` bytes, and in words how they come about.

    They are for the fullest GPU of the processes that take steps: an engine beside them takes none.
    """

    least: int
    most: int
    derivation: str


def _full(p: int, act_least: int, act_most: int, words: str, *, frozen: int = 0) -> Bounds:
    """Training of `p` parameters in 32 bits with Adam, and `frozen` ones."""
    least = max(FULL * p, (FULL - 4) * p + act_least) + 4 * frozen
    most = (FULL + MIXED_COPY + FOREACH) * p + (4 + MIXED_COPY) * frozen + act_most + WORKSPACE
    return Bounds(least, most, f"{p:,} parameters x 16 bytes; {words}")


def _lora(p: int, act_most: int, words: str, adapters: int) -> Bounds:
    """`adapters` parameters in 32 bits on `p` frozen ones in 16 bits."""
    least = 2 * p + FULL * adapters
    most = least + 6 * adapters + act_most + WORKSPACE
    return Bounds(least, most, f"{p:,} frozen x 2 bytes, {adapters:,} trained x 16; {words}")


BERT = Layers(12, 768, 3072, 12)
BERT_PARAMETERS = BERT.parameters + (28_996 + 512 + 2 + 2) * 768 + 768 * 768 + 768 + 768 * 2 + 2
DISTILBERT = Layers(6, 768, 3072, 12)
VIT_PARAMETERS = BERT.parameters + (3 * 16 * 16 + 1 + 1 + 197 + 2) * 768
T5 = (
    Layers(6, 512, 2048, 8, biased=False, norms=2),
    Layers(6, 512, 2048, 8, biased=False, norms=3, cross=True),
)
WHISPER = (Layers(4, 384, 1536, 6), Layers(4, 384, 1536, 6, cross=True, norms=6))
MAE_DECODER = Layers(8, 512, 2048, 16)
GPT2 = Layers(12, 768, 3072, 12)
QWEN = Layers(28, 1024, 3072, 16, queries=2048, keys=1024, gated=True, biased=False,
              norms=2, more=2 * 128)  # fmt: skip
QWEN_WORDS = 151_936
QWEN_PARAMETERS = QWEN.parameters + QWEN_WORDS * 1024 + 1024
# Of each layer: 7 convolutions of 512 channels before wav2vec 2.0's encoder are frozen.
SOUND_FROZEN = 512 * 10 + 2 * 512 + 4 * 512 * 512 * 3 + 2 * 512 * 512 * 2
SOUND_HEAD = 512 * 768 + 768 + 2 * 512 + 768 + 768 * 48 * 128 + 128 + 768 + 2 * 768


def _encoder(p: int, rows: int, row: int, item: int, words: str) -> Bounds:
    """BERT or ViT with rows of at most `row` tokens, and of at least two."""
    return _full(p, BERT.least(rows * 2, item), BERT.most(rows * row, row), words)


def _adapters(rank: int) -> int:
    """Of all matrices of Qwen3's layers."""
    h, f, q, k = QWEN.width, QWEN.inner, QWEN.queries, QWEN.keys
    sides = (h + q) + 2 * (h + k) + (q + h) + 3 * (h + f)
    return QWEN.count * rank * sides


def _qwen(rows: int, row: int = 512) -> int:
    tokens = rows * row
    return QWEN.most(tokens, row, scores=0) + logits(tokens, QWEN_WORDS)


def _sound(rows: int, seconds: int, words: str, head: int) -> Bounds:
    frames = 50 * seconds  # a frame is 20 ms
    waves = 3 * 4 * rows * 512 * seconds * 16_000 // 5  # of the first convolution, which are freed
    p = BERT.parameters + SOUND_HEAD + head
    most = BERT.most(rows * frames, frames, scores=1) + waves
    return _full(p, BERT.least(rows, 4), most, words, frozen=SOUND_FROZEN)


def _zero(p: int, gpus: int, state: int, act: int, words: str) -> Bounds:
    """DeepSpeed or FSDP: GPUs share `state` bytes per parameter; up to three whole copies."""
    least = state * p // gpus
    return Bounds(least, least + 3 * 4 * p + act + WORKSPACE, words)


_GPT2_P = GPT2.parameters + (50_304 + 1024) * 768 + 2 * 768
_T5_P = sum(layers.parameters for layers in T5) + 32_128 * 512 + 2 * 512 + 2 * 32 * 8
_WHISPER_P = (
    sum(layers.parameters for layers in WHISPER)
    - 3 * 4 * 384  # keys have no bias
    + (51_865 + 448 + 1500) * 384 + (80 * 3 + 1 + 384 * 3 + 1) * 384 + 4 * 384
)  # fmt: skip
_MAE_P = (
    BERT.parameters + MAE_DECODER.parameters + (3 * 256 + 1 + 1 + 197 + 2) * 768
    + 768 * 512 + 512 + 512 + 197 * 512 + 2 * 512 + 512 * 768 + 768
)  # fmt: skip
_GPT2_TOKENS = 64 * 1024
# Words of the rows have up to 7 letters and a space, and a token has four of these: 20 words are at
# most 42 tokens with those at both ends, and two rows of 20 are 83, in a multiple of eight.
# Attention with SDPA makes a mask, and no scores. What is spoken has at most 36 words.
_SPOKEN = 36 * 8 // 4 + 4
_WHISPER_ROWS = (
    WHISPER[0].most(8 * 1500, 1500, scores=1) + WHISPER[1].most(8 * _SPOKEN, 1500, scores=1)
)  # fmt: skip
_T5_ROWS = T5[0].most(8 * 64, 64) + T5[1].most(8 * 64, 64)

_LLM_C_P = GPT2.parameters + (50_257 + 1024) * 768 + 2 * 768
# Of a digit: its pixels, what two convolutions, their activations, the pool and its dropout make,
# and what the matrices do.
_DIGIT = 28**2 + 2 * 32 * 26**2 + 2 * 64 * 24**2 + 2 * 64 * 12**2 + 3 * 128 + 2 * 10
_DIGITS_P = 32 * 9 + 32 + 64 * 32 * 9 + 64 + 128 * 9216 + 128 + 10 * 128 + 10
_MISTRAL = Layers(8, 2048, 7168, 16, keys=512, gated=True, biased=False, norms=2)
_MISTRAL_P = _MISTRAL.parameters + (2 * 32_768 + 1) * 2048
_X_LAYERS = Layers(6, 512, 2048, 8, biased=False, more=2048 + 512)
_X_P = _X_LAYERS.parameters + 256 * 512 * 2 + 512
_X_SCORES = 4 * 4 * 8 * 1024 * 1024  # of a layer: four rows, eight heads
_TITAN = Layers(6, 256, 768, 16, gated=True, biased=False, norms=2)
_TITAN_P = _TITAN.parameters + (2 * 2048 + 1) * 256
_TITAN_TOKENS = 8 * 2048


def _palm() -> Bounds:
    """PaLM's parallel layers in 32 bits: one matrix makes queries, a key, a value and the MLP.

    Kept of a token: the layer's input and its norm, what that matrix makes, the activation and the
    product of the MLP, rotated queries and keys, and attention's result. Made are also the steps of
    the rotation, keys and values for all heads, and results. Lion has one moment.
    """
    h, f, head, layers, tokens = 512, 2048, 64, 8, 4 * 1024
    fused = h + 2 * head + 2 * f
    p = layers * (h * fused + h * h + f * h + h) + 256 * h + h
    kept = 2 * h + fused + 2 * f + h + head + h
    made = 2 * h + fused + 7 * (h + head) + 2 * h + 2 * h + 3 * h + 2 * f
    most = (4 + 4 + 4 + 4) * p + 4 * tokens * (layers + 1) * made + logits(tokens, 256)
    return Bounds(
        12 * p + 4 * layers * tokens * kept,
        most + WORKSPACE,
        f"{p:,} parameters x 12 bytes; 4 rows of 1,024 tokens",
    )


def _titan(gpus: int) -> Bounds:
    """Weights and states are shared. Checkpoints keep inputs and attention's results in 16 bits.

    The backward pass of a layer needs all of it, which is computed again.
    """
    kept = 2 * _TITAN.count * _TITAN_TOKENS * 2 * _TITAN.width
    kept += _TITAN.least(_TITAN_TOKENS, 2) // _TITAN.count
    state = (FULL - 4) * _TITAN_P // gpus
    made = _TITAN.most(_TITAN_TOKENS, 0) + logits(_TITAN_TOKENS, 2048)
    flushed = 256 << 20  # the buffer with which Triton tunes a kernel
    most = (FULL + MIXED_COPY + FOREACH + 4) * _TITAN_P + made + flushed + WORKSPACE
    words = f"{_TITAN_P:,} parameters, 16,384 tokens; checkpoints keep two tensors of a layer"
    return Bounds(max(state + kept, FULL * _TITAN_P // gpus), most, words)


def _nanotron() -> Bounds:
    """Half of each matrix (tensor parallel 2): 16-bit weights and activations, the rest in 32.

    Kept of a token: half of both norms' inputs, queries, keys and values, attention's result, and
    of the MLP both halves of its first matrix, the activation and the product.
    """
    h, f, keys, layers, words, tokens = 2048, 11_008, 256, 28, 128_256, 3 * 4096
    p = layers * ((2 * h * h + 2 * h * keys + 3 * h * f) // 2 + 2 * h) + words * h // 2 + h
    kept = 2 * h // 2 + h // 2 + keys + h // 2 + 2 * f
    # And the norms, whole inputs of matrices, the rotation in 32 bits, results, partial and whole.
    made = 8 * h // 2 + 4 * h + h // 2 + keys + 4 * (h // 2 + keys // 2) + 2 * h // 2 + 2 * f
    scores = tokens * words // 2
    least = 18 * p + 2 * layers * tokens * kept + 4 * scores
    most = (18 + 2) * p + 2 * (layers + 1) * tokens * made + (2 + 4 * 4) * scores + WORKSPACE
    return Bounds(least, most, f"{p:,} parameters of a GPU x 18 bytes; 3 rows of 4,096 tokens")


def _detr() -> Bounds:
    """DETR with ResNet-50, of which the first stage is frozen; 600 x 600 pixels, four images.

    Kept are the inputs of convolutions. Made are their results, two steps of a frozen norm, and the
    activation.
    """
    kept = made = weights = 0
    side, entering = 150, 256
    for width, blocks in ((128, 4), (256, 6), (512, 3)):
        small, leaving = -(-side // 2), 4 * width
        first = (entering + width) * side**2 + width * small**2
        kept += first + (blocks - 1) * (leaving + 2 * width) * small**2
        made += width * side**2 + (width + 2 * leaving) * small**2
        made += (blocks - 1) * (2 * width + leaving) * small**2
        weights += entering * (width + leaving) + blocks * (9 * width**2 + width * leaving)
        weights += (blocks - 1) * leaving * width
        side, entering = small, leaving
    encoder, decoder = (
        Layers(6, 256, 2048, 8, cross=cross, norms=n) for cross, n in ((0, 4), (1, 6))
    )
    p = weights + encoder.parameters + decoder.parameters + 2048 * 256
    patches = 4 * side**2
    frozen = 4 * 4 * 4 * 64 * 300**2  # four tensors of the largest size
    layers = encoder.most(patches, side**2) + decoder.most(4 * 100, side**2)
    most = (FULL + FOREACH) * (p + (1 << 20)) + 4 * 4 * 4 * made + frozen + layers + WORKSPACE
    words = f"{p:,} parameters x 12 bytes; the inputs of convolutions for 4 images of 600 x 600"
    return Bounds((FULL - 4) * p + 4 * 4 * kept, most, words)


def _segformer() -> Bounds:
    """SegFormer-B0, eight images of 512 x 512 pixels, two layers in each of four stages.

    Kept of a token: both norms' inputs and results, queries, attention's result, and three of the
    MLP, which is four times as wide and has a convolution. The head joins four times 256 channels
    of 128 x 128, and keeps them, what they become, the activation and its dropout.
    """
    images, joined = 8, 256 * 128**2
    sizes = ((128, 32, 1), (64, 64, 2), (32, 160, 5), (16, 256, 8))
    kept = sum(2 * side**2 * 18 * width for side, width, _ in sizes)
    made = sum(
        Layers(2, width, 5 * width, heads).most(images * side**2, 256, scores=4)
        for side, width, heads in sizes
    )
    head = 4 * images * joined
    p = 3_714_915
    least = (FULL - 4) * p + 4 * images * kept + (4 + 3) * head
    most = (FULL + FOREACH) * p + made + (4 + 4 + 5) * head + 2 * 4 * head
    words = "tensors of eight images of 512 x 512 in the layers, and 256 channels in the head"
    return Bounds(least, most + 16 * images * 3 * 512**2 + WORKSPACE, words)


_MISTRAL_ADAPTERS = 64 * 8 * (2 * (2048 + 2048) + 2 * (2048 + 512) + 3 * (2048 + 7168))


def _sdxl(rank: int) -> Bounds:
    """LoRA on the U-Net and both text encoders of SDXL at 1024 x 1024, with checkpoints.

    `levels` have channels, tokens, transformer layers, the groups of these, and ResNet blocks. A
    layer's matrices have inputs and outputs of 28 times its channels, and twice the text's 2,048;
    those of CLIP's layers of 18 times their width.
    """
    levels = (320, 128**2, 0, 0, 5), (640, 64**2, 10, 5, 5), (1280, 32**2, 60, 6, 7)
    sides = sum(layers * (28 * c + 4096) + 4 * c * groups for c, _, layers, groups, _ in levels)
    adapters = rank * (sides + 18 * (12 * 768 + 32 * 1280))
    frozen = 2_567_463_684 + 123_060_480 + 694_659_840  # as published
    # In 32 bits: inputs of blocks, of which those on the way up have three times the channels, what
    # is around the layers of a group, and all tensors of one layer and their gradients.
    kept = sum(
        c * tokens * (layers + 6 * groups + 3 * blocks)
        for c, tokens, layers, groups, blocks in levels
    )
    vae = 83_653_863
    most = 4 * (kept + 2 * 60 * 640 * 64**2 + vae)
    return _lora(frozen, most, "an image of 1024 x 1024, with checkpoints", adapters)


BOUNDS: dict[str, Bounds] = {
    "accelerate-peak-memory": _encoder(BERT_PARAMETERS, 16, 88, 4, "16 rows of 88 at most"),
    "accelerate-nlp": _encoder(BERT_PARAMETERS, 16, 88, 2, "16 rows of 88 at most"),
    "run-glue": _encoder(BERT_PARAMETERS, 8, 128, 4, "8 rows of 128"),
    "sentence-transformers": _full(
        DISTILBERT.parameters + (30_522 + 512 + 2) * 768, DISTILBERT.least(32, 2),
        2 * DISTILBERT.most(16 * 44, 44), "16 pairs of rows of 44 at most",
    ),
    "run-translation": _full(
        _T5_P, T5[0].least(8, 4), _T5_ROWS + logits(8 * 64, 32_128), "8 rows of 64 and 64 tokens",
    ),
    "run-image-classification": _full(
        VIT_PARAMETERS + 768 * 3 + 3, BERT.least(16 * 197, 2), BERT.most(16 * 197, 197),
        "16 images of 197 patches",
    ),
    "run-mae": _full(
        _MAE_P, BERT.least(16 * 50, 2) + MAE_DECODER.least(16 * 197, 2),
        BERT.most(16 * 50, 50) + MAE_DECODER.most(16 * 197, 197),
        "16 images, 50 patches of each in the encoder and 197 in the decoder",
    ),
    "run-audio-classification": _sound(32, 1, "32 sounds of a second", 768 * 256 + 256 + 514),
    "run-speech-ctc": _sound(4, 12, "4 sounds of 12 seconds at most", 768 * 32 + 32),
    "run-speech-seq2seq": _full(
        _WHISPER_P, WHISPER[0].least(8 * 1500, 4), _WHISPER_ROWS + logits(8 * _SPOKEN, 51_865),
        "8 rows of 1,500 frames and 76 tokens at most",
    ),
    "build-nanogpt": _full(
        _GPT2_P, GPT2.least(_GPT2_TOKENS, 2) + (2 + 4 + 4) * _GPT2_TOKENS * 50_304,
        GPT2.most(_GPT2_TOKENS, 1024, scores=0) + logits(_GPT2_TOKENS, 50_304),
        "64 rows of 1,024 tokens and 50,304 words, in 16 and twice in 32 bits",
    ),
    "llm.c-reference": _full(
        _LLM_C_P, GPT2.least(4096, 2) + (2 + 4) * 4096 * 50_257,
        GPT2.most(4096, 1024, scores=4) + logits(4096, 50_257),
        "4 rows of 1,024 tokens and 50,257 words, attention's scores kept",
    ),
    "examples-mnist": _full(
        _DIGITS_P, 4 * 64 * (32 * 26**2 + 64 * 24**2), 2 * 4 * 64 * _DIGIT,
        "64 digits; the inputs of a convolution and of the pool",
    ),
    "mistral-finetune": _lora(
        _MISTRAL_P, _MISTRAL.most(4096, 4096, scores=0) + logits(4096, 32_768),
        "4,096 tokens", _MISTRAL_ADAPTERS,
    ),
    "torchtitan": _titan(1),
    "torchtitan-8-ranks": _titan(8),
    "nanotron": _nanotron(),
    "run-object-detection": _detr(),
    "run-semantic-segmentation": _segformer(),
    "x-transformers": Bounds(
        FULL * _X_P + _X_LAYERS.least(4096, 4) + 6 * _X_SCORES,
        _full(_X_P, 0, _X_LAYERS.most(4096, 1024, scores=8) + logits(4096, 256), "").most,
        f"{_X_P:,} parameters x 16 bytes; 4 rows of 1,024 tokens, attention's scores kept",
    ),
    "palm": _palm(),
    "verl-sft": _zero(QWEN_PARAMETERS, 1, FULL, _qwen(4), "16 bytes per parameter, 4 rows of 512"),
    "verl-grpo": _zero(QWEN_PARAMETERS, 1, FULL, _qwen(4, 128 + 256), "as verl-sft; 4 rows of 384"),
    "verl-ppo": _zero(
        QWEN_PARAMETERS, 1, 2 * FULL - 4, _qwen(4, 128 + 256),
        "28 bytes per parameter: two models, one with gradients; 4 rows of 384",
    ),
    "openrlhf-sft": _zero(
        QWEN_PARAMETERS, 1, 2 + 4 + 4, _qwen(2), "weights in 16 and 32 bits, a moment; 2 rows",
    ),
    **dict.fromkeys(
        ("openrlhf-ppo", "openrlhf-grpo"),
        _zero(QWEN_PARAMETERS, 1, 2 + 4 + 4, _qwen(4, 60 + 256 + 4),
              "the training process: as openrlhf-sft; 4 rows of 320"),
    ),
    "llamafactory-lora": _lora(QWEN_PARAMETERS, _qwen(2), "2 rows of 512 at most", _adapters(8)),
    "sd-scripts-sdxl-lora": _sdxl(16),
    "ms-swift-lora": _lora(QWEN_PARAMETERS, _qwen(2), "2 rows of 512 at most", _adapters(8)),
    "open-instruct": _zero(
        QWEN_PARAMETERS, 1, 2 + 2 + 4, _qwen(2), "all in 16 bits; 2 rows of 512 at most",
    ),
    "axolotl-lora": _lora(QWEN_PARAMETERS, _qwen(2), "2 rows of 512 at most", _adapters(16)),
    **dict.fromkeys(
        ("deepspeed-zero3", "deepspeed-zero3-torchrun"),
        _zero(QWEN_PARAMETERS, 2, FULL, _qwen(4), "16 bytes per parameter on 2 GPUs; rows of 512"),
    ),
}  # fmt: skip


def trained_peak(reading: dict[str, Any]) -> int:
    """The most that a process which takes steps has allocated, in bytes; 0 if there is none."""
    trained = [rank for rank in reading["ranks"] if rank["steps"]]
    return max((int(rank["peak_allocated_bytes"]) for rank in trained), default=0)


def outside(reading: dict[str, Any]) -> str | None:
    """What is wrong with the peak of a reading, by its bounds; None if nothing is."""
    bounds, peak = BOUNDS.get(reading["name"]), trained_peak(reading)
    if bounds is None or bounds.least <= peak <= bounds.most:
        return None
    return f"{peak:,} is not between {bounds.least:,} and {bounds.most:,}: {bounds.derivation}"
