"""Lists of facts, models, recipes, runs, and the environment, in each of their formats."""

from __future__ import annotations

import json
import re

import pytest
from example_gpu import gpu_report

from oomdoctor.records.configuration.config import Recipe
from oomdoctor.records.job.machine import Capability, Gpu, GpuFacts, GpuProcess, Setting
from oomdoctor.render import lists as listing
from oomdoctor.render.env_page import Emulation, Environment, environment_page
from oomdoctor.render.formats import Style
from oomdoctor.system.catalogue import CatalogueModel
from oomdoctor.system.environment import SlurmFacts
from oomdoctor.units import GIB

CARD = GpuFacts(
    name="NVIDIA Invented 9000",
    aliases=("I9000",),
    vendor="NVIDIA",
    architecture="Invented",
    compute_capability="9.0",
    memory_bytes=24 * GIB,
    total_bytes=23 * GIB,
    bandwidth_bytes_per_s=1.008e12,
    fp32_flops=82.6e12,
    tf32_flops=None,
    fp16_flops=165.2e12,
    bf16_flops=165.2e12,
    fp8_flops=None,
    notes="",
)
MODEL = CatalogueModel(
    id="org/model-1B",
    config={"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    auto_class="AutoModelForCausalLM",
    parameters=1_234_000_000,
    notes="",
)
ENVIRONMENT = Environment(
    gpus=(
        Gpu(
            index=0,
            uuid="GPU-00000000-0000-0000-0000-000000000001",
            name="NVIDIA Invented 9000",
            total_bytes=23 * GIB,
            free_bytes=20 * GIB,
            compute_capability="9.0",
            processes=(GpuProcess(77, "python3", 2 * GIB), GpuProcess(78, None, None)),
        ),
    ),
    driver_version="570.86.15",
    versions={"torch": "2.7.1", "flash-attn": None},
    capabilities=(
        Capability("torch", "2.7.1", "ok", "everything that is measured"),
        Capability("flash-attn", None, "missing", "pip install flash-attn for it"),
    ),
    slurm=SlurmFacts("4711", "node1", "gpu", "0", 64 * GIB, False),
    settings=(Setting("HF_HOME", "/data/hf", "environment"), Setting("HF_TOKEN", None, "default")),
    memory_available_bytes=100 * GIB,
    environments=(),
    emulation=Emulation(possible=False, python="python3", reason="there is no C compiler"),
)


def _recipe() -> Recipe:
    request = gpu_report().request
    assert request is not None
    return request.recipe


def _row(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.lstrip().startswith(start))


def test_gpus() -> None:
    row = _row(listing.gpu_list((CARD,)).text("table", Style()), CARD.name)
    assert re.search(r"24.0 GiB\s+23.0 GiB\s+1.01\s+165\s+165\s+82.6\s+-\s+9.0$", row)
    value = json.loads(listing.gpu_list((CARD,)).text("json", Style()))
    assert value["command"] == "gpus"
    assert value["gpus"][0]["memory_bytes"] == 24 * GIB
    assert value["gpus"][0]["fp8_flops"] is None


def test_a_narrow_list_says_what_it_leaves_out() -> None:
    narrow = listing.gpu_list((CARD,)).text("table", Style(terminal=True, width=60))
    assert "not shown at this width: fp16, fp32" in " ".join(narrow.split())
    assert max(map(len, narrow.splitlines())) <= 60
    assert "not shown" not in listing.gpu_list((CARD,)).text(
        "table", Style(terminal=True, width=100)
    )


def test_models() -> None:
    row = _row(listing.model_list((MODEL,)).text("table", Style()), MODEL.id)
    assert re.search(r"1.23B\s+llama\s+AutoModelForCausalLM$", row)
    value = json.loads(listing.model_list((MODEL,)).text("json", Style()))
    assert value["models"][0]["parameters"] == 1_234_000_000


def test_recipes() -> None:
    recipe = _recipe()
    row = _row(listing.recipe_list((recipe,)).text("table", Style()), "default")
    assert re.search(r"10\s+built-in\s+From the fp32 baseline to QLoRA$", row)
    value = json.loads(listing.recipe_list((recipe,)).text("json", Style()))
    assert len(value["recipes"][0]["rungs"]) == 10


def test_one_recipe() -> None:
    shown = listing.Listing("recipes show", {"recipe": _recipe()})
    value = json.loads(shown.text("json", Style()))
    assert value["recipe"]["rungs"][3]["config"]["optimizer"] == "paged_adamw_8bit"


def test_environment() -> None:
    text = environment_page(ENVIRONMENT).text("table", Style())
    assert "driver 570.86.15; 100 GiB of host memory available" in text
    assert re.search(r"0\s+77\s+python3\s+2.00 GiB", text)
    assert re.search(r"0\s+78\s+-\s+-$", text, re.MULTILINE)
    assert re.search(r"torch\s+2.7.1\s+yes\s+everything that is measured", text)
    assert re.search(r"flash-attn\s+-\s+missing\s+pip install flash-attn for it", text)
    assert re.search(r"HF_HOME\s+/data/hf\s+environment", text)
    assert re.search(r"partition\s+gpu", text)
    value = json.loads(environment_page(ENVIRONMENT).text("json", Style()))
    assert value["environment"]["gpus"][0]["processes"][0]["pid"] == 77
    assert value["environment"]["settings"][1] == {
        "name": "HF_TOKEN",
        "value": None,
        "origin": "default",
    }


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_the_environment_fits_the_terminal(width: int) -> None:
    text = environment_page(ENVIRONMENT).text("table", Style(terminal=True, width=width))
    assert max(map(len, text.splitlines())) <= width
    assert "GPU-00000000-0000-0000-0000-000000000001" in text
