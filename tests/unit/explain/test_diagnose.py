"""The answer as a whole: which failure counts, what is said of it, how it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explain_make import LAYER, LLAMA_8B, answer, gib, incident, llama

from oomdoctor.errors import ExitCode
from oomdoctor.explain.diagnose import NOTHING_FOUND, diagnose, exit_of
from oomdoctor.explain.diagnosis.verdict import ANSWERS, short_answer
from oomdoctor.explain.training.known import Given
from oomdoctor.records import codec
from oomdoctor.records.report.diagnosis import Diagnosis, Incident, LogFacts
from oomdoctor.units import MIB


def _all(*incidents: Incident) -> tuple[Diagnosis, ...]:
    return diagnose("log", incidents, LogFacts(), Given())


def test_nothing_found() -> None:
    (found,) = _all()
    assert (found.is_oom, found.resource, found.dialect) == (False, "none", "not_oom")
    assert found.verdict == NOTHING_FOUND
    assert exit_of([found]) == ExitCode.NO


def test_the_rank_with_the_traceback_speaks_for_those_that_failed_alike() -> None:
    bare = incident(rank=6, line_number=1)
    traced = incident(rank=1, line_number=40, frames=LAYER, phase="forward")
    assert [one.rank for one in _all(bare, traced)] == [1, 6]
    other = incident(rank=6, line_number=1, event_requested_bytes=gib(9))
    assert [one.rank for one in _all(other, traced)] == [6, 1]


def test_what_is_not_known_is_not_called_no_memory_failure() -> None:
    facts = LogFacts(evidence={"last_error": ("Segmentation fault (core dumped).",)})
    (found,) = diagnose("log", (), facts, Given())
    assert found.verdict == (
        "no known memory failure; the last error is Segmentation fault (core dumped)"
    )
    found = answer(look_alike="other", resource="none", event_message="ValueError: bad")
    assert found.verdict == "no known memory failure; the last error is ValueError: bad"
    assert not found.is_oom and found.short_answer


def test_verdict_says_what_where_and_how_much() -> None:
    found = answer(phase="backward", rank=3, step=12, facts=LogFacts(last_step=12, total_steps=900))
    assert found.verdict == (
        "out of GPU memory in the backward pass at step 12 of 900 on rank 3: tried to allocate "
        "2.00 GiB, 1.00 GiB more than was available"
    )


def test_what_ended_the_run_comes_first() -> None:
    caught = incident(survived=True, line_number=5)
    fatal = incident(line_number=90, phase="backward")
    found = _all(caught, fatal)
    assert [one.line_number for one in found] == [90, 5]
    assert "the run continued" in found[1].verdict
    assert exit_of(found) == ExitCode.OK
    assert exit_of(_all(caught)) == ExitCode.NO


def test_memory_comes_before_look_alikes() -> None:
    other = incident(look_alike="shape", resource="none", line_number=1)
    found = _all(replace(other, event=replace(other.event, dialect="not_oom")), incident())
    assert [one.is_oom for one in found] == [True, False]


def test_consequences_are_left_out() -> None:
    cause = incident(rank=1, line_number=50)
    aborted = incident(rank=0, line_number=10, consequence=True, look_alike="connection")
    assert [one.rank for one in _all(aborted, cause)] == [1]
    assert len(_all(aborted)) == 1


def test_look_alike_has_a_short_answer_and_no_remedies() -> None:
    found = answer(look_alike="device_mismatch", resource="none", event_dialect="not_oom")
    assert not found.is_oom
    assert "devices" in found.verdict
    assert found.short_answer
    assert (found.causes, found.remedies, found.tensor) == ((), (), None)
    assert exit_of([found]) == ExitCode.NO


@pytest.mark.parametrize(
    ("name", "message", "words"),
    [
        ("hardware", "out of resource: shared memory, Required: 1", "on-chip shared memory"),
        ("dtype", "not implemented for 'Half'", "half precision"),
        ("dtype", "expected scalar type Half but found Float", "do not match"),
        ("import", "Error building extension 'k'", "could not be built"),
        ("connection", "NCCL error: ncclSystemError", "ranks lost their connection"),
        ("timeout", "CANCELLED DUE TO TIME LIMIT", "time limit"),
        ("import", "CUDA Setup failed despite GPU", "bitsandbytes"),
        ("no such name", "", "another reason"),
    ],
)
def test_short_answers_look_at_the_message(name: str, message: str, words: str) -> None:
    assert words in short_answer(name, message).what


def test_every_name_has_an_answer_without_words() -> None:
    for name in {row.name for row in ANSWERS}:
        assert short_answer(name, "").todo


def test_underflow_and_refusals_are_said() -> None:
    found = answer(
        event_message="this process has 17179869184.00 GiB memory in use",
        event_free_bytes=gib(7.2),
        event_requested_bytes=20 * MIB,
        event_process_bytes=None,
        event_other_processes_bytes=None,
    )
    text = " ".join(found.oddities)
    for words in ("unsigned", "7.20 GiB was free", "any tensor up to 10 MiB"):
        assert words in text
    assert "other_process" not in [cause.cause for cause in found.causes]


def test_figures_that_do_not_add_up_are_said() -> None:
    found = answer(event_process_bytes=gib(79), event_free_bytes=gib(5))
    assert any("different moments" in text for text in found.oddities)
    assert answer().oddities == ()


def test_assumptions_and_needs_are_told_with_a_model() -> None:
    found = answer(phase="forward", frames=LAYER, given=Given(llama(), model_origin="the log"))
    assert found.assumed[0] == "sizes of meta-llama/Llama-3.1-8B (named by the log)"
    assert found.needs[0] == "weights 8,030,261,248 x 2 bytes = 15.0 GiB"
    assert found.needs[-1] == "total: at least 60.8 GiB of 79.2 GiB (without activations)"
    assert answer().assumed == ()
    sized = Given(llama(), sequence_length=4096, micro_batch_size=4)
    assert answer(phase="forward", given=sized).needs[-1].startswith("total: 1")


def test_a_config_in_the_log_is_as_good_as_a_name() -> None:
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
             "intermediate_size", "num_key_value_heads", "hidden_act")  # fmt: skip
    facts = LogFacts(settings={name: LLAMA_8B[name] for name in names})
    found = answer(phase="forward", frames=LAYER, facts=facts)
    assert found.needs
    assert "the log's config" in found.assumed[0]


def test_framework_is_told_from_the_frames() -> None:
    assert answer(phase="forward", frames=LAYER).framework == "transformers"
    assert answer().framework is None


def test_the_answer_survives_json() -> None:
    found = answer(phase="loss", given=Given(llama(), sequence_length=4960, micro_batch_size=4))
    assert codec.loads(Diagnosis, codec.dumps(found)) == found
