"""Reserved memory of runs whose batches differ in length, replayed for the accuracy benchmark.

The model is tiny but for its vocabulary: the logits are what an allocator keeps of each length.
"""

from __future__ import annotations

import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import case as case_module
from cases import differing_lengths
from cases.case import Case
from cases.row_lengths import Lengths, lengths_of
from published.rows import published_cases

from oomdoctor.analysis.allocator.caching import CachingAllocator
from oomdoctor.analysis.simulator.orders.outline import outline_of
from oomdoctor.analysis.simulator.playback import Layout
from oomdoctor.analysis.simulator.tape import Order, TapeBlock
from oomdoctor.worker.protocol import UnsupportedError
from oomdoctor.worker.simulating.shallow import IrregularLayersError

ROW: dict[str, Any] = {
    "id": "padded",
    "model_id": "made/up",
    "config": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 16384,
        "max_position_embeddings": 512,
    },
    "task": "causal_lm",
    "method": "full",
    "seq_len": 512,
    "micro_batch": 1,
    "grad_accum": 4,
    "weights_dtype": "bfloat16",
    "autocast": None,
    "optimizer": "adamw_torch",
    "grad_ckpt": True,
    "attn": "sdpa",
    "stack": "hf",
    "versions": {"transformers": "4.50.0", "torch": "2.6.0"},
    "gpu": "NVIDIA A100 80GB",
    "measured_bytes": 200_000_000,
    "metric": "reserved",
    "note": "each batch is padded to its own longest",
}
SWIFT = "github:modelscope/ms-swift docs/source_en/LLM/Benchmark.md"


@pytest.fixture(autouse=True)
def _few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differing_lengths, "_EVENTS", 20_000)


def case_of(folder: Path, **changes: Any) -> Case:
    file = folder / "rows.json"
    file.write_text(json.dumps([ROW | changes]))
    (case,) = published_cases(file)
    assert isinstance(case, Case), case
    return case


def predicted(case: Case) -> int:
    (size,) = case_module.predict(case).predicted_bytes
    return size


@pytest.mark.slow
def test_more_stays_reserved_after_differing_lengths(tmp_path: Path) -> None:
    case = case_of(tmp_path)
    constant = predicted(replace(case, lengths=None))
    varying = predicted(case)
    assert varying > 1.1 * constant
    assert predicted(case) == varying


@pytest.mark.slow
def test_what_was_allocated_is_that_of_the_longest(tmp_path: Path) -> None:
    case = case_of(tmp_path, metric="allocated")
    assert case.lengths is not None
    assert predicted(case) == predicted(replace(case, lengths=None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "length"), [({}, 200), ({"grad_accum": 1}, 512), ({"attn": "eager"}, 200)]
)
def test_lengths_that_are_all_equal_need_what_one_length_needs(
    tmp_path: Path, changes: dict[str, Any], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(tmp_path, **changes)
    monkeypatch.setattr(Lengths, "batches", lambda *_: iter([length] * 8))
    short = replace(case, config=replace(case.config, sequence_length=length), lengths=None)
    assert predicted(case) == predicted(short)


@pytest.mark.slow
def test_layers_that_do_not_repeat_are_all_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(tmp_path)
    record, repeated = differing_lengths._recorded_step, predicted(case)

    def irregular(job: Any, longest: int, *, shallow: bool) -> Any:
        if shallow:
            raise IrregularLayersError
        return record(job, longest, shallow=False)

    monkeypatch.setattr(differing_lengths, "_recorded_step", irregular)
    assert predicted(case) == repeated


@pytest.mark.slow
def test_a_device_that_is_full_ends_a_replay(tmp_path: Path) -> None:
    case = case_of(tmp_path)
    job = case_module._job(case, (case_module.Target("card", 1 << 60, 1 << 60, 0, None),))
    step = differing_lengths.recorded_step(job, 512)
    lengths = Lengths(512, "").batches(1, 0)
    allocator = CachingAllocator(100 << 20)
    assert differing_lengths.played(step, itertools.islice(lengths, 99), allocator) <= 100 << 20


def test_a_size_that_grows_otherwise_is_refused() -> None:
    def layout(size: int) -> Layout:
        order = Order([1, -1], [0], [(0, "steady", "forward")])
        return Layout(order, outline_of(order), [TapeBlock(size, "temporary", "aten::mul")], [size])

    with pytest.raises(UnsupportedError, match="mul takes 31 bytes at 3, not 30"):
        differing_lengths._grown([1, 2, 3, 4], [layout(size) for size in (10, 20, 31, 40)], (8, 0))


@pytest.mark.slow
@pytest.mark.parametrize("length", [4096, 3200, 2048])
def test_short_steps_may_take_other_kernels(tmp_path: Path, monkeypatch: Any, length: int) -> None:
    # Above 3,072 tokens the gradient of the embedding is made with blocks of its own.
    config = ROW["config"] | {"max_position_embeddings": 4096, "vocab_size": 512}
    case = case_of(tmp_path, seq_len=4096, config=config)
    monkeypatch.setattr(Lengths, "batches", lambda *_: iter([length] * 4))
    short = replace(case, config=replace(case.config, sequence_length=length), lengths=None)
    assert predicted(case) == predicted(short)


def test_lengths_are_spread_as_the_source_tells() -> None:
    known = lengths_of({"seq_len": 10**6, "note": "longer samples are dropped", "source": SWIFT})
    assert known is not None
    drawn = list(known.drawn(seed=1))
    assert len(drawn) == 1000
    assert statistics.mean(drawn) == pytest.approx(3234, rel=0.1)
    assert statistics.stdev(drawn) == pytest.approx(2547, rel=0.1)
    assert min(drawn) >= 91
    kept = list(replace(known, longest=2048).drawn(seed=1))
    assert max(kept) <= 2048 and 300 < len(kept) < 500


def test_a_batch_is_as_long_as_its_longest() -> None:
    some = Lengths(100, "")
    singles = itertools.islice(some.batches(1, seed=3), 6)
    assert list(itertools.islice(some.batches(2, seed=3), 3)) == [
        max(pair) for pair in zip(singles, singles, strict=True)
    ]


@pytest.mark.parametrize(
    ("note", "differs"),
    [
        ("alpaca, unpacked", True),
        ("each batch is padded to its own longest", True),
        ("batch padded to longest; guessed", True),
        ("max_length; longer samples are dropped (truncation_strategy delete)", True),
        ("packed; max_seq_len 4096", False),
        ("512 random sequences of exactly 512 tokens", False),
        (None, False),
    ],
)
def test_a_note_tells_whether_lengths_differ(note: str | None, differs: bool) -> None:
    found = lengths_of({"seq_len": 8, "note": note})
    assert (found is not None) is differs
    assert found is None or found.longest == 8
