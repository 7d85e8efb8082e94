"""The emulated A100 beside published measurements of real ones: what was reached, and is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emulated.benchmark import LIGER_TABLE, TABLE, further_rows
from emulated.readings import device_error, device_table, error, further_table, table
from emulated.rows import all_rows, why_not
from emulated_real import GOAL

ROOT = Path(__file__).parents[3]
STORED = ROOT / "tests" / "data" / "emulated"
READINGS = json.loads((STORED / "published.json").read_text())
FURTHER = json.loads((STORED / "benchmark.json").read_text())
# Less memory was most likely free on the real card, so torch gave cached memory back.
LESS_FREE = {"fms445-llama3-8b-lora-foak-1g-bs8"}
HEADER = (
    "bf16,fp16,framework_config,lora_alpha,lora_dropout,mem_nvidia_mem_reserved,"
    "mem_peak_torch_mem_alloc_in_bytes,model_name_or_path,num_gpus,peft_method,"
    "per_device_train_batch_size,r,target_modules,torch_dtype"
)


def test_every_row_that_can_be_run_was_run() -> None:
    assert {r["id"] for r in READINGS} == {row["id"] for row in all_rows() if not why_not(row)}


def test_what_was_measured_is_what_the_rows_say() -> None:
    measured = {row["id"]: row["measured_bytes"] for row in all_rows()}
    for r in READINGS:
        assert r["measured_bytes"] == measured[r["id"]]
        assert r["difference_bytes"] == r["allocated_bytes"] - r["measured_bytes"]


def test_peaks_are_equal_to_the_byte_where_no_value_decides() -> None:
    assert any("foak" in r["id"] for r in FURTHER)
    for r in (*READINGS, *FURTHER):
        if "mixtral" in r["id"]:  # its routing is data
            assert abs(error(r)) <= GOAL, r["id"]
        else:
            assert r["difference_bytes"] == 0, r["id"]


def test_reserved_memory_differs_by_a_constant_from_what_nvidia_smi_showed() -> None:
    """For a method, the context and what else torch does not count do not depend on the batch."""
    for methods in (("-lora-",), ("mistral7b-qlora-", "-gptqlora-")):
        own = [r for r in READINGS if any(method in r["id"] for method in methods)]
        assert len(own) >= 2
        rests = [r["measured_device_bytes"] - r["reserved_bytes"] for r in own]
        for r, rest in zip(own, rests, strict=True):
            assert abs(rest - max(rests)) < 2e-4 * r["measured_device_bytes"], r["id"]


def test_the_device_of_the_older_runs_comes_out_with_the_published_context() -> None:
    own = [r for r in FURTHER if r["id"].startswith("fms445-") and r["id"] not in LESS_FREE]
    assert len(own) >= 5
    for r in own:
        share = device_error(r)
        assert share is not None and abs(share) < 5e-3, r["id"]


def test_the_documentation_shows_them() -> None:
    page = (ROOT / "docs" / "emulation.md").read_text()
    assert table(READINGS) in page
    assert device_table(READINGS) in page
    assert further_table(FURTHER) in page


def test_further_rows_are_those_that_ended_on_one_gpu(tmp_path: Path) -> None:
    file = tmp_path / TABLE
    file.parent.mkdir(parents=True)
    gptq, mistral = "TheBloke/Mistral-7B-v0.1-GPTQ", "mistralai/Mistral-7B-v0.1"
    entries = [
        f",,none,,,9,8,{mistral},1,,4,,,bfloat16",
        f",,foak-fast-kernels,,,9,8,{mistral},1,,4,,,bfloat16",
        f",,foak-fast-kernels,,,9,8,{mistral},2,,2,,,bfloat16",
        f",,foak-fast-kernels,,,9,,{mistral},1,,8,,,bfloat16",
        f",TRUE,accelerated-peft-autogptq-foak,16,0.1,2048,8,{gptq},1,lora,4,16,q_proj,float16",
    ]
    file.write_text("\n".join([HEADER, *entries]))
    loss = f"True,,foak-fast-kernels-liger,16.0,0.1,9.0,8.0,{mistral},1,lora,4,16.0,q_proj,bfloat16"
    (tmp_path / LIGER_TABLE).write_text(f"{HEADER}\n{loss}\n")
    known = [{"source": f"github:foundation-model-stack/fms-acceleration {TABLE} line 2 @876e2ed"}]
    full, quantized, liger = further_rows(tmp_path, known)
    assert full["id"] == "fms-mistral7b-full-foak-1g-bs4"
    assert full["autocast"] is None and full["quant"] is None and full["features"] == ["foak"]
    assert quantized["id"] == "fms-mistral7b-gptqlora-foak-1g-bs4"
    assert quantized["quant"] == {"type": "gptq"} and quantized["autocast"] == "float16"
    assert quantized["measured_also"][0]["peak_gb"] == 2
    assert quantized["source"].endswith("line 6") and not quantized["older"]
    assert liger["id"] == "fms445-mistral7b-lora-foak-liger-1g-bs4" and liger["older"]
    assert liger["features"] == ["foak", "liger"] and liger["measured_bytes"] == 8


def test_a_folder_without_the_table_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no checkout of fms-acceleration"):
        list(further_rows(tmp_path, []))
