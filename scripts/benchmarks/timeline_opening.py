"""How long it takes to make the page of a timeline and to open it in a browser.

    python scripts/benchmarks/timeline_opening.py [--events 100000 1000000] [--keep FOLDER]

The histories are made up: a training of many layers, with other blocks in each step. The aims are
5 s from a click to the drawn page for 1,000,000 events, and 5 MB for 100,000. The browser is a
Chromium without a window and without a GPU, so it is slower than on a desktop.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "examples"))
from chromium import browser, program

from oomdoctor.analysis.allocator.sizes import round_size
from oomdoctor.package_data import page_parts
from oomdoctor.render.snapshot.timeline_page import PARTS, page
from oomdoctor.snapshot.history import History, history_of
from oomdoctor.snapshot.reading.events import Events, Traces
from oomdoctor.snapshot.reading.snapshot import DeviceSnapshot, HeldSegment, Snapshot
from oomdoctor.snapshot.timeline import timeline_of
from oomdoctor.units import GIB, MIB

T = TypeVar("T")
LAYERS = 48
LIBRARY = "/venv/lib/python3.11/site-packages/torch"


class Maker:
    """Writes the events of a training."""

    def __init__(self) -> None:
        self.events, self.traces = Events(), Traces()
        self.luck = random.Random(3)
        self.next, self.live = 1 << 40, dict[int, int]()
        self.stacks: dict[tuple[str, int], int] = {}

    def stack(self, kind: str, line: int) -> int:
        """A call stack of 40 frames."""
        places = {
            "load": ("train.py", "load_model"),
            "forward": ("model.py", "forward"),
            "optimizer": (f"{LIBRARY}/optim/adamw.py", "step"),
        }
        if (kind, line) not in self.stacks:
            own = [("model.py", 30 + line, "forward")] * 2 if kind == "forward" else []
            file, function = places.get(kind, ("??", "backward"))
            rest = [(f"{LIBRARY}/nn/modules/module.py", 1700 + n, f"call_{n}") for n in range(36)]
            frames = [(file, line, function), *own, *(rest if kind == "forward" else [])]
            if kind != "backward":
                frames.append(("train.py", 20, "main"))
            items = [dict(zip(("filename", "line", "name"), one, strict=True)) for one in frames]
            self.stacks[kind, line] = self.traces.stacks.add(-1, items)
        return self.stacks[kind, line]

    def note(self, action: str, address: int, size: int, stack: int) -> None:
        """Add an event."""
        at = 10**15 + 37 * len(self.events)
        self.events.add({"action": action, "addr": address, "size": size, "time_us": at}, stack)

    def alloc(self, size: int, kind: str, line: int) -> int:
        """A block at an address where none was before."""
        address, self.next = self.next, self.next + round_size(size, ())
        self.note("alloc", address, size, self.stack(kind, line))
        self.live[address] = size
        return address

    def free(self, address: int) -> None:
        """Free a block."""
        size = self.live.pop(address)
        for action in ("free_requested", "free_completed"):
            self.note(action, address, size, -1)

    def size(self) -> int:
        """Bytes of an activation."""
        return self.luck.randrange(2 * MIB, 12 * MIB)

    def step(self, first: bool) -> None:
        """One step of the training."""
        kept, gradients = [], []
        for layer in range(LAYERS):
            for part in range(8):
                kept.append(self.alloc(self.size(), "forward", 8 * layer + part))
                self.free(self.alloc(self.size(), "forward", 8 * layer + part))
        for layer in reversed(range(LAYERS)):
            for _ in range(8):
                self.free(self.alloc(self.size(), "backward", 0))
                self.free(kept.pop())
            gradients.append(self.alloc(40 * MIB, "backward", layer % 2))
        for layer in range(LAYERS):
            if first:
                self.alloc(80 * MIB, "optimizer", layer)
            self.free(self.alloc(20 * MIB, "optimizer", layer))
        for address in gradients:
            self.free(address)


def history(count: int) -> History:
    """A history of at least `count` events."""
    maker = Maker()
    for layer in range(LAYERS):
        maker.alloc(40 * MIB, "load", layer)
    while len(maker.events) < count:
        maker.step(first=len(maker.events) == LAYERS)
    segment = HeldSegment(1 << 40, 64 * GIB, True, ())
    device = DeviceSnapshot(0, (segment,), maker.events, ())
    return history_of(Snapshot((device,), {}, maker.traces.stacks), device)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """What the work returns, and the seconds that it took."""
    began = time.perf_counter()
    value = work()
    return time.perf_counter() - began, value


def main() -> int:
    """Print a row for each length; 3 if an aim was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--keep", type=Path, help="leave the pages and their pictures here")
    given = parser.parse_args()
    missed = False
    print("   events  timeline   page       size    opens   zooms  hovers")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = given.keep or Path(name)
        for count in given.events:
            known = history(count)
            thinning, timeline = timed(lambda: timeline_of("made-up.pickle", [known]))  # noqa: B023
            making, text = timed(lambda: page(timeline, page_parts("timeline", PARTS)))  # noqa: B023
            file = folder / f"timeline-{count}.html"
            file.write_text(text)
            row = f"{len(known.device.events):9,}  {thinning:6.1f} s  {making:4.1f} s  "
            row += f"{len(text) / 1e6:6.2f} MB"
            if program() is None:
                print(row, " no Chromium: scripts/chromium.sh installs it")
                continue
            opening, zooming, hovering = in_browser(file, Path(name) / f"profile-{count}")
            print(f"{row}  {opening:5.2f} s  {zooming * 1e3:3.0f} ms  {hovering * 1e3:3.0f} ms")
            missed |= opening > 5 or (count <= 100_000 and len(text) > 5_000_000)
    return 3 if missed else 0


def in_browser(file: Path, profile: Path) -> tuple[float, float, float]:
    """Seconds until the page is drawn, to draw a zoomed part, and to follow the pointer."""
    with browser(profile) as tab:
        frame = "new Promise((done) => requestAnimationFrame(() => setTimeout(done)))"
        opening, _ = timed(lambda: (tab.open(file), tab.value(frame)))
        tab.picture(file.with_suffix(".png"))
        zooming = tab.value(f"""(async () => {{
            const began = performance.now();
            const end = page.places.at(-1);
            page.plot.setScale("x", {{ min: end * 0.3, max: end * 0.6 }});
            await {frame};
            return performance.now() - began;
        }})()""")
        hovering = tab.value("""(() => {
            const began = performance.now();
            for (let at = 0; at < 50; at++) page.plot.setCursor({ left: 9 * at, top: 5 * at });
            return (performance.now() - began) / 50;
        })()""")
        return opening, zooming / 1e3, hovering / 1e3


if __name__ == "__main__":
    sys.exit(main())
