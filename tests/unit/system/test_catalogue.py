"""Built-in models and cards: complete, consistent, and found by the names people use."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from oomdoctor.system.catalogue import (
    CatalogueModel,
    causal_architectures,
    find_gpu,
    find_machine,
    find_model,
    gpus,
    model_types,
    models,
    nearest_gpus,
    nearest_models,
    rented_machines,
    search_gpus,
)
from oomdoctor.system.models.tasks import task_of
from oomdoctor.units import GIB, MIB


def test_there_are_many_models_and_no_name_is_given_twice() -> None:
    names = [name.lower() for model in models() for name in (model.id, *model.aliases)]
    assert len(models()) >= 60
    assert len(names) == len(set(names))


def test_every_model_has_a_task_and_a_count() -> None:
    for model in models():
        assert model.parameters is not None and model.parameters > 0, model.id
        assert model.config["model_type"] and model.architecture(), model.id
        task_of(model.config, "auto")


@pytest.mark.parametrize("model", models(), ids=lambda model: model.id)
def test_difference_to_the_published_count_is_documented(model: CatalogueModel) -> None:
    if model.published_parameters is None:
        assert "rounded" in model.notes
        return
    assert model.parameters is not None
    delta = abs(model.published_parameters - model.parameters)
    assert delta == 0 or delta in _amounts(model.notes), (delta, model.notes)


def _amounts(notes: str) -> set[int]:
    """Every sum of the numbers and products ("58 x 256") that a note states."""
    stated = []
    for match in re.finditer(r"\d[\d,]*(?: x \d[\d,]*)*", notes):
        product = 1
        for factor in match[0].split(" x "):
            product *= int(factor.replace(",", ""))
        stated.append(product)
    return {sum(c) for size in range(1, len(stated) + 1) for c in combinations(stated, size)}


def test_the_documented_amounts_are_read_and_not_guessed() -> None:
    assert 592130 in _amounts("has the pooler (590,592) and a head (1,538)")
    assert 6 * 1024 * 1024 in _amounts("mask buffers, 6 x 1024 x 1024.")
    assert 7 not in _amounts("6 x 1024")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("huggingfacetb/smollm2-135m", "HuggingFaceTB/SmolLM2-135M"),
        ("SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("gpt2", "openai-community/gpt2"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
        ("somebody/SmolLM2-135M", None),
        ("", None),
    ],
)
def test_find_model(name: str, found: str | None) -> None:
    model = find_model(name)
    assert (model and model.id) == found


def test_a_tail_of_two_models_is_ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    twins = tuple(
        CatalogueModel(f"{org}/twin", {"architectures": ["X"]}, "AutoModel", 1, "")
        for org in ("one", "two")
    )
    monkeypatch.setattr("oomdoctor.system.catalogue.models", lambda: twins)
    assert find_model("twin") is None
    assert find_model("two/twin") is twins[1]


def test_nearest_models() -> None:
    assert nearest_models("meta-lama/Llama-3.1-8b")[0] == "meta-llama/Llama-3.1-8B"
    assert nearest_models("smolm2-135m")[0] == "HuggingFaceTB/SmolLM2-135M"
    assert nearest_models("zzzzxxxx") == ()


def test_known_types() -> None:
    assert {"llama", "bert", "t5", "vit"} <= model_types()
    assert causal_architectures()["qwen2"] == "Qwen2ForCausalLM"
    assert "bert" not in causal_architectures()


def test_t5_can_shift_its_labels() -> None:
    t5 = [model for model in models() if model.config["model_type"] == "t5"]
    assert t5
    assert all(model.config["decoder_start_token_id"] == 0 for model in t5)


def test_every_card_is_found_by_each_of_its_names_and_memory_sizes() -> None:
    for gpu in gpus():
        assert find_gpu(gpu.name) is gpu
        for size in (gpu.total_bytes, gpu.torch_total_bytes, gpu.memory_bytes):
            for name in (gpu.name, *gpu.aliases):
                assert size is None or find_gpu(name, size) is gpu, (name, size)


def test_a_rented_machine_stands_for_its_card() -> None:
    names = {gpu.name for gpu in gpus()}
    for machine in rented_machines().values():
        card = find_gpu(machine.name)
        assert machine.card in names and card is not None and card.name == machine.card
        assert 1 <= machine.gpus <= 16
    azure = find_machine("standard_nd96isr_h100_v5")
    assert azure is not None and azure.gpus == 8
    assert find_machine("Kaggle  2xt4") is not None and find_machine("p4d") is None
    assert [gpu.name for gpu in search_gpus("g6e.48xlarge")] == ["NVIDIA L40S"]
    assert "p4d.24xlarge" in nearest_gpus("p4d.24xlarg")


def test_units_of_a_card() -> None:
    card = find_gpu("RTX 4090")
    assert card is not None
    assert card.memory_bytes == 24 * GIB
    assert card.total_bytes == 24564 * MIB
    assert card.bandwidth_bytes_per_s == 1.008e12
    assert card.bf16_flops == 165.2e12


@pytest.mark.parametrize(
    ("name", "multiprocessors", "l2_bytes", "bus_bits"),
    [
        ("Tesla T4", 40, 4 * MIB, 256),
        ("NVIDIA A10G", 80, 6 * MIB, 384),
        ("NVIDIA A100-SXM4-80GB", 108, 40 * MIB, 5120),
        ("NVIDIA L4", 58, 48 * MIB, 192),
        ("NVIDIA GeForce RTX 4090", 128, 72 * MIB, 384),
        ("NVIDIA H100 80GB HBM3", 132, 50 * MIB, 5120),
        ("NVIDIA H100 PCIe", 114, 50 * MIB, 5120),
        ("NVIDIA B200", 148, 132_644_864, 8192),
    ],
)
def test_hardware_of_common_cards(
    name: str, multiprocessors: int, l2_bytes: int, bus_bits: int
) -> None:
    card = find_gpu(name)
    assert card is not None
    found = (card.multiprocessors, card.l2_bytes, card.memory_bus_bits)
    assert found == (multiprocessors, l2_bytes, bus_bits)


# The slowest and fastest memory of each generation, Gbit/s a pin: GDDR5 to GDDR7, HBM2 to HBM3e.
_GBIT_PER_PIN = {
    "6.0": (1.4, 1.5),
    "6.1": (7.2, 11.1),
    "7.0": (1.6, 1.8),
    "7.5": (9.9, 15.6),
    "8.0": (2.4, 3.2),
    "8.6": (11.9, 21.1),
    "8.9": (12.4, 23.1),
    "9.0": (3.1, 6.3),
    "10.0": (7.8, 8.0),
    "10.3": (7.8, 8.0),
    "12.0": (27.9, 30.1),
    "12.1": (8.5, 8.6),
}


def test_hardware_agrees_with_the_peaks() -> None:
    """Multiprocessors and the float32 peak give the clock; bus and bandwidth, the rate of a pin."""
    for gpu in gpus():
        if gpu.vendor != "NVIDIA":
            assert (gpu.multiprocessors, gpu.l2_bytes, gpu.memory_bus_bits) == (None, None, None)
            continue
        assert gpu.multiprocessors is not None or gpu.name == "NVIDIA B100"
        assert gpu.memory_bus_bits is not None, gpu.name
        assert gpu.l2_bytes is None or 1 * MIB <= gpu.l2_bytes <= 128 * MIB, gpu.name
        if gpu.multiprocessors is not None and gpu.fp32_flops is not None:
            units = 64 if gpu.compute_capability in ("6.0", "7.0", "7.5", "8.0") else 128
            clock = gpu.fp32_flops / (2 * units * gpu.multiprocessors)
            assert 1.15e9 < clock < 2.7e9, (gpu.name, clock)
        if gpu.bandwidth_bytes_per_s is not None:
            pin = gpu.bandwidth_bytes_per_s * 8 / gpu.memory_bus_bits
            low, high = _GBIT_PER_PIN[gpu.compute_capability or ""]
            assert low < pin / 1e9 < high, (gpu.name, pin)


def test_unknown_rates_are_none_and_known_ones_plausible() -> None:
    for gpu in gpus():
        rates = (gpu.fp32_flops, gpu.tf32_flops, gpu.fp16_flops, gpu.bf16_flops, gpu.fp8_flops)
        assert all(rate is None or 1e12 < rate < 1e16 for rate in rates), gpu.name
        assert gpu.bandwidth_bytes_per_s is None or 1e11 < gpu.bandwidth_bytes_per_s < 1e13
    turing = find_gpu("Tesla T4")
    assert turing is not None
    assert turing.bf16_flops is None
    assert turing.fp16_flops is not None


def test_one_device_of_a_double_card_has_half_of_it() -> None:
    card = find_gpu("AMD Instinct MI250X")
    assert card is not None
    assert card.memory_bytes == 64 * GIB
    assert card.bf16_flops == 191.5e12


@pytest.mark.parametrize(
    ("name", "gib", "found"),
    [
        ("4090", None, "NVIDIA GeForce RTX 4090"),
        ("rtx4090", None, "NVIDIA GeForce RTX 4090"),
        ("GeForce RTX 4090", None, "NVIDIA GeForce RTX 4090"),
        ("h200", None, "NVIDIA H200"),
        ("T4", None, "Tesla T4"),
        # variants of one name: by memory, or the one whose own name it is
        ("NVIDIA GeForce RTX 3080", 12, "NVIDIA GeForce RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 3080", 10, "NVIDIA GeForce RTX 3080"),
        ("NVIDIA GeForce RTX 3080", None, "NVIDIA GeForce RTX 3080"),
        ("5060 Ti", None, "NVIDIA GeForce RTX 5060 Ti"),
        # ambiguous, a slice, another part, another size, nothing
        ("A100", None, None),
        ("H100", None, None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 10, None),
        ("NVIDIA A100-SXM4-80GB", 10, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, None),
        ("NVIDIA GeForce RTX 3060", 8, None),
        ("", None, None),
        ("NVIDIA", None, None),
    ],
)
def test_find_gpu(name: str, gib: int | None, found: str | None) -> None:
    gpu = find_gpu(name, None if gib is None else gib * GIB)
    assert (gpu and gpu.name) == found


def test_nearest_gpus() -> None:
    assert nearest_gpus("H100") == ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL")
    assert nearest_gpus("rtx 4099")[0] == "NVIDIA GeForce RTX 4090"
    assert nearest_gpus("zzz") == ()
