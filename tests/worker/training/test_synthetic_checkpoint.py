"""Checkpoints without data, which `run --weights synthetic` serves to a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomdoctor.monitor.inside import serve
from oomdoctor.monitor.inside.checkpoint import write_checkpoint, write_shards, write_tokenizer

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "bos_token_id": 1,
    "eos_token_id": [2, 7],
    "pad_token_id": 2,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize("tied", [True, False])
def test_a_checkpoint_without_data_loads_as_a_real_one(tmp_path: Path, tied: bool) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**(CONFIG | {"tie_word_embeddings": tied}))
    write_checkpoint(tmp_path, config, AutoModelForCausalLM, torch.bfloat16, shard_bytes=100_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert ("lm_head.weight" in index["weight_map"]) != tied
    model, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, torch_dtype="auto", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.lm_head.weight.shape == (300, 64)


def test_shards_take_no_space(tmp_path: Path) -> None:
    write_shards(tmp_path, [("a", [1 << 20, 1 << 10], "F32", 4 << 30)], 5e9)
    file = tmp_path / "model.safetensors"
    assert file.stat().st_size > 4 << 30
    assert file.stat().st_blocks * 512 < 1 << 20


def test_the_stand_in_tokenizer_has_the_models_vocabulary(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    write_tokenizer(tmp_path, CONFIG)
    AutoConfig.for_model(**CONFIG).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 300
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.pad_token is None  # its number is that of the end
    assert len(tokenizer("x" * 400, add_special_tokens=False).input_ids) == 100
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert "hi" in chat


def test_the_stand_in_tokenizer_of_bert_can_pad_without_new_words(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    bert = {"model_type": "bert", "vocab_size": 300, "hidden_size": 8, "num_attention_heads": 2}
    facts = {"architectures": ["BertModel"], "num_hidden_layers": 1, "intermediate_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(bert | facts))
    served = serve.served_folder(str(tmp_path), tmp_path / "served")
    assert served is not None
    tokenizer = AutoTokenizer.from_pretrained(served)
    assert len(tokenizer) == 300
    assert tokenizer.pad_token_id == 0
    assert len({tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.mask_token_id, 0}) == 4


def test_from_pretrained_is_served_a_folder_with_only_a_config(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIG))
    code = """
import sys
from pathlib import Path
import transformers
from oomdoctor.monitor.inside.serve import CLASSES, serve_in
import importlib
for module in (name for name in CLASSES if name.startswith("transformers.")):
    importlib.import_module(module)
    serve_in(module, Path(sys.argv[2]))
name = sys.argv[1]
assert transformers.AutoConfig.from_pretrained(name).hidden_size == 64
assert len(transformers.AutoTokenizer.from_pretrained(name)) == 300
by_word = {"pretrained_model_name_or_path": name}
assert len(transformers.AutoTokenizer.from_pretrained(**by_word)) == 300
assert transformers.AutoModelForCausalLM.from_pretrained(**by_word).lm_head.weight.sum() == 0
assert transformers.AutoModelForCausalLM.from_pretrained(name).lm_head.weight.sum() == 0
assert transformers.LlamaForCausalLM.from_pretrained(name).num_parameters() > 0
try:
    transformers.AutoConfig.from_pretrained("no-such/model")
except OSError as error:
    print("as ever:", type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, model, tmp_path / "served"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "as ever: OSError" in done.stdout
    assert len(list((tmp_path / "served").glob("*/model.safetensors"))) == 1


def test_a_download_of_a_whole_model_is_served_too(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from oomdoctor.monitor.inside.serve import serve_download
import huggingface_hub._snapshot_download
serve_download("huggingface_hub._snapshot_download", Path(sys.argv[1]))
from huggingface_hub import HfApi, snapshot_download
folder = Path(snapshot_download("HuggingFaceTB/SmolLM2-135M", ignore_patterns=["*.bin"]))
assert {"config.json", "model.safetensors"} <= {file.name for file in folder.iterdir()}
assert HfApi().snapshot_download(repo_id="HuggingFaceTB/SmolLM2-135M") == str(folder)
others = {"repo_type": "dataset"}, {"local_dir": sys.argv[2]}, {"repo_id": "no-such/model"}
for options in others:
    try:
        snapshot_download(**{"repo_id": "HuggingFaceTB/SmolLM2-135M", **options})
    except OSError as error:
        print("as ever:", type(error).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "served", tmp_path / "mine"],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("as ever: ") == 3


def test_a_model_for_no_task_of_ours_is_served(tmp_path: Path) -> None:
    # Before, SegFormer reads a value of a tensor without data while it is built.
    pytest.importorskip("transformers", minversion="5.0")
    from transformers import SegformerForSemanticSegmentation

    widths = {"hidden_sizes": [8, 8, 8, 8], "decoder_hidden_size": 8, "depths": [1, 1, 1, 1]}
    facts = {"model_type": "segformer", "architectures": ["SegformerForSemanticSegmentation"]}
    (tmp_path / "config.json").write_text(json.dumps(widths | facts))
    served = serve.served_folder(str(tmp_path), tmp_path / "served")
    model = SegformerForSemanticSegmentation.from_pretrained(served)
    assert model.decode_head.classifier.weight.shape[1] == 8
    assert str(model.dtype) == "torch.float32"  # as the weights of a config that names no type


def test_where_deepspeed_changes_modules_another_process_makes_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    made = []
    monkeypatch.setattr(serve, "make", lambda *given: made.append(given))
    monkeypatch.setattr(serve.subprocess, "run", lambda words, **_: _run_here(words, monkeypatch))
    monkeypatch.setitem(sys.modules, "deepspeed", json)
    folder = serve.served_folder(str(model), tmp_path / "served")
    assert made == [(str(model), folder, "")]


def _run_here(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["-c", *words[3:]])
    exec(words[2], {})


def test_the_stand_in_is_served_where_the_models_class_would_ignore_its_file(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    facts = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    (model / "config.json").write_text(json.dumps(CONFIG | facts))
    code = """
import sys
from pathlib import Path
import transformers.models.auto.tokenization_auto as auto
from oomdoctor.monitor.inside.serve import serve_in
serve_in(auto.__name__, Path(sys.argv[2]))
tokenizer = auto.AutoTokenizer.from_pretrained(sys.argv[1], use_fast=True, padding_side="left")
assert len(tokenizer) == 300 and tokenizer.padding_side == "left"
assert len(tokenizer("x" * 400, add_special_tokens=False).input_ids) == 100
"""
    done = subprocess.run(
        [sys.executable, "-c", code, model, tmp_path / "served"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
