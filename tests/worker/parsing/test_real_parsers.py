"""What is written for each program passes its own parser, and `--from` reads the same rung back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml
from stack_rungs import RUNGS

from oomdoctor.errors import OomDoctorError
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import config_faults
from oomdoctor.records.report.user_training import Document
from oomdoctor.stacks.export import export
from oomdoctor.stacks.programs import BY_NAME
from oomdoctor.stacks.reading.finish import Overrides, finished
from oomdoctor.stacks.reading.merge import draft_of
from oomdoctor.stacks.rung import StackRung

pytestmark = pytest.mark.slow

Ask = Callable[[str, Sequence[Mapping[str, Any]]], list[dict[str, Any]]]
MODEL = "meta-llama/Meta-Llama-3.1-8B-Instruct"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MADE_UP = (
    TrainConfig(
        method="qlora",
        quantization="nf4",
        micro_batch_size=2,
        autocast_dtype="bfloat16",
        lora_targets=("q_proj", "v_proj"),
        use_dora=True,
        use_rslora=True,
        modules_to_save=("lm_head",),
        packing="packed",
        attention="flash_attention_2",
        activation_checkpointing="full",
    ),
    TrainConfig(
        method="lora",
        micro_batch_size=4,
        autocast_dtype="bfloat16",
        lora_rank=64,
        lora_dropout=0.1,
        optimizer="paged_adamw_8bit",
        compile=True,
    ),
    TrainConfig(
        weights_dtype="float32", autocast_dtype="bfloat16", micro_batch_size=1, objective="dpo"
    ),
    TrainConfig(weights_dtype="float32", micro_batch_size=1, tf32=True),
    TrainConfig(
        sharding="zero3",
        world_size=8,
        offload="parameters",
        micro_batch_size=1,
        bucket_elements=50_000_000,
    ),
)


def distinct() -> dict[str, TrainConfig]:
    """The rungs of the recipes that differ in more than one setting, and the made-up ones."""
    kinds = {}
    for name, config in RUNGS.items():
        kind = (config.method, config.quantization, config.optimizer, config.sharding,
                config.fsdp_version, config.loss, config.lora_targets)  # fmt: skip
        if not config_faults(config):
            kinds.setdefault(kind, name)
    found = {name: RUNGS[name] for name in kinds.values()}
    return found | {f"made up {number}": config for number, config in enumerate(MADE_UP)}


CONFIGS = distinct()
# The keys that each program's file holds, for the rungs that it can express.
HELD = {
    "axolotl": ("method", "quantization", "optimizer", "attention", "lora_rank", "lora_alpha",
                "lora_dropout", "lora_targets", "micro_batch_size", "effective_batch_size",
                "sequence_length", "compile", "packing", "use_dora", "use_rslora",
                "modules_to_save", "tf32"),
    "llama-factory": ("method", "quantization", "optimizer", "lora_rank", "lora_alpha",
                      "lora_dropout", "lora_targets", "micro_batch_size", "effective_batch_size",
                      "sequence_length", "compile", "use_dora", "use_rslora", "modules_to_save",
                      "tf32"),
    "torchtune": ("weights_dtype", "micro_batch_size", "effective_batch_size", "sequence_length",
                  "compile", "lora_rank", "lora_alpha", "lora_dropout", "use_dora"),
}  # fmt: skip


def files_of(program: str) -> dict[str, tuple[TrainConfig, dict[str, Any]]]:
    """What is written for a program: the rungs that it can express, by name."""
    found = {}
    for name, config in CONFIGS.items():
        try:
            text = export(StackRung(config, name, MODEL), program)
        except OomDoctorError:
            continue
        values = json.loads(text) if program == "deepspeed" else yaml.safe_load(text)
        found[name] = (config, values)
    return found


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "axolotl": ({"base_model": "m", "micro_batch_size": 1, "gradient_accumulation_steps": 1,
                 "adapter": "lorra"}, "adapter"),
    "llama-factory": ({"model_name_or_path": "m", "stage": "sft", "cutof_len": 8}, "cutof_len"),
    "torchtune": ({"model": {"_component_": "torchtune.models.llama3_1.llama3_1_8b",
                             "lora_rnk": 8}}, "lora_rnk"),
    "deepspeed": ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
}  # fmt: skip


@pytest.mark.parametrize("program", WRONG)
def test_what_is_written_passes_the_programs_own_parser(ask: Ask, program: str) -> None:
    """All files of a program are asked in one process, which takes seconds to import it."""
    form, files = BY_NAME[program], files_of(program)
    assert len(files) >= (5 if program == "deepspeed" else 20)
    wrong, setting = WRONG[program]
    *answers, refused = ask(program, [*(values for _, values in files.values()), wrong])
    assert setting in (refused["fault"]["name"] or "") + refused["fault"]["message"]
    for (name, (config, values)), answer in zip(files.items(), answers, strict=True):
        assert answer["fault"] is None, (name, answer["fault"], values)
        assert answer["parser"] == f"{form.package} {form.version}"
        if program in HELD:
            check_read_back(name, config, program, values, answer)


def check_read_back(
    name: str, config: TrainConfig, program: str, values: dict[str, Any], answer: dict[str, Any]
) -> None:
    """With what the parser makes of the file, `--from` reads the rung; without it, the same."""
    document = Document("file", values, asked=program)
    parsed = replace(document, effective=answer["values"], parser=answer["parser"])
    gpus = Overrides(gpus=config.world_size if config.world_size > 1 else None)
    found = finished(draft_of([parsed]), dict, gpus).config
    assert finished(draft_of([document]), dict, gpus).config == found, name
    for key in HELD[program]:
        wanted = getattr(config, key)
        if config.method == "full" and key.startswith("lora_"):
            continue
        assert getattr(found, key) == (ATTENTION if wanted == "attention" else wanted), (name, key)


_TRAIN_ARGS = """
import json, sys
from llamafactory.hparams import get_train_args, parser
parser.is_torch_bf16_gpu_available = lambda: True  # a GPU that has bfloat16
parser._check_extra_dependencies = lambda *_: None  # Liger and other packages of the user
refused = {}
for name, (stage, values) in json.load(sys.stdin).items():
    parser.is_deepspeed_zero3_enabled = lambda: stage == 3
    try:
        get_train_args(values | {"use_cpu": True, "report_to": []})
    except ValueError as error:
        refused[name] = str(error)
print()
print(json.dumps(refused))
"""


def test_llama_factory_trains_with_what_is_written(run_there: Callable[..., str]) -> None:
    """`get_train_args` also checks settings against each other. Its engines need their launcher,
    and TF32 a GPU."""
    engines = ("deepspeed", "fsdp", "fsdp_config", "tf32")
    files = {
        name: (
            values.get("deepspeed", {}).get("zero_optimization", {}).get("stage"),
            {key: value for key, value in values.items() if key not in engines},
        )
        for name, (_, values) in files_of("llama-factory").items()
    }
    assert 3 in {stage for stage, _ in files.values()}
    text = run_there("-c", _TRAIN_ARGS, given=json.dumps(files))
    assert json.loads(text.splitlines()[-1]) == {}
