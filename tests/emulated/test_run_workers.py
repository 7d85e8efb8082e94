"""Workers of a data loader: batches arrive right, and only the training is on the device."""

from __future__ import annotations

import pytest
from emulated_run import Watched
from weekly_rows import weekly

LOADED = """
import os, sys, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

def row(i):
    return list(range(i, i + 3 + i % 5))

class Rows(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        ids = torch.tensor((row(i) + [0] * 8)[:8])
        return {"ids": ids, "mask": torch.arange(8) < len(row(i)), "by": get_worker_info().id}

if __name__ == "__main__":
    import pynvml
    held = torch.ones(1 << 20, device="cuda")  # before the workers start
    flags = torch.tensor([1, 2, 3], device="cuda")
    begin = torch.cuda.mem_get_info(), torch.cuda.memory_allocated()
    loader = DataLoader(Rows(), batch_size=4, num_workers=2, pin_memory=True,
                        persistent_workers=True, multiprocessing_context=sys.argv[1])
    batches, by = 0, set()
    for epoch in range(2):
        for number, batch in enumerate(loader):
            rows = [row(i) for i in range(4 * number, 4 * number + 4)]
            assert batch["ids"].is_pinned()
            on = {name: part.to("cuda", non_blocking=True) for name, part in batch.items()}
            assert on["mask"].sum(1).tolist() == [len(one) for one in rows]
            assert on["ids"][on["mask"]].tolist() == [i for one in rows for i in one]
            assert flags.tolist() == [1, 2, 3]
            by |= set(batch["by"].tolist())
            batches += 1
            del on
    assert (torch.cuda.mem_get_info(), torch.cuda.memory_allocated()) == begin
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    users = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
    assert users == [os.getpid()]
    print(batches, len(by), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", weekly("spawn")])
def test_batches_of_workers_arrive_right(watched: Watched, context: str) -> None:
    report, out, error = watched.run("T4", LOADED, "python", "train.py", context)
    assert (report.exit_code, out) == (0, "12 2\n"), error
    (rank,) = report.ranks
    assert rank.unknown_branches == ()
    assert report.device is not None and report.device.usable_bytes is not None
    assert rank.headroom_bytes == report.device.usable_bytes - rank.peak_reserved_bytes
