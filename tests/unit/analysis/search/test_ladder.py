"""The next step of a survey, from nothing but the attempts so far."""

from __future__ import annotations

from dataclasses import fields, replace

from analysis_make import COUNTS, GIB, MODEL_CONFIG, ended, fit, ran_out, rung
from hypothesis import given, settings
from hypothesis import strategies as st

from oomdoctor.analysis.search.ladder import (
    Context,
    NextTry,
    SkipRung,
    Standing,
    attempts_of,
    run_order,
)
from oomdoctor.system.catalogue import find_gpu

CONTEXT = Context(
    usable_bytes=40 * GIB,
    device_type="cuda",
    counts=COUNTS,
    model_config=MODEL_CONFIG,
    compute_capability="9.0",
)
FP32 = rung("fp32", weights_dtype="float32", sequence_length=512)
BF16 = rung("bf16", sequence_length=512)
CKPT = rung("bf16+ckpt", activation_checkpointing="full", sequence_length=512)
LORA = rung("lora", method="lora", sequence_length=512)
QLORA = rung("qlora", method="qlora", quantization="nf4", sequence_length=512)
LADDER = (FP32, BF16, CKPT, LORA, QLORA)


def tried(*attempts):
    found = {}
    for attempt in attempts:
        key = attempt.config.rung_key()
        found[key] = (*found.get(key, ()), attempt)
    return found


def next_step(*known):
    return Standing(*known).next_step()


def step(*attempts, rungs=LADDER, skipped=None, context=CONTEXT):
    return next_step(rungs, tried(*attempts), skipped or {}, context)


def test_lean_rungs_come_first():
    assert run_order(LADDER, CONTEXT) == (QLORA, LORA, CKPT, BF16, FP32)
    uncounted = Context(usable_bytes=GIB, device_type="cuda")
    assert run_order(LADDER, uncounted) == LADDER


def test_the_first_try_is_the_leanest_rung_at_the_smallest_size():
    assert step() == NextTry(QLORA, 1, "the smallest")


def test_a_rung_is_searched_to_its_end_before_the_next():
    searching = step(fit(QLORA.config, 1))
    assert (searching.rung, searching.micro_batch_size) == (QLORA, 2)
    done = step(ended(QLORA.config, "crashed"))
    assert (done.rung, done.micro_batch_size) == (LORA, 1)


def test_what_needs_as_much_as_one_that_ran_out_is_skipped_with_the_reason():
    first = step(ran_out(CKPT.config), rungs=(CKPT, BF16))
    assert isinstance(first, SkipRung)
    assert first.rung == BF16
    assert first.reason == (
        "bf16+ckpt ran out of memory at micro-batch size 1, and this one needs "
        "more because of its activation_checkpointing"
    )
    assert first.missed_by_bytes is None
    assert (
        step(ran_out(CKPT.config), rungs=(CKPT, BF16), skipped={BF16.config.key(): first}) is None
    )


def test_another_method_is_not_skipped_for_it():
    assert isinstance(step(ran_out(QLORA.config)), NextTry)


def test_only_running_out_tells_about_other_rungs():
    for outcome in ("host_oom", "crashed", "timed_out", "failed", "unsupported"):
        assert isinstance(step(ended(CKPT.config, outcome), rungs=(CKPT, BF16)), NextTry)


def test_running_out_at_a_larger_size_tells_nothing_about_the_smallest():
    attempts = (fit(CKPT.config, 1), ran_out(CKPT.config, 2))
    assert step(*attempts, rungs=(CKPT, BF16)) == NextTry(BF16, 1, "the smallest")


def test_a_fixed_size_is_compared_at_that_size():
    large = rung("bf16-mb4", sequence_length=512, micro_batch_size=4)
    attempts = (fit(CKPT.config, 1), ran_out(CKPT.config, 2))
    assert isinstance(step(*attempts, rungs=(CKPT, large)), SkipRung)


