"""Small data sets, models and settings for the scripts. The same words at each run."""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Callable, Iterable
from itertools import product
from math import inf, prod
from pathlib import Path
from typing import Any

from third import media

TEXT = (
    "a card counts each block that the step of this model asks for and gives back the rest so "
    "rows of data wait in short queues while one long rank loads its share of the weights"
)
WORDS = TEXT.split()
ROWS = 64
LLAMA = {  # Llama 3.2 1B, as torchtune's recipe builds it
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LLAMA_3B = LLAMA | {  # Llama 3.2 3B
    "hidden_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "head_dim": 128,
}
MISTRAL = {  # a small model of Mistral's, with the tokens of its third tokenizer
    "dim": 2048,
    "n_layers": 8,
    "head_dim": 128,
    "hidden_dim": 7168,
    "n_heads": 16,
    "n_kv_heads": 4,
    "vocab_size": 32768,
}
METRIC = '''
import datasets
import evaluate

class Metric(evaluate.Metric):
    """Stands in for a metric of the hub: counts predictions."""

    def _info(self):
        kinds = {KINDS}
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(kinds))

    def _compute(self, predictions, references):
        return {RESULT}
'''
COUNTED = '{"score": float(len(predictions)), "accuracy": 0.0, "f1": 0.0}'

# What OpenRLHF asks for the rewards of completions.
REWARD = """\
import torch


def reward_func(queries, prompts, labels):
    rewards = torch.arange(len(queries)) % 2
    return {"rewards": rewards.float(), "scores": rewards.float(), "extra_logs": {}}
"""


def make(folder: Path) -> None:
    """Fill a folder that does not exist yet."""
    folder.mkdir(parents=True)
    chance = random.Random(11)
    _lines(folder / "chat" / "train.jsonl", lambda _: {"messages": _chat(chance)})
    _lines(folder / "pairs" / "train.jsonl", lambda _: _pair(chance))
    _lines(folder / "kto" / "train.jsonl", lambda i: _judged(chance, i))
    _lines(folder / "prompts" / "train.jsonl", lambda _: _prompt(chance))
    (folder / "reward.py").write_text(REWARD)
    _lines(folder / "instruct" / "train.jsonl",
           lambda _: {"input": _text(chance, 30), "output": _text(chance, 60)})  # fmt: skip
    _lines(folder / "translation.json", lambda _: _translation(chance))
    text = folder / "text" / "train.txt"
    text.parent.mkdir()
    text.write_text("\n".join(_text(chance, 120) for _ in range(8 * ROWS)))
    rows = [f"{_text(chance, 12)},{_text(chance, 15)},{i % 2}" for i in range(ROWS)]
    (folder / "pairs.csv").write_text("sentence1,sentence2,label\n" + "\n".join(rows) + "\n")
    for stage in (2, 3):
        (folder / f"zero{stage}.json").write_text(json.dumps(_deepspeed(stage)))
    _gpt2(folder / "gpt2")
    _llama(folder / "llama", LLAMA)
    _tiktoken(folder / "tokenizer.model")
    _characters(folder / "beside" / "data" / "shakespeare_char", chance)
    _glue(folder / "beside" / "nyu-mll" / "glue", chance)
    _beside(folder, random.Random(12))
    _llamafactory(folder)
    (folder / "verl").mkdir()
    _parquet(folder / "chat" / "train.jsonl", folder / "verl" / "chat.parquet")
    lines = folder / "verl" / "prompts.jsonl"
    _lines(lines, lambda i: _graded(random.Random(i)))
    _parquet(lines, lines.with_suffix(".parquet"))
    _torchtitan(folder / "torchtitan", random.Random(13))
    _mistral(folder / "beside" / "mistral", random.Random(14))
    _axolotl(folder / "beside" / "axolotl", random.Random(15))
    media.make(folder, WORDS)
    sequence, label = "datasets.Value('string')", "datasets.Value('int64')"
    _metric(folder / "beside" / "accuracy", label, label)
    _metric(folder / "beside" / "glue", label, label)
    _metric(folder / "beside" / "wer", sequence, sequence, "float(len(predictions))")
    _metric(folder / "beside" / "mean_iou", label, label)  # is loaded, and not asked
    _metric(folder / "beside" / "sacrebleu", sequence, f"datasets.Sequence({sequence})")


def _beside(folder: Path, more: random.Random) -> None:
    """Files that scripts look for in their working directory, and images and tokens."""
    beside = folder / "beside"
    (beside / "data").mkdir(parents=True, exist_ok=True)
    (beside / "middlemarch.txt").write_text(_book(more))
    names = "\n".join(more.choice(WORDS) for _ in range(3000))
    (beside / "input.txt").write_text(f"O God, O God!\n{names}\n")  # a sample of minGPT begins so
    for split in ("train", "valid", "test"):
        (beside / "data" / f"{split}.txt").write_text(_book(more, 20_000))
    _digits(beside / "data" / "MNIST" / "raw", more)
    with gzip.GzipFile(beside / "data" / "enwik8.gz", "wb", mtime=0) as file:
        file.write((TEXT.encode() + b" ") * (95_000_000 // len(TEXT)))
    _images(folder / "images", more)
    _llama(folder / "llama3b", LLAMA_3B)
    with (folder / "instruct" / "long.jsonl").open("w") as file:
        for _ in range(600):
            row = {"input": _text(more, 30), "output": _text(more, 90)}
            file.write(json.dumps(row) + "\n")
    for split in ("train", "test"):
        _lines(folder / "talk" / f"{split}.jsonl", lambda _: {"messages": _chat(more)})
    _lines(beside / "hellaswag" / "hellaswag_val.jsonl", lambda i: _endings(more, i))
    _tokens(folder / "tokens.bin", beside / "edu_fineweb10B", more)
    _shards(beside / "data" / "fineweb10B")
    _lines_of_splits(beside / "sentence-transformers" / "stsb", lambda i: _scored(more, i))


def _book(chance: random.Random, words: int = 130_000) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words))


def _digits(folder: Path, chance: random.Random) -> None:
    """MNIST's four files, with noise for digits."""
    folder.mkdir(parents=True)
    for name, rows in (("train", 2048), ("t10k", 512)):
        pixels = struct.pack(">IIII", 2051, rows, 28, 28) + chance.randbytes(rows * 784)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(pixels)
        labels = bytes(chance.randrange(10) for _ in range(rows))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, rows) + labels)


