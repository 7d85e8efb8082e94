"""Each cause from the figures, the phase and the log; the table is sound."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from explain_make import ADAM, LAYER, LOSS, answer, causes, gib, llama, samples

from oomdoctor.explain.diagnosis.causes.conditions import growth_per_step
from oomdoctor.explain.diagnosis.causes.rules import anything, rules
from oomdoctor.explain.reading.programs import around
from oomdoctor.explain.remedies.table import TABLE
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import CauseName, Frame, ListedProcess, LogFacts
from oomdoctor.units import MIB

GATHER = (
    Frame("train.py", 9, "<module>", "trainer.evaluate()"),
    Frame("/s/transformers/trainer_pt_utils.py", 99, "nested_concat", "torch.cat((tensors, new))"),
)
CACHE = (Frame("/s/transformers/cache_utils.py", 80, "update", "torch.cat([keys, new], dim=-2)"),)
# what is said of the incident -> the likeliest cause and its confidence
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("larger than the card", {"event_requested_bytes": gib(100)}, "capacity", "high"),
    (
        "another process decides",
        {"event_other_processes_bytes": gib(40), "event_process_bytes": gib(38)},
        "other_process",
        "high",
    ),
    (
        "another process, but too small to decide",
        {"event_other_processes_bytes": gib(5), "event_requested_bytes": gib(20)},
        "other_process",
        "medium",
    ),
    (
        "a fraction binds",
        {
            "event_allowed_bytes": gib(20),
            "event_free_bytes": gib(50),
            "event_process_bytes": None,
            "event_allocated_bytes": gib(19),
        },
        "memory_fraction",
        "high",
    ),
    (
        "badly fragmented",
        {"event_reserved_unallocated_bytes": gib(13), "event_requested_bytes": gib(1.5)},
        "fragmentation",
        "high",
    ),
    (
        "gaps that every training has",
        {"event_reserved_unallocated_bytes": 500 * MIB, "event_requested_bytes": 100 * MIB,
         "event_free_bytes": 10 * MIB},
        "capacity",
        "low",
    ),
    (
        "gaps of a few per cent that are large",
        {"event_reserved_unallocated_bytes": gib(1.5), "event_requested_bytes": 100 * MIB,
         "event_free_bytes": 10 * MIB},
        "fragmentation",
        "low",
    ),
    ("exabytes", {"event_requested_bytes": 2**61}, "unknown", "medium"),
    (
        "ranks that share a GPU",
        {"rank": 3, "event_process_bytes": gib(5), "event_other_processes_bytes": gib(15),
         "listed_processes": (ListedProcess(7, gib(5)),)},
        "other_process",
        "high",
    ),
    ("graph pools", {"event_private_pools_bytes": gib(10)}, "private_pool", "medium"),
    (
        "refused though free",
        {"event_free_bytes": gib(23), "event_requested_bytes": 654 * MIB,
         "event_process_bytes": gib(56)},
        "unknown",
        "low",
    ),
    ("loss", {"phase": "loss", "frames": LOSS}, "logits", "high"),
    ("forward", {"phase": "forward", "frames": LAYER}, "activations", "medium"),
    ("backward", {"phase": "backward"}, "activations", "medium"),
    ("first optimizer step", {"phase": "optimizer", "frames": ADAM}, "optimizer_states", "high"),
    ("optimizer step", {"phase": "optimizer", "step": 500}, "optimizer_states", "medium"),
    ("clip", {"phase": "clip"}, "gradients", "medium"),
    ("load", {"phase": "load"}, "weights", "medium"),
    ("evaluation gathers", {"phase": "eval", "frames": GATHER}, "eval_accumulation", "high"),
    ("evaluation", {"phase": "eval"}, "activations", "medium"),
    ("generation's cache", {"phase": "generate", "frames": CACHE}, "kv_cache", "high"),
    ("generation", {"phase": "generate"}, "kv_cache", "medium"),
    ("vllm", {"event_dialect": "vllm"}, "kv_cache", "medium"),
    ("shared memory", {"event_dialect": "dataloader_shm", "resource": "shm"}, "shared_memory",
     "high"),
    ("slurm", {"event_dialect": "slurm", "resource": "host"}, "host_memory", "high"),
    ("a silent kill", {"event_dialect": "host_oom_killer", "resource": "host"}, "host_memory",
     "medium"),
    (
        "the kernel's words",
        {"event_dialect": "host_oom_killer", "resource": "host",
         "lines": ("Out of memory: Killed process 12 (python)",)},
        "host_memory",
        "high",
    ),
    ("driver", {"event_dialect": "cuda_driver", "event_free_bytes": None,
                "event_capacity_bytes": None}, "other_process", "medium"),
    ("full card", {}, "capacity", "low"),
    ("nothing to go by", {"event_free_bytes": None, "event_capacity_bytes": None}, "unknown",
     "low"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "told", "cause", "confidence"), CASES, ids=[c[0] for c in CASES])
def test_likeliest_cause(name: str, told: dict[str, Any], cause: str, confidence: str) -> None:
    found = answer(**told)
    assert causes(found)[0] == (cause, confidence), name
    assert found.causes[0].evidence
    assert found.causes[0].why
    assert "{" not in found.causes[0].why


def test_fragmentation_needs_a_request_that_the_gaps_cover() -> None:
    found = answer(event_reserved_unallocated_bytes=gib(1), event_requested_bytes=gib(2))
    assert "fragmentation" not in dict(causes(found))
    small = answer(event_reserved_unallocated_bytes=gib(1), event_requested_bytes=20 * MIB)
    assert "fragmentation" not in dict(causes(small))


def test_cached_of_the_oldest_messages_lies_beside_the_allocated() -> None:
    found = answer(
        event_message="CUDA out of memory. (GPU 0; ...; 0 bytes cached)",
        event_reserved_bytes=0,
        event_reserved_unallocated_bytes=None,
        event_process_bytes=None,
        event_other_processes_bytes=None,
        event_allocated_bytes=gib(8.94),
        event_requested_bytes=gib(8.94),
        event_free_bytes=gib(6.34),
        event_capacity_bytes=gib(15.9),
    )
    assert "other_process" not in dict(causes(found))


def test_growth_is_told_by_the_log() -> None:
    facts = LogFacts(step_memory=samples(10, 12, 14, 16, 18, 20), last_step=5)
    found = answer(phase="forward", facts=facts)
    assert causes(found)[0] == ("growth", "high")
    assert found.causes[0].evidence == ("step 0 mem 10 GiB", "step 5 mem 20 GiB")
    assert "2.00 GiB per step" in found.causes[0].why


def test_one_outlier_is_no_growth() -> None:
    assert growth_per_step(samples(10, 10, 10, 30, 10, 10)) == 0
    assert growth_per_step(samples(10, 11)) is None
    facts = LogFacts(step_memory=samples(10, 10, 10, 30, 10, 10), last_step=500)
    found = dict(causes(answer(phase="forward", facts=facts)))
    assert "growth" not in found
    assert found["long_batch"] == "medium"


def test_a_late_step_speaks_for_a_long_batch() -> None:
    found = dict(causes(answer(phase="forward", facts=LogFacts(last_step=731))))
    assert found["long_batch"] == "medium"
    assert "long_batch" not in dict(causes(answer(phase="forward", facts=LogFacts(last_step=0))))


def test_packed_batches_are_all_of_one_length() -> None:
    facts = LogFacts(last_step=731, settings={"packing": True})
    assert "long_batch" not in dict(causes(answer(phase="forward", facts=facts)))


def test_states_that_no_card_of_this_size_holds() -> None:
    found = answer(
        phase="optimizer", event_capacity_bytes=gib(39.4), event_free_bytes=0, given=Given(llama())
    )
    assert causes(found)[0] == ("capacity", "high")
    assert any("optimizer states" in line for line in found.causes[0].evidence)


def test_weights_in_32_bits() -> None:
    found = answer(phase="load", event_allocated_bytes=gib(23), given=Given(llama()))
    assert ("weights", "high") in causes(found)


def test_matched_logits_decide() -> None:
    given = Given(llama(), sequence_length=4960, micro_batch_size=4)
    found = answer(phase="forward", frames=LOSS, event_requested_bytes=gib(9.48), given=given)
    assert causes(found)[0] == ("logits", "high")


def test_the_table_is_sound() -> None:
    names = set(get_args(CauseName))
    for rule in rules():
        assert rule.cause in names
        assert rule.remedies
        for key in rule.remedies:
            assert key in TABLE, f"{rule.cause}: no remedy {key}"
    used = {key for rule in rules() for key in rule.remedies} | set(anything())
    assert set(TABLE) == used, "a remedy that no rule calls for"


def test_every_cause_of_the_contract_has_a_rule() -> None:
    assert {rule.cause for rule in rules()} == set(get_args(CauseName))


def test_a_request_that_no_tensor_has_is_no_need() -> None:
    found = answer(event_requested_bytes=2**61, phase="forward")
    assert [remedy.key for remedy in found.remedies] == ["check_sizes"]


def test_what_the_poster_says_of_growth_and_of_another_model_counts() -> None:
    grows = LogFacts(mentions={"growth": ("memory goes up every epoch",)})
    assert causes(answer(facts=grows))[0][0] == "growth"
    again = LogFacts(mentions={"second load": ("Fold 1",)})
    assert causes(answer(facts=again, phase="load"))[0][0] == "duplicate_load"


@pytest.mark.parametrize(
    ("line", "earlier"),
    [
        ("[I 2025-06-11 10:31] Trial 0 finished with value: 0.41 and parameters: {}", True),
        ("Run 8w0aa2kd finished", True),
        ("Run 8w0aa2kd errored:", False),  # this one, not one before it
        ("Run stage1 finished", False),
        ("[W 2025-06-11 10:31] Trial 0 failed with parameters: {}", False),
    ],
)
def test_only_a_trial_that_ended_before_left_something(line: str, earlier: bool) -> None:
    assert bool(around()["earlier trial"].search(line)) is earlier


def test_more_parameters_than_the_gpu_can_train_are_capacity() -> None:
    facts = LogFacts(settings={"trainable_parameters": 40 * 10**9})
    found = answer(facts=facts, phase="backward")
    assert causes(found)[0] == ("capacity", "high")
    assert "smaller_batch" not in [remedy.key for remedy in found.remedies[:3]]


def test_a_batch_of_one_is_not_made_smaller() -> None:
    one = LogFacts(mentions={"batch of one": ("batch size is already 1",)})
    assert "smaller_batch" in [remedy.key for remedy in answer(phase="forward").remedies]
    keys = [remedy.key for remedy in answer(facts=one, phase="forward").remedies]
    assert "smaller_batch" not in keys


def test_causes_are_ranked_by_confidence() -> None:
    order = {"high": 0, "medium": 1, "low": 2}
    for _, told, _, _ in CASES:
        ranks = [order[confidence] for _, confidence in causes(answer(**told))]
        assert ranks == sorted(ranks)


def test_temporaries_of_a_later_step_are_not_the_first_states() -> None:
    code = "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)"
    frames = (ADAM[0], Frame("/s/torch/optim/adam.py", 600, "_multi_tensor_adam", code))
    found = answer(phase="optimizer", frames=frames)
    assert found.causes[0].why.startswith("the optimizer updates all tensors at once")
    first = answer(phase="optimizer", frames=ADAM)
    assert "creates its states in its first step" in first.causes[0].why


def test_reading_a_checkpoint_shard_by_shard_is_no_second_copy() -> None:
    shard = Frame("/s/transformers/modeling_utils.py", 774, "_load_state_dict_into_meta_model", "x")
    reading = Frame("/s/transformers/modeling_utils.py", 550, "load_state_dict", "return x")
    found = answer(phase="load", frames=(LAYER[0], shard, reading))
    assert "duplicate_load" not in dict(causes(found))
    own = Frame("train.py", 12, "resume", "model.load_state_dict(torch.load(path))")
    assert "duplicate_load" in dict(causes(answer(phase="load", frames=(own,))))


def test_logits_over_a_vocabulary_only_where_the_model_has_one() -> None:
    code = "return torch._C._nn.cross_entropy_loss(input, target, weight)"
    library = Frame("/s/torch/nn/functional.py", 3029, "cross_entropy", code)
    masks = Frame("train_seg.py", 60, "main", "loss = criterion(out, mask)")
    assert "logits" not in dict(causes(answer(phase="loss", frames=(masks, library))))
    shifted = "loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())"
    words = Frame("train.py", 60, "main", shifted)
    assert causes(answer(phase="loss", frames=(words, library)))[0] == ("logits", "high")


def test_a_loop_of_ones_own_first_evaluates_without_gradients() -> None:
    found = answer(phase="eval", frames=(Frame("train.py", 9, "validate", "out = model(x)"),))
    assert found.remedies[0].key == "no_grad"
