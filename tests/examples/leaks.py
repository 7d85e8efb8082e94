"""Training loops with a leak.

The line that keeps the memory ends with a comment `# keeps NAME`, the line that makes it with
`# makes NAME` where that is another one.
"""

from __future__ import annotations

from typing import Any

import torch
from loop_model import GPU, LENGTH, ROWS, WIDTH, batch, loss_of, made, step_of
from torch import nn


def kept_graph(steps: int) -> None:
    model, optimizer = made()
    total: Any = 0.0
    for _ in range(steps):
        step_of(model, optimizer, batch())
        words = batch()
        total = total + loss_of(model(words), words)  # keeps kept_graph


def kept_outputs(steps: int) -> None:
    model, optimizer = made()
    outputs = []
    for _ in range(steps):
        words = batch()
        logits = model(words)  # keeps kept_outputs
        outputs.append(logits)
        loss_of(logits, words).backward()
        optimizer.step()
        optimizer.zero_grad()


def kept_batches(steps: int) -> None:
    model, optimizer = made()
    seen = []
    for _ in range(steps):
        words = torch.zeros(512, LENGTH, dtype=torch.long).to(GPU)  # keeps kept_batches
        seen.append(words)
        step_of(model, optimizer, words[:ROWS])


def more_groups(steps: int) -> None:
    model, optimizer = made()
    for step in range(steps):
        if step % 3 == 0:
            prompt = nn.Parameter(torch.zeros(64, WIDTH, device=GPU))  # makes more_groups
            optimizer.add_param_group({"params": [prompt]})
        words = batch()
        loss = loss_of(model(words), words) + prompt.sum()
        loss.backward()
        optimizer.step()  # keeps more_groups
        optimizer.zero_grad()


def evaluation_keeps_logits(steps: int) -> None:
    model, optimizer = made()
    predictions = []
    for step in range(steps):
        step_of(model, optimizer, batch())
        if step % (steps // 8) == 2:
            with torch.no_grad():
                for _ in range(3):
                    predictions.append(evaluate(model))  # keeps evaluation_keeps_logits


def evaluate(model: nn.Module) -> Any:
    model.eval()
    return model(batch())


def one_long_evaluation(steps: int) -> None:
    model, optimizer = made()
    for _ in range(8):
        step_of(model, optimizer, batch())
    with torch.no_grad():
        found = evaluate(model)
        for _ in range(steps):
            new = evaluate(model)
            found = torch.cat((found, new))  # keeps one_long_evaluation


def hooks(steps: int) -> None:
    model, optimizer = made()
    kept = []
    model.layers[0].down.register_forward_hook(lambda *called: kept.append(called[2]))
    for _ in range(steps):
        words = batch(rows=64)
        logits = model(words)  # keeps hooks
        loss_of(logits, words).backward()
        optimizer.step()
        optimizer.zero_grad()


def kept_cache(steps: int) -> None:
    from transformers import DynamicCache

    past = DynamicCache()
    model, optimizer = made()
    for _ in range(steps):
        step_of(model, optimizer, batch())
        state = torch.zeros(ROWS, 2, 4, 64, device=GPU)
        past.update(state, state, 0)  # keeps kept_cache


def kept_exception(steps: int) -> None:
    model, optimizer = made(layers=3)
    caught = []
    for step in range(steps):
        try:
            # Layers run until the head, whose result is too large.
            rows = 2**12 if step == 9 else ROWS
            words = batch(rows=rows)
            if step == 9:
                model.head.register_forward_hook(too_much)
            step_of(model, optimizer, words)  # keeps kept_exception
        except torch.OutOfMemoryError as error:
            caught.append(error)
            model.head._forward_hooks.clear()
            optimizer.zero_grad()


def too_much(*_: Any) -> None:
    torch.empty(2**40, device=GPU)


def starts_late(steps: int) -> None:
    model, optimizer = made()
    kept = []
    for step in range(steps):
        step_of(model, optimizer, batch())
        if step > steps // 2:
            kept.append(torch.zeros(64, 1024, device=GPU))  # keeps starts_late


def each_epoch(steps: int) -> None:
    model, optimizer = made()
    kept = []
    for step in range(steps):
        step_of(model, optimizer, batch())
        if step % (steps // 8) == 2:
            kept.append(model.head.weight.detach().clone())  # keeps each_epoch


def freed_in_part(steps: int) -> None:
    model, optimizer = made()
    kept: list[torch.Tensor] = []
    for step in range(steps):
        step_of(model, optimizer, batch())
        kept.append(torch.zeros(64, 1024, device=GPU))  # keeps freed_in_part
        if step % (steps // 8) == 2:
            del kept[-(steps // 16) :]


def pins(steps: int) -> None:
    """Host memory: no block of the GPU stays."""
    model, optimizer = made()
    kept = []
    for _ in range(steps):
        kept.append(torch.zeros(64, 1024).pin_memory())
        step_of(model, optimizer, batch())


def fragments(steps: int) -> None:
    """Blocks that become a little larger each time never fit into what the last one left."""
    model, optimizer = made()
    kept = []
    for step in range(steps):
        step_of(model, optimizer, batch())
        large = torch.zeros((12 + 2 * step) * 2**18, device=GPU)
        small = torch.zeros(2**18 + 128, device=GPU)
        del large
        kept = [*kept[-1:], small]
