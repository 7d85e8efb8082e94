"""One row, one test: each row of the tables of facts is consistent with the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest

from oomdoctor.analysis.memory.closed_form import state_bytes, state_ceiling, state_width
from oomdoctor.analysis.memory.shape import size_in
from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.records.configuration.faults import Unsupported, unsupported, unsupported_rows
from oomdoctor.records.configuration.keys import label_of
from oomdoctor.records.facts.architectures import (
    FAMILIES,
    ROLES,
    ROLES_OF,
    SIZE_NAMES,
    Family,
    family_of,
)
from oomdoctor.records.facts.attention import ATTENTION_NAMES, ATTENTIONS, KERNELS
from oomdoctor.records.facts.choices import Attention, Dtype
from oomdoctor.records.facts.dtypes import (
    DTYPES,
    SIZES,
    TRAINED,
    TRAINED_NAMES,
    checkpoint_dtype,
    dtype_word,
)
from oomdoctor.records.facts.optimizers import (
    OPTIMIZERS,
    RECIPE_NAMES,
    Optimizer,
    canonical,
    is_paged,
    optimizer_named,
)
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.training import build

COUNTS = ParameterCounts(
    total=1_000_000, linear=800_000, embedding=150_000, rest=50_000, buffers_bytes=0
)


@pytest.mark.parametrize("row", OPTIMIZERS.values(), ids=lambda row: row.name)
def test_optimizer(row: Optimizer) -> None:
    assert optimizer_named(row.name) is row
    for word in row.spellings:
        assert word not in OPTIMIZERS
        assert optimizer_named(word) is row
    for other in row.at_least:
        assert other != row.name
        assert other in OPTIMIZERS
    if row.alias_of is None:
        assert canonical(row.name) == row.name
        same = {r.word for r in OPTIMIZERS.values() if r.alias_of is None and r is not row}
        assert row.word is None or row.word not in same
    else:
        target = OPTIMIZERS[row.alias_of]
        assert canonical(row.name) == target.name
        facts = ("library", "moments", "moment_bytes", "paged", "gradient_copies", "word")
        assert all(getattr(row, fact) == getattr(target, fact) for fact in facts)
    if row.paged:
        assert row.library == "bitsandbytes"
        assert not row.steps_on_host
    if row.gradient_copies is not None:
        assert row.moments is not None


@pytest.mark.parametrize("dtype", TRAINED)
@pytest.mark.parametrize("row", OPTIMIZERS.values(), ids=lambda row: row.name)
def test_states_are_between_the_bound_and_the_ceiling(row: Optimizer, dtype: Dtype) -> None:
    config = TrainConfig(optimizer=row.name, weights_dtype=dtype)
    width = TRAINED[dtype].size_bytes
    least = state_bytes(config, COUNTS)
    most = state_ceiling(row.name, width, COUNTS.linear, COUNTS.total - COUNTS.linear)
    assert (least is None) == (row.moments is None)
    if least is not None and most is not None:
        assert least <= most
    for other in row.at_least:
        less, more = state_width(row.name, width), state_width(other, width)
        assert less is not None
        assert more is not None
        assert less <= more or OPTIMIZERS[other].paged


@pytest.mark.parametrize("name", RECIPE_NAMES)
def test_the_label_of_each_optimizer_is_its_own(name: str) -> None:
    label = label_of(TrainConfig(optimizer=name))
    others = {label_of(TrainConfig(optimizer=other)) for other in RECIPE_NAMES if other != name}
    twins = any(row.alias_of == name for row in OPTIMIZERS.values())
    assert (label in others) == (twins or OPTIMIZERS[name].alias_of is not None)


def test_the_hints_of_a_rung_name_the_rows() -> None:
    assert set(get_args(Dtype)) == set(TRAINED)
    assert set(get_args(Attention)) == set(ATTENTIONS)


@pytest.mark.parametrize("name", DTYPES)
def test_dtype(name: str) -> None:
    row = DTYPES[name]
    for word in (row.name, *row.spellings):
        owners = [r.name for r in DTYPES.values() if word in (r.name, *r.spellings)]
        assert owners == [name]
        assert SIZES[word] == row.size_bytes
        assert (word in TRAINED_NAMES) == (row.word is not None)
    if row.word:
        assert dtype_word(name) == row.word
        assert TRAINED_NAMES[row.word] == name


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention(name: str) -> None:
    row = ATTENTIONS[name]
    words = [r.word for r in ATTENTIONS.values()]
    assert words.count(row.word) == 1
    assert all(ATTENTION_NAMES[word] == name for word in (name, *row.spellings))
    assert (row.package is None) == (row.module is None) == (row.install is None)
    assert row.stand_in is None or row.stand_in in ATTENTIONS
    # A package's kernel is either simulated by another or said not to be.
    config = TrainConfig(attention=row.name)  # type: ignore[arg-type]
    reason = unsupported(config, "simulated", lambda module: True)
    if row.package:
        assert (row.stand_in is None) == (reason is not None)


def test_no_kernel_is_hidden_by_an_earlier_row() -> None:
    parts = list(KERNELS)
    for number, part in enumerate(parts):
        assert not any(earlier in part for earlier in parts[:number]), part


def _rung(row: Unsupported) -> list[TrainConfig]:
    """Rungs that have the row's value, are sharded as it asks for, and are plain otherwise."""
    plain = TrainConfig()
    if plain.sharding in row.unless:
        shardings = get_args(get_type_hints(TrainConfig)["sharding"])
        sharding = next(name for name in shardings if name not in row.unless)
        plain = replace(plain, sharding=sharding, world_size=2)
    values: tuple[Any, ...] = row.values
    if not values:
        hint = get_type_hints(TrainConfig)[row.key]
        values = tuple(v for v in get_args(hint) if v != getattr(plain, row.key)) or (2,)
    return [replace(plain, **{row.key: value}) for value in values]