def test_a_rung_that_cannot_fit_is_skipped_with_the_arithmetic():
    context = Context(**{**_fields(CONTEXT), "usable_bytes": 10 * GIB})
    found = next_step((FP32,), {}, {}, context)
    assert isinstance(found, SkipRung)
    assert found.missed_by_bytes == 16 * COUNTS.total - 10 * GIB
    assert found.reason == (
        "needs at least 14.9 GiB, short by 4.90 GiB: weights 1,000,000,000 x 4 bytes = 3.73 GiB, "
        "gradients 1,000,000,000 x 4 bytes = 3.73 GiB, "
        "optimizer states 1,000,000,000 x 8 bytes = 7.45 GiB"
    )


def test_a_measured_rung_is_never_skipped_by_arithmetic():
    context = Context(**{**_fields(CONTEXT), "usable_bytes": GIB})
    found = step(fit(FP32.config, 1), rungs=(FP32,), context=context)
    assert isinstance(found, NextTry)


def test_parts_that_text_does_not_enter_have_no_certain_gradients():
    towers = {**MODEL_CONFIG, "vision_config": {}}
    context = Context(**{**_fields(CONTEXT), "usable_bytes": 10 * GIB, "model_config": towers})
    assert isinstance(next_step((FP32,), {}, {}, context), NextTry)


def test_the_size_of_the_rung_goes_before_that_of_the_command_line():
    context = Context(**{**_fields(CONTEXT), "fixed_micro_batch": 8})
    own = rung("own", method="lora", micro_batch_size=2)
    assert next_step((own,), {}, {}, context).micro_batch_size == 2
    assert next_step((LORA,), {}, {}, context).micro_batch_size == 8
    assert next_step((LORA,), tried(fit(LORA.config, 8)), {}, context) is None


def test_rungs_that_differ_in_the_fixed_size_do_not_share_attempts():
    two, four = (rung(f"mb{n}", method="lora", micro_batch_size=n) for n in (2, 4))
    found = tried(fit(two.config, 2))
    assert len(attempts_of(two, found)) == 1
    assert attempts_of(four, found) == ()
    assert next_step((two, four), found, {}, CONTEXT).rung == four


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(0, 10**6))
def test_every_survey_ends_with_every_rung_settled(usable_gib, seed):
    context = Context(**{**_fields(CONTEXT), "usable_bytes": usable_gib * GIB})
    attempts, skipped, steps = {}, {}, 0
    outcomes = ("fits", "oom", "oom", "crashed", "host_oom", "fits")
    while (found := next_step(LADDER, attempts, skipped, context)) is not None:
        steps += 1
        assert steps <= 6 * len(LADDER)
        key = found.rung.config.rung_key()
        if isinstance(found, SkipRung):
            assert key not in attempts
            assert found.reason
            skipped[key] = found
            continue
        outcome = outcomes[(seed + 7 * steps * steps) % len(outcomes)]
        size, config = found.micro_batch_size, found.rung.config
        attempt = {"fits": lambda s=size, c=config: fit(c, s, s * GIB),
                   "oom": lambda s=size, c=config: ran_out(c, s)}.get(
            outcome, lambda s=size, c=config, o=outcome: ended(c, o, s))()  # fmt: skip
        attempts[key] = (*attempts.get(key, ()), attempt)
    assert {r.config.rung_key() for r in LADDER} == set(attempts) | set(skipped)


def _fields(context):
    return {field.name: getattr(context, field.name) for field in fields(context)}


def test_what_frees_gpu_memory_into_the_host_s_is_refused_where_they_are_one():
    own, shared = find_gpu("H100"), find_gpu("GB10")
    lean = rung("lean", optimizer="paged_adamw_8bit", activation_checkpointing="offload")
    moved = rung("moved", offload="optimizer")
    for offloading in (lean, moved):
        assert replace(CONTEXT, gpu=own).refuses(offloading.config) is None
        reason = replace(CONTEXT, gpu=shared).refuses(offloading.config)
        assert reason is not None and "shares the memory of the host" in reason
    assert replace(CONTEXT, gpu=shared).refuses(CKPT.config) is None
