"""Training loops without a leak; many of them look like one for a while."""

from __future__ import annotations

import random
from functools import cache

import torch
from loop_model import GPU, ROWS, WIDTH, Model, batch, loss_of, made, step_of
from torch import nn


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