@pytest.mark.parametrize("row", unsupported_rows(), ids=lambda row: f"{row.key}-{row.where}")
def test_unsupported(row: Unsupported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "installed", lambda module: not row.modules)
    monkeypatch.setenv("OOMDOCTOR_EMULATED", "1" if row.where == "emulated" else "")
    hint = get_type_hints(TrainConfig)[row.key]
    known = RECIPE_NAMES if row.key == "optimizer" else get_args(hint)
    assert set(row.values) <= set(known)
    assert not row.matches(getattr(TrainConfig(), row.key))
    device = "cpu" if row.where == "cpu" else "cuda"
    for config in _rung(row):
        text = row.text(getattr(config, row.key))
        assert "{" not in text
        assert unsupported(config, row.where, build.installed) == text
        if row.modules:
            assert unsupported(config, row.where, lambda module: True) is None
        if row.where == "unified":
            continue  # which the worker does not know
        with pytest.raises(UnsupportedError) as caught:
            build.check_supported(config, device, simulated=row.where == "simulated")
        assert str(caught.value) == text


@pytest.mark.parametrize("kind", SIZE_NAMES)
def test_a_size_is_found_under_each_of_its_names(kind: str) -> None:
    for name in SIZE_NAMES[kind]:
        assert size_in({name: 12}, kind) == 12
        assert [other for other in SIZE_NAMES if name in SIZE_NAMES[other]] == [kind]


@pytest.mark.parametrize("name", ROLES_OF)
def test_a_linear_layer_has_roles(name: str) -> None:
    assert set(ROLES_OF[name]) <= set(ROLES)


@pytest.mark.parametrize("row", FAMILIES.values(), ids=lambda row: row.model_type)
def test_family(row: Family) -> None:
    assert family_of(row.model_type) is row
    assert row != Family(row.model_type), "a row without a quirk"


def test_an_optimizer_without_a_row_has_no_facts() -> None:
    assert optimizer_named("shampoo") is None
    assert not is_paged("shampoo")
    assert is_paged("paged_adamw_8bit")
    assert canonical("shampoo") == "shampoo"
    assert state_width("shampoo", 4) is None


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "torch.float16"}, "float16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": None, "torch_dtype": "float16"}, "float16"),
        ({"model_type": "bert"}, "float32"),  # of 2019, and names none
    ],
)
def test_the_type_of_a_checkpoint_is_that_of_its_config(config, dtype):
    assert checkpoint_dtype(config) == dtype
