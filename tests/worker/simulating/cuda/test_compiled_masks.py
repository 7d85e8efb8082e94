"""What a compiled model gives to attention: as Dynamo traces it, and as a simulation has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from simulated_steps import simulated_peaks, simulation_job
from tiny_models import tiny_job, tiny_spec
from torch._dynamo.testing import CompileCounter

from oomdoctor.analysis.simulator.card import Card
from oomdoctor.records.job.model import ModelSpec
from oomdoctor.records.job.result import ProbeJob
from oomdoctor.worker.host import clean_slate
from oomdoctor.worker.protocol import PhaseFile
from oomdoctor.worker.replacing import module_if_there
from oomdoctor.worker.simulating.cuda.compiled_masks import as_traced
from oomdoctor.worker.simulating.simulate import simulated_rung
from oomdoctor.worker.training.inspection import inspect_model, torch_release

ROWS, LENGTH = 3, 16
Arguments = tuple[Any, ...]


def _model(kind: str) -> Any:
    spec = tiny_spec(kind)
    config = transformers.AutoConfig.for_model(**spec.config)
    config._attn_implementation = "sdpa"
    model = getattr(transformers, spec.architecture)(config).train()
    model.config.use_cache = False
    return model


def _batch(*, with_mask: bool) -> dict[str, torch.Tensor]:
    ids = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    batch = {"input_ids": ids, "labels": ids}
    return batch | ({"attention_mask": torch.ones_like(ids)} if with_mask else {})


def _told(arguments: dict[str, Any]) -> Arguments:
    """What decides which kernel runs."""
    mask = arguments.get("attn_mask")
    own = None if mask is None else (tuple(mask.shape), mask.dtype)
    return own, bool(arguments.get("is_causal")), bool(arguments.get("enable_gqa"))


def _traced(call: Callable[[Any], Any], kind: str) -> list[Arguments]:
    """The calls of attention in the graphs that Dynamo makes of a model."""
    found: list[Arguments] = []

    def search(graph: torch.fx.GraphModule) -> None:
        for node in graph.graph.nodes:
            if "scaled_dot_product" in str(node.target):
                own = {
                    k: getattr(v, "meta", {}).get("example_value", v)
                    for k, v in node.kwargs.items()
                }
                found.append(_told(own))
        for _, inner in graph.named_children():
            if isinstance(inner, torch.fx.GraphModule):
                search(inner)

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        search(graph)
        return graph.forward

    torch._dynamo.reset()
    call(torch.compile(_model(kind), backend=backend))
    torch._dynamo.reset()
    return found


def _eager(
    call: Callable[[Any], Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> list[Arguments]:
    """The calls of attention of a model that runs as in a simulation of a compiled rung."""
    found: list[Arguments] = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(_told(kwargs))
        return plain(*args, **kwargs)

    with monkeypatch.context() as patch, as_traced():
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
        call(_model(kind))
    return found


@pytest.mark.parametrize("with_mask", [True, False])
@pytest.mark.parametrize("kind", ["gqa-tied", "encoder"])
def test_attention_gets_what_it_gets_from_dynamo(
    kind: str, with_mask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(model: Any) -> Any:
        return model(**_batch(with_mask=with_mask)).loss.backward()

    traced = _traced(call, kind)
    assert traced
    assert _eager(call, kind, monkeypatch) == traced


def test_a_batch_with_a_mask_of_ones_has_no_causal_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def call(model: Any) -> Any:
        return model(**_batch(with_mask=True))

    (_, is_causal, grouped), *_ = _eager(call, "gqa-tied", monkeypatch)
    assert not is_causal
    assert not grouped


@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="torch has no such answer")
def test_whether_a_compiled_model_is_exported_is_said_as_by_dynamo() -> None:
    masks = module_if_there("transformers.masking_utils")
    if masks is None or not hasattr(masks, "is_torchdynamo_exporting"):
        pytest.skip("this transformers does not ask")

    def asked(number: torch.Tensor) -> torch.Tensor:
        return number + 1 if torch.compiler.is_exporting() else number

    said = bool(torch.compile(asked, backend=CompileCounter())(torch.zeros(1)))
    with as_traced():
        assert masks.is_torchdynamo_exporting() == said
    assert not masks.is_torchdynamo_exporting()


A100, RTX_4090, B200 = (8, 0), (8, 9), (10, 0)


def _job(**changes: Any) -> ProbeJob:
    job = tiny_job("gqa-tied", weights_dtype="bfloat16", sequence_length=64, **changes)
    return simulation_job(job)


class _Recorded(NamedTuple):
    """The forward operators of attention, their FLOPs, the notes, and the sizes of all blocks."""

    operators: set[str]
    flops: float
    notes: tuple[str, ...]
    blocks: list[int]


def _recorded(job: ProbeJob, card: Card = A100) -> _Recorded:
    with clean_slate(), simulated_rung(job, PhaseFile(None), shallow=False) as recorder:
        notes = recorder.facts().notes
        recorded = recorder.record(2, card)
    names = {name for name in recorded.attention_operators if "backward" not in name}
    flops = sum(each.cost.flops for each in recorded.costs if each.cost.kind == "attention")
    return _Recorded(names, flops, notes, [block.size for block in recorded.tape.blocks])


@pytest.mark.parametrize("card", [A100, RTX_4090, B200])
def test_a_compiled_rung_runs_a_kernel_that_takes_a_mask(card: Card) -> None:
    eager, compiled = _recorded(_job(), card), _recorded(_job(compile=True), card)
    by_cudnn = card == B200 and torch_release() >= (2, 11)
    names = ("cudnn", "cudnn") if by_cudnn else ("flash", "efficient")
    for (operator,), name in zip((eager.operators, compiled.operators), names, strict=True):
        assert name in operator
    assert compiled.flops == 2 * eager.flops


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("length", "padded"), [(96, 96), (93, 96)])
def test_all_layers_share_one_additive_mask(checkpointing: str, length: int, padded: int) -> None:
    job = _job(activation_checkpointing=checkpointing)
    job = replace(job, config=replace(job.config, sequence_length=length))
    eager = _recorded(job).blocks
    compiled = _recorded(replace(job, config=replace(job.config, compile=True))).blocks
    additive = 2 * length * padded * 2  # rows, pairs of tokens, bytes
    assert compiled.count(additive) == eager.count(additive) + 1
    assert 2 * length * length in compiled  # the boolean mask


def test_the_mask_takes_memory_in_the_whole_step() -> None:
    job = replace(_job(), config=replace(_job().config, sequence_length=256))
    peaks = []
    for compiles in (False, True):
        with clean_slate():
            asked = replace(job, config=replace(job.config, compile=compiles))
            peaks.append(simulated_peaks(asked)["steady", "backward"])
    assert peaks[1] >= peaks[0] + 2 * 256 * 256 * 2


def test_a_deep_compiled_model_is_predicted_from_a_shallow_one() -> None:
    job = tiny_job(
        "gqa-tied", weights_dtype="bfloat16", sequence_length=64, compile=True, job_model=_deep()
    )
    stacks = inspect_model(job).stacks
    with clean_slate():
        shallow = simulated_peaks(job, stacks=stacks)
    with clean_slate():
        assert shallow == simulated_peaks(job)


def _deep() -> ModelSpec:
    spec = tiny_spec("gqa-tied")
    return replace(spec, config={**spec.config, "num_hidden_layers": 9})


_NOTE = "flash_attention_2 needs none"


def test_a_compiled_rung_says_that_flash_attention_cannot_take_the_mask() -> None:
    assert any(_NOTE in note for note in _recorded(_job(compile=True)).notes)


@pytest.mark.parametrize("changes", [{}, {"compile": True, "attention": "flash_attention_2"}])
def test_a_rung_without_such_a_mask_says_nothing_of_it(changes: dict[str, Any]) -> None:
    assert not any(_NOTE in note for note in _recorded(_job(**changes)).notes)


def test_flash_attention_2_needs_no_mask_when_it_is_compiled() -> None:
    eager = _recorded(_job(attention="flash_attention_2"))
    compiled = _recorded(_job(attention="flash_attention_2", compile=True))
    assert compiled[:2] == eager[:2]
