"""Every row of the table of look-alikes: a message that it reads, and the answer to it."""

from __future__ import annotations

import re

import pytest

from oomdoctor.explain.diagnosis.verdict import short_answer
from oomdoctor.explain.reading.failures.look_alikes import (
    LOOK_ALIKES,
    MAY_FAIL,
    SHUTDOWN,
    LookAlike,
    find_look_alike,
)
from oomdoctor.explain.reading.scan import scan

# name, a line of a log
MESSAGES = [
    ("device_mismatch", "Expected all tensors to be on the same device, but found cuda:0 and cpu!"),
    (
        "device_mismatch",
        "RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) "
        "should be the same",
    ),
    (
        "device_mismatch",
        "RuntimeError: Input type (CUDABFloat16Type) and weight type (torch.FloatTensor) should "
        "be the same",
    ),
    (
        "dtype",
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (CUDABFloat16Type) "
        "should be the same",
    ),
    ("dtype", "RuntimeError: Input type (float) and bias type (c10::Half) should be the same"),
    ("import", "RuntimeError: Error building extension 'k': [1/2] c++ -MMD -MF main.o.d"),
    ("device_assert", "Assertion `t >= 0 && t < n_classes` failed."),
    ("illegal_memory_access", "CUDA error: an illegal memory access was encountered"),
    ("hardware", "no kernel image is available for execution on the device"),
    ("dtype", "\"addmm_impl_cpu_\" not implemented for 'Half'"),
    ("nan_loss", "{'loss': nan, 'learning_rate': 1e-05}"),
    ("disk_full", "OSError: [Errno 28] No space left on device"),
    ("timeout", "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5121)"),
    ("duplicate_gpu", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 3000"),
    ("port_in_use", "code: -98, name: EADDRINUSE, message: address already in use"),
    ("not_initialized", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    ("paged_optimizer", "Error operation not supported at line 3 in file /b/pythonInterface.c"),
    ("hardware", "RuntimeError: The NVIDIA driver on your system is too old (found 11040)"),
    ("timeout", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 10:00 DUE TO TIME LIMIT ***"),
    ("preemption", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 10:00 DUE TO PREEMPTION ***"),
    ("cancelled", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T10:00:00 ***"),
    ("timeout", "TimeoutError: The client socket has timed out"),
    ("connection", "requests.exceptions.ConnectionError: Max retries exceeded"),
    ("shape", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)"),
    ("import", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("other", "(raylet) A worker died or was killed while executing a task by a system error."),
    ("context_length", "ValueError: This model's maximum context length is 4096 tokens"),
    ("index", "IndexError: list index out of range"),
    ("key", "KeyError: 'labels'"),
    ("type", "AttributeError: 'NoneType' object has no attribute 'shape'"),
]


def _first_row(text: str) -> LookAlike | None:
    return next((row for row in LOOK_ALIKES if re.search(row.words, text)), None)


@pytest.mark.parametrize(("name", "text"), MESSAGES)
def test_a_message_is_read_as_its_kind(name: str, text: str) -> None:
    found = find_look_alike(text)
    assert found is not None and found.name == name
    assert MAY_FAIL.search(text)
    assert scan([text])[0][0].look_alike == name


def test_every_row_has_a_message_here() -> None:
    rows = [_first_row(text) for _, text in MESSAGES]
    assert [row.name for row in LOOK_ALIKES if row not in rows] == []


@pytest.mark.parametrize("text", [text for _, text in MESSAGES])
def test_hints_let_the_row_s_own_message_through(text: str) -> None:
    row = _first_row(text)
    assert row is not None
    assert not row.hints or re.search(row.hints, text)


@pytest.mark.parametrize("row", [*LOOK_ALIKES, SHUTDOWN], ids=lambda row: row.name)
def test_every_kind_has_an_answer(row: LookAlike) -> None:
    answer = short_answer(row.name)
    assert answer.name == row.name
    assert answer.what and answer.todo


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "FileNotFoundError: no such file: 'train.pt'",
            "FileNotFoundError: no such file: 'train.pt'",
        ),
        ("'ValueError: bad'", "ValueError: bad"),
        ('"ValueError: bad', "ValueError: bad"),
    ],
)
def test_quotes_stay_that_belong_to_the_message(line: str, message: str) -> None:
    found = find_look_alike(line)
    assert found is not None and found.message == message


def test_what_another_program_prints_below_an_exception_does_not_name_its_cause() -> None:
    below = "[ERROR] [posthog] error uploading: Max retries exceeded with url: /batch/"
    found = find_look_alike(f"ModuleNotFoundError: No module named 'fastcore'\n{below}")
    assert found is not None
    assert found.name == "import"
    found = find_look_alike(f"RuntimeError: the upload failed\n{below}")
    assert found is not None
    assert found.name == "connection"