def _images(folder: Path, chance: random.Random, side: int = 256) -> None:
    """Two classes of images in two splits, as PNG."""
    for split, label, index in product(("train", "val"), "ab", range(96)):
        file = folder / split / label / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(media.png(side, side, chance.randbytes(3) * (side * side)))


def _tokens(binary: Path, shards: Path, chance: random.Random) -> None:
    """Tokens of GPT-2: llm.c's file, and the shards of build-nanogpt as numpy writes them."""
    count = 600_000
    tokens = struct.pack(f"<{count}H", *(chance.randrange(50_000) for _ in range(count)))
    binary.write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) + tokens)
    shards.mkdir()
    header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({count},), }}"
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.ljust(117).encode() + b"\n"
    for split in ("train", "val"):
        (shards / f"edufineweb_{split}_000000.npy").write_bytes(head + tokens)


def _shards(folder: Path) -> None:
    """modded-nanogpt's data: as many tokens as it validates with, all equal, in one document."""
    folder.mkdir(parents=True)
    for split, count in (("train", 2 << 20), ("val", 10_500_000)):
        with (folder / f"fineweb_{split}_000000.bin").open("wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
            file.truncate(1024 + 2 * count)


def _lines_of_splits(folder: Path, row: Callable[[int], dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        _lines(folder / f"{split}.jsonl", row)


def _text(chance: random.Random, most: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randint(most // 3, most)))


def _said(chance: random.Random, role: str, most: int) -> dict[str, str]:
    return {"role": role, "content": _text(chance, most)}


def _chat(chance: random.Random) -> list[dict[str, str]]:
    return [_said(chance, "user", 60), _said(chance, "assistant", 200)]


def _prompt(chance: random.Random) -> dict[str, Any]:
    return {"prompt": [_said(chance, "user", 40)], "solution": "4"}


def _graded(chance: random.Random) -> dict[str, Any]:
    """A prompt with what verl grades the answer by."""
    said = {"prompt": [_said(chance, "user", 40)], "data_source": "openai/gsm8k"}
    return {**said, "reward_model": {"style": "rule", "ground_truth": "4"}}


def _pair(chance: random.Random) -> dict[str, Any]:
    answers = {name: [_said(chance, "assistant", 120)] for name in ("chosen", "rejected")}
    return {"prompt": [_said(chance, "user", 40)], **answers}


def _judged(chance: random.Random, index: int) -> dict[str, Any]:
    answer = [_said(chance, "assistant", 120)]
    return {"prompt": [_said(chance, "user", 40)], "completion": answer, "label": index % 2 == 0}


def _translation(chance: random.Random) -> dict[str, Any]:
    return {"translation": {"en": _text(chance, 30), "fr": _text(chance, 30)}}


def _lines(file: Path, row: Callable[[int], dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row(i)) + "\n" for i in range(ROWS)))


def _deepspeed(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": stage},
    }


def _llamafactory(folder: Path) -> None:
    """How LLaMA-Factory finds `chat`."""
    names = {"role": "role", "content": "content", "user": "user", "assistant": "assistant"}
    chat = {
        "file_name": "../chat/train.jsonl",
        "formatting": "sharegpt",
        "columns": {"messages": "messages"},
        "tags": {f"{key}_tag": name for key, name in names.items()},
    }
    (folder / "llamafactory").mkdir()
    (folder / "llamafactory" / "dataset_info.json").write_text(json.dumps({"chat": chat}))


def _parquet(lines: Path, file: Path) -> None:
    from pyarrow import json as read
    from pyarrow import parquet

    parquet.write_table(read.read_json(lines), file)


def _torchtitan(folder: Path, chance: random.Random) -> None:
    """Texts, and a tokenizer with as many tokens as torchtitan's small model."""
    from oomdoctor.monitor.inside.checkpoint import write_tokenizer

    _lines(folder / "text" / "data.json", lambda _: {"text": _text(chance, 120)})
    (folder / "tokenizer").mkdir()
    write_tokenizer(folder / "tokenizer", {"model_type": "llama", "vocab_size": 2048})


def _mistral(folder: Path, chance: random.Random) -> None:
    """What mistral-finetune reads: a model in Mistral's form, chats and the settings."""
    from oomdoctor.monitor.inside.checkpoint import write_shards

    _lines(folder / "chat.jsonl", lambda _: {"messages": _chat(chance)})
    width, inner, words = (MISTRAL[key] for key in ("dim", "hidden_dim", "vocab_size"))
    keys = MISTRAL["n_kv_heads"] * MISTRAL["head_dim"]
    layer = {
        "attention.wq": [width, width],
        "attention.wk": [keys, width],
        "attention.wv": [keys, width],
        "attention.wo": [width, width],
        "feed_forward.w1": [inner, width],
        "feed_forward.w2": [width, inner],
        "feed_forward.w3": [inner, width],
        "attention_norm": [width],
        "ffn_norm": [width],
    }
    shapes = {"tok_embeddings": [words, width], "norm": [width], "output": [words, width]}
    for i in range(MISTRAL["n_layers"]):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    files = [(f"{name}.weight", shape, "BF16", 2 * prod(shape)) for name, shape in shapes.items()]
    write_shards(folder, files, inf)
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps(MISTRAL | {"norm_eps": 1e-5}))
    settings = {
        "data": {"instruct_data": "mistral/chat.jsonl"},
        "model_id_or_path": "mistral",
        "lora": {"rank": 64},
        "seq_len": 4096,
        "max_steps": 10,
        "no_eval": True,
        "run_dir": "out",
    }
    (folder / "lora.yaml").write_text(json.dumps(settings))


def _axolotl(folder: Path, chance: random.Random) -> None:
    """A LoRA run of axolotl on chats."""
    _lines(folder / "chat.jsonl", lambda _: {"messages": _chat(chance)})
    chat = {"path": "axolotl/chat.jsonl", "ds_type": "json", "type": "chat_template"}
    settings = {
        "base_model": "Qwen/Qwen3-0.6B",
        "datasets": [chat],
        "adapter": "lora",
        "lora_r": 16,
        "lora_alpha": 32,
        "lora_target_linear": True,
        "sequence_len": 512,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_epochs": 1,
        "optimizer": "adamw_torch_fused",
        "learning_rate": 2e-4,
        "seed": 42,  # else the rows come in another order at each run
        "bf16": True,
        "attn_implementation": "sdpa",
        "output_dir": "out",
        "dataset_prepared_path": "prepared",
    }
    (folder / "lora.yaml").write_text(json.dumps(settings))


def _gpt2(folder: Path) -> None:
    from oomdoctor.monitor.inside.checkpoint import write_tokenizer

    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 50257,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    }
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, config)


def _llama(folder: Path, config: dict[str, Any]) -> None:
    from oomdoctor.monitor.inside.checkpoint import write_shards

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    write_shards(folder, _llama_weights(config), 5e9)


def _llama_weights(config: dict[str, Any]) -> Iterable[tuple[str, list[int], str, int]]:
    width, inner, words = (config[k] for k in ("hidden_size", "intermediate_size", "vocab_size"))
    keys = config["num_key_value_heads"] * config["head_dim"]
    layer = {
        "self_attn.q_proj": [width, width],
        "self_attn.k_proj": [keys, width],
        "self_attn.v_proj": [keys, width],
        "self_attn.o_proj": [width, width],
        "mlp.gate_proj": [inner, width],
        "mlp.up_proj": [inner, width],
        "mlp.down_proj": [width, inner],
        "input_layernorm": [width],
        "post_attention_layernorm": [width],
    }
    names = {"model.embed_tokens": [words, width], "model.norm": [width]}
    for i in range(config["num_hidden_layers"]):
        names |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    for name, shape in names.items():
        size = shape[0] * (shape[1] if len(shape) == 2 else 1)
        yield f"{name}.weight", shape, "BF16", 2 * size


def _tiktoken(file: Path) -> None:
    """A tokenizer file of Llama 3's form: every byte, and no longer tokens that occur."""
    from base64 import b64encode

    tokens = [bytes([i]) for i in range(256)]
    tokens += [b"\xff\xfe" + struct.pack(">I", i) for i in range(128000 - len(tokens))]
    file.write_text("".join(f"{b64encode(t).decode()} {i}\n" for i, t in enumerate(tokens)))


def _characters(folder: Path, chance: random.Random) -> None:
    """nanoGPT's data: numbers of characters, in two bytes each."""
    import pickle

    folder.mkdir(parents=True)
    for name in ("train", "val"):
        numbers = [chance.randrange(65) for _ in range(20_000)]
        (folder / f"{name}.bin").write_bytes(struct.pack(f"<{len(numbers)}H", *numbers))
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def _glue(folder: Path, chance: random.Random) -> None:
    """A data set of the hub, with the columns of GLUE's MRPC."""
    folder.mkdir(parents=True)
    lines = ["---", "configs:", "- config_name: mrpc", "  data_files:"]
    for split in ("train", "validation", "test"):
        _lines(folder / f"{split}.jsonl", lambda i: _sentences(chance, i))
        lines += [f"  - split: {split}", f"    path: {split}.jsonl"]
    # The example asks how many names the labels have.
    lines += ["dataset_info:", "- config_name: mrpc", "  features:"]
    for column in ("sentence1", "sentence2"):
        lines += [f"  - name: {column}", "    dtype: string"]
    lines += ["  - name: label", "    dtype:", "      class_label:", "        names:"]
    lines += ["          '0': different", "          '1': equivalent"]
    lines += ["  - name: idx", "    dtype: int32", "---", ""]
    (folder / "README.md").write_text("\n".join(lines))


def _sentences(chance: random.Random, index: int) -> dict[str, Any]:
    texts = {name: _text(chance, 20) for name in ("sentence1", "sentence2")}
    return {**texts, "label": index % 2, "idx": index}


def _scored(chance: random.Random, index: int) -> dict[str, Any]:
    texts = {name: _text(chance, 20) for name in ("sentence1", "sentence2")}
    return {**texts, "score": index % 5 / 5}


def _endings(chance: random.Random, index: int) -> dict[str, Any]:
    endings = [_text(chance, 12) for _ in range(4)]
    return {"ctx": _text(chance, 20), "label": index % 4, "endings": endings}


def _metric(folder: Path, predictions: str, references: str, result: str = COUNTED) -> None:
    folder.mkdir(parents=True)
    kinds = f'{{"predictions": {predictions}, "references": {references}}}'
    (folder / f"{folder.name}.py").write_text(
        METRIC.replace("{KINDS}", kinds).replace("{RESULT}", result)
    )
