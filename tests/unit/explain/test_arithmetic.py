"""What `explain` computes never contradicts itself, whatever the text, the model and the settings.

The texts are recorded ones and made-up messages of small and large cards; the settings are those of
full, LoRA and QLoRA training, and none.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from oomdoctor.analysis.fit import USUAL_HEADROOM, PeakErrors
from oomdoctor.commands.devices.cards import card_named, card_that_holds
from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.remedies import sets
from oomdoctor.explain.remedies.row import smaller_batches
from oomdoctor.explain.training.known import Given
from oomdoctor.records.job.model import ModelRef
from oomdoctor.records.report.diagnosis import Diagnosis, Incident, LogFacts
from oomdoctor.system.catalogue import peak_errors
from oomdoctor.system.models.hub import resolve
from oomdoctor.units import format_bytes

GENUINE = Path(__file__).parents[2] / "data" / "explain" / "genuine"
MODELS = (None, "Qwen/Qwen2.5-0.5B", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B")
SETTINGS: dict[str, dict[str, Any]] = {
    "none": {},
    "full": {"bf16": True, "per_device_train_batch_size": 4, "max_length": 2048,
             "optim": "adamw_torch"},
    "eager": {"per_device_train_batch_size": 2, "max_length": 4096, "torch_dtype": "float32",
              "attn_implementation": "eager", "bf16": True},
    "lora": {"use_peft": True, "lora_r": 16, "bf16": True, "per_device_train_batch_size": 4,
             "max_length": 2048},
    "qlora": {"load_in_4bit": True, "use_peft": True, "lora_r": 16, "bf16": True,
              "per_device_train_batch_size": 4, "max_length": 2048,
              "gradient_checkpointing": True},
    "ranks": {"per_device_train_batch_size": 1, "max_length": 8192, "zero_stage": 2,
              "world_size": 8, "bf16": True},
}  # fmt: skip
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} MiB. GPU 0 has a total "
    "capacity of {total:.2f} GiB of which {free:.2f} MiB is free. Including non-PyTorch memory, "
    "this process has {own:.2f} GiB memory in use. Of the allocated memory {used:.2f} GiB is "
    "allocated by PyTorch, and {gaps:.2f} GiB is reserved by PyTorch but unallocated."
)
WHERE = {
    "forward": ("models/llama/modeling_llama.py", "forward", "x = self.mlp(x)"),
    "loss": ("loss/loss_utils.py", "ForCausalLMLoss", "logits = logits.float()"),
    "scores": ("models/llama/modeling_llama.py", "eager_attention_forward",
               "attn_weights = torch.matmul(query, key_states.transpose(2, 3)) * scaling"),
    "backward": ("trainer.py", "training_step", "self.accelerator.backward(loss)"),
    "optimizer": ("trainer.py", "_inner_training_loop", "self.optimizer.step()"),
    "load": ("modeling_utils.py", "from_pretrained", "model = cls.from_pretrained(path)"),
    "generate": ("generation/utils.py", "generate", "outputs = self._sample("),
}  # fmt: skip
CARDS = (14.75, 79.25)


def _made(place: str, total: float, gaps: float) -> str:
    file, function, code = WHERE[place]
    message = MESSAGE.format(
        asked=1024, total=total, free=310, own=total - 0.31, used=total - 0.9 - gaps, gaps=gaps
    )
    return (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 40, in <module>\n    trainer.train()\n'
        f'  File "/env/site-packages/transformers/{file}", line 90, in {function}\n    {code}\n'
        f"{message}\n"
    )


TEXTS = {
    **{path.stem: path.read_text() for path in sorted(GENUINE.glob("*.txt"))[::16]},
    **{f"{place}-{total}": _made(place, total, 0.3) for place in WHERE for total in CARDS},
    **{
        f"{place}-{total}-gaps": _made(place, total, 2.5) for place in WHERE for total in CARDS[1:2]
    },
}
SPECS = {name: resolve(ModelRef(name, source="catalogue")) for name in MODELS if name}


def _diagnoses(text: str, model: str | None, settings: dict[str, Any]) -> tuple[Diagnosis, ...]:
    given = Given(model=SPECS[model] if model else None, settings=settings)
    return diagnose("log", *_read(text), given)


@cache
def _read(text: str) -> tuple[tuple[Incident, ...], LogFacts]:
    return scan(lines([text.encode()]))


def contradictions(found: Diagnosis) -> list[str]:
    """Where an answer contradicts itself; empty if it does not."""
    wrong: list[str] = []
    capacity, needed = found.numbers.capacity_bytes, found.needed_bytes
    first = found.causes[0] if found.causes else None
    beyond = capacity is not None and needed is not None and needed > capacity
    beyond = beyond and (found.numbers.requested_bytes or 0) <= (needed or 0)
    if beyond and first is not None:
        if first.cause not in ("capacity", "activations", "logits"):
            wrong.append(f"needs {needed} of {capacity}, but the cause is {first.cause}")
        if first.confidence != "high" or any(c.confidence == "high" for c in found.causes[1:]):
            wrong.append("the arithmetic is not the surest cause")
        for size in (needed, capacity):
            if format_bytes(size) not in first.why:
                wrong.append(f"{format_bytes(size)} is not in: {first.why}")
        if found.short_bytes is None or found.short_bytes < needed - (capacity or 0):
            wrong.append("short by less than the gap")
    if found.needs and needed is not None and format_bytes(needed) not in found.needs[-1]:
        wrong.append(f"{format_bytes(needed)} is not in: {found.needs[-1]}")
    room = None if needed is None or found.short_bytes is None else needed - found.short_bytes
    seen_too_little = False
    for remedy in found.remedies:
        frees, leaves = remedy.frees_bytes, remedy.leaves_bytes
        if frees is not None and frees <= 0:
            wrong.append(f"{remedy.change}: frees {frees}")
        whole = bool(found.needs) and "at least" not in found.needs[-1]
        if remedy.basis == "arithmetic" and whole and (frees or 0) > (needed or 0):
            wrong.append(f"{remedy.change}: frees more than there is")
        if beyond and frees is not None and leaves is not None and needed - frees != leaves:
            wrong.append(f"{remedy.change}: {needed} - {frees} is not {leaves}")
        if beyond and frees is not None and leaves is not None and room is not None:
            closes = leaves <= room
            if closes and remedy.enough is False:
                wrong.append(f"{remedy.change}: fits, but is not enough")
            if not closes and remedy.enough is not False:
                wrong.append(f"{remedy.change}: does not fit, but is enough")
        if remedy.parts and remedy.enough is False:
            wrong.append(f"{remedy.change}: a combination that is not enough")
        if remedy.parts and len(set(remedy.parts)) != len(remedy.parts):
            wrong.append(f"{remedy.change}: the same change twice")
        if remedy.enough is False:
            seen_too_little = True
        elif remedy.enough and seen_too_little and beyond:
            wrong.append(f"{remedy.change}: enough, but after what is not")
        for line in (remedy.change, *remedy.lines.values(), remedy.arithmetic or ""):
            if re.search(r"\$\w|\bNone\b(?!\))|\{\w*\}", line):
                wrong.append(f"{remedy.change}: {line}")
    changes = [remedy.change for remedy in found.remedies]
    if len(set(changes)) != len(changes):
        wrong.append(f"the same change twice: {changes}")
    closing = [r for r in found.remedies if r.enough is not False and r.leaves_bytes is not None]
    ways = [r for r in closing if r.leaves_bytes != needed and "of this size" not in r.change]
    if found.no_way and any(r.enough for r in ways):
        wrong.append("no way, but a remedy is enough")
    if beyond and not found.no_way and not ways:
        wrong.append("nothing is enough, and no line says so")
    return wrong


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("settings", SETTINGS)
def test_no_answer_contradicts_itself(model: str | None, settings: str) -> None:
    wrong = {}
    for name, text in TEXTS.items():
        for found in _diagnoses(text, model, SETTINGS[settings]):
            told = contradictions(found)
            if told:
                wrong[name] = told
    assert not wrong


def test_what_exceeds_the_card_is_the_cause_everywhere() -> None:
    seen = 0
    for place, total in product(WHERE, CARDS):
        text = _made(place, total, 2.5)
        (found, *_) = _diagnoses(text, "meta-llama/Llama-3.1-8B", SETTINGS["full"])
        if place != "generate":
            assert found.needed_bytes is not None
            assert found.causes[0].cause in ("capacity", "activations", "logits"), place
            seen += 1
    assert seen == 12


def test_a_card_that_shares_the_memory_of_the_host_is_not_the_larger_card() -> None:
    told = [
        text
        for settings in SETTINGS.values()
        for found in _diagnoses(_made("forward", 79.25, 0.3), "meta-llama/Llama-3.1-8B", settings)
        for text in (*(remedy.arithmetic or "" for remedy in found.remedies), found.no_way or "")
    ]
    assert any("is the smallest card known" in text for text in told)
    assert not any("GB10" in text for text in told)


def test_the_smallest_card_is_the_one_of_plan_and_run() -> None:
    """It was one whose whole memory was enough, without a headroom."""
    seen = 0
    for settings in SETTINGS.values():
        for found in _diagnoses(_made("forward", 79.25, 0.3), "meta-llama/Llama-3.1-8B", settings):
            if found.needed_bytes is None or found.context_bytes is None:
                continue
            share = PeakErrors(peak_errors(), None, None).share(
                "full" if found.config is None else found.config.method, "reserved"
            )
            held = (found.needed_bytes - found.context_bytes) * (1 + (share or 0.0))
            card = card_that_holds(
                lambda room, held=held: room >= held,  # type: ignore[misc]
                surely=True,
            )
            told = [one.arithmetic or "" for one in found.remedies if one.key == "bigger_card"]
            named = [text for text in told if "smallest card known" in text]
            assert not named or (card is not None and named[0].startswith(card.name))
            seen += bool(named)
    assert seen


def test_without_a_figure_the_context_is_that_of_the_card() -> None:
    """The log names an L4: its context is what `plan --gpu L4` takes, not that of any card."""
    text = (
        "GPU: NVIDIA L4\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB "
        "(GPU 0; 22.03 GiB total capacity; 21.01 GiB already allocated; 199.12 MiB free; "
        "21.42 GiB reserved in total by PyTorch)\n"
    )
    (found,) = _diagnoses(text, "meta-llama/Llama-3.1-8B", SETTINGS["full"])
    assert found.context_bytes == card_named("L4", USUAL_HEADROOM).context.likely


def test_the_search_for_sets_of_changes_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0

    def count(*arguments: Any) -> sets.Choice:
        nonlocal counted
        counted += 1
        return choice(*arguments)

    choice = sets._choice
    monkeypatch.setattr(sets, "_choice", count)
    many = {"per_device_train_batch_size": 720, "max_length": 32768, "world_size": 8}
    (found,) = _diagnoses(
        _made("forward", 14.75, 0.3), "meta-llama/Llama-3.1-8B", SETTINGS["eager"] | many
    )
    assert any(remedy.parts and remedy.enough for remedy in found.remedies)
    assert counted < 20_000


@pytest.mark.parametrize(("batch", "smaller"), [(1, []), (2, [1]), (12, [6, 4, 3, 2, 1]), (5, [1])])
def test_smaller_batches_divide_the_batch(batch: int, smaller: list[int]) -> None:
    assert list(smaller_batches(batch)) == smaller


def test_an_absurd_batch_is_only_halved() -> None:
    assert list(smaller_batches(99_999_999))[:2] == [49_999_999, 24_999_999]
    assert len(smaller_batches(99_999_999)) == 26
