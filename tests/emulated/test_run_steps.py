"""What counts as a step under `run --emulate`, so that no script runs for a whole epoch."""

from __future__ import annotations

import pytest
from emulated_run import MODEL, Watched
from weekly_rows import weekly

from oomdoctor.units import MIB

_LAYERS = 4 * (1024 * 1024 + 1024) * 4  # bytes of the model in float32
_BEGIN = (
    MODEL
    + """
net = model().cuda()
@torch.no_grad()
def draw():
    for _ in range(1000):
        net(torch.randn(1, 1024, device="cuda"))
def loss_of():
    return net(torch.randn(8, 1024, device="cuda")).pow(2).mean()
"""
)
PLAIN = """
for step in range(60):
    loss_of().backward()
    with torch.no_grad():
        for p in net.parameters():
            p.data -= 0.1 * p.grad
            UNDO
    print("step", step, flush=True)
    if step % 20 == 19:
        draw()
draw()
"""
ACCUMULATED = """
moments = {}
for step in range(200):
    loss_of().backward()
    if step % 8 == 7:
        for p in net.parameters():
            for moment in range(4):
                kept = moments.setdefault((p, moment), torch.zeros_like(p))
                kept.mul_(0.9).add_(p.grad)
            p.data -= 0.1 * moments[p, 0]
            UNDO
    print("step", step, flush=True)
"""
GRADIENTS = """
for step in range(60):
    found = torch.autograd.grad(loss_of(), list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(net.parameters(), found):
            p -= 0.1 * g
    print("step", step, flush=True)
"""
OWN_CLASS = """
class SGD:
    def __init__(self, weights):
        self.weights = list(weights)
    def step(self):
        for p in self.weights:
            p.data = p.data - 0.1 * p.grad
    def zero_grad(self):
        for p in self.weights:
            p.grad = None
optimizer = SGD(net.parameters())
for step in range(60):
    loss_of().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
"""
IN_TURN = """
other = model(2).cuda()
for step in range(60):
    for one in (net, other):
        one(torch.randn(8, 1024, device="cuda")).pow(2).mean().backward()
        for p in one.parameters():
            p.data -= 0.1 * p.grad
            p.grad = None
    print("step", step, flush=True)
"""
BEFORE = """
for batch in range(8):
    loss_of().backward()
    net.zero_grad()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(60):
    loss_of().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
"""
CHOICE = """
import sys
optimizer = torch.optim.AdamW(net.parameters()) if "--optimizer" in sys.argv else None
for step in range(200):
    loss_of().backward()
    for p in net.parameters():
        p.data -= 0.1 * p.grad
        p.grad = None
    print("step", step, flush=True)
"""
CRITIC = """
critic = torch.nn.Linear(1024, 1).cuda()
of_critic = torch.optim.AdamW(critic.parameters())
of_net = torch.optim.AdamW(net.parameters())
for step in range(60):
    for _ in range(5):
        with torch.no_grad():
            made = net(torch.randn(8, 1024, device="cuda"))
        critic(made).mean().backward()
        of_critic.step()
        of_critic.zero_grad()
    critic(net(torch.randn(8, 1024, device="cuda"))).mean().backward()
    of_net.step()
    of_net.zero_grad()
    print("step", step, flush=True)
"""
CAPTURED = """
optimizer = torch.optim.AdamW(net.parameters(), capturable=True)
def whole_step():
    loss_of().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(4):
        whole_step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    whole_step()
    kept = torch.empty(32 << 20, device="cuda")
print("captured", flush=True)
for step in range(50):
    graph.replay()
    print("step", step, flush=True)
"""
INFERENCE = """
for step in range(30):
    draw()
print("the end", flush=True)
kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
__import__("os")._exit(0)
"""


def _printed(out: str) -> int:
    return out.count("step")


@pytest.mark.parametrize("undo", ["p.grad = None", weekly("p.grad.zero_()")])
def test_a_loop_without_an_optimizer_stops_and_says_what_was_not_reached(
    watched: Watched, undo: str
) -> None:
    script = _BEGIN + PLAIN.replace("UNDO", undo)
    report, out, error = watched.run("T4", script)
    (rank,) = report.ranks
    assert (rank.stopped, rank.unit, report.status) == ("steady", "pass", "ok")
    assert _printed(out) == rank.steps < 6
    assert f"stopped after backward pass {rank.steps}: memory repeats" in error
    line = next(n for n, one in enumerate(script.splitlines(), 1) if one == "        draw()")
    assert [(one.function, one.line) for one in rank.not_reached] == [("draw", line)]
    assert f"draw() in train.py:{line}" in error
    # Weights and gradients, and a product for the largest weights.
    assert 2 * _LAYERS < rank.peak_allocated_bytes < 2 * _LAYERS + 30 * MIB


