"""Where a model comes from: folder, cache, catalogue (the hub itself: test_fetch.py)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.errors import ExitCode, OomDoctorError, model_error
from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.model import ModelRef, ModelSpec
from oomdoctor.system.models import fetch
from oomdoctor.system.models.hub import resolve, resolve_with_notes

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128}


def _folder(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return path


def _cached(home: Path, name: str, config: dict[str, Any], ref: str = "main") -> Path:
    """A model in the layout of the Hugging Face cache."""
    repo = home / "huggingface" / "hub" / f"models--{name.replace('/', '--')}"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / ref).write_text(COMMIT)
    return _folder(repo / "snapshots" / COMMIT, config)


def _error(ref: ModelRef) -> OomDoctorError:
    with pytest.raises(OomDoctorError) as caught:
        resolve(ref)
    assert caught.value.exit_code == ExitCode.MODEL_UNAVAILABLE
    assert caught.value.hint
    return caught.value


@pytest.fixture
def dead_hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A hub that fails with the code last put into the list."""
    codes = ["hub_unreachable"]

    def fail(ref: ModelRef) -> Path:
        raise model_error(codes[-1], f"{ref.name} failed with {codes[-1]}", "hint")

    monkeypatch.setattr(fetch, "hub_config", fail)
    return codes


def test_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path / "my-checkpoint", LLAMA)
    monkeypatch.chdir(tmp_path)
    spec = resolve(ModelRef("./my-checkpoint"))
    assert spec == ModelSpec(
        id="my-checkpoint",
        source="local",
        architecture="LlamaForCausalLM",
        model_type="llama",
        task="causal-lm",
        config=LLAMA,
        path=str(folder),
    )
    assert loads(ModelSpec, dumps(spec)) == spec
    for name in ("my-checkpoint", "my-checkpoint/", str(folder), f"{folder}/config.json"):
        assert resolve(ModelRef(name)).path == str(folder)
    monkeypatch.chdir(folder)
    assert resolve(ModelRef(".")).id == "my-checkpoint"


def test_home_folder(isolated: Path) -> None:
    folder = _folder(isolated / "model", LLAMA)
    assert resolve(ModelRef("~/model")).path == str(folder)


def test_a_local_folder_needs_no_huggingface_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert resolve(ModelRef(str(_folder(tmp_path, LLAMA)))).source == "local"
    assert _error(ModelRef("a/b", source="cache")).code == "no_huggingface_hub"
    spec, notes = resolve_with_notes(ModelRef("gpt2"))
    assert spec.source == "catalogue"
    assert "huggingface_hub is not installed" in notes[0]


def test_revision_of_a_local_folder_is_noted(tmp_path: Path) -> None:
    _, notes = resolve_with_notes(ModelRef(str(_folder(tmp_path, LLAMA)), revision="v1"))
    assert notes == ("--revision v1 is ignored for a local folder",)


@pytest.mark.parametrize("name", ["./nothing", "/nothing/here", "~/nothing", "~nobody_/x", "x/"])
def test_path_that_is_not_there(name: str) -> None:
    error = _error(ModelRef(name))
    assert error.code == "model_path_missing"
    assert name in error.message


def test_source_local_means_a_folder() -> None:
    error = _error(ModelRef("SmolLM2-135", source="local"))
    assert error.code == "model_path_missing"
    assert "HuggingFaceTB/SmolLM2-135M" in (error.hint or "")


def test_an_existing_folder_wins_over_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert _error(ModelRef("gpt2")).code == "no_config"
    assert resolve(ModelRef("gpt2", source="catalogue")).source == "catalogue"


def test_cache(isolated: Path, dead_hub: list[str]) -> None:
    folder = _cached(isolated, "org/name", LLAMA)
    spec, notes = resolve_with_notes(ModelRef("org/name"))
    assert (spec.id, spec.source, spec.revision) == ("org/name", "cache", COMMIT)
    assert spec.path == str(folder)
    assert spec.parameters is None
    assert notes == ()
    assert resolve(ModelRef("org/name", revision=COMMIT)).revision == COMMIT
    assert resolve(ModelRef("org/name", source="cache")).source == "cache"


