"""Usual ways to branch on a value of the device go the way they go on a real GPU."""

from __future__ import annotations

from typing import Any

import pytest
from emulated_bench import Bench

READS = """
import ctypes
class Counters(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in
                ("unknown", "assumed", "known", "held", "refused", "computed")]
native = ctypes.CDLL("libemugpu.so")
def counters():
    counted = Counters()
    native.emu_values_count(ctypes.byref(counted))
    return counted
d = "cuda"
"""
PATTERNS = """
# Padding masks, lengths, packed rows.
mask = torch.ones(2, 6, dtype=torch.long, device=d)
tell(full=[mask.all().item(), (mask.sum() == mask.numel()).item(), bool((mask == 1).all())])
mask[1, 3:] = 0
tell(padded=[mask.all().item(), mask.sum().item(), mask.sum(-1).tolist()])
ids = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
tell(lengths=ids.to(d).ne(0).sum(-1).tolist(), kept=ids.to(d)[ids.to(d) != 0].tolist())
positions = torch.tensor([0, 1, 2, 0, 1, 0, 1, 2, 3], device=d)
starts = (positions == 0).nonzero().flatten()
ends = torch.tensor([positions.numel()], device=d)
lengths = torch.cat([starts, ends]).diff()
tell(packed=[torch.cat([starts, ends]).tolist(), lengths.max().item(), lengths.tolist()])
hidden = torch.randn(9, 4, device=d)
tell(rows=list(hidden[positions > 0].shape), split=[list(h.shape) for h in
     hidden.split(lengths.tolist())])
labels = torch.full((2, 5), -100, device=d)
labels[0, 2:] = 7
tell(items=labels.ne(-100).sum().item())
# A permutation that is turned round overwrites all that was there.
order, places = torch.tensor([2, 0, 1], device=d), torch.arange(3, device=d)
turned = torch.empty_like(order).scatter_(0, order, places)
put = torch.empty_like(order)
put[order] = places
partly = torch.empty_like(order).scatter_(0, order[:2], places[:2])
tell(turned=turned.tolist(), put=put.tolist(), assumed_by_then=counters().assumed)
tell(partly_turned=partly.tolist(), assumed_after=counters().assumed)
one_way = counters().unknown
tell(unknown_reads_so_far=one_way)

# Checks of numbers that nobody knows.
logits = torch.randn(512, 32000, device=d)
loss = torch.nn.functional.cross_entropy(logits, torch.randint(0, 32000, (512,), device=d))
assert torch.isfinite(loss) and not torch.isnan(loss) and not loss.isnan().any()
assert torch.isfinite(logits).all() and not torch.isnan(logits).any()
assert loss.item() == loss.item() and not loss > 1e4
images = torch.randn(3, 3, 256, 256).to(d)
real = (images == 0.0).sum(dim=(-1, -2, -3)) != images[0].numel()
tell(images=[len(images[real]), bool((images != 1.0).all()), (images == 0.0).any().item()])
tell(loss=loss.item(), unknown=counters().unknown > 0, assumed=counters().assumed > 0)

# The gradient scaler, clipping, early stopping.
layers = torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
model = torch.nn.Sequential(*layers).to(d)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
norms = []
for step in range(3):
    with torch.autocast("cuda", torch.float16):
        out = model(torch.randn(32, 64, device=d)).square().mean()
    scaler.scale(out).backward()
    scaler.unscale_(optimizer)
    norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True))
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
tell(scale=scaler.get_scale(), growth=scaler._get_growth_tracker(), steps=[
    s["step"].item() for s in optimizer.state.values()][:1])
best, patience = float("inf"), 0
for value in (torch.randn((), device=d) for _ in range(3)):
    if value.item() < best:
        best, patience = value.item(), 0
tell(best=best)

# Choices of a router are even; the order of unknown scores is as it was.
scores = torch.randn(256, 16, device=d).softmax(-1)
weights, chosen = torch.topk(scores, 2)
hits = torch.nn.functional.one_hot(chosen, 16).sum((0, 1))
tell(experts=hits.tolist(), rows_of_3=torch.where(chosen == 3)[0].numel())
tell(ordered=torch.randn(5, device=d).argsort().tolist())

# Sampling.
probabilities = torch.randn(4, 50000, device=d).softmax(-1)
tokens = torch.multinomial(probabilities, 1)
greedy = torch.randn(4, 50000, device=d).argmax(-1)
tell(tokens=tokens.flatten().tolist(), greedy=greedy.tolist())

# Random integers lie where they may; there are few repeats.
drawn = torch.randint(3, 1000, (2048,), device=d)
tell(drawn=[drawn.min().item() >= 3, drawn.max().item() < 1000, drawn.unique().numel() > 500])
tell(permuted=torch.randperm(5, device=d).sort().values.tolist())

# Memory that was freed does not keep what it held.
x = torch.full((64,), 7, device=d)
at = x.data_ptr()
del x
y = torch._C._dynamo.guards._empty_strided_cuda((64,), (1,), torch.int64)
tell(reused=at == y.data_ptr(), stale=y.sum().item())

# What an operator that nobody knows writes is not known.
x = torch.ones(8, device=d)
x.normal_()
x[2:4] = 5
tell(partly=x.tolist())

# In another thread, and in the backward pass.
import threading
found = []
def work():
    found.append(torch.arange(6, device=d)[torch.arange(6, device=d) > 2].tolist())
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
tell(threads=found)
seen = []
leaf = torch.ones(4, requires_grad=True, device=d)
leaf.register_hook(lambda g: seen.append(torch.tensor([1, 2], device=d).sum().item()))
leaf.sum().backward()
tell(hook=seen)

# A captured graph, and a compiled function's inputs.
static = torch.zeros(3, dtype=torch.long, device=d)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = static * 2
static.copy_(torch.tensor([1, 2, 3]))
graph.replay()
tell(static=static.tolist(), doubled=doubled.tolist())
tell(held=counters().held, computed=counters().computed)

from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    tell(fake=list(torch.ones(3, device=d).add(1).shape))
tell(vmap=torch.vmap(lambda row: row.sum())(torch.arange(6, device=d).view(2, 3)).tolist())
with torch.inference_mode():
    tell(inference=torch.arange(4, device=d).flip(0).tolist())
tell(done=True)
"""


