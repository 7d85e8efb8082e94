"""PYTORCH_CUDA_ALLOC_CONF as `parseArgs` reads it; the values of the 2.13 C++ test among them."""

from __future__ import annotations

import re

import pytest

from oomdoctor.analysis.allocator.settings import AllocatorSettings
from oomdoctor.units import MIB


def test_nothing_is_the_default() -> None:
    assert AllocatorSettings.parse("") == AllocatorSettings() == AllocatorSettings.parse("  ")


def test_all_that_changes_numbers() -> None:
    # c10/test/core/AllocatorConfig_test.cpp, allocator_config_test
    read = AllocatorSettings.parse(
        "max_split_size_mb:40, max_non_split_rounding_mb:30,garbage_collection_threshold:0.5,"
        "roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1],expandable_segments:True,"
        "pinned_use_background_threads:True"
    )
    assert read == AllocatorSettings(
        max_split_size_bytes=40 * MIB,
        max_non_split_rounding_bytes=30 * MIB,
        garbage_collection_threshold=0.5,
        # 1 to 32 MiB as 64 MiB, then each power of two, from 2 GiB on the rest
        roundup_power2_divisions=(8, 8, 8, 8, 8, 8, 8, 2, 4, 2, 4, 1, 1, 1, 1, 1),
        expandable_segments=True,
    )


def test_one_number_of_divisions_is_for_all_sizes() -> None:
    read = AllocatorSettings.parse("roundup_power2_divisions:4")
    assert read.roundup_power2_divisions == (4,) * 16


def test_zero_switches_an_interval_off() -> None:
    read = AllocatorSettings.parse("roundup_power2_divisions:[1:0,2:4]")
    assert read.roundup_power2_divisions == (0, 4) + (0,) * 14


def test_the_large_segment_is_read_before_what_it_bounds() -> None:
    read = AllocatorSettings.parse("max_split_size_mb:16,large_segment_size_mb:16")
    assert (read.max_split_size_bytes, read.large_segment_bytes) == (16 * MIB, 16 * MIB)


def test_settings_without_effect_are_accepted() -> None:
    text = "backend:native,release_lock_on_cudamalloc:True,pinned_num_register_threads:8"
    assert AllocatorSettings.parse(text) == AllocatorSettings()


def test_a_memory_fraction_is_kept_for_the_caller() -> None:
    read = AllocatorSettings.parse("per_process_memory_fraction:0.5")
    assert read.per_process_memory_fraction == 0.5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_split_size:128", "'max_split_size' is not a setting"),
        ("max_split_size_mb", "KEY:VALUE"),
        ("max_split_size_mb=128", "KEY:VALUE"),
        ("max_split_size_mb:", "KEY:VALUE"),
        ("max_split_size_mb:19", "at least 20"),
        ("max_split_size_mb:30,large_segment_size_mb:32", "at least 32"),
        ("max_split_size_mb:many", "whole number, not 'many'"),
        ("max_non_split_rounding_mb:1", "at least 20"),
        ("large_segment_size_mb:10", "above 10"),
        ("garbage_collection_threshold:1.0", "between 0 and 1"),
        ("garbage_collection_threshold:0", "between 0 and 1"),
        ("garbage_collection_threshold:high", "must be a number, not 'high'"),
        ("per_process_memory_fraction:1.5", "from 0 to 1"),
        ("expandable_segments:true", "True or False, not 'true'"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:0", "power of two"),
        ("roundup_power2_divisions:[3:4]", "power of two"),
        ("roundup_power2_divisions:[256:3]", "power of two"),
        ("roundup_power2_divisions:[256:4", "KEY:VALUE"),
        ("backend:cudaMallocAsync", "only backend:native"),
        ("backend:other", "native or cudaMallocAsync"),
    ],
)
def test_what_pytorch_refuses_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        AllocatorSettings.parse(text)
