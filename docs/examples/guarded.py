"""A loop whose batches get longer, until one does not fit. The guard says why."""

import torch

from oomdoctor.monitor import guard


def main() -> None:
    """Train some steps, each with twice as many rows as the one before."""
    layers = torch.nn.Linear(4096, 16384), torch.nn.ReLU(), torch.nn.Linear(16384, 4096)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for rows in (8192, 16384, 32768, 65536, 131072):
        with guard():
            output = model(torch.randn(rows, 4096, device="cuda"))
            output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    try:
        main()
    except torch.OutOfMemoryError as error:
        raise SystemExit(str(error)) from None
