"""Is what `plan` predicts what torch does? Simulated rungs against the same on the emulated card.

    python scripts/evaluation/simulated_emulated.py --python .venv-cuda/bin/python
    python scripts/evaluation/simulated_emulated.py --only Qwen2.5-0.5B --only T4
    python scripts/evaluation/simulated_emulated.py --write tests/data/emulated/differences.json

Each rung of `emulated/rungs.py` runs its training step on the emulated card, by an unmodified CUDA
build of torch, and is simulated in the same interpreter. Printed are both peaks, allocated and
reserved, in bytes, their difference, and what all differences come to. `--python` is an interpreter
with a CUDA build of torch and the training libraries; rows of other versions of torch are kept
beside each other. About 20 minutes on two cores for all rungs.
Exit code 0 when the goals are met, else 3; 4 when no rung has an answer.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from emulated.both import Compared, Peaks, both
from emulated.rungs import EmulatedRung, rungs
from emulated.table import Row, Summary, allocated, reserved, row, row_of, summary

from oomdoctor.emulator.interpreter import ask
from oomdoctor.units import format_bytes

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "emulated" / "differences.json"


def main() -> int:
    """Run, print, write what was asked for, judge."""
    options = parse_options()
    chosen = [rung for rung in rungs() if all(word in rung.name for word in options.only or ())]
    stored = rows_in(FILE)
    if options.stored:
        names = {rung.name for rung in chosen}
        rows = [each for each in stored if each.rung.name in names]
    else:
        torch = release(options.python.absolute())
        known = {each.rung.name: each.emulated for each in stored if each.torch == torch}
        rows, failed = run(chosen, torch, options, known if options.simulate else {})
        for rung, reason in failed:
            print(f"no answer: {rung.name}: {reason}")
    if not rows:
        return 4
    print_summaries(rows)
    if options.write is not None:
        write(options.write, rows)
    return 0 if meets_goals(rows) else 3


def release(python: Path) -> str:
    """The version of an interpreter's torch, without the part that names the build."""
    version = ask(python).torch_version
    if version is None:
        raise SystemExit(f"error: {python} has no torch")
    return version.partition("+")[0]


def parse_options() -> argparse.Namespace:
    """The command line; argparse's help is this file's first paragraphs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, default=ROOT / ".venv-cuda" / "bin" / "python")
    parser.add_argument("--only", action="append", help="part of a rung's name; all must match")
    parser.add_argument("--stored", action="store_true", help="print what the file of data has")
    parser.add_argument(
        "--simulate", action="store_true", help="take the emulated peaks from the file of data"
    )
    parser.add_argument("--folder", type=Path, help="keep jobs and logs in this new folder")
    parser.add_argument("--cache", type=Path, help="where the emulator's libraries are kept")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", type=Path, help="write the rows into this file of data")
    return parser.parse_args()


def run(
    chosen: Sequence[EmulatedRung],
    torch: str,
    options: argparse.Namespace,
    known: Mapping[str, Peaks],
) -> tuple[list[Row], list[tuple[EmulatedRung, str]]]:
    """All rungs by both ways, in a few threads with workers of their own.

    What is `known` is not emulated again.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = options.folder or Path(made)
        cache = options.cache or folder / "cache"
        found: dict[str, Compared] = {}

        def work(number: int) -> None:
            own = folder / f"worker-{number}"
            own.mkdir(parents=True)
            with both(options.python.absolute(), own, cache) as workers:
                for rung in shares[number]:
                    found[rung.name] = workers.compare(rung, known.get(rung.name))
                    tell(rung, torch, found[rung.name])

        shares = [chosen[number :: options.processes] for number in range(options.processes)]
        with ThreadPoolExecutor(options.processes) as threads:
            list(threads.map(work, range(options.processes)))
    made_rows = [(rung, row(rung, torch, found[rung.name])) for rung in chosen]
    rows = [each for _, each in made_rows if each is not None]
    failed = [(rung, found[rung.name].reason or "") for rung, each in made_rows if each is None]
    return rows, failed


def tell(rung: EmulatedRung, torch: str, compared: Compared) -> None:
    """One line a rung, as soon as it is there."""
    made = row(rung, torch, compared)
    if made is None:
        print(f"{rung.name:100} {compared.reason}", flush=True)
        return
    one, other = made.emulated, made.simulated
    verdict = "" if made.agrees else f"  FITS: emulated {one.fits}, simulated {other.fits}"
    print(
        f"{rung.name:100} {_pair(one.allocated, other.allocated)}  "
        f"{_pair(one.reserved, other.reserved)}{verdict}",
        flush=True,
    )


def _pair(emulated: int, simulated: int) -> str:
    difference = simulated - emulated
    return f"{format_bytes(emulated):>10} {difference:>+13,} {difference / emulated * 100:>+8.3f}%"


def print_summaries(rows: Sequence[Row]) -> None:
    """Over all rungs, then by card, by method and by model."""
    print(f"\n{'':42} {'rungs':>5} {'equal':>6} {'median':>8} {'95th':>8} {'worst':>8}   reserved")
    groups: list[tuple[str, Callable[[Row], str]]] = [
        ("all", lambda _: "all"),
        ("torch", lambda row: row.torch),
        ("card", lambda row: row.rung.card),
        ("method", lambda row: row.rung.config.method),
        ("optimizer", lambda row: row.rung.config.optimizer),
        ("model", lambda row: row.rung.model),
    ]
    for _, kind in groups:
        for name in dict.fromkeys(map(kind, rows)):
            own = [row for row in rows if kind(row) == name]
            of = summary(own, allocated), summary(own, reserved)
            print(f"{name:42} {of[0].rungs:>5} {_line(of[0])}   {_line(of[1])}")
        print()
    print(f"verdicts that differ: {sum(not row.agrees for row in rows)}")


def _line(of: Summary) -> str:
    percents = (of.median, of.p95, of.worst)
    return f"{of.equal:>6.1%} " + " ".join(f"{100 * share:>7.3f}%" for share in percents)


def rows_in(file: Path) -> list[Row]:
    """The rows of a file of data."""
    return [row_of(each) for each in json.loads(file.read_text())] if file.exists() else []


def write(file: Path, rows: Sequence[Row]) -> None:
    """Put rows into a file of data: one line a rung, so that a change can be read.

    Rows of other rungs stay, if the rungs still exist.
    """
    kept = {each.name: each for each in (*rows_in(file), *rows)}
    places = {rung.name: place for place, rung in enumerate(rungs())}
    still = [each for each in kept.values() if each.rung.name in places]
    ordered = sorted(still, key=lambda each: (_number(each.torch), places[each.rung.name]))
    lines = ",\n".join(json.dumps(each.document()) for each in ordered)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[\n{lines}\n]\n")


def _number(torch: str) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.split(".") if part.isdigit())


def meets_goals(rows: Sequence[Row]) -> bool:
    """Those of this comparison: see docs on the emulated GPU."""
    of, reserve = summary(rows, allocated), summary(rows, reserved)
    return (
        of.equal >= 0.9
        and of.worst <= 0.005
        and reserve.equal >= 0.75
        and reserve.median <= 0.0002
        and reserve.worst <= 0.03
        and all(each.agrees for each in rows)
    )


if __name__ == "__main__":
    sys.exit(main())
