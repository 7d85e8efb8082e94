"""Which program failed: by its traceback, its message, and what the log mentions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from re._parser import parse  # type: ignore[import-not-found, import-untyped, unused-ignore]
from typing import Any

import pytest

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.programs import (
    around,
    around_of,
    libraries,
    program_of_file,
    programs,
)
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.explain.training.known import Given
from oomdoctor.package_data import data_of
from oomdoctor.records.report.diagnosis import Diagnosis
from oomdoctor.stacks.programs import BY_NAME

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process "
    "has 23.10 GiB memory in use. Of the allocated memory 22.10 GiB is allocated by PyTorch, and "
    "300.00 MiB is reserved by PyTorch but unallocated."
)


def _read(*lines: str) -> Diagnosis:
    found, facts = scan("\n".join(lines).splitlines())
    return diagnose("log", found, facts, Given())[0]


def _traceback(*files: str) -> str:
    frames = "\n".join(f'  File "{file}", line 7, in run\n    go()' for file in files)
    return f"Traceback (most recent call last):\n{frames}\n{OOM}"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (_traceback("/s/vllm/v1/worker/gpu_worker.py", "/s/torch/nn/functional.py"), "vllm"),
        (_traceback("/s/sglang/srt/managers/scheduler.py", "/s/vllm/layers/linear.py"), "sglang"),
        (_traceback("/app/ComfyUI/nodes.py", "/s/torch/nn/functional.py"), "comfyui"),
        (_traceback("train.py", "/s/diffusers/pipelines/flux/pipeline_flux.py"), "diffusers"),
        (_traceback("/s/trl/trainer/sft_trainer.py", "/s/transformers/trainer.py"), "trl"),
        (_traceback("/s/axolotl/train.py", "/s/transformers/trainer.py"), "transformers"),
        (_traceback("/opt/verl/workers/fsdp_workers.py", "/s/vllm/worker.py"), "verl"),
        (f"$ vllm serve Qwen/Qwen3-8B --max-model-len 32768\n{OOM}", "vllm"),
        (f"$ python train.py\n{OOM}", None),
    ],
)
def test_the_program_of_a_text(text: str, program: str | None) -> None:
    assert _read(text).framework == program


def test_a_program_that_calls_a_trainer_is_the_program_of_its_frames() -> None:
    """LLaMA-Factory takes TRL's trainers: its settings in the log say whose lines to change."""
    trl = _traceback("/site-packages/trl/trainer/dpo_trainer.py")
    remedy = next(
        r for r in _read("finetuning_type: full", trl).remedies if r.key == "checkpointing"
    )
    assert next(iter(remedy.lines)) == "llama-factory"


def test_a_remedy_of_another_program_never_appears() -> None:
    """What only a training can change is not told of an engine, and the other way round."""
    engine = _read(_traceback("/s/vllm/v1/worker/gpu_model_runner.py"))
    assert engine.remedies
    for remedy in engine.remedies:
        assert remedy.key is not None
        made_by = TABLE[remedy.key].programs  # empty: any program
        assert not made_by or made_by & {"engine", "vllm"}
        assert set(remedy.lines) <= {"vllm", "shell"}
    training = _read(_traceback("/s/transformers/trainer.py", "/s/torch/_tensor.py"))
    keys = [remedy.key or "" for remedy in training.remedies]
    assert "smaller_batch" in keys
    assert not [key for key in keys if key.startswith(("engine_", "rollout_", "vae_"))]


def test_values_of_the_command_line_count() -> None:
    text = _traceback("/s/vllm/v1/worker/gpu_model_runner.py", "/s/vllm/executor/execute_model.py")
    found = _read("$ vllm serve m --gpu-memory-utilization 0.98 --max-num-seqs 256", text)
    lines = [remedy.lines.get("vllm") for remedy in found.remedies]
    assert lines[0] == "--gpu-memory-utilization 0.88"
    assert "--max-num-seqs 64" in lines


def test_the_longest_context_that_the_text_names_is_the_one_to_type() -> None:
    found = _read(
        "ValueError: To serve at least one request with the models's max seq len (131072), "
        "16.00 GiB KV cache is needed, which is larger than the available KV cache memory "
        "(5.12 GiB). Based on the available memory, the estimated maximum model length is 41936."
    )
    assert found.remedies[0].lines["vllm"] == "--max-model-len 41936"


def test_rows_are_sound() -> None:
    marks = {mark for program in programs() for mark in program.marks()}
    assert marks == {"images", "half", "swaps_blocks"}
    kinds = {program.kind for program in programs()} | {"inference"} | marks
    names = {program.name for program in programs()}
    spoken = {key for program in programs() for key in program.speaks} | set(around())
    for row in TABLE.values():
        assert row.programs <= kinds | names, row.key
        assert set(row.own_lines) <= spoken | {"numpy", "python"}, row.key


def _literals(pattern: str) -> list[list[str]]:
    """For each way in which a pattern can match, the pieces of plain text that it must contain."""

    def ways(tree: Iterable[tuple[Any, Any]]) -> list[list[str]]:
        found = [[""]]
        for op, told in tree:
            name = str(op)
            if name == "LITERAL":
                found = [[*way[:-1], way[-1] + chr(told)] for way in found]
            elif name in ("SUBPATTERN", "BRANCH"):
                inner = [told[3]] if name == "SUBPATTERN" else told[1]
                more = [way for branch in inner for way in ways(branch)]
                found = [[*a[:-1], a[-1] + b[0], *b[1:]] for a, b in product(found, more)]
            elif name in ("MAX_REPEAT", "MIN_REPEAT") and told[0] == 0:
                once = ways(told[2]) if told[1] == 1 else [["", ""]]
                found += [[*a[:-1], a[-1] + b[0], *b[1:]] for a, b in product(found, once)]
            elif name != "AT":
                found = [[*way, ""] for way in found]
        return found

    return ways(parse(pattern))


def test_each_line_that_names_a_program_has_one_of_its_words() -> None:
    words = data_of("programs.toml")["words"]
    lines = {one.name: one.lines for one in programs() if one.lines is not None} | dict(around())
    assert words.keys() == lines.keys()
    for name, pattern in lines.items():
        for way in _literals(pattern.pattern):
            assert any(word in piece for word in words[name].split("|") if word for piece in way), (
                name,
                way,
            )


def test_libraries_and_limits_are_those_of_the_table() -> None:
    assert set(libraries()) == {
        *("trl", "transformers", "deepspeed", "lightning", "accelerate", "pytorch")
    }
    assert {"slurm", "pbs"} <= around_of("scheduler")
    assert around_of("container") == {"docker", "kubernetes"}


@pytest.mark.parametrize("name", BY_NAME)
def test_every_file_of_a_training_has_a_program(name: Any) -> None:
    assert (program_of_file(name) is None) == BY_NAME[name].is_launcher