@pytest.mark.parametrize("undo", [weekly("p.grad = None"), "p.grad.data.zero_()"])
def test_gradients_that_accumulate_are_one_step(watched: Watched, undo: str) -> None:
    report, out, _ = watched.run("T4", _BEGIN + ACCUMULATED.replace("UNDO", undo))
    (rank,) = report.ranks
    assert (rank.stopped, rank.unit) == ("steady", "pass")
    assert 8 <= _printed(out) < 200
    assert rank.peak_allocated_bytes >= 6 * _LAYERS  # with the moments, which the update makes


@pytest.mark.parametrize("script", [GRADIENTS, OWN_CLASS, IN_TURN])
def test_other_updates_without_an_optimizer(watched: Watched, script: str) -> None:
    report, out, _ = watched.run("T4", _BEGIN + script)
    (rank,) = report.ranks
    assert (rank.stopped, rank.unit) == ("steady", "pass")
    assert _printed(out) < 10


def test_so_many_backward_passes_as_asked(watched: Watched) -> None:
    script = _BEGIN + PLAIN.replace("UNDO", "p.grad = None")
    report, out, error = watched.run("T4", script, options=("--steps", "3"))
    assert (report.ranks[0].steps, report.ranks[0].stopped, _printed(out)) == (3, "steps", 3)
    assert "stopped after backward pass 3, as asked" in error
    report, out, error = watched.run("T4", script, options=("--steps", "all"))
    assert (report.ranks[0].steps, report.ranks[0].stopped, _printed(out)) == (60, None, 60)
    assert "no optimizer step, 60 backward passes" in error
    assert report.ranks[0].not_reached == ()


def test_passes_before_an_optimizer_is_made_are_no_steps(watched: Watched) -> None:
    report, out, _ = watched.run("T4", _BEGIN + BEFORE)
    (rank,) = report.ranks
    assert (rank.stopped, rank.unit) == ("steady", "step")
    assert 2 <= rank.steps == _printed(out) + 1 <= 5
    assert rank.peak_allocated_bytes > 4 * _LAYERS


def test_an_optimizer_that_an_option_would_have_made_is_not_waited_for_forever(
    watched: Watched,
) -> None:
    report, out, _ = watched.run("T4", _BEGIN + CHOICE)
    (rank,) = report.ranks
    assert (rank.stopped, rank.unit) == ("steady", "pass")
    assert 64 <= _printed(out) < 80


def test_each_optimizer_has_its_turn_before_memory_repeats(watched: Watched) -> None:
    report, out, _ = watched.run("T4", _BEGIN + CRITIC)
    (rank,) = report.ranks
    assert rank.stopped == "steady"
    assert 2 <= _printed(out) < 10
    assert rank.peak_allocated_bytes > 4 * _LAYERS  # with the states of the generator


def test_a_cuda_graph_is_captured_and_its_replays_are_steps(watched: Watched) -> None:
    report, out, _ = watched.run("T4", _BEGIN + CAPTURED)
    (rank,) = report.ranks
    assert "captured" in out
    assert (rank.stopped, _printed(out) < 6) == ("steady", True)
    assert rank.peak_allocated_bytes > 4 * _LAYERS + 128 * MIB


def test_inference_runs_to_its_end(watched: Watched) -> None:
    report, out, error = watched.run("T4", _BEGIN + INFERENCE)
    assert (report.ranks[0].steps, report.ranks[0].stopped) == (0, None)
    assert "the end" in out
    assert "no optimizer step" in error
    assert report.ranks[0].peak_allocated_bytes > 1024 * MIB  # after the last reading


# As Ray runs the methods of an actor that has an asynchronous one: the exit would end the loop.
IN_A_LOOP = """
import asyncio, threading
optimizer = torch.optim.AdamW(net.parameters())
async def train():
    for step in range(60):
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad()
        print("step", step, flush=True)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(train(), loop).result()
print("the end")
"""


def test_a_training_in_an_event_loop_of_a_thread_ends_the_process(watched: Watched) -> None:
    report, out, error = watched.run("T4", _BEGIN + IN_A_LOOP)
    (rank,) = report.ranks
    assert (report.exit_code, rank.outcome, rank.stopped) == (0, "fits", "steady"), error
    assert _printed(out) < 10 and "the end" not in out
    assert [warn.code for warn in report.warnings] == []
