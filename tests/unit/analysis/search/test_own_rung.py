"""Changes of a user's own rung: one thing each, in the order of their cost."""

from __future__ import annotations

from dataclasses import fields, replace

from analysis_make import GIB, result

from oomdoctor.analysis.search.own_rung import OneChange, to_fit, to_run, to_speed_up
from oomdoctor.records.config import TrainConfig
from oomdoctor.records.rung.choices import AUTO
from oomdoctor.records.rung.faults import config_faults


def row(outcome: str = "oom", **settings: object):
    config = TrainConfig(**{"micro_batch_size": 4, **settings})  # type: ignore[arg-type]
    return replace(result("yours", outcome), config=config)


def changed(one: OneChange, base: TrainConfig) -> set[str]:
    names = (field.name for field in fields(TrainConfig))
    return {name for name in names if getattr(one.config, name) != getattr(base, name)}


def test_each_change_is_possible_and_changes_one_thing() -> None:
    for settings in ({}, {"method": "lora"}, {"attention": "eager", "loss": "liger"},
                     {"sharding": "zero2", "world_size": 8, "micro_batch_size": 2}):  # fmt: skip
        base = row(**settings)
        found = to_fit(base, GIB)
        assert [one.cost for one in found] == sorted(one.cost for one in found)
        assert found
        for one in found:
            assert not config_faults(one.config)
            assert one.config != base.config
            if one.cost < 10:
                assert len(changed(one, base.config)) == 1, one


def test_what_keeps_the_result_comes_first() -> None:
    words = [one.words for one in to_fit(row(), GIB)]
    assert words.index("activation checkpointing") < words.index("8-bit AdamW")
    assert "a smaller micro-batch" in words
    assert "a smaller micro-batch" not in [one.words for one in to_fit(row(micro_batch_size=1), 1)]
    assert "ZeRO stage 3" in [
        one.words for one in to_fit(row(sharding="zero2", world_size=8, micro_batch_size=2), GIB)
    ]


def test_several_changes_at_once_come_after_single_ones() -> None:
    base = row(weights_dtype="float32", autocast_dtype="bfloat16", micro_batch_size=4)
    found = {one.words: one for one in to_fit(base, GIB)}
    words = list(found)
    small = "bf16 weights and activation checkpointing"
    assert words.index("paged 8-bit AdamW") < words.index(small) < words.index(f"QLoRA, {small}")
    quantized = found[f"QLoRA, {small}"].config
    assert (quantized.method, quantized.quantization) == ("qlora", "nf4")
    assert (quantized.weights_dtype, quantized.autocast_dtype) == ("bfloat16", "bfloat16")
    assert (quantized.micro_batch_size, quantized.activation_checkpointing) == (1, "full")
    few = [one.words for one in to_fit(row(method="lora", activation_checkpointing="full"), GIB)]
    assert "QLoRA, micro-batch size 1" in few
    assert not any(words.startswith("LoRA") for words in few)


def test_all_that_helps_together_comes_before_shorter_rows() -> None:
    found = to_fit(row(attention="eager"), GIB)
    words = [one.words for one in found]
    rest = "Liger's loss, SDPA attention, activation checkpointing, micro-batch size 1"
    assert words.index("8-bit AdamW") < words.index(rest) < words.index(f"QLoRA, {rest}")
    every = {one.words: one.config for one in found}[f"paged 8-bit AdamW, {rest}"]
    assert (every.loss, every.attention, every.micro_batch_size) == ("liger", "sdpa", 1)
    assert (every.activation_checkpointing, every.optimizer) == ("full", "paged_adamw_8bit")
    done = row(micro_batch_size=1, activation_checkpointing="full", loss="liger", method="qlora",
               quantization="nf4", optimizer="paged_adamw_8bit")  # fmt: skip
    assert not any(", " in one.words for one in to_fit(done, GIB))


def test_what_costs_time_is_taken_back() -> None:
    slow = row("fits", activation_checkpointing="full", attention="eager",
               optimizer="paged_adamw_8bit", offload="activations")  # fmt: skip
    found = {one.words: one.config for one in to_speed_up(slow)}
    assert found["no activation checkpointing"].activation_checkpointing == "none"
    assert found["SDPA attention"].attention == "sdpa"
    assert found["fused AdamW"].optimizer == "adamw_torch_fused"
    assert found["no offload"].offload == "none"
    assert found["another micro-batch"].micro_batch_size == AUTO
    assert "Liger's loss" not in {one.words for one in to_speed_up(row("fits", loss="liger"))}


def test_losses_without_logits_are_tried_where_the_rung_has_the_usual_one() -> None:
    losses = {"Liger's loss": "liger", "TRL's loss in chunks": "chunked"}
    for outcome, changes in (("oom", to_fit(row(), GIB)), ("fits", to_speed_up(row("fits")))):
        found = {one.words: one.config.loss for one in changes if one.words in losses}
        assert found == losses, outcome
    for settings in ({"loss": "chunked"}, {"objective": "dpo"}, {"library": "unsloth"}):
        words = {one.words for one in to_fit(row(**settings), GIB)}
        assert "TRL's loss in chunks" not in words, settings


def test_a_missing_package_is_gone_around() -> None:
    words = [one.words for one in to_run(row("unsupported", loss="liger"))]
    assert words == ["the usual loss"]
    chunked = [one.config.loss for one in to_run(row("unsupported", loss="chunked"))]
    assert chunked == ["default"]
    both = to_run(row("unsupported", loss="liger", attention="flash_attention_2"))
    assert both[-1].config.loss == "default"
    assert both[-1].config.attention == "sdpa"
    assert to_run(row("unsupported")) == ()
