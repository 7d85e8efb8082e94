"""How long `oomdoctor plan` takes and how much memory, as whole commands.

    python scripts/benchmarks/plan_speed.py
    python scripts/benchmarks/plan_speed.py --only depth --only rungs --runs 3

First the goals: the default ladder with its search over micro-batches for models of the catalogue,
on two cards. Then series around one Llama (32 layers, width 2048, sequence 2048, 4 rungs, a B300,
on which every rung of the series fits) in which one factor at a time changes. The base is run in
the same go, and each row is shown as a ratio to its time. Rungs should cost in proportion; depth,
width and sequence hardly anything: few layers stand for all, and no tensor has values.

Each command is a fresh process with an empty state folder and no network. Wall and CPU time are
medians over `--runs`, memory is the most of any run. CPU time is that of all processes, "process"
the resident memory of the largest, "tree" what all of them have together at one time, by which the
goal is judged (on Linux; elsewhere by the largest). Times mean something on a machine that does
nothing else. Four minutes on two cores. Exit code 0 when the goals are met, else 3; 4 when `--only`
leaves nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from command_cost import Cost, cost_of

from oomdoctor.units import format_bytes

GOALS_S = {
    "meta-llama/Llama-3.1-8B": 15.0,
    "meta-llama/Llama-3.1-70B": 20.0,
    "meta-llama/Llama-3.1-405B": 30.0,
}
MEMORY_GOAL = 4 << 30
CARDS = ("H100 SXM", "RTX 4090")
_SERIES_CARD = "B300"
_LADDER = tuple(
    f"{method},activation_checkpointing={checkpointing},optimizer={optimizer}"
    for optimizer in ("adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "adafactor")
    for method in ("method=full", "method=lora")
    for checkpointing in ("none", "full")
)
_HEAD = 128  # width of an attention head


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama and what is planned for it."""

    layers: int = 32
    width: int = 2048
    sequence: int = 2048
    rungs: int = 4


BASE = Shape()
SERIES: dict[str, tuple[Shape, ...]] = {
    "depth": tuple(replace(BASE, layers=n) for n in (8, 16, 64, 128)),
    "width": tuple(replace(BASE, width=n) for n in (512, 1024, 4096)),
    "sequence": tuple(replace(BASE, sequence=n) for n in (512, 8192, 32768)),
    "rungs": tuple(replace(BASE, rungs=n) for n in (1, 2, 8, 16)),
}
_FACTOR = {"depth": "layers", "width": "width", "sequence": "sequence", "rungs": "rungs"}


@dataclass(frozen=True, slots=True)
class Row:
    """What the runs of one command come to; `goal_s` only where there is one."""

    name: str
    wall_s: float
    cpu_s: float
    process_bytes: int
    tree_bytes: int | None
    walls_s: tuple[float, ...]
    goal_s: float | None = None
    ratio: float | None = None

    @property
    def met(self) -> bool:
        """Whether time and memory are within the goal, if there is one."""
        if self.goal_s is None:
            return True
        return self.wall_s <= self.goal_s and (self.tree_bytes or self.process_bytes) <= MEMORY_GOAL


