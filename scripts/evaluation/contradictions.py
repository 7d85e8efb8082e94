"""Look for two answers that contradict each other, in random plans of built-in models.

Each plan is asked again in other ways: with the lines that it proposes, one rung alone, beside
other cards, with --why, --solve and --sweep, in every format, with --lengths instead of --seq-len,
by the name of a rented machine, and from the script that `export` writes. `diff` must find no
change. Some plans are for two GPUs, and --min has to say of one what the plan for one says.
`explain` gets a failure of that script, and has to read the same training, need about as much,
with --exact the same bytes, and have a change if the plan has one. What differs is printed with
the commands that show it. Needs what `plan` needs.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

MODELS = (
    "HuggingFaceTB/SmolLM2-360M",
    "Qwen/Qwen2.5-0.5B",
    "Qwen/Qwen3-0.6B",
    "Qwen/Qwen2.5-1.5B",
    "meta-llama/Llama-3.2-1B",
    "google/gemma-2-2b",
    "google/gemma-3-1b-pt",
    "EleutherAI/pythia-1.4b",
    "bigscience/bloom-1b1",
    "FacebookAI/roberta-large",
    "google/flan-t5-base",
    "openai-community/gpt2-medium",
    "meta-llama/Llama-3.1-8B",
    "microsoft/phi-2",
)
CARDS = ("RTX 4090", "RTX 3060", "T4", "L4", "RTX 3070", "RTX 2080 Ti", "A100-SXM4-40GB", "20GiB")
RECIPES = ("quick", "quick", "quick", "lora", "qlora", "methods")
Answer = tuple[int, dict[str, Any]]
_TWO_GPUS = 0.3  # of the plans
_CLOSE = 0.15  # how far the closed form may be from a simulation
_GIB = 2**30


def main() -> None:
    """Ask `--count` random plans and print what contradicts itself; exit code 1 if anything did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = folder
        for number in range(options.count):
            words = _plan(random.Random(f"{options.seed} {number}"))
            print(f"{number}: {shlex.join(words)}", flush=True)
            for fault in _contradictions(words, Path(folder)):
                faults += 1
                print(f"    {fault}", flush=True)
    print(f"{faults} contradictions in {options.count} plans")
    sys.exit(1 if faults else 0)


def _plan(choose: random.Random) -> list[str]:
    batch = choose.choice((1, 6, 8, 16))
    micro = choose.choice((None, None, *(size for size in (1, 2, 4, 8) if batch % size == 0)))
    length = choose.choice((256, 512, 1024, 2048))
    words = ["plan", choose.choice(MODELS), "--gpu", choose.choice(CARDS)]
    words += ["--recipe", choose.choice(RECIPES), "--seq-len", str(length)]
    words += ["--effective-batch", str(batch)]
    if micro is not None:
        words += ["--micro-batch", str(micro)]
    return [*words, "--gpus", "2"] if choose.random() < _TWO_GPUS and batch % 2 == 0 else words


def _contradictions(words: list[str], folder: Path) -> Iterator[str]:
    code, plan = ask(words)
    if plan.get("errors"):
        yield f"error: {plan['errors'][0]['message']}"
        return
    run_name = Path(plan["run_dir"]).name
    yield from _counted(code, plan)
    yield from _pages(run_name, plan)
    yield from _proposed(plan)
    yield from _alone(words, plan)
    yield from _other_cards(words, plan)
    yield from _sizes(words, plan)
    yield from _counted_rows(words, plan, folder)
    yield from _rented(words, plan)
    yield from _fewest(words)
    yield from _exported(words, run_name, plan, folder)


def ask(words: list[str]) -> Answer:
    """The exit code and the JSON of a command."""
    code, out = run([*words, "--json"])
    try:
        return code, json.loads(out)
    except ValueError:
        return code, {"errors": [{"message": f"no JSON: {out[-200:]}"}]}


