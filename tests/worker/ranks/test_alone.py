"""One rank that stands for all: what a launcher would tell it, and how torch answers it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from oomdoctor.records.configuration.config import TrainConfig
from oomdoctor.worker.protocol import launched_alone

# The functions of the module, because `torch.distributed` has copied their names before.
_ASKED = """
import json, os, socket, torch
from oomdoctor.emulator import alone

os.environ.update(RANK="0", WORLD_SIZE="4")
alone.answer_all()
from torch.distributed import distributed_c10d as c10d

with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    port = one.getsockname()[1]
c10d.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=4)
tensor, objects = torch.ones(2), ["own"]
found = {"size": c10d.get_world_size()}
c10d.all_reduce(tensor)
found["summed"] = tensor.tolist()
parts = [torch.zeros(2) for _ in range(4)]
c10d.all_gather(parts, tensor)
found["gathered"] = [part.tolist() for part in parts]
c10d.broadcast_object_list(objects, src=0)
found["objects"], found["refused"] = objects, []
for ask in (
    lambda: c10d.recv(tensor, src=1),
    lambda: c10d.all_to_all(parts, parts),
    lambda: c10d.broadcast_object_list(objects, src=2),
):
    try:
        ask()
    except RuntimeError as error:
        found["refused"].append(str(error))
print(json.dumps(found))
"""


def test_one_process_answers_for_four() -> None:
    done = subprocess.run([sys.executable, "-c", _ASKED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["size"] == 4
    assert found["summed"] == [4.0, 4.0]
    assert found["gathered"] == [[4.0, 4.0]] * 4
    assert found["objects"] == ["own"]
    what = [text.removeprefix("oomdoctor: ").partition(" needs")[0] for text in found["refused"]]
    assert what == ["recv with gloo", "all_to_all with gloo", "broadcast_object_list from rank 2"]
    assert all(text.endswith("leave out --ranks 1") for text in found["refused"])


@pytest.mark.parametrize(("world", "local"), [(4, 4), (8, 8), (16, 8), (12, 8)])
def test_a_launcher_tells_the_first_rank_of_its_node(world: int, local: int) -> None:
    config = replace(TrainConfig(), world_size=world, gpus_per_node=8)
    told = launched_alone(config, port=29_500)
    assert told["WORLD_SIZE"] == str(world) and told["LOCAL_WORLD_SIZE"] == str(local)
    assert told["RANK"] == told["LOCAL_RANK"] == "0"
    assert told["MASTER_PORT"] == "29500"
    assert launched_alone(config) == told | {"MASTER_PORT": "0"}