def test_cache_goes_before_the_catalogue(isolated: Path, dead_hub: list[str]) -> None:
    _cached(isolated, "gpt2", LLAMA)
    assert resolve(ModelRef("gpt2")).model_type == "llama"


def test_cache_of_another_revision_is_no_answer(isolated: Path, dead_hub: list[str]) -> None:
    _cached(isolated, "org/name", LLAMA, ref="v1")
    assert resolve(ModelRef("org/name", revision="v1")).revision == COMMIT
    assert _error(ModelRef("org/name", source="cache")).code == "not_cached"


def test_cache_folder_by_variable(
    isolated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cached(isolated, "org/name", LLAMA)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    error = _error(ModelRef("org/name", source="cache"))
    assert error.code == "not_cached"
    assert str(tmp_path) in error.message


def test_broken_config_in_the_cache(isolated: Path, dead_hub: list[str]) -> None:
    folder = _cached(isolated, "gpt2", LLAMA)
    (folder / "config.json").write_text("{")
    assert _error(ModelRef("gpt2")).code == "broken_config"


def test_offline_with_nothing(isolated: Path) -> None:
    error = _error(ModelRef("org/name"))
    assert error.code == "offline"
    assert error.message == (
        "org/name is not in the Hugging Face cache and cannot be downloaded: HF_HUB_OFFLINE is set"
    )
    assert "not in the" not in _error(ModelRef("org/name", source="hub")).message


def test_transformers_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    assert "TRANSFORMERS_OFFLINE is set" in _error(ModelRef("org/name")).message


def test_catalogue_when_offline() -> None:
    spec, notes = resolve_with_notes(ModelRef("meta-llama/Llama-3.1-8B"))
    assert (spec.source, spec.task, spec.model_type) == ("catalogue", "causal-lm", "llama")
    assert spec.parameters == 8_030_261_248
    assert (spec.path, spec.revision) == (None, None)
    assert notes == (
        "meta-llama/Llama-3.1-8B is not in the Hugging Face cache and cannot be downloaded: "
        "HF_HUB_OFFLINE is set; using built-in facts",
    )


def test_catalogue_asked_for() -> None:
    spec, notes = resolve_with_notes(ModelRef("gpt2", source="catalogue"))
    assert (spec.id, notes) == ("openai-community/gpt2", ())


def test_alias_of_a_built_in_model() -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    spec, notes = resolve_with_notes(ModelRef(name, source="catalogue", revision="v1"))
    assert spec.id == name
    assert "facts of meta-llama/Llama-3.1-8B, " in notes[0]
    assert notes[1] == "--revision v1 is ignored for built-in facts"


def test_parameters_only_where_the_head_is_the_counted_one() -> None:
    assert resolve(ModelRef("gpt2", task="causal-lm")).parameters == 124_439_808
    assert resolve(ModelRef("gpt2", task="sequence-classification")).parameters is None
    assert resolve(ModelRef("facebook/bart-base")).parameters is None


@pytest.mark.parametrize(
    "code", ["gated", "bad_token", "model_not_found", "hub_unreachable", "cache_unwritable"]
)
def test_built_in_facts_stand_in_for_the_hub(code: str, dead_hub: list[str]) -> None:
    dead_hub.append(code)
    spec, notes = resolve_with_notes(ModelRef("gpt2"))
    assert spec.source == "catalogue"
    assert notes == (f"gpt2 failed with {code}; using built-in facts",)
    assert _error(ModelRef("gpt2", source="hub")).code == code
    assert _error(ModelRef("org/name")).code == code


@pytest.mark.parametrize("code", ["revision_not_found", "no_config", "peft_adapter"])
def test_facts_do_not_stand_in_for_a_real_answer(code: str, dead_hub: list[str]) -> None:
    dead_hub.append(code)
    assert _error(ModelRef("gpt2")).code == code


def test_unknown_catalogue_name_gets_the_nearest() -> None:
    error = _error(ModelRef("SmolLM2-135", source="catalogue"))
    assert error.code == "not_in_catalogue"
    assert "HuggingFaceTB/SmolLM2-135M" in (error.hint or "")


@pytest.mark.parametrize("name", ["a b", "a/b/c", "a--b", "", "  ", "x" * 300])
def test_impossible_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert _error(ModelRef(name)).code == "bad_model_name"


def test_quantised_checkpoint(tmp_path: Path) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": "fp8", "bits": 8}}
    spec, notes = resolve_with_notes(ModelRef(str(_folder(tmp_path, config))))
    assert spec.config == LLAMA
    assert spec.quantized == config["quantization_config"]
    assert "is quantized (FP8): quantization=checkpoint trains LoRA" in notes[0]


def test_remote_code(tmp_path: Path) -> None:
    own = {
        "model_type": "brand_new",
        "architectures": ["BrandNewForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling.BrandNewForCausalLM"},
        "vocab_size": 128,
    }
    name = str(_folder(tmp_path / "own", own))
    spec, notes = resolve_with_notes(ModelRef(name))
    assert not spec.trust_remote_code
    assert "--trust-remote-code" in notes[0] and "brand_new" in notes[0]
    spec, notes = resolve_with_notes(ModelRef(name, trust_remote_code=True))
    assert spec.trust_remote_code
    assert notes == ()
    native = _folder(tmp_path / "native", {**LLAMA, "auto_map": {"AutoModel": "m.M"}})
    assert resolve_with_notes(ModelRef(str(native)))[1] == ()


def test_language_model_of_a_vision_language_model(tmp_path: Path) -> None:
    config = {
        "model_type": "mistral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "vision_config": {"model_type": "pixtral"},
        "text_config": {"model_type": "mistral", "vocab_size": 128},
    }
    name = str(_folder(tmp_path, config))
    assert resolve_with_notes(ModelRef(name))[0].task == "image-text-to-text"
    spec, notes = resolve_with_notes(ModelRef(name, task="causal-lm"))
    assert (spec.model_type, spec.architecture) == ("mistral", "MistralForCausalLM")
    assert notes == (
        "only the language model is used; the parts for images as well as text are left out",
    )
    spec = resolve(ModelRef(name, task="embedding"))
    assert (spec.model_type, spec.task, spec.pooling) == ("mistral", "embedding", "lasttoken")
    _folder(tmp_path, config | {"architectures": ["MistralTextModel"]})
    assert resolve(ModelRef(name, task="embedding")).architecture == "MistralTextModel"
    del config["text_config"]
    _folder(tmp_path, config)
    assert _error(ModelRef(name, task="causal-lm")).code == "unsupported_task"


@pytest.mark.parametrize(
    ("architecture", "said"), [("BertModel", True), ("BertForMaskedLM", False)]
)
def test_a_model_without_a_head_is_told(tmp_path: Path, architecture: str, said: bool) -> None:
    config = {"model_type": "bert", "architectures": [architecture], "vocab_size": 100}
    name = str(_folder(tmp_path, config))
    notes = resolve_with_notes(ModelRef(name))[1]
    assert any("has no head" in note for note in notes) is said
    assert resolve_with_notes(ModelRef(name, task="masked-lm"))[1] == ()


@pytest.mark.parametrize(
    ("pooling", "settings"),
    [
        ("lasttoken", {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}),
        ("cls", {"pooling_mode": "cls"}),
        ("cls+max", {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}),
    ],
)
def test_a_model_of_sentence_transformers_embeds(
    tmp_path: Path, pooling: str, settings: dict[str, Any]
) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 100}
    folder = _folder(tmp_path, config)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    parts = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(parts))
    spec, notes = resolve_with_notes(ModelRef(str(folder)))
    assert (spec.task, spec.pooling, notes) == ("embedding", pooling, ())
    spec = resolve(ModelRef(str(folder), task="causal-lm"))
    assert (spec.task, spec.pooling) == ("causal-lm", None)


@pytest.mark.parametrize("modules", ["{", "{}", "[1]", '[{"path": "", "type": "Transformer"}]'])
def test_modules_without_pooling_say_nothing(tmp_path: Path, modules: str) -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 100}
    folder = _folder(tmp_path, config)
    (folder / "modules.json").write_text(modules)
    assert resolve(ModelRef(str(folder))).task == "causal-lm"
    assert resolve(ModelRef(str(folder), task="embedding")).pooling == "lasttoken"
