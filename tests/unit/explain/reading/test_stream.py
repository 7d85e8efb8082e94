"""Logs of every encoding and shape become clean lines, in bounded memory."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from growth import grows_no_faster
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.explain.reading.lines.stream import BLOCK, lines
from oomdoctor.explain.reading.scan import scan

HEALTHY = b"step 1 loss 0.5 all is well and nothing happens here at all\n"


def texts(*chunks: bytes) -> list[str]:
    return [line.text for line in lines(chunks)]


@pytest.mark.parametrize(
    "encoded",
    [
        "Grüße\nzwei\n".encode(),
        b"\xef\xbb\xbf" + "Grüße\nzwei\n".encode(),
        "Grüße\nzwei\n".encode("utf-16"),
        "Grüße\nzwei\n".encode("utf-16-le"),
        "Grüße\nzwei\n".encode("utf-16-be"),
        "Grüße\r\nzwei\r\n".encode(),
    ],
)
def test_encodings_and_line_ends(encoded):
    assert texts(encoded)[:2] == ["Grüße", "zwei"]
    # One byte at a time gives the same.
    assert texts(*(encoded[i : i + 1] for i in range(len(encoded))))[:2] == ["Grüße", "zwei"]


def test_zeros_invalid_bytes_and_escapes_are_taken_out():
    assert texts(b"GPU \0 is\n") == ["GPU  is"]
    assert texts(b"a\xff\xfeb\n")[0] == "a��b"
    coloured = b"\x1b[31mred\x1b[0m \x1b]0;title\x07x\x1b]52;c;QUJD\x1b\\y\x1b[2J\x1b[1;1Hz\x9b\n"
    assert texts(coloured)[0].rstrip("�") == "red xyz"


@pytest.mark.parametrize("zeros", [1, 2, 5, 199, 200, 1000])
def test_zeros_before_a_text_make_it_no_other_encoding(zeros):
    """A full disk or a rotated log leaves a hole of zeros."""
    assert texts(b"\0" * zeros + b"CUDA out of memory\n") == ["CUDA out of memory"]


def test_overwritten_bars_are_dropped_but_not_what_follows_them():
    bars = b"\r 10%|# | 1/9 [00:01<00:09]\r 20%|## | 2/9 [00:01<00:09]\rerror: no\r 30%|## | 3/9 [0"
    assert texts(bars) == ["error: no", " 30%|## | 3/9 [0"]


def test_boxes_are_opened_and_wrapped_paths_joined():
    box = (
        "╭──── Traceback (most recent call last) ────╮\n"
        "│ /a/very/long/path/site-packages/torch/nn/m │\n"
        "│ odules/module.py:15 in _call_impl          │\n"
        "│ ❱ 15 │   return f(x)                       │\n"
        "╰────────────────────────────────────────────╯\n"
    )
    found = texts(box.encode())
    assert found[0] == "Traceback (most recent call last)"
    assert "/a/very/long/path/site-packages/torch/nn/modules/module.py:15 in _call_impl" in found


def test_the_values_that_rich_puts_in_a_box_of_its_own_are_dropped():
    box = (
        "│ ❱ 15 │   return f(x)    │\n"
        "│ ╭────── locals ──────╮ │\n"
        "│ │ batch_size = 4     │ │\n"
        "│ ╰────────────────────╯ │\n"
        "│                        │\n"
    )
    assert texts(box.encode()) == ["❱ 15 │   return f(x)", ""]
    assert [line.number for line in lines([box.encode()])] == [1, 5]


def test_tracebacks_inside_records_are_unescaped():
    inner = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nMemoryError: no'
    plain = inner.split("\n")
    record = json.dumps({"level": "error", "step": 3, "error": {"stack": inner}})
    assert texts(record.encode())[2:5] == plain
    assert texts(f"prefix {record}".encode())[1:3] == plain[1:]
    assert texts(b'{"a": 1}') == ['{"a": 1}']


def test_numbers_count_the_lines_of_the_file():
    block = HEALTHY * 5000
    chunks = [block] * 20 + [b"Traceback (most recent call last):\n"] + [block] * 20
    found = next(line for line in lines(chunks) if line.text.startswith("Traceback"))
    assert found.number == 100_001


def test_what_a_healthy_middle_says_is_only_sampled():
    count = sum(1 for _ in lines([HEALTHY * 100_000] * 4))
    assert count < 60_000
    # Beside a failure everything is told.
    failing = [HEALTHY * 50_000, b"CUDA out of memory\n", HEALTHY * 50_000]
    assert sum(1 for _ in lines(failing)) > count * 0.6


def test_a_word_on_the_seam_of_two_blocks_is_found():
    for shift in range(24):
        data = b"x" * (3 * 1024 * 1024 + BLOCK - shift) + b"CUDA out of memory"
        data += b"y" * 2 * 1024 * 1024
        assert any("memory" in line.text for line in lines([data])), shift


def test_one_endless_line_is_cut_in_bounded_memory():
    def endless():
        for _ in range(400):
            yield b"word " * 13_000
        yield b"CUDA out of memory"

    tracemalloc.start()
    longest, seen = 0, False
    for line in lines(endless()):
        longest = max(longest, len(line.text))
        seen = seen or line.text.endswith("CUDA out of memory")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen
    assert longest <= 1 << 15
    assert peak < 20 * 1024**2


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_lines(chunks):
    for line in lines(chunks):
        assert "\x1b" not in line.text
        assert "\0" not in line.text


@given(st.text(max_size=300))
def test_chunks_do_not_matter(text):
    data = text.encode()
    whole = texts(data)
    assert texts(*(data[i : i + 7] for i in range(0, len(data), 7))) == whole


@pytest.mark.parametrize(
    "pattern", ["│ ", " ", "a.", "\x1b]", "{", "\\n", "%|", "─", "((", "0", 'File "', "[1"]
)
def test_no_pattern_is_slow(pattern):
    def work(size):
        for _ in lines([(pattern * (size // len(pattern))).encode()]):
            pass

    assert grows_no_faster(work, 100_000, limit=9)


def test_steps_and_settings_in_the_middle_of_a_long_log_are_seen():
    noise = b"2026-01-02 10:11:12 - worker - INFO - fetched shard 000 in 0.0123 seconds, all well\n"
    shard = noise * (3 * BLOCK // len(noise))
    middle = b"".join(
        shard[: len(shard) // 2] + b"step %d/900 loss 1.2 mem %d.00 GiB\n" % (i, i) + shard
        for i in range(10, 20)
    )
    settings = b"Namespace(per_device_train_batch_size=4)\n"
    log = shard * 10 + middle + shard + settings + shard * 10
    _, facts = scan(lines([log]))
    assert (facts.last_step, facts.total_steps) == (19, 900)
    assert [sample.used_bytes // 2**30 for sample in facts.step_memory] == list(range(10, 20))
    assert facts.settings["per_device_train_batch_size"] == 4


def test_sampled_lines_keep_their_numbers():
    noise = b"nothing of interest on this line of the log, nor on any other one like it\n"
    log = noise * 60_000 + b"step 7/9 loss 1.2\n" + noise * 60_000
    assert [line.number for line in lines([log]) if "step 7/9" in line.text] == [60_001]


def test_curly_quotation_marks_are_straightened():
    text = "File \u201ctrain.py\u201d, line 3, in <module>"
    assert [line.text for line in lines([text.encode()])] == [
        'File "train.py", line 3, in <module>'
    ]
