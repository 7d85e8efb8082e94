"""Which model types of the installed transformers can be simulated, and why others cannot.

Usage: families.py [--task TASK] [--only TYPE ...] [--limit SECONDS] [--check | --page]

Each type is its config's defaults with few layers, so that the traits of a family stay. It is found
in a folder, as a user's model is, and one training step of all weights and one of LoRA adapters are
simulated. The answers are kept in `families/TASK.json`: peaks in bytes, or what a user would read.
With `--only` the other types keep their answers. With `--check` they are compared with those that
are kept: exit 1 if a type has lost an answer.
`--page` writes docs/model-types.md from all that are kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args

from families_page import ANSWERS, METHODS, PAGE, page, summary

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.facts.choices import Method
from oomdoctor.records.job.model import AUTO_CLASSES, ModelRef, ModelSpec, Task, TaskChoice
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.records.job.simulation import Prediction, SimulationRequest, Target
from oomdoctor.system.models.hub import resolve
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile, UnsupportedError
from oomdoctor.worker.simulating.simulate import simulate
from oomdoctor.worker.training.build import import_libraries
from oomdoctor.worker.training.inspection import inspect_model

_DEPTHS = (
    "num_hidden_layers", "depth", "num_layers", "n_layer", "n_layers", "encoder_layers",
    "decoder_layers", "num_decoder_layers", "num_encoder_layers", "num_global_layers",
)  # fmt: skip
_OF_DEPTH = ("out_features", "out_indices", "stage_names")  # made again from the depth
_LAYERS = 4
_GLM = {
    "rope_type": "default",
    "mrope_section": [8, 12, 12],
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
}
_OMNI = {"vision_start_token_id": 151652, "audio_start_token_id": 151647}
_HUNYUAN = {"rope_type": "default", "mrope_section": [16, 16, 16, 16], "rope_theta": 10000.0}
_INDEXER = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 256,
    "indexer_budget": 2048,
    "indexer_compress_ratio": 4,
}
_DRAFTER = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
_DRAFTER |= {"num_kv_shared_layers": _LAYERS, "num_hidden_layers": _LAYERS}
_WORDS = {"image_token_id": 4, "vocabulary_map": {"<image>": 4, "<|image token|>": 4}}
# Defaults of a config that are no model: what a published one has instead.
_INSTEAD: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {
        "": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e6}}}
    },
    "cohere_compass": {
        "text_config": {
            "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e6}}
        }
    },
    "bert-generation": {"": {"is_decoder": True}},
    "reformer": {"": {"is_decoder": True}},
    "udop": {"": {"decoder_start_token_id": 0}},
    "vision-encoder-decoder": {"": {"pad_token_id": 0, "decoder_start_token_id": 101}},
    "speech-encoder-decoder": {"": {"pad_token_id": 0, "decoder_start_token_id": 101}},
    "dbrx": {"attn_config": {"rope_theta": 500000.0, "clip_qkv": 8}},
    "deepseek_v2": {
        "": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 1408}
    },
    "dory": {
        "": {
            "num_hidden_layers": 8,
            "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp"] * 2,
            "n_input_layers": 2,
            "n_recurrent_layers": 4,
            "n_output_layers": 2,
        }
    },
    "dots1": {"": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2}},
    "gemma3n_text": {"": {"num_kv_shared_layers": 0}},
    "gemma3n": {"text_config": {"num_kv_shared_layers": 0}},
    "hunyuan_v1_dense": {"": {"head_dim": 128}},
    "hunyuan_v1_moe": {"": {"head_dim": 128}},
    "lfm2_moe": {"": {"layer_types": ["conv", "conv", "full_attention", "conv"]}},
    "ministral": {"": {"head_dim": 128}},
    "nemotron": {"": {"num_key_value_heads": 8}},
    "esm": {"": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32}},
    **{
        key: {"": {"decoder_start_token_id": 0}}
        for key in ("t5", "longt5", "switch_transformers", "pop2piano")
    },
    "encoder-decoder": {"": {"pad_token_id": 0, "decoder_start_token_id": 101}},
    **{key: {"": {"vocab_size": 32}} for key in ("wav2vec2-bert", "wav2vec2-conformer")},
    "moonshine": {"": {"pad_token_id": 2}},
    "voxtral": {"": {"audio_token_id": 24}},
    **{
        key: {"projector_config": {"encoder_hidden_size": 1024}}
        for key in ("granite_speech", "granite_speech_plus")
    },
    "qwen3_asr": {"audio_config": {"output_dim": 2048}},
    "moonshine_streaming": {
        "": {"pad_token_id": 2, "num_key_value_heads": 8, "decoder_start_token_id": 1}
    },
    "cohere_asr": {"": {"decoder_start_token_id": 0}},
    "xmod": {"": {"default_language": "en_XX"}},
    "aya_vision": {"vision_config": {"num_attention_heads": 16}},
    "chameleon": {"": _WORDS},
    "emu3": {"": _WORDS},
    "granite4_vision": {"": {"downsample_rate": "4/8", "deepstack_layer_map": []}},
    "mllama": {
        "text_config": {"cross_attention_layers": [1]},
        "vision_config": {"intermediate_layers_indices": [1, 3], "vision_output_dim": 3840},
    },
    "molmo2": {"adapter_config": {"vision_feature_layer": [3, 1]}},
    "step3p7": {"text_config": {"sliding_window": 512}},
    "deepseek_ocr2": {
        "text_config": {
            "num_experts_per_tok": 6,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 896,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        }
    },
    "hunyuan_vl": {"text_config": {"head_dim": 128, "rope_parameters": _HUNYUAN}},
    "perception_lm": {
        "vision_config": {
            "architecture": "vit_pe_core_large_patch14_336",
            "model_args": {
                "embed_dim": 1024,
                "img_size": [448, 448],
                "depth": _LAYERS,
                "global_pool": "",
                "use_post_transformer_norm": False,
                "init_values": 0.1,
                "ref_feat_shape": [32, 32],
            },
        }
    },
    "qwen4_exp": {"text_config": _INDEXER},
    "qwen4_exp_text": {"": _INDEXER},
    "zamba": {"": {"layer_types": ["mamba", "hybrid", "mamba", "hybrid"]}},
    "qwen2_5_omni_thinker": {"": _OMNI},
    "qwen3_omni_moe_thinker": {
        "": _OMNI,
        "text_config": {"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
    },
    **{key: {"": {"image_token_index": 50265}} for key in ("blip-2", "instructblip")},
    "instructblipvideo": {"": {"video_token_index": 50265}},
    **{key: {"text_config": _DRAFTER} for key in ("gemma4_assistant", "gemma4_unified_assistant")},
    "gemma4": {"vision_config": {"model_type": "gemma4_vision", "num_hidden_layers": 4}},
    "mistral3": {"vision_config": {"image_size": 1540, "patch_size": 14}},
    "gemma3": {"vision_config": {"image_size": 896, "patch_size": 14}},
    "shieldgemma2": {"vision_config": {"image_size": 896, "patch_size": 14}},
    **{key: {"text_config": {"rope_parameters": _GLM}} for key in ("glm4v", "glm46v", "glmga")},
    "glm4v_moe": {"text_config": {"rope_parameters": _GLM, "head_dim": 128}},
    "idefics3": {"vision_config": {"image_size": 364, "patch_size": 14}},
    "smolvlm": {"vision_config": {"image_size": 512, "patch_size": 16}},
}
# Widths of an encoder that are those of the text, in any config that can be trained.
_TO_TEXT = ("out_hidden_size", "text_hidden_size")
_CHECKED = ("gemma4_assistant",)  # it refuses its own defaults
_WHOLE = ("perceiver",)  # its loss only takes rows of all positions
_TWO_ROWS = ("levit",)  # its batch norms cannot be trained with one
# Others by the class.
_ASKED: dict[Task, TaskChoice] = {key: key for key in ("speech-seq2seq", "embedding")}
_TYPES: dict[Task, str] = {"embedding": "AutoModelForTextEncoding"}  # AutoModel has all of them
_LENGTH = 4096


def types_of(task: Task) -> dict[str, str]:
    """The model types of a task in the installed transformers, with their classes."""
    import transformers

    auto = getattr(transformers, _TYPES.get(task, AUTO_CLASSES[task]))
    mapping = auto._model_mapping._model_mapping
    return {kind: name if isinstance(name, str) else name[0] for kind, name in mapping.items()}


def shrunk(config: Any) -> dict[str, Any]:
    """A config as its file with few layers, in each of its parts."""
    text: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return _shallow(text)


def _shallow(part: dict[str, Any]) -> dict[str, Any]:
    depths = {name: part[name] for name in _DEPTHS if isinstance(part.get(name), int)}
    kept: dict[str, Any] = {}
    for name, value in part.items():
        if name in _OF_DEPTH:
            continue
        if name in depths:
            kept[name] = min(value, _LAYERS)
        elif name == "per_layer_config" and isinstance(value, dict):
            kept[name] = {key: one for key, one in value.items() if int(key) < _LAYERS}
        elif isinstance(value, dict):
            kept[name] = _shallow(value)
        elif isinstance(value, list) and len(value) > _LAYERS and len(value) in depths.values():
            kept[name] = value[:_LAYERS]
        else:
            kept[name] = value
    return kept


def _length(config: Mapping[str, Any]) -> int:
    """The tokens of a row: as many as the model has positions for, less the two of padding."""
    parts = [config, config.get("text_config") or {}, config.get("decoder") or {}]
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions")
    names += ("context_length",)
    sizes = [part[name] for part in parts for name in names if isinstance(part.get(name), int)]
    less = 0 if config["model_type"] in _WHOLE else 2
    return min((_LENGTH, *(size - less for size in sizes if less < size < _LENGTH)))


def config_of(kind: str, name: str, task: Task) -> dict[str, Any]:
    """The config.json of a type with few layers, as a published model would have it."""
    from transformers import CONFIG_MAPPING

    instead = _INSTEAD.get(kind, {})
    default = CONFIG_MAPPING[kind](**(instead if kind in _CHECKED else {}))
    config = shrunk(default) | {"architectures": [name]}
    for part, values in instead.items():
        if not part:
            config |= values
            continue
        config[part] = (config[part] or {}) | values
    text = (config.get("text_config") or {}).get("hidden_size")
    for part in config.values():
        if isinstance(part, dict) and text:
            part |= {name: text for name in _TO_TEXT if isinstance(part.get(name), int)}
    if task == "masked-lm":
        config["is_decoder"] = False
    return config


def rung_of(
    kind: str, config: Mapping[str, Any], method: Method, length: int = _LENGTH
) -> TrainConfig:
    """The configuration that a type is asked about."""
    rows = 2 if kind in _TWO_ROWS else 1
    return TrainConfig(
        method=method,
        autocast_dtype="bfloat16",
        micro_batch_size=rows,
        effective_batch_size=rows,
        sequence_length=min(length, _length(config)),
    )


def asked_of(task: Task) -> TaskChoice:
    """What --task says for a type of a task."""
    return _ASKED.get(task, "auto")


def answer(kind: str, name: str, task: Task, method: Method) -> dict[str, Any]:
    """What a plan of this type says: its peak in bytes, or the reason of a refusal."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(kind, name, task)
        (Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            spec = resolve(ModelRef(folder, task=asked_of(task)))
            rung = rung_of(kind, config, method)
            try:
                done, notes = _simulated(spec, rung)
            except UnsupportedError as error:
                if "--task causal-lm" not in str(error):
                    raise
                spec = resolve(ModelRef(folder, task="causal-lm"))
                done, notes = _simulated(spec, rung)
                notes = (str(error), *notes)
        except (UnsupportedError, OomDoctorError) as error:
            return {"outcome": "refused", "reason": str(error)}
    peak = done.sizes[0].measurement.peak_reserved_bytes
    return {"outcome": "answered", "peak_bytes": peak, "notes": (*notes, *done.notes)}


def _simulated(spec: ModelSpec, rung: TrainConfig) -> tuple[Prediction, tuple[str, ...]]:
    """The simulation of a rung; of what a refusal says to set instead, with the reason."""
    target = Target("1 TiB", 1 << 40, 1 << 40, 0, None)
    job = ProbeJob(mode="inspect", label=rung.method, model=spec, config=rung, device_type="cpu")
    inspection = inspect_model(job)
    if inspection.lora_targets:
        job = replace(job, config=replace(rung, lora_targets=inspection.lora_targets))
    rows = (rung.effective_batch_size,)
    request = SimulationRequest(rows, (target,), stacks=inspection.stacks)
    job = replace(job, mode="simulate", simulation=request)
    try:
        with clean_slate():
            return simulate(job, PhaseFile(None))[0], ()
    except UnsupportedError as error:
        settings = {name: _value(name, text) for name, text in _NAMED.findall(str(error))}
        if not any(getattr(rung, name) != value for name, value in settings.items()):
            raise
        return _simulated(spec, replace(rung, **settings))[0], (str(error),)


_NAMED = re.compile(
    r"(autocast_dtype|weights_dtype|sequence_length|lora_targets|modules_to_save)=([\w+]+)"
)


def _value(name: str, text: str) -> Any:
    """The value of a key of a configuration that a refusal names."""
    if name in ("lora_targets", "modules_to_save"):
        return tuple(text.split("+"))
    return int(text) if text.isdigit() else text


def _in_child(pipe: Any, *asked: Any, limit: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, limit)  # of its own time, whatever else runs
    warnings.filterwarnings("ignore")
    try:
        found = answer(*asked)
    except Exception as error:  # noqa: BLE001  (what a user would not understand is the finding)
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        found = {"outcome": "failed", "reason": f"{type(error).__name__}: {lines[0][:300]}"}
    pipe.send(found)


def asked(limit: float, *question: Any) -> dict[str, Any]:
    """The answer of a process of its own, which may compute for so many seconds."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    begun = time.monotonic()
    child = context.Process(target=_in_child, args=(theirs, *question), kwargs={"limit": limit})
    child.start()
    theirs.close()
    try:
        found: dict[str, Any] = ours.recv()
    except EOFError:
        found = {"outcome": "failed", "reason": f"no answer in {limit:.0f} s of computing"}
    child.join()
    return found | {"seconds": round(time.monotonic() - begun, 1)}


def lost_answers(answers: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """The types and methods that had an answer, and have none now."""
    return [
        f"{kind} {method}"
        for kind, row in kept["types"].items()
        for method, found in row.items()
        if kind in answers and found["outcome"] == "answered" != answers[kind][method]["outcome"]
        if not answers[kind][method].get("reason", "").startswith("needs ")  # a missing package
    ]


def _kept(row: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The answers of a type without how long they took."""
    return {
        method: {name: value for name, value in found.items() if name != "seconds"}
        for method, found in row.items()
    }


def main() -> None:
    """Ask about all types, and print and write the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--task", choices=get_args(Task), default="image-text-to-text")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page())
        return
    import_libraries()  # once, for all children
    file = ANSWERS / f"{options.task}.json"
    before = json.loads(file.read_text())["types"] if options.only and file.exists() else {}
    answers: dict[str, dict[str, Any]] = {}
    for kind, name in types_of(options.task).items():
        if options.only and kind not in options.only:
            continue
        answers[kind] = {
            method: asked(options.limit, kind, name, options.task, method) for method in METHODS
        }
        for method, found in answers[kind].items():
            said = found.get("reason") or f"{found['peak_bytes']:,} {'; '.join(found['notes'])}"
            print(f"{kind:24} {method:5} {found['outcome']:8} {found['seconds']:5} s  {said}")
            sys.stdout.flush()
        if not options.check:
            now = before | {key: _kept(row) for key, row in answers.items()}
            _keep(file, now, of=len(types_of(options.task)))
    print(summary(answers))
    if options.check:
        lost = lost_answers(answers, json.loads(file.read_text()))
        print("\n".join(f"lost: {one}" for one in lost))
        sys.exit(bool(lost))


def _keep(file: Path, types: Mapping[str, Any], of: int) -> None:
    """Write the answers, after each type: a run may be stopped."""
    kept = {
        "transformers": version("transformers"),
        "torch": version("torch"),
        "of": of,
        "types": dict(sorted(types.items())),
    }
    file.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
