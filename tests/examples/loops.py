"""Training loops with a leak, and clean ones: loops.py FOLDER STEPS NAME...

Each runs on the GPU for so many steps and writes FOLDER/NAME.pickle. The line that keeps the memory
of a leak ends with a comment `# keeps NAME`, the line that makes it with `# makes NAME` where that
is another one.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

WIDTH, WORDS, ROWS, LENGTH = 128, 1024, 8, 32
GPU = "cuda"
Loop = Callable[[int], object]


class Layer(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, dim=-1))
        x = x + F.scaled_dot_product_attention(q, k, v).squeeze(1)
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """A small language model."""

    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def batch(rows: int = ROWS, length: int = LENGTH) -> torch.Tensor:
    return torch.zeros(rows, length, dtype=torch.long, device=GPU)


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), words.flatten())


def made(**kwargs: Any) -> tuple[Model, torch.optim.Optimizer]:
    model = Model(**kwargs).to(GPU)
    return model, torch.optim.AdamW(model.parameters())


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, words: torch.Tensor) -> Any:
    loss = loss_of(model(words), words)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


# --- clean loops


def plain(steps: int) -> None:
    model, optimizer = made()
    for _ in range(steps):
        words = batch()
        loss = loss_of(model(words), words)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def momentum(steps: int) -> None:
    model = Model().to(GPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        step_of(model, optimizer, batch())


def accumulated(steps: int) -> None:
    model, optimizer = made()
    for step in range(steps):
        words = batch()
        (loss_of(model(words), words) / 4).backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def zeroed(steps: int) -> None:
    model, optimizer = made()
    for _ in range(steps):
        words = batch()
        loss_of(model(words), words).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def mixed(steps: int) -> None:
    model, optimizer = made()
    scaler = torch.amp.GradScaler(GPU)
    for _ in range(steps):
        words = batch()
        with torch.autocast(GPU, torch.float16):
            loss = loss_of(model(words), words)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def checkpointed(steps: int) -> None:
    from torch.utils.checkpoint import checkpoint

    model, optimizer = made()
    for _ in range(steps):
        words = batch()
        x = model.embed(words)
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        loss_of(model.head(x), words).backward()
        optimizer.step()
        optimizer.zero_grad()


def other_lengths(steps: int) -> None:
    """Rows of random lengths; what the last step returned stays until the next one."""
    model, optimizer = made()
    for _ in range(steps):
        words = batch(length=random.randint(4, 64))
        logits = model(words)
        loss = loss_of(logits, words)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def longer_and_longer(steps: int) -> None:
    """A curriculum: rows become longer, and what the last step returned stays with them."""
    model, optimizer = made()
    for step in range(steps):
        words = batch(length=4 + step // 2)
        logits = model(words)
        loss = loss_of(logits, words)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluates(steps: int) -> None:
    model, optimizer = made()
    for step in range(steps):
        step_of(model, optimizer, batch())
        if step % (steps // 5) == 2:
            with torch.no_grad():
                found = [model(batch()) for _ in range(5)]
                torch.cat(found).argmax(-1)
            del found


def averages_weights(steps: int) -> None:
    """From the middle on, with an average of the weights."""
    model, optimizer = made()
    average: list[torch.Tensor] = []
    for step in range(steps):
        step_of(model, optimizer, batch())
        if step == steps // 2:
            average = [weight.detach().clone() for weight in model.parameters()]
        for mean, weight in zip(average, model.parameters(), strict=False):
            mean.lerp_(weight.detach(), 0.01)


def logs_losses(steps: int) -> None:
    """The loss of each step stays, as a number on the GPU."""
    model, optimizer = made()
    losses = [step_of(model, optimizer, batch()) for _ in range(steps)]
    torch.stack(losses)


def flushes(steps: int) -> None:
    """Outputs are collected, and given away now and then."""
    model, optimizer = made()
    kept: list[torch.Tensor] = []
    for step in range(steps):
        words = batch()
        logits = model(words)
        kept.append(logits.detach())
        loss_of(logits, words).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % (steps // 7) == 0:
            kept.clear()


def ring(steps: int) -> None:
    """The last outputs are kept, as a replay buffer does."""
    model, optimizer = made()
    kept: list[torch.Tensor] = []
    for _ in range(steps):
        words = batch()
        logits = model(words)
        kept = [*kept[-(steps // 5) :], logits.detach()]
        loss_of(logits, words).backward()
        optimizer.step()
        optimizer.zero_grad()


def masks_for_lengths(steps: int) -> None:
    """A mask for each length is made once."""
    model, optimizer = made()

    @cache
    def mask(length: int) -> torch.Tensor:
        return torch.ones(64 * length, length, device=GPU)

    for _ in range(steps):
        length = random.randint(4, 4 + steps // 10)
        mask(length)
        step_of(model, optimizer, batch(length=length))


def experts(steps: int) -> None:
    """An expert gets its states when it is first used."""
    parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(16)).to(GPU)
    optimizer = torch.optim.AdamW(parts.parameters())
    for _ in range(steps):
        x = torch.zeros(ROWS, WIDTH, device=GPU)
        for expert in random.sample(range(16), 2):
            x = parts[expert](x)
        x.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def unfreezes(steps: int) -> None:
    """A further layer is trained from time to time."""
    model = Model(layers=4).to(GPU)
    for layer in model.layers:
        layer.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(steps):
        if step % (steps // 4) == steps // 8:
            model.layers[-1 - step // (steps // 4)].requires_grad_(True)
        step_of(model, optimizer, batch())


def recurrent(steps: int) -> None:
    net = nn.LSTMCell(WIDTH, WIDTH).to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    state = None
    for _ in range(steps):
        for _ in range(4):
            state = net(torch.zeros(ROWS, WIDTH, device=GPU), state)
        state[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        state = tuple(part.detach() for part in state)


def two_optimizers(steps: int) -> None:
    """A generator and a critic take turns."""
    generator, critic = (nn.Linear(WIDTH, WIDTH).to(GPU) for _ in range(2))
    first = torch.optim.Adam(generator.parameters())
    second = torch.optim.RMSprop(critic.parameters())
    for _ in range(steps):
        fake = generator(torch.zeros(256, WIDTH, device=GPU))
        critic(fake.detach()).sum().backward()
        second.step()
        second.zero_grad()
        critic(fake).sum().backward()
        first.step()
        first.zero_grad()


def generates(steps: int) -> None:
    """Now and then a text is generated, with keys and values that grow."""
    model, optimizer = made()
    for step in range(steps):
        step_of(model, optimizer, batch())
        if step % (steps // 5) == 2:
            keys = torch.zeros(ROWS, 0, WIDTH, device=GPU)
            for _ in range(12):
                keys = torch.cat((keys, torch.zeros(ROWS, 1, WIDTH, device=GPU)), dim=1)
                model(batch(length=1)).detach()
            del keys


def skips_a_batch(steps: int) -> None:
    """A batch that does not fit is left out, properly."""
    model, optimizer = made()
    for step in range(steps):
        try:
            step_of(model, optimizer, batch(rows=2**22 if step % (steps // 4) == 2 else ROWS))
        except torch.OutOfMemoryError:
            optimizer.zero_grad()


def images(steps: int) -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3)).to(GPU)
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(steps):
        net(torch.zeros(4, 3, 32, 32, device=GPU)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def only_evaluates(steps: int) -> None:
    model = Model().to(GPU).eval()
    with torch.no_grad():
        for _ in range(steps):
            words = batch(length=random.randint(8, 64))
            loss_of(model(words), words)


# --- leaks


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


LOOPS: dict[str, Loop] = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__annotations__", {}).get("steps") == "int"
}


def run(name: str, steps: int, folder: Path) -> None:
    """Run a loop with a history of its own."""
    random.seed(0)
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=10_000_000)
    LOOPS[name](steps)
    torch.cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))
    torch.cuda.memory._record_memory_history(None)
    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    for loop in sys.argv[3:]:
        run(loop, int(sys.argv[2]), Path(sys.argv[1]))