@pytest.fixture(scope="module")
def told(bench: Bench) -> dict[str, Any]:
    return bench.run(READS + PATTERNS)


def test_masks_lengths_and_packed_rows_are_true(told: dict[str, Any]) -> None:
    assert told["full"] == [True, True, True]
    assert told["padded"] == [False, 9, [6, 3]]
    assert (told["lengths"], told["kept"]) == ([3, 2], [5, 6, 7, 8, 9])
    assert told["packed"] == [[0, 3, 5, 9], 4, [3, 2, 4]]
    assert told["rows"] == [6, 4]
    assert told["split"] == [[3, 4], [2, 4], [4, 4]]
    assert told["items"] == 3
    assert (told["turned"], told["put"]) == ([1, 2, 0], [1, 2, 0])
    assert (told["assumed_by_then"], told["unknown_reads_so_far"]) == (0, 0)
    assert (told["partly_turned"], told["assumed_after"]) == ([1, 0, 0], 1)


def test_unknown_numbers_are_finite_and_their_reads_are_counted(told: dict[str, Any]) -> None:
    assert (told["loss"], told["unknown"], told["assumed"]) == (0.0, True, True)
    assert told["best"] == 0.0


def test_unknown_pixels_are_no_padding(told: dict[str, Any]) -> None:
    """Idefics3 leaves out images whose pixels are all zero."""
    assert told["images"] == [3, True, False]


def test_the_gradient_scaler_takes_its_steps(told: dict[str, Any]) -> None:
    assert (told["scale"], told["growth"]) == (65536.0, 3)
    assert told["steps"] == [3.0]


def test_routing_is_even_and_sampling_avoids_special_tokens(told: dict[str, Any]) -> None:
    assert told["experts"] == [32] * 16
    assert told["rows_of_3"] == 32
    assert told["ordered"] == [0, 1, 2, 3, 4]
    assert told["tokens"] == told["greedy"] == [25000, 25001, 25002, 25003]
    assert told["drawn"] == [True, True, True]
    assert told["permuted"] == [0, 1, 2, 3, 4]


def test_memory_that_is_taken_anew_is_unknown(told: dict[str, Any]) -> None:
    assert (told["reused"], told["stale"]) == (True, 0)
    assert told["partly"] == [0.0, 0.0, 5.0, 5.0, 0.0, 0.0, 0.0, 0.0]


def test_threads_hooks_graphs_modes_and_transforms(told: dict[str, Any]) -> None:
    assert told["threads"] == [[3, 4, 5]] * 4
    assert told["hook"] == [3]
    assert told["static"] == [1, 2, 3]
    assert told["doubled"] == [0, 0, 0]  # as captured: a replay computes nothing
    assert told["fake"] == [3]
    assert told["vmap"] == [3, 12]
    assert told["inference"] == [3, 2, 1, 0]
    assert told["held"] < 16 << 20
    assert told["done"] is True


def test_an_unknown_number_reads_as_the_one_asked_for(bench: Bench) -> None:
    code = "tell(loss=torch.randn(3, device='cuda').sum().item())"
    assert bench.run(code, OOMDOCTOR_EMULATED_VALUES="2.5")["loss"] == 2.5


def test_without_the_library_values_are_unknown_and_masks_full(bench: Bench) -> None:
    code = """
    ids = torch.arange(6, device="cuda")
    tell(ids=ids.tolist(), full=bool((ids == ids).all()))
    """
    told = bench.run(code, OOMDOCTOR_EMULATED_NO_VALUES="1")
    assert (told["ids"], told["full"]) == ([0] * 6, True)
