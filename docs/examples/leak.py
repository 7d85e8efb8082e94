"""A loop that keeps the output of each step, and so the memory behind it."""

import torch

from oomdoctor.monitor import watch_memory


def main() -> None:
    """Train some steps, and log the memory of each to memory.jsonl."""
    layers = torch.nn.Linear(4096, 16384), torch.nn.ReLU(), torch.nn.Linear(16384, 4096)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    outputs = []
    with watch_memory(log="memory.jsonl", total_steps=2000) as memory:
        for _ in range(60):
            output = model(torch.randn(2048, 4096, device="cuda"))
            outputs.append(output)  # without .detach().cpu()
            output.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            memory.step()


if __name__ == "__main__":
    main()
