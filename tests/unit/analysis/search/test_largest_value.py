"""The search for the largest value that fits: it ends with that value and the next one up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from oomdoctor.analysis.search.largest_value import (
    LargestValue,
    Limits,
    Tried,
    at_value,
    start_of,
    values_of,
)
from oomdoctor.records.configuration.config import TrainConfig

GIB = 1 << 30


def searched(
    search: LargestValue, peak: Callable[[int], int], staying: int | None = None
) -> list[int]:
    """The values that a search tries until it is over."""
    tried = []
    while (value := search.next_try()) is not None:
        assert value not in tried
        tried.append(value)
        found = peak(value)
        search.take(value, Tried(found <= search.usable_bytes, found, staying, staying))
    return tried


@pytest.mark.parametrize("largest", [1, 2, 3, 127, 128, 400, 1023])
@pytest.mark.parametrize("bend", [0, 1, 40])
@pytest.mark.parametrize("staying", [None, 5 * GIB])
def test_it_ends_with_the_largest_value_and_the_next_one(
    largest: int, bend: int, staying: int | None
) -> None:
    def peak(value: int) -> int:
        return 5 * GIB + value * GIB // 128 + bend * value**2 * 1000

    values = values_of("sequence_length", Limits(131_072, None)).steps
    search = LargestValue(values, peak(largest * 128) + 100, 2048)
    tried = searched(search, peak, staying)
    assert (search.largest, search.smallest_miss) == (largest * 128, (largest + 1) * 128)
    assert {largest * 128, (largest + 1) * 128} <= set(tried)
    assert len(tried) <= 7


def test_a_straight_line_takes_four_simulations() -> None:
    search = LargestValue(range(1, 4097), 20 * GIB, 1)
    assert searched(search, lambda value: 5 * GIB + value * GIB, 5 * GIB) == [1, 16, 15]


@pytest.mark.parametrize("bend", [0, 40])
def test_values_known_at_the_start_are_no_poor_guesses(bend: int) -> None:
    def peak(value: int) -> int:
        return 2 * GIB + value * 300_000 + bend * value**2

    search = LargestValue([*range(128, 30_000, 128), 30_000], peak(20_000), 30_000)
    for value in (3000, 9000, 30_000):
        search.take(value, Tried(value <= 20_000, peak(value)))
    assert searched(search, peak) == [20_096, 19_968]


def test_below_the_limit_of_the_tensors_it_goes_down_in_growing_steps() -> None:
    """From 24 on the allocator needs more than there is, which no peak of tensors shows."""
    search = LargestValue(range(1, 4097), 32 * GIB, 1)
    tried = []
    while (value := search.next_try()) is not None:
        tried.append(value)
        search.take(value, Tried(value < 24, value * GIB, 0))
    assert (search.largest, search.smallest_miss) == (23, 24)
    assert tried == [1, 33, 32, 31, 29, 25, 17, 24, 23] or len(tried) <= 10


def test_the_search_ends_with_the_values() -> None:
    values = values_of("sequence_length", Limits(1000, None))
    assert (values.steps[-1], values.limited_by) == (1000, "the model's 1,000 positions")
    search = LargestValue(values.steps, 20 * GIB, 512)
    assert searched(search, lambda value: value)[-1] == 1000
    assert (search.largest, search.smallest_miss) == (1000, None)


def test_nothing_fits() -> None:
    search = LargestValue(values_of("lora_rank", Limits(None, 4096)).steps, 100, 16)
    assert 1 in searched(search, lambda value: 1000 + value, 900)
    assert (search.largest, search.smallest_miss) == (None, 1)


def test_a_step_without_accumulation_may_fit_where_a_smaller_one_does_not() -> None:
    def peak(size: int) -> int:
        return 10 * GIB + size * GIB // 4 + (2 * GIB if size < 16 else 0)

    search = LargestValue(range(1, 4097), 15 * GIB, 1, single_step=16)
    searched(search, peak, 2 * GIB)
    assert (search.largest, search.smallest_miss) == (20, 21)


def test_the_effective_batch_rises_with_the_micro_batch_and_the_rest_is_held() -> None:
    config = TrainConfig(method="lora", effective_batch_size=16)
    at = at_value(config, "micro_batch_size", 5)
    assert (at.micro_batch_size, at.effective_batch_size) == (5, 20)
    assert at_value(config, "micro_batch_size", 17).effective_batch_size == 17
    assert at_value(config, "sequence_length", 640).micro_batch_size == 1
    fixed = at_value(config.with_micro_batch(4), "lora_rank", 24)
    assert (fixed.lora_rank, fixed.micro_batch_size, fixed.sequence_length) == (24, 4, 2048)


def test_ranks_double_and_then_grow_by_eight_up_to_the_width() -> None:
    values = values_of("lora_rank", Limits(None, 24))
    assert list(values.steps) == [1, 2, 4, 8, 16, 24]
    assert values.limited_by == "the model's width of 24"


def test_a_longer_completion_keeps_its_prompt():
    config = TrainConfig(objective="grpo", sequence_length=1024, completion_length=256)
    assert start_of(config, "completion_length") == 256
    longer = at_value(config, "completion_length", 512)
    assert (longer.completion_length, longer.sequence_length) == (512, 1280)
    values = values_of("completion_length", Limits(2048, None, prompt_tokens=768))
    assert values.steps[-1] == 1280 and "behind the prompt" in values.limited_by


def test_more_generations_are_of_as_many_prompts():
    config = TrainConfig(objective="grpo", effective_batch_size=16, num_generations=8)
    assert at_value(config, "num_generations", 12).effective_batch_size == 24


def test_shares_of_vllm_are_hundredths_from_what_it_starts_with():
    config = TrainConfig(objective="grpo", vllm_gpu_memory_utilization=0.3)
    assert start_of(config, "vllm_gpu_memory_utilization") == 30
    shares = values_of("vllm_gpu_memory_utilization", Limits(None, None, least_percent=14)).steps
    assert (shares[0], shares[-1]) == (14, 95)
    share = at_value(config, "vllm_gpu_memory_utilization", 45).vllm_gpu_memory_utilization
    assert share == 0.45
