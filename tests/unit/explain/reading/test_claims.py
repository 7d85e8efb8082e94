"""What people write about a failure without its message, and how far it is believed."""

from __future__ import annotations

import pytest

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis


def read(text: str) -> Diagnosis:
    incidents, facts = scan(lines([text.encode()]))
    return diagnose("log", incidents, facts, Given())[0]


CLAIMS = [
    ("# GPU runs out of memory in epoch 3\n\nAny idea?\n", "gpu", "unknown"),
    ("I always get a CUDA OOM when I fine-tune this on one card.\n", "gpu", "unknown"),
    ("Hello, it fails with OutofMemoryError even at batch size 1.\n", "gpu", "unknown"),
    ("# 训练时爆显存\n\n单卡 24G\n", "gpu", "unknown"),
    ("# CUDA OOM when saving the checkpoint\n", "gpu", "save"),
    ("Training is fine, but during evaluation I get CUDA out of memory.\n", "gpu", "eval"),
    ("# VRAM: out of memory while loading the model\n", "gpu", "load"),
    ("# KSampler Allocation on device\n\nwhat can I do?\n", "gpu", "unknown"),
    ("My job is killed by the OOM killer after an hour.\n", "host", "unknown"),
    ("# Training error: OOM\n\nI get an error: killed by OOM killer\n", "host", "unknown"),
    ("Merging causes CPU OOM, although the model is small.\n", "host", "unknown"),
    ("# RuntimeError: DataLoader worker is killed by signal: Killed.\n\nwhy?\n", "host", "unknown"),
    ("Docker's /dev/shm is too small, so the workers die.\n", "shm", "unknown"),
]


@pytest.mark.parametrize(("text", "resource", "phase"), CLAIMS)
def test_a_person_who_tells_of_a_failure_is_believed(text: str, resource: str, phase: str) -> None:
    answer = read(text)
    assert (answer.is_oom, answer.resource, answer.phase) == (True, resource, phase)
    assert resource != "gpu" or all(cause.confidence != "high" for cause in answer.causes)


NO_CLAIMS = [
    "How to avoid CUDA out of memory in long runs?\n",
    "CUDA out of memory errors are common with long sequences\n",
    "I am worried about running out of memory on this card.\n",
    "This does not run out of memory, it just hangs.\n",
    "INFO 2026-01-02 worker: retries after out of memory are on\n",
    "| CUDA OOMs: 0 | cudaMalloc retries: 0 |\n",
    "There are some potential root causes. (1) The process is killed by the OOM killer.\n",
    "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB. This is not a failure.\n",
    # torch.compile passes over kernels that need too much shared memory, and says so each time.
    2
    * (
        "E1129 23:31:53.908000 28956 torch/_inductor/select_algorithm.py:4888] [0/0] No valid "
        "triton configs. OutOfMemoryError: out of resource: triton_mm Required: 262144 Hardware "
        "limit:101376 Reducing block sizes or `num_stages` may help.. \n"
        "E1129 23:31:53.908000 28956 torch/_inductor/select_algorithm.py:4888] [0/0] Ignoring this "
        "choice.\n"
    ),
]


@pytest.mark.parametrize("text", NO_CLAIMS)
def test_words_that_tell_of_no_failure_are_none(text: str) -> None:
    assert not read(text).is_oom


def test_another_failure_that_the_text_shows_is_what_ended_the_run() -> None:
    text = (
        "# OOM with my own model\n\nI get this after the first batch:\n"
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 9, in <module>\n'
        "    y = x['a']\nKeyError: 'a'\n"
    )
    assert read(text).look_alike == "key"


def test_a_message_matters_more_than_a_title() -> None:
    answer = read(
        "# Host RAM is full?\n\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    assert (answer.resource, answer.numbers.requested_bytes) == ("gpu", 2 * 1024**3)


CUT = (
    'Traceback (most recent call last):\n  File "/home/me/run.py", line 9, in <module>\n'
    '    main()\n  File "/venv/site-packages/transformers/trainer.py", line 3100, in evaluate\n'
    "    output = eval_loop(\n"
    '  File "/venv/site-packages/transformers/trainer_pt_utils.py", line 97, in nested_concat\n'
)


def test_only_the_sentence_that_reports_the_failure_names_the_moment() -> None:
    answer = read("We reached 29% in validation. Then the training was cut off by CUDA OOM.\n")
    assert (answer.is_oom, answer.phase) == (True, "unknown")


def test_an_engine_that_validates_shares_the_gpu_with_the_training() -> None:
    answer = read(
        "# OOM in validate()\n\nCUDA out of memory during validation, with "
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.8\n"
    )
    assert (answer.phase, answer.causes[0].cause) == ("eval", "capacity")
    assert answer.remedies[0].change == "Let the rollout engine take less of the GPU"


@pytest.mark.parametrize("title", ["# CUDA OOM\n", "# RuntimeError: CUDA error: out of memory\n"])
def test_a_traceback_that_is_cut_belongs_to_the_failure_of_the_title(title: str) -> None:
    answer = read(title + "\n" + CUT)
    assert (answer.is_oom, answer.phase) == (True, "eval")
    assert answer.where is not None and answer.where.file == "/home/me/run.py"


def test_a_process_that_the_driver_cannot_see_proves_no_others() -> None:
    answer = read(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total "
        "capacity of 80.00 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this "
        "process has 0 bytes memory in use. Of the allocated memory 70.00 GiB is allocated by "
        "PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated.\n"
    )
    assert answer.numbers.process_bytes is None
    assert all(cause.cause != "other_process" for cause in answer.causes)