def run(words: list[str]) -> tuple[int, str]:
    """The exit code and stdout of a command; stderr where it wrote nothing else."""
    command = [sys.executable, "-m", "oomdoctor", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    return done.returncode, done.stdout or done.stderr


def _counted(code: int, plan: dict[str, Any]) -> Iterator[str]:
    rows = plan["results"]
    fitting = [row for row in rows if row["outcome"] == "fits"]
    if code != plan["exit_code"] or (code == 0) != bool(fitting):
        yield f"exit code {code}, but {len(fitting)} of {len(rows)} rungs fit"
    for row in rows:
        usable, peak = plan["budget"]["usable_bytes"], row["peak_device_bytes"]
        if (
            peak
            and row["outcome"] in ("fits", "oom")
            and (peak <= usable) != (row["outcome"] == "fits")
        ):
            yield f"{row['label']}: {row['outcome']}, but needs {peak} of {usable}"
    labels = [row["label"] for row in rows]
    yield from (f"two rungs are called {x}" for x in {x for x in labels if labels.count(x) > 1})
    card = plan["cards"][0]
    if card["fitting"] != len(fitting):
        yield f"the card counts {card['fitting']} rungs that fit, the table {len(fitting)}"
    for method, pick in card["picks"].items():
        best = plan["picks"].get(method)
        if pick and pick["fits"] and best not in (None, pick["key"]):
            yield f"best of {method}: {best} on top, {pick['key']} of the card"


def _pages(run_name: str, plan: dict[str, Any]) -> Iterator[str]:
    rows = {row["label"]: row for row in plan["results"]}
    _, text = run(["show", run_name, "--format", "csv"])
    for row in csv.DictReader(io.StringIO(text)):
        one = rows.get(row.get("label", ""))
        if one and row.get("outcome") and row["outcome"] != one["outcome"]:
            yield f"{one['label']}: {row['outcome']} in CSV, {one['outcome']} in JSON"
    heads = {}
    for name in ("table", "markdown", "html"):
        _, text = run(["show", run_name, "--format", name])
        found = re.search(r"(\d+) of (\d+) rungs? fits?", text)
        heads[name] = found and found.groups()
    if len(set(heads.values())) > 1:
        yield f"pages count differently: {heads}"


def _proposed(plan: dict[str, Any]) -> Iterator[str]:
    """Every line that the plan proposes does what the plan says of it."""
    remedies = {x["rung"]: x for x in plan["cards"][0]["remedies"] if x["rung"]}
    for line in plan["next_commands"]:
        words = shlex.split(line)[1:]
        if words[:1] != ["plan"] or "--all-gpus" in words or "--why" in words:
            continue
        code, answer = ask(words)
        if answer.get("errors"):
            yield f"{line}: {answer['errors'][0]['message']}"
            continue
        remedy = remedies.get(words[words.index("--rung") + 1]) if "--rung" in words else None
        if remedy is None:
            continue
        row = answer["results"][0]
        if row["outcome"] == "unsupported" and remedy["basis"] != "simulated":
            continue
        if row["outcome"] != "fits" or code:
            yield f"{line}: {row['outcome']} ({row['reason']}), exit code {code}"
        elif remedy["peak_device_bytes"] not in (None, row["peak_device_bytes"]):
            yield f"{line}: {row['peak_device_bytes']}, said {remedy['peak_device_bytes']}"


def _alone(words: list[str], plan: dict[str, Any]) -> Iterator[str]:
    """A rung asked alone, with all of its keys, gets the row that it has in the ladder."""
    typed = _without(words, "--recipe")
    for row in islice((x for x in plan["results"] if x["outcome"] in ("fits", "oom")), 2):
        keys = {
            k: _typed(v) for k, v in row["config"].items() if k not in _FROM_COMMAND and v != []
        }
        rung = ",".join(f"{key}={value}" for key, value in keys.items())
        _, answer = ask([*typed, "--recipe", "none", "--rung", rung])
        if answer.get("errors"):
            yield f"--rung {rung}: {answer['errors'][0]['message']}"
            continue
        yield from _same(row, answer["results"][0], "asked alone")


_FROM_COMMAND = ("micro_batch_size", "sequence_length", "effective_batch_size", "world_size")
_FROM_COMMAND += ("gpus_per_node", "lora_targets")
_SAME = ("key", "label", "outcome", "micro_batch_size", "peak_device_bytes", "breakdown")
_SAME += ("missed_by_bytes", "borderline")


def _typed(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _same(row: dict[str, Any], other: dict[str, Any], how: str) -> Iterator[str]:
    for name in _SAME:
        if row[name] != other[name]:
            yield f"{row['label']} {how}: {name} {other[name]}, was {row[name]}"


def _other_cards(words: list[str], plan: dict[str, Any]) -> Iterator[str]:
    """The row of a card among others is what the card says alone."""
    code, answer = ask([*words, "--gpu", "L40S"])
    card = plan["cards"][0]
    others = [x for x in answer.get("cards", []) if x["name"] == card["name"]]
    if not others:
        yield f"no row for {card['name']} beside L40S"
        return
    for name in ("fitting", "usable_bytes", "picks", "remedies"):
        if others[0][name] != card[name] and name != "remedies":
            yield f"beside L40S: {name} {others[0][name]}, was {card[name]}"
    if (code == 0) != any(x["fitting"] for x in answer["cards"]):
        yield f"beside L40S: exit code {code}"


def _sizes(words: list[str], plan: dict[str, Any]) -> Iterator[str]:
    """What --solve finds fits, and --sweep and --why see the bytes of the table."""
    rows = [x for x in plan["results"] if x["outcome"] in ("fits", "oom") and x["micro_batch_size"]]
    if not rows:
        return
    row = rows[0]
    fixed = [*_without(words, "--micro-batch"), "--micro-batch", str(row["micro_batch_size"])]
    _, why = ask([*fixed, "--why", row["label"]])
    if why.get("errors"):
        yield f"--why {row['label']}: {why['errors'][0]['message']}"
    else:
        same = [x for x in why["results"] if x["label"] == row["label"]]
        if not same or same[0]["peak_device_bytes"] != row["peak_device_bytes"]:
            yield f"--why {row['label']}: {[x['peak_device_bytes'] for x in same]}"
    length = words[words.index("--seq-len") + 1]
    fixed = _without(fixed, "--seq-len")
    _, sweep = ask([*fixed, "--sweep", f"seq-len={length},{int(length) * 2}"])
    # A search takes a dozen simulations of each rung.
    _, solved = (0, {}) if len(rows) > 4 else ask([*fixed, "--solve", "seq-len"])
    for way, found in (("--sweep", sweep), ("--solve", solved)):
        if found.get("errors"):
            yield f"{way}: {found['errors'][0]['message']}"
    for line in (sweep.get("sweep") or {}).get("lines", []):
        first = line["peaks"][0]
        if line["label"] == row["label"] and (
            first["peak_device_bytes"] != row["peak_device_bytes"]
            or first["fits"] != (row["outcome"] == "fits")
        ):
            yield f"--sweep {row['label']}: {first}, was {row['peak_device_bytes']}"
    for line in (solved.get("solve") or {}).get("lines", []):
        yield from _solved(line, rows, int(length))
        if line["rung"] and line["label"] == row["label"]:
            again = _without(_without(words, "--recipe"), "--seq-len")
            rung = f"{line['rung']},micro_batch_size={line['micro_batch_size']}"
            _, answer = ask([*again, "--recipe", "none", "--rung", rung])
            for one in answer["results"]:
                if (
                    one["outcome"] != "fits"
                    or one["peak_device_bytes"] != line["peak_device_bytes"]
                ):
                    yield f"--solve {rung}: {one['outcome']} {one['peak_device_bytes']}, was {line}"


def _solved(line: dict[str, Any], rows: list[dict[str, Any]], length: int) -> Iterator[str]:
    for row in rows:
        if row["label"] == line["label"] and row["micro_batch_size"] == line["micro_batch_size"]:
            reached = (line["largest"] or 0) >= length
            if reached != (row["outcome"] == "fits") and not line["limited_by"]:
                yield f"--solve {row['label']}: {line['largest']}, but {length} {row['outcome']}"


def _counted_rows(words: list[str], plan: dict[str, Any], folder: Path) -> Iterator[str]:
    """A file whose longest row has the length of the plan, and rows that are packed to it."""
    length = int(words[words.index("--seq-len") + 1])
    rows = (length, max(1, length // 3), max(1, length // 5))
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": "word" * tokens}) + "\n" for tokens in rows))
    counted = ["--lengths", str(file), "--tokenizer", "bytes/4"]
    for typed in ([*_without(words, "--seq-len"), *counted], [*words, *counted]):
        yield from _same_plan(plan, typed)


_RENTED = {"T4": "g4dn.xlarge", "L4": "g6.xlarge"}


def _rented(words: list[str], plan: dict[str, Any]) -> Iterator[str]:
    """A machine with one GPU is planned like its GPU."""
    place = words.index("--gpu") + 1
    if words[place] in _RENTED and "--gpus" not in words:
        yield from _same_plan(plan, [*words[:place], _RENTED[words[place]], *words[place + 1 :]])


def _same_plan(plan: dict[str, Any], words: list[str]) -> Iterator[str]:
    """The same plan, asked with these words, has the same rows; `diff` finds no change either."""
    _, answer = ask(words)
    if answer.get("errors"):
        yield f"{shlex.join(words)}: {answer['errors'][0]['message']}"
        return
    others = {row["key"]: row for row in answer["results"]}
    for row in plan["results"]:
        yield from _same(row, others.get(row["key"], dict.fromkeys(row)), shlex.join(words))
    if answer["ranking"] != plan["ranking"]:
        yield f"{shlex.join(words)}: ranking {answer['ranking']}, was {plan['ranking']}"
    code, _ = run(["diff", plan["run_dir"], answer["run_dir"]])
    if code:
        yield f"{shlex.join(words)}: exit code {code} of diff"


def _fewest(words: list[str]) -> Iterator[str]:
    """What --min says of one GPU is what a plan for one GPU says, at the same sizes."""
    if "--gpus" not in words:
        return
    alone = _without(_without(words, "--gpus"), "--micro-batch")
    _, answer = ask([*alone, "--gpus", "1..2", "--min"])
    for line in (answer.get("fewest") or {}).get("lines", []):
        if line["gpus"] != 1:
            continue
        typed = [*_without(alone, "--recipe"), "--recipe", "none", "--rung", line["rung"]]
        code, one = ask(typed)
        (row,) = one["results"] or [{}]
        told, now = ((one.get("label"), one.get("peak_device_bytes")) for one in (line, row))
        if code or told != now:
            yield f"{shlex.join(typed)}: {now}, was {told}"


def _exported(words: list[str], run_name: str, plan: dict[str, Any], folder: Path) -> Iterator[str]:
    """What `export` writes is read back as the rung that it was written from."""
    by_key = {row["key"]: row for row in plan["results"]}
    for place in ("trainer", "trl", "axolotl", "llama-factory"):
        if not plan["ranking"]:
            return
        row = by_key[plan["ranking"][0]]
        code, text = run(["export", "1", "--to", place, "--run", run_name])
        if code or "Not in this file" in text:
            continue
        file = folder / f"{place}{'.py' if place in ('trainer', 'trl') else '.yml'}"
        file.write_text(text)
        card = words[words.index("--gpu") + 1]
        gpus = ["--gpus", "2"] if "--gpus" in words else []
        again = ["plan", plan["model"]["id"], "--from", str(file), *gpus, "--recipe", "none"]
        _, answer = ask([*again, "--gpu", card])
        if answer.get("errors"):
            yield f"--from {file.name} of {row['label']}: {answer['errors'][0]['message']}"
            continue
        for name in ("outcome", "micro_batch_size", "sequence_length", "effective_batch_size"):
            if answer["results"][0][name] != row[name]:
                told = f"{name} {answer['results'][0][name]}, was {row[name]}"
                yield f"{row['label']} to {place} and back: {told}"
        mine, his = answer["results"][0]["config"], row["config"]
        moved = {k: (his[k], mine[k]) for k in his if his[k] != mine[k] and k not in _FROM_COMMAND}
        if answer["results"][0]["peak_device_bytes"] != row["peak_device_bytes"]:
            peaks = answer["results"][0]["peak_device_bytes"], row["peak_device_bytes"]
            yield f"{row['label']} to {place} and back: peaks {peaks}, changed {moved}"
        if not gpus:
            yield from _explained(again, plan["model"]["id"], file, answer["results"][0])


def _explained(again: list[str], model: str, file: Path, row: dict[str, Any]) -> Iterator[str]:
    """`explain` about the same file, on a card that is a quarter too small for it."""
    if row["peak_device_bytes"] is None:
        return
    room = f"{row['peak_device_bytes'] * 0.75 / _GIB:.2f}"
    log = file.with_suffix(".log")
    log.write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
        f"capacity of {room} GiB of which 0.10 GiB is free.\n"
    )
    typed = ["explain", str(log), "--config", str(file), "--model", model]
    told: dict[str, Any] = {}
    for words in (typed, [*typed, "--exact"]):
        told = (ask(words)[1].get("diagnoses") or [{}])[0]
        config = told.get("config")
        if config is None:
            yield f"{shlex.join(words)}: no training"
            return
        moved = {k: (row["config"][k], v) for k, v in config.items() if row["config"][k] != v}
        if moved:
            yield f"{shlex.join(words)}: {moved}"
    _, small = ask([*again, "--gpu", f"{room}GiB", "--headroom", "0"])
    peak = small["results"][0]["peak_device_bytes"] if small.get("results") else None
    needs, simulated = told["needed_bytes"] or 0, told["simulated_bytes"] or 0
    if peak is None:
        yield f"{file.name}: no plan for {room} GiB: {small.get('errors')}"
        return
    if abs(needs - peak) > _CLOSE * peak:
        yield f"{file.name}: explain computes {needs / _GIB:.2f} GiB, plan {peak / _GIB:.2f}"
    if abs(simulated - peak) > 0.01 * peak:  # a message may say what the context takes
        yield f"{file.name}: explain --exact simulates {simulated}, plan {peak}"
    changes = (small.get("yours") or {}).get("changes", [])
    enough = [one for one in told["remedies"] if one["enough"] and one["basis"] == "predicted"]
    if bool(changes) != bool([one for one in enough if one["changes"]]):
        yield f"{file.name}: plan {changes[:1]}, explain {enough[:1]}"


def _without(words: list[str], option: str) -> list[str]:
    if option not in words:
        return words
    at = words.index(option)
    return words[:at] + words[at + 2 :]


if __name__ == "__main__":
    main()
