"""What ranks tell each other through small integers arrives; floats do not travel."""

from __future__ import annotations

from dataclasses import replace

from emulated_bench import H100, MIB, Bench

from oomdoctor.emulator.card import Devices

# Each rank is a process of its own, as torchrun starts them.
RANKS = """
import torch.distributed as dist
def main(rank, n, folder):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{folder}/rendezvous", rank=rank, world_size=n)
    d = "cuda"
    def ints(*values):
        return torch.tensor(values, device=d)
    told = {}
    BODY
    dist.barrier()
    print("TOLD", json.dumps({f"rank{rank}": told}), flush=True)
    dist.destroy_process_group()
if __name__ == "__main__":
    torch.multiprocessing.spawn(main, (3, os.path.dirname(os.path.abspath(__file__))), nprocs=3)
"""
BODY = """
    def used():
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()
    x = ints(rank); told["outside"] = [used()]
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x, group=pair)
    told["outside"].append(used())
    x = ints(rank); dist.all_reduce(x); told["outside"].append(used())
    if rank < 2:
        dist.all_reduce(x, group=pair)
    told["outside"].append(used())
    x = ints(rank + 1, 10 * rank); dist.all_reduce(x); told["sum"] = x.tolist()
    x = ints(rank + 1); dist.all_reduce(x, dist.ReduceOp.MAX); told["max"] = x.item()
    x = ints(rank * 7 + 3, 5); dist.broadcast(x, 1); told["broadcast"] = x.tolist()
    parts = [torch.zeros(2, dtype=torch.long, device=d) for _ in range(n)]
    dist.all_gather(parts, ints(rank, rank * rank)); told["gather"] = [p.tolist() for p in parts]
    x = torch.empty(2, dtype=torch.long, device=d)
    dist.reduce_scatter_tensor(x, torch.arange(2 * n, device=d) + rank)
    told["scatter"] = x.tolist()
    x = ints(rank); dist.reduce(x, 2); told["reduce"] = x.item() if rank == 2 else 3
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank, "text": "a" * (10 + 3000 * rank)})
    told["objects"] = [[o["rank"], len(o["text"])] for o in objects]
    listed = [{"k": [1, 2]}] if rank == 0 else [None]
    dist.broadcast_object_list(listed, 0); told["listed"] = listed
    gives, takes = [rank + 1] * n, [i + 1 for i in range(n)]
    x = torch.empty(sum(takes), dtype=torch.long, device=d)
    dist.all_to_all_single(x, torch.full((sum(gives),), rank, device=d), takes, gives)
    told["all_to_all"] = x.tolist()
    x = torch.zeros(1, dtype=torch.long, device=d)
    ring = [dist.P2POp(dist.isend, ints(rank), (rank + 1) % n),
            dist.P2POp(dist.irecv, x, (rank - 1) % n)]
    [work.wait() for work in dist.batch_isend_irecv(ring)]
    told["ring"] = x.item()
    x = ints(rank + 1)
    if rank < 2:
        dist.all_reduce(x, group=pair)
    told["group"] = x.item()
    x = torch.ones(3, device=d); dist.all_reduce(x); told["floats"] = x.tolist()
    x = torch.ones(3000, device=d); dist.all_reduce(x); told["gradients"] = x.sum().item()
    torch.manual_seed(0)
    module = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Linear(4, 4).cuda(), device_ids=[rank])
    module(torch.randn(2, 4, device=d)).sum().backward()
    told["ddp"] = True
"""


def test_integers_and_objects_travel_between_ranks(bench: Bench) -> None:
    card = replace(H100, nccl_bytes=(544 * MIB, 688 * MIB))
    told = bench.run(RANKS.replace("    BODY", BODY.strip("\n")), Devices(card, 3))
    for rank in range(3):
        more = (0, 544 if rank < 2 else 0, 688, 688)
        assert told[f"rank{rank}"] == {
            "outside": [card.context_bytes + mib * MIB for mib in more],
            "sum": [6, 30],
            "max": 3,
            "broadcast": [10, 5],
            "gather": [[0, 0], [1, 1], [2, 4]],
            "scatter": [3 + 6 * rank, 6 + 6 * rank],
            "reduce": 3,
            "objects": [[0, 10], [1, 3010], [2, 6010]],
            "listed": [{"k": [1, 2]}],
            "all_to_all": [0, 1, 1, 2, 2, 2],
            "ring": (rank - 1) % 3,
            "group": 3,
            "floats": [3.0, 3.0, 3.0],
            "gradients": 0.0,
            "ddp": True,
        }
