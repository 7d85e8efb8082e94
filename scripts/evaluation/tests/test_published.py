"""Published rows of any kind: each is expressed by what it says, or left out with the reason.

The rows are made up: tiny models with one thing changed at a time.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from cases import differing_lengths
from cases.case import Case, LeftOut, predict
from old_code.adaptations import ADAPTATIONS
from published.rows import published_cases

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.analysis.simulator import sizes
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.worker.training.inspection import torch_release

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}
PLAIN: dict[str, Any] = {
    "id": "plain",
    "model_id": "made/up",
    "config": LLAMA,
    "task": "causal_lm",
    "method": "full",
    "seq_len": 32,
    "micro_batch": 2,
    "grad_accum": 1,
    "weights_dtype": "bfloat16",
    "autocast": None,
    "optimizer": "adamw_torch",
    "optimizer_raw": "adamw_torch",
    "grad_ckpt": False,
    "attn": "sdpa",
    "lora_r": None,
    "lora_targets": None,
    "quant": None,
    "kbit_prepare": None,
    "features": [],
    "stack": "hf",
    "versions": {"transformers": "4.50.0", "torch": "2.6.0"},
    "gpu": "NVIDIA A100 80GB",
    "measured_bytes": 20_000_000,
    "metric": "allocated",
}
LORA = {"method": "lora", "lora_r": 4, "lora_targets": ["q_proj", "v_proj"]}
QWEN_1 = {"model_id": "Qwen/Qwen-7B-Chat", "note": "Qwen1 uses remote code"}
LIT_GPT = LORA | {"stack": "litgpt", "features": ["chunked_ce"], "versions": {"torch": "2.1.0"}}
NF4 = {"type": "nf4", "double_quant": True, "compute_dtype": "bfloat16", "backend": "bnb"}
INT8 = {"type": "int8", "backend": "bnb"}
LOWEST = "lowest of equal blocks"


def llama(**values: Any) -> dict[str, Any]:
    return {"config": LLAMA | values}


def versions(**values: str) -> dict[str, Any]:
    return {"versions": values}


def classifier(model_type: str, architecture: str, **values: Any) -> dict[str, Any]:
    config = LLAMA | {"model_type": model_type, "architectures": [architecture], **values}
    return {"task": "sequence_classification", "config": config}


def read(folder: Path, *rows: Any) -> list[Case | LeftOut]:
    """The rows as a file has them."""
    file = folder / "rows.json"
    file.write_text(json.dumps(rows))
    return list(published_cases(file))


def expressed(folder: Path, changes: dict[str, Any]) -> Case:
    (case,) = read(folder, PLAIN | changes)
    assert isinstance(case, Case), case
    return case


def reason(folder: Path, row: Any) -> str:
    (case,) = read(folder, row)
    assert isinstance(case, LeftOut), case
    return case.reason


@pytest.mark.parametrize(
    ("changes", "adaptations"),
    [
        ({}, (LOWEST,)),
        (versions(transformers="4.48.3"), ("shifted logits", LOWEST)),
        (versions(transformers="4.49.0"), (LOWEST,)),
        (versions(torch="2.1.1"), ("shifted logits", LOWEST)),
        (versions(torch="2.11.0"), (LOWEST,)),
        (versions(torch="2.12.0"), ()),
        (versions(torch="2.12.0", transformers="4.57.1"), ()),
        (versions(torch="2.11.0", transformers="5.16.0"), (LOWEST,)),
        (versions(transformers="5.8.1"), (LOWEST,)),
        (versions(transformers="5.9.0"), ()),
        ({"versions": None}, ()),
        ({"versions": {"torch": "2.1.1"}, "note": "Qwen1 uses remote code"}, (LOWEST,)),
        (QWEN_1 | {"versions": {"torch": "2.1.1"}}, ("loss of Qwen 1", LOWEST)),
        (LORA | versions(peft="0.11.1"), ("adapters like the base",)),
        (LORA | versions(peft="0.12.0", torch="2.1.1"), ("shifted logits", LOWEST)),
        (LORA | versions(torch="2.1.1"), ("shifted logits", "adapters like the base", LOWEST)),
        (LORA | {"stack": "torchtune"} | versions(torch="2.1.1"), (LOWEST,)),
        ({"versions": {"torch": "2.1.1"}, "stack": "torchtune"}, (LOWEST,)),
        (classifier("llama", "LlamaForCausalLM") | versions(transformers="4.40"), (LOWEST,)),
        (llama(model_type="mixtral", num_local_experts=4), ("linear experts", LOWEST)),
        (llama(model_type="mixtral") | versions(transformers="5.1.0"), (LOWEST,)),
        ({"optimizer": "adamw_hf"}, ("single-tensor AdamW", LOWEST)),
        ({"optimizer": "paged_adamw_8bit"}, ("8-bit states throughout", LOWEST)),
        ({"optimizer": "adamw_bnb_8bit"} | versions(transformers="4.52.1"), (LOWEST,)),
        ({"optimizer": "adamw_bnb_8bit", "versions": {}}, ()),
        (
            {"optimizer": "adamw_8bit", "optimizer_raw": "bitsandbytes Adam8bit", "versions": {}},
            ("8-bit states throughout",),
        ),
        (
            {"optimizer": "adamw_8bit"} | versions(transformers="4.30", bitsandbytes="0.43.3"),
            ("shifted logits", "8-bit states in blocks of 2048", LOWEST),
        ),
        (
            {"optimizer": "adamw_8bit"} | versions(transformers="4.44"),
            ("shifted logits", "8-bit states throughout", "8-bit states in blocks of 2048", LOWEST),
        ),
        (
            {"optimizer": "adamw_8bit"} | versions(transformers="5.0", bitsandbytes="0.44"),
            (LOWEST,),
        ),
        (
            classifier("bert", "BertForMaskedLM") | versions(transformers="4.15-4.16 era"),
            ("BERT 4.15 on torch 1.10", LOWEST),
        ),
        (LIT_GPT, ("lit-gpt", LOWEST)),
    ],
)
def test_adaptations_follow_from_what_a_row_says(
    tmp_path: Path, changes: dict[str, Any], adaptations: tuple[str, ...]
) -> None:
    assert expressed(tmp_path, changes).adaptations == adaptations


def test_an_old_torch_uses_the_lowest_of_equal_blocks() -> None:
    places = (sizes, differing_lengths)
    with ADAPTATIONS[LOWEST].apply(TrainConfig()):
        assert [place.equal_blocks_of((2, 13)) for place in places] == ["lowest"] * 2
    assert [place.equal_blocks_of((2, 12)) for place in places] == ["oldest"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("noted", [None, "each batch is padded to its own longest"])
def test_a_row_is_predicted_with_the_rule_of_its_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: str | None
) -> None:
    rules: list[str] = []

    class Spy(CachingAllocator):
        def __init__(self, capacity: int | None, settings: AllocatorSettings, **limit: Any) -> None:
            rules.append(settings.equal_blocks)
            super().__init__(capacity, settings, **limit)

    # The package has a function of the same name as this module.
    replay = sys.modules["oomdoctor.analysis.allocator.replay"]
    monkeypatch.setattr(replay if noted is None else differing_lengths, "CachingAllocator", Spy)
    monkeypatch.setattr(differing_lengths, "_EVENTS", 20_000)
    for torch, rule in ("2.11.0", "lowest"), ("2.12.0", sizes.equal_blocks_of(torch_release())):
        row = versions(torch=torch, transformers="5.9.0") | {"metric": "reserved", "note": noted}
        predict(expressed(tmp_path, row))
        assert set(rules) == {rule}
        rules.clear()


@pytest.mark.parametrize(
    ("changes", "values"),
    [
        ({"autocast": "fp16", "weights_dtype": "fp32"}, {"autocast_dtype": "float16"}),
        ({"grad_ckpt": True}, {"activation_checkpointing": "full"}),
        ({"attn": None}, {"attention": "sdpa"}),
        ({"attn": None} | versions(transformers="4.30"), {"attention": "eager"}),
        ({"optimizer": "lion_8bit"}, {"optimizer": "lion_8bit"}),
        (LORA | {"lora_targets": "all-linear"}, {"lora_targets": "all-linear"}),
        (LORA | {"quant": NF4}, {"method": "qlora", "double_quant": True, "kbit_prepare": "peft"}),
        (LORA | {"quant": INT8}, {"quantization": "int8", "double_quant": False}),
        (
            LORA | {"quant": NF4, "kbit_prepare": "trl_norms_fp32 (and more)"},
            {"kbit_prepare": "norms"},
        ),
        (
            QWEN_1 | LORA | {"lora_targets": ["c_attn", "w1"]},
            {"lora_targets": ("q_proj", "k_proj", "v_proj", "up_proj")},
        ),
        ({"grad_accum": 4}, {"effective_batch_size": 8}),
        (versions(torch="1.13.1", transformers="4.30.1"), {"effective_batch_size": 4}),
        (versions(transformers="4.20.1"), {"effective_batch_size": 4}),
        (versions(torch="2.0.1", transformers="4.20.1"), {"effective_batch_size": 2}),
    ],
)
def test_settings_are_those_of_the_row(
    tmp_path: Path, changes: dict[str, Any], values: dict[str, Any]
) -> None:
    config = expressed(tmp_path, changes).config
    assert {key: getattr(config, key) for key in values} == values


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"task": "dpo"}, "the task 'dpo'"),
        ({"method": "galore"}, "method 'galore'"),
        ({"metric": "rss"}, "the metric 'rss'"),
        ({"attn": "xformers"}, "attn 'xformers'"),
        ({"attn": None, "versions": {}}, "attn None"),
        ({"weights_dtype": "float8"}, "weights_dtype 'float8'"),
        ({"grad_ckpt": "unsloth"}, "grad_ckpt 'unsloth'"),
        ({"weights_dtype": "float16", "autocast": "float16"}, "cannot unscale float16"),
        ({"features": ["packed", "liger", "neftune"]}, "adaptation gives: liger, neftune"),
        ({"optimizer": "torchao_adamw_8bit"}, "torchao"),
        ({"stack": "unsloth"}, "the models of unsloth"),
        ({"num_gpus": 2}, "more than one GPU"),
        ({"quant": NF4}, 'needs method "qlora"'),
        (LORA | {"quant": NF4 | {"backend": "awq"}}, "quantised by awq"),
        (LORA | {"quant": NF4 | {"type": "int3"}}, "type 'int3'"),
        (LORA | {"quant": NF4 | {"compute_dtype": "float32"}}, "products in float32"),
        (LORA | {"quant": NF4, "kbit_prepare": "by hand"}, "kbit_prepare 'by hand'"),
        (LORA | {"lora_targets": None}, "targets are not told"),
        (LIT_GPT | {"quant": NF4}, "lit-gpt with quant"),
        (LIT_GPT | llama(num_key_value_heads=2), "as many keys as heads"),
        (LIT_GPT | {"lora_targets": ["q_proj", "k_proj"]}, "queries and values"),
        (classifier("roberta", "RobertaModel") | versions(transformers="4.12"), "only BERT"),
        (llama(model_type="qwen2_moe", num_experts=8), "only Mixtral's"),
        ({"measured_bytes": 0}, "measured_bytes 0"),
        ({"seq_len": "512"}, "no whole number"),
        ({"seq_len": -1}, "sequence_length must be at least 1"),
        ({"micro_batch": None}, "micro_batch None"),
        ({"config": {"hidden_size": 8}}, "does not tell 'model_type'"),
        ({"metric": "nvidia_smi", "gpu": "Frobnicator 9000"}, "the context on Frobnicator 9000"),
        ({"fits": False, "measured_bytes": None, "gpu": "A100"}, "it ran out on A100"),
        ({"lora_r": 4, "versions": "new"}, "not of the usual form"),
    ],
)
def test_what_cannot_be_expressed_is_left_out(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    assert told in reason(tmp_path, PLAIN | changes)


@pytest.mark.parametrize("key", ["config", "seq_len", "stack", "gpu", "optimizer", "metric"])
def test_a_row_that_lacks_a_setting_is_left_out(tmp_path: Path, key: str) -> None:
    row = {name: value for name, value in PLAIN.items() if name != key}
    assert reason(tmp_path, row) == f"the row does not tell '{key}'"


@pytest.mark.parametrize("row", [None, "nonsense", [], {}])
def test_what_is_no_row_is_left_out(tmp_path: Path, row: Any) -> None:
    assert reason(tmp_path, row)


def test_a_run_that_ran_out_is_a_case_of_what_its_card_has(tmp_path: Path) -> None:
    for name in ("NVIDIA A100-SXM4-40GB", "A100 40GB"):
        case = expressed(tmp_path, {"fits": False, "measured_bytes": None, "gpu": name})
        assert case.readings == ()
        assert case.ran_out_at_bytes is not None
        assert 39 << 30 < case.ran_out_at_bytes < 40 << 30


def test_a_card_is_found_by_its_words(tmp_path: Path) -> None:
    assert expressed(tmp_path, {"gpu": "NVIDIA A10G 24GB"}).gpu == "NVIDIA A10G"
    assert expressed(tmp_path, {"gpu": "A100 80GB"}).gpu == "NVIDIA A100-SXM4-80GB"
    assert expressed(tmp_path, {"gpu": "Frobnicator 9000"}).gpu == "Frobnicator 9000"


def test_a_file_that_is_no_list_is_told(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text("{")
    with pytest.raises(SystemExit, match=r"rows\.json"):
        list(published_cases(file))


SIMULATED: dict[str, dict[str, Any]] = {
    "first": {},
    "amp": {"weights_dtype": "float32", "autocast": "float16"},
    "paged": {"optimizer": "paged_adamw_8bit"},
    "int8": LORA | {"quant": INT8, "weights_dtype": "float16"},
    "gpt2": LORA
    | {
        "lora_targets": ["c_attn"],
        "config": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4},
    },
    "roberta": classifier("roberta", "RobertaForMaskedLM", max_position_embeddings=130),
    "lit-gpt": LIT_GPT,
    "mixtral": llama(model_type="mixtral", num_local_experts=4, num_experts_per_tok=2),
}
FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "model": (llama(model_type="chatglm9"), "does not know this model_type"),
    "task": (llama(model_type="vit"), "has no AutoModelForCausalLM for vit"),
    "optimizer": ({"optimizer": "shampoo"}, "the Trainer rejects"),
    "targets": (LORA | {"lora_targets": ["c_attn"]}, "peft cannot put LoRA"),
    "shape": (llama(hidden_size=65), "it failed: "),
}


@pytest.mark.slow
@pytest.mark.skipif(
    int(version("transformers").partition(".")[0]) < 5,
    reason="FAILING lists the rows that transformers 5 and its bitsandbytes cannot run",
)
def test_a_run_over_rows_of_every_kind_comes_to_its_figures(
    script: Callable[..., Any], tmp_path: Path
) -> None:
    rows = {name: changes for name, (changes, _) in FAILING.items()}
    file = tmp_path / "rows.json"
    # What fails comes before what does not: one process, and the last row is the first again.
    chosen = SIMULATED | rows | {"last": {}}
    file.write_text(json.dumps([PLAIN | row | {"id": name} for name, row in chosen.items()]))
    none = str(tmp_path / "none")
    ended = script("accuracy", "--json", "--published", str(file), "--measured", none)
    assert ended.returncode == 3, ended.stderr  # no made-up figure is near a prediction
    answer = json.loads(ended.stdout)
    predicted = {row["id"]: row["predicted_bytes"] for row in answer["rows"]}
    assert predicted.keys() == SIMULATED.keys() | {"last"}
    assert predicted["last"] == pytest.approx(predicted["first"], abs=8192)
    assert answer["left_out"].keys() == FAILING.keys()
    for name, (_, told) in FAILING.items():
        assert told in answer["left_out"][name]


def test_a_run_without_a_row_ends_with_4(script: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([PLAIN | {"task": "dpo"}]))
    none = str(tmp_path / "none")
    ended = script("accuracy", "--json", "--published", str(file), "--measured", none)
    assert ended.returncode == 4, ended.stderr
    assert json.loads(ended.stdout)["left_out"] == {"plain": "the task 'dpo', which no rung has"}
