"""Do training scripts that nobody here wrote run unchanged on the emulated GPU?

    python scripts/evaluation/third_party.py --make --fetch
    python scripts/evaluation/third_party.py --only trl --python trained/bin/python

Each row is a stock script: TRL's, torchtune's, transformers' examples, nanoGPT, Lightning,
accelerate, DeepSpeed on two ranks. It runs under `oomdoctor run --emulate`, on small data sets that
are made here, with checkpoints without data. The table says how it ended and its peaks.

Nothing is downloaded unless `--make` asks for the environment (about 1 GB) and `--fetch` for the
repositories. `--checkout karpathy/nanoGPT=FOLDER` takes one from a clone on this machine. Each row
takes one to three minutes and up to 2 GiB of host memory. Exit code 0 when all rows ended, 3 when
one did not, 2 when a script is missing.

--write FILE keeps the figures, for the documentation and the tests. --check FILE compares them with
such a file, runs no others, and exits with 3 if a script ends or peaks otherwise, or peaks outside
the bounds that `third/arithmetic.py` derives.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from importlib.metadata import distributions
from math import inf, isclose
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from third import inputs, litgpt, sources, vision
from third.arithmetic import BOUNDS, outside, trained_peak
from third.judged import JUDGED
from third.rows import GIB, ROWS
from third.running import run

ALL = ROWS + JUDGED
PAGE = 110  # characters of a line of the documentation
KEPT = ("result", "ranks")  # of a run with another torch
VARIES = 0.02  # of a peak, between two runs of a row that says why it varies


def main() -> int:
    options = _options()
    rows = [row for row in ALL if any(_asked(row.name, text) for text in options.only)]
    if options.check:
        recorded = {r["name"] for r in json.loads(options.check.read_text())}
        rows = [row for row in rows if row.name in recorded]
    if options.fetch:
        sources.fetch(options.sources, dict(options.checkout))
    python = options.python or options.venv / "bin" / "python"
    if options.make:
        python = sources.make_environment(options.venv)
    second = options.second and options.second.absolute()
    if second and not second.exists():
        sources.make_second(python, second)
    readings, missing = [], []
    with tempfile.TemporaryDirectory() as made:
        given = Path(made) / "inputs"
        inputs.make(given)
        if any("/litgpt/" in row.command for row in rows):
            litgpt.make(given / "litgpt")
        if any(f"{{inputs}}/{cache}" in row.command for row in rows for cache in ("torch", "hub")):
            vision.make(given)
        for row in rows:
            script = sources.script_of(row, python, options.sources)
            if script is None:
                missing.append(row.name)
                continue
            folder = Path(made) / "run" / row.name / "here"
            folder.mkdir(parents=True)
            reading = run(row, python.absolute(), script.absolute(), given, folder, second)
            readings.append(reading)
            print(_line(reading), flush=True)
            if options.logs:
                options.logs.mkdir(parents=True, exist_ok=True)
                shutil.copy(folder / "log.txt", options.logs / f"{row.name}.txt")
            if options.write:
                _keep(reading, options.write, second)
            shutil.rmtree(folder.parent)
    for name in missing:
        print(f"missing  {name}: its script is not there; see --make, --fetch and --sources")
    ended = sum(reading["result"] == "ended" for reading in readings)
    print(f"{ended} of {len(readings)} scripts ran to their end")
    changed = _changed(readings, options.check, bool(second)) if options.check else []
    for reading in readings if options.check else ():
        if wrong := outside(reading):
            changed.append(f"bounds   {reading['name']}: {wrong}")
    print(*changed, sep="\n", end="\n" if changed else "")
    return 2 if missing else 3 if changed or (ended < len(readings) and not options.check) else 0


def _asked(name: str, text: str) -> bool:
    """Whether `--only TEXT` asks for a row: for the one of that name, else for all that have it."""
    return name == text or (text in name and all(row.name != text for row in ALL))


def _changed(readings: list[dict[str, Any]], file: Path, second: bool) -> list[str]:
    """A line for each script that ends or peaks otherwise than recorded with this torch."""
    varying = {row.name for row in ALL if row.varies}
    open_ = {row.name for row in ALL if row.reserves}
    recorded = {r["name"]: r for r in json.loads(file.read_text())}
    if second:
        recorded = {name: r["second"] for name, r in recorded.items() if "second" in r}
    return [
        f"changed  {r['name']}: {key} was {was.get(key)}, is {r.get(key)}"
        for r in readings
        if (was := recorded.get(r["name"]))
        for key in ("result", "ranks", "swept")
        if r.get(key) != was.get(key)
        and not (
            key == "ranks"
            and r["name"] in varying
            and _near(was[key], r[key], reserved=r["name"] not in open_)
        )
    ]


def _near(was: list[dict[str, int]], now: list[dict[str, int]], *, reserved: bool) -> bool:
    """Whether the same ranks took the same steps, with peaks that differ as little as `varies`.

    What was reserved is compared if `reserved` says so.
    """
    return len(was) == len(now) and all(
        isclose(one[key], other[key], rel_tol=VARIES if key.startswith("peak_") else 0.0)
        for one, other in zip(was, now, strict=True)
        for key in one
        if reserved or key != "peak_reserved_bytes"
    )


def _keep(reading: dict[str, Any], file: Path, second: Path | None) -> None:
    """Write a reading beside those that the file has of other rows, and of the other torch."""
    kept = {r["name"]: r for r in json.loads(file.read_text())} if file.exists() else {}
    row = kept.setdefault(reading["name"], {})
    if second:
        (torch,) = (d.version for d in distributions(name="torch", path=[str(second)]))
        row["second"] = {"torch": torch, **{key: reading[key] for key in KEPT}}
    else:
        row |= reading
    ordered = [kept[row.name] for row in ALL if row.name in kept]
    file.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def table(readings: list[dict[str, Any]]) -> str:
    """The table of scripts in docs/emulation.md."""
    (torch,) = {r["second"]["torch"] for r in readings if "second" in r}
    lines = [
        "| script | from | cards | result | peak allocated | peak reserved | allocated, torch "
        f"{torch} | difference |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in readings:
        if "published" in r or "swept" in r:
            continue
        peaks = " | ".join(_peaks(_fullest(r)))
        second = "- | -"
        if "second" in r:
            difference = second_difference(r) / _fullest(r)["peak_allocated_bytes"]
            second = f"{_peaks(_fullest(r['second']))[0]} | {difference:+.2%}"
        source = r["from"] + (", vLLM a stand-in" if "engine" in r else "")
        lines.append(
            f"| {r['name']} | {source} | {r['cards']} | {r['result']} | {peaks} | {second} |"
        )
    return "\n".join(lines)


def engine_table(readings: list[dict[str, Any]]) -> str:
    """The table of scripts with an engine on their card in docs/emulation.md."""
    lines = [
        "| script | the engine's share | generation | new weights | of it the engine | asleep |",
        "|---|---|---|---|---|---|",
    ]
    for r in readings:
        if "engine" not in r:
            continue
        at = {noted["moment"]: noted for noted in r["engine"]}
        asleep = _size(at["asleep"]["device_bytes"]) if "asleep" in at else "-"
        sizes = [at["generate"]["engine_bytes"], at["generate"]["device_bytes"]]
        sizes += [at["sync"]["device_bytes"], at["sync"]["engine_bytes"]]
        lines.append(f"| {r['name']} | {' | '.join(map(_size, sizes))} | {asleep} |")
    return "\n".join(lines)


def _size(number: int) -> str:
    return f"{number / GIB:.2f} GiB"


def arithmetic_table(readings: list[dict[str, Any]]) -> str:
    """The table of peaks between bounds by hand in docs/emulation.md."""
    lines = ["| script | at least | peak allocated | at most | from |", "|---|---|---|---|---|"]
    for r in readings:
        if (bounds := BOUNDS.get(r["name"])) is not None:
            sizes = map(_size, (bounds.least, trained_peak(r), bounds.most))
            lines.append(f"| {r['name']} | {' | '.join(sizes)} | {bounds.derivation} |")
    return "\n".join(lines)


def second_difference(reading: dict[str, Any]) -> int:
    """How many bytes more the fullest GPU has allocated with the other torch."""
    both = (_fullest(reading["second"]), _fullest(reading))
    here, there = (rank["peak_allocated_bytes"] for rank in both)
    return int(here - there)


def _fullest(reading: dict[str, Any]) -> Any:
    """The rank with the highest peak; None if the run has none."""
    return max(reading["ranks"], key=lambda rank: rank["peak_allocated_bytes"], default=None)


def judged(readings: list[dict[str, Any]]) -> list[tuple[dict[str, Any], int, float]]:
    """Readings with a published peak, the same figure here in bytes, the relative difference."""
    found = []
    for r in readings:
        if published := r.get("published"):
            figure = f"peak_{published['figure']}_bytes"
            here = max((rank[figure] for rank in r["ranks"]), default=0)
            found.append((r, here, here / (published["value"] * published["unit"]) - 1))
    return found


def judged_table(readings: list[dict[str, Any]]) -> str:
    """The table of peaks that were measured on real GPUs in docs/emulation.md."""
    lines = [
        "| script | from | cards | figure | published | emulated | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for r, here, difference in judged(readings):
        published = r["published"]
        unit = "GiB" if published["unit"] == GIB else "GB"
        digits = max(2, len(str(published["value"]).partition(".")[2]))
        both = (published["value"], here / published["unit"])
        figures = " | ".join(f"{figure:.{digits}f} {unit}" for figure in both)
        lines.append(
            f"| {r['name']} | {r['from']} | {r['cards']} | {published['figure']} | {figures} | "
            f"{difference:+.2%} |"
        )
    return "\n".join(lines)


def swept_differences(reading: dict[str, Any]) -> list[float]:
    """How far each size of a benchmark is off, relatively; infinite if the run wrote none."""
    figures = reading["swept"]["figures"]
    return [inf if here is None else here / there - 1 for _, there, here in figures]


def swept_table(readings: list[dict[str, Any]]) -> str:
    """The table of benchmarks that were measured for many sizes in docs/emulation.md."""
    lines = [
        "| script | from | cards | sizes | published | equal | largest difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in readings:
        if "swept" not in r:
            continue
        off = swept_differences(r)
        sizes = [there * r["swept"]["unit"] / GIB for _, there, _ in r["swept"]["figures"]]
        largest = max(off, key=abs)
        lines.append(
            f"| {r['name']} | {r['from']} | {r['cards']} | {len(off)} | {min(sizes):.2f} to "
            f"{max(sizes):.2f} GiB | {off.count(0.0)} | {f'{largest:+.2%}' if largest else '0'} |"
        )
    return "\n".join(lines)


def judged_reasons(readings: list[dict[str, Any]]) -> str:
    """What the sources of some rows leave open, or why they differ, as a list."""
    rows: dict[str, list[str]] = {}
    for r in readings:
        if remark := (r.get("published") or r.get("swept") or {}).get("remark"):
            rows.setdefault(remark, []).append(r["name"])
    items = [f"- {', '.join(names)}: {remark}." for remark, names in rows.items()]
    return "\n".join(
        fill(item, PAGE, subsequent_indent="  ", break_on_hyphens=False) for item in items
    )


def judged_summary(readings: list[dict[str, Any]]) -> str:
    """How far the rows of `judged_table` and `swept_table` are off, in one paragraph."""
    every = judged(readings)
    known = [abs(error) for r, _, error in every if not r["published"]["remark"]]
    swept = [r for r in readings if "swept" in r]
    off = [abs(d) for r in swept if not r["swept"]["remark"] for d in swept_differences(r)]
    projects = {r["from"].partition("@")[0] for r in (*swept, *(r for r, _, _ in every))}
    text = (
        f"{len(every)} runs and {len(swept)} benchmarks of {len(projects)} projects. All settings "
        f"are known for {len(known)} of the runs: median difference {median(known):.2%}, largest "
        f"{max(known):.2%}. The other {len(every) - len(known)} do not say all. The benchmarks "
        f"print {len(off)} peaks: {off.count(0.0)} are equal to the last "
        f"digit, and the largest difference is {max(off):.2%}."
    )
    return fill(text, PAGE)


def _peaks(rank: dict[str, Any] | None) -> tuple[str, str]:
    if rank is None:
        return "-", "-"
    allocated, reserved = rank["peak_allocated_bytes"], rank["peak_reserved_bytes"]
    return f"{allocated / GIB:.2f} GiB", f"{reserved / GIB:.2f} GiB"


def _line(r: dict[str, Any]) -> str:
    peaks = ", ".join(
        f"rank {rank['rank']}: {' / '.join(_peaks(rank))} after {rank['steps']} steps"
        for rank in r["ranks"]
    )
    return f"{r['name']:28} {r['result']:8} {r['host_seconds']:4} s  {peaks}"


def _named(text: str) -> tuple[str, Path]:
    """The repository and the folder of `owner/name=FOLDER`."""
    repository, found, folder = text.partition("=")
    if not found:
        raise argparse.ArgumentTypeError("not of the form owner/name=FOLDER")
    return repository, Path(folder)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=[""], help="rows with one of these texts")
    parser.add_argument("--python", type=Path, help="an interpreter with the packages of the rows")
    parser.add_argument("--venv", type=Path, default=Path(".venv-third"))
    parser.add_argument("--make", action="store_true", help="make the environment; downloads")
    parser.add_argument(
        "--second",
        type=Path,
        metavar="FOLDER",
        help="run with another torch, which is installed there if the folder is missing; downloads",
    )
    parser.add_argument("--sources", type=Path, default=Path(".third"), help="the repositories")
    parser.add_argument("--fetch", action="store_true", help="check out repositories; downloads")
    parser.add_argument(
        "--checkout",
        type=_named,
        metavar="REPO=FOLDER",
        action="append",
        default=[],
        help="a clone that --fetch takes a repository from",
    )
    parser.add_argument("--logs", type=Path, help="keep what the scripts print in a folder")
    parser.add_argument("--check", type=Path, help="compare the figures with those of a file")
    parser.add_argument("--write", type=Path, help="keep the figures in a file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
