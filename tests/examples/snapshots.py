"""Small memory snapshots as torch writes them, made by hand."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from oomdoctor.units import MIB

BASE = 0x7F00_0000_0000
LIBRARY = "/venv/lib/python3.11/site-packages"
FRAMES = {
    "load": [("to", f"{LIBRARY}/torch/nn/modules/module.py", 1340), ("main", "train.py", 10)],
    "forward": [
        ("forward", f"{LIBRARY}/torch/nn/modules/linear.py", 125),
        ("_call_impl", f"{LIBRARY}/torch/nn/modules/module.py", 1750),
        ("forward", "model.py", 33),
        ("_call_impl", f"{LIBRARY}/torch/nn/modules/module.py", 1750),
        ("main", "train.py", 20),
    ],
    "embedding": [
        ("forward", f"{LIBRARY}/torch/nn/modules/sparse.py", 190),
        ("_call_impl", f"{LIBRARY}/torch/nn/modules/module.py", 1750),
        ("main", "train.py", 20),
    ],
    "evaluation": [
        ("cat", f"{LIBRARY}/torch/functional.py", 10),
        ("evaluation_loop", "train.py", 40),
        ("main", "train.py", 30),
    ],
    "loss": [
        ("cross_entropy", f"{LIBRARY}/torch/nn/functional.py", 3462),
        ("main", "train.py", 21),
    ],
    "backward": [("clone3.S", "??", 0)],
    "optimizer": [
        ("adamw", f"{LIBRARY}/torch/optim/adamw.py", 900),
        ("step", f"{LIBRARY}/torch/optim/adamw.py", 243),
        ("wrapper", f"{LIBRARY}/torch/optim/optimizer.py", 493),
        ("main", "train.py", 23),
    ],
    "kept": [("main", "train.py", 24)],
}


class Writer:
    """Writes the history of one device: each block gets a segment of its own."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.blocks: dict[str, tuple[int, int, int, str]] = {}
        self.segments: dict[int, tuple[int, int]] = {}
        self._frames = {
            name: [dict(zip(("name", "filename", "line"), frame, strict=True)) for frame in frames]
            for name, frames in FRAMES.items()
        }

    def note(self, action: str, address: int, size: int, stack: str) -> None:
        """Add an event."""
        entry = {"action": action, "addr": address, "size": size, "stream": 0}
        entry |= {"time_us": 1_000 + len(self.events), "frames": list(self._frames.get(stack, ()))}
        if action == "oom":
            entry["device_free"] = entry.pop("addr")
        self.events.append(entry)

    def alloc(self, name: str, size: int, stack: str) -> None:
        """A block, in a free segment that has room for it or a new one."""
        used = {address for address, *_ in self.blocks.values()}
        rounded = -(-size // 512) * 512
        for address, (room, _) in sorted(self.segments.items()):
            if address not in used and room >= rounded:
                break
        else:
            room = max(2 * MIB, -(-rounded // (2 * MIB)) * 2 * MIB)
            address = max((at + r for at, (r, _) in self.segments.items()), default=BASE)
            self.segments[address] = (room, len(self.events))
            self.note("segment_alloc", address, room, stack)
        rest = room - rounded
        whole = rest < 512 if rounded <= MIB else rest <= MIB
        self.blocks[name] = (address, size, room if whole else rounded, stack)
        self.note("alloc", address, size, stack)

    def free(self, *names: str) -> None:
        """Free blocks."""
        for name in names:
            address, size, _, stack = self.blocks.pop(name)
            self.note("free_requested", address, size, stack)
            self.note("free_completed", address, size, stack)

    def give_back(self, stack: str) -> None:
        """What a failed request, or `empty_cache`, does: free segments go back to the driver."""
        used = {address for address, *_ in self.blocks.values()}
        for address, (room, _) in list(self.segments.items()):
            if address not in used:
                del self.segments[address]
                self.note("segment_free", address, room, stack)

    def snapshot(self, conf: str = "") -> dict[str, Any]:
        """The whole snapshot."""
        by_address = {address: block for block in self.blocks.values() for address in block[:1]}
        segments = []
        for address, (room, _) in self.segments.items():
            blocks, at = [], address
            if address in by_address:
                _, size, held, stack = by_address[address]
                blocks.append(
                    {"address": at, "size": held, "requested_size": size}
                    | {"state": "active_allocated", "frames": list(self._frames.get(stack, ()))}
                )
                at += held
            if at < address + room:
                rest = address + room - at
                blocks.append(
                    {"address": at, "size": rest, "requested_size": 0}
                    | {"state": "inactive", "frames": []}
                )
            segments.append(
                {"device": 0, "address": address, "total_size": room, "stream": 0}
                | {"segment_type": "large" if room > 2 * MIB else "small"}
                | {"segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks}
            )
        return {
            "segments": segments,
            "device_traces": [self.events],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": conf},
            "external_annotations": self.annotations,
        }

    def write(self, path: Path, **kwargs: Any) -> Path:
        """Write the file that torch would."""
        path.write_bytes(pickle.dumps(self.snapshot(**kwargs)))
        return path


def training(steps: int = 3, leak: int = 0) -> Writer:
    """A training of one layer: weights of 8 MiB, activations of 24 MiB, logits of 32 MiB.

    `leak` bytes are kept in each step by a line of the loop.
    """
    w = Writer()
    w.alloc("weights", 8 * MIB, "load")
    for step in range(steps):
        w.alloc(f"activations {step}", 24 * MIB, "forward")
        w.alloc("logits", 32 * MIB, "loss")
        w.alloc("scratch", 4 * MIB, "backward")
        w.alloc("gradients", 8 * MIB, "backward")
        w.free("scratch", "logits", f"activations {step}")
        if leak:
            w.alloc(f"leak {step}", leak, "kept")
        if step == 0:
            w.alloc("state 1", 8 * MIB, "optimizer")
            w.alloc("state 2", 8 * MIB, "optimizer")
        w.alloc("temporary", 6 * MIB, "optimizer")
        w.free("temporary", "gradients")
    return w


def large_blocks(count: int = 3) -> Writer:
    """A training whose blocks are so large that torch gives each a segment, as `Writer` does."""
    writer = Writer()
    writer.alloc("weights", 16 * MIB, "load")
    for step in range(count):
        writer.alloc("activations", 24 * MIB, "forward")
        writer.alloc("gradients", 16 * MIB, "backward")
        if not step:
            writer.alloc("states", 32 * MIB, "optimizer")
        writer.free("activations", "gradients")
    return writer