def main() -> int:
    """Run what was chosen; print and judge."""
    options = parse_options()
    with tempfile.TemporaryDirectory() as scratch:
        rows = list(measured(options, Path(scratch)))
    if options.json:
        goal = {"memory_goal_bytes": MEMORY_GOAL}
        print(json.dumps(goal | {"rows": [asdict(r) | {"met": r.met} for r in rows]}, indent=2))
    else:
        print_table(rows)
    if not rows:
        return 4
    return 0 if all(row.met for row in rows) else 3


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", help="part of a row's name; repeatable")
    parser.add_argument("--runs", type=int, default=1, help="of each command")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measured(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """The rows that were chosen, the base of the series before them."""

    def chosen(name: str) -> bool:
        return not options.only or any(word in name for word in options.only)

    for model, goal_s in GOALS_S.items():
        for card in CARDS:
            name = f"goal {model.split('/')[1]} {card}"
            if chosen(name):
                asked = (model, "--source", "catalogue", "--gpu", card)
                yield replace(row_of(name, asked, options.runs, folder), goal_s=goal_s)
    series = [
        (name, shape)
        for factor, shapes in SERIES.items()
        for shape in shapes
        if chosen(name := f"{factor} {getattr(shape, _FACTOR[factor])}")
    ]
    if not series and not (options.only and chosen("base")):
        return
    base = row_of("base", asked_of(BASE, folder), options.runs, folder)
    yield replace(base, ratio=1.0)
    for name, shape in series:
        row = row_of(name, asked_of(shape, folder), options.runs, folder)
        yield replace(row, ratio=row.wall_s / base.wall_s)


def asked_of(shape: Shape, folder: Path) -> tuple[str, ...]:
    """The arguments that plan a shape; its config.json is written below the folder."""
    place = folder / f"llama-{shape.layers}-{shape.width}"
    place.mkdir(exist_ok=True)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape.width,
        "intermediate_size": 3 * shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.width // _HEAD,
        "num_key_value_heads": shape.width // _HEAD,
        "max_position_embeddings": 1 << 17,
        "vocab_size": 32000,
    }
    (place / "config.json").write_text(json.dumps(config))
    rungs = [word for rung in _LADDER[: shape.rungs] for word in ("--rung", rung)]
    length = str(shape.sequence)
    return (str(place), "--gpu", _SERIES_CARD, "--seq-len", length, "--recipe", "none", *rungs)


def row_of(name: str, asked: tuple[str, ...], runs: int, folder: Path) -> Row:
    """One command, some times over."""
    found = [run_plan(asked, folder) for _ in range(runs)]
    print(f"{name}: {found[-1].wall_s:.1f} s", file=sys.stderr, flush=True)
    walls = tuple(run.wall_s for run in found)
    trees = [run.tree_bytes for run in found if run.tree_bytes is not None]
    return Row(
        name=name,
        wall_s=statistics.median(walls),
        cpu_s=statistics.median(run.cpu_s for run in found),
        process_bytes=max(run.process_bytes for run in found),
        tree_bytes=max(trees, default=None),
        walls_s=walls,
    )


def run_plan(asked: tuple[str, ...], folder: Path) -> Cost:
    """One `oomdoctor plan` in a process of its own.

    Raises:
        SystemExit: it came to no report, or a rung failed, which would be quick.
    """
    command = [sys.executable, "-m", "oomdoctor", "plan", *asked, "--quiet", "--json"]
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        own = {"HF_HUB_OFFLINE": "1", "XDG_STATE_HOME": scratch, "XDG_CACHE_HOME": scratch}
        answer = Path(scratch) / "answer.json"
        cost = cost_of(command, environment=own, folder=folder, answer=answer)
        if cost.returncode not in (0, 3):
            raise SystemExit(f"error: {' '.join(command)} ended with {cost.returncode}")
        results = json.loads(answer.read_text())["results"]
    failed = [f"{row['label']}: {row['reason']}" for row in results if row["outcome"] == "failed"]
    if failed or not results:
        raise SystemExit(f"error: {' '.join(command)}: {'; '.join(failed) or 'no rung'}")
    return cost


def print_table(rows: list[Row]) -> None:
    """One line a command; the goal or the ratio to the base at its end."""
    print(f"{'command':34} {'wall s':>7} {'CPU s':>7} {'process':>9} {'tree':>9}")
    for row in rows:
        tree = "-" if row.tree_bytes is None else format_bytes(row.tree_bytes)
        told = "" if row.ratio is None else f"  {row.ratio:5.2f} of the base"
        if row.goal_s is not None:
            told = f"  goal {row.goal_s:g} s, {format_bytes(MEMORY_GOAL)}: "
            told += "met" if row.met else "missed"
        print(
            f"{row.name:34} {row.wall_s:7.1f} {row.cpu_s:7.1f} "
            f"{format_bytes(row.process_bytes):>9} {tree:>9}{told}"
        )


if __name__ == "__main__":
    sys.exit(main())
