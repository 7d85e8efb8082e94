"""Attack the doctor with hostile files, arguments and kills: what crashes, hangs or leaks?

    python scripts/evaluation/attack.py                  all kinds, with the seed 1
    python scripts/evaluation/attack.py --only logs --count 200 --seed 7
    python scripts/evaluation/attack.py --python .venv-cuda/bin/python    kills `run --emulate` too

Each input is made from a seed and given to the program in a process of its own. A fault is an
internal error (exit 1), an end by a signal, more than LIMIT_S seconds, or a control character in
what a terminal or a page shows. Address space has a limit, so that nothing takes the machine down.
The table has a row for each kind: inputs tried, kills survived, faults. Exit code 0 without faults,
3 with some; what failed stays in the folder that is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 60
MOST_ADDRESSES = 16 << 30  # bytes; importing torch alone takes some of them
CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
EVIL = "\x1b]0;t\x07\x1b[2J\x9b31m<script>alert(1)</script>{{7*7}}\u202e"
TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 88, in main\n'
    "    loss = model(x).loss\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 23.64 GiB of which 1.00 GiB is free.\n"
)
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
}
ODD = (None, True, -1, 0, 10**30, 1.5, float("inf"), float("nan"), "", EVIL, "x" * 100_000, [], {},
       [[]] * 100, {"a": {"a": {}}})  # fmt: skip


@dataclass
class Row:
    """What came of a kind."""

    kind: str
    tried: int = 0
    killed: int = 0
    faults: int = 0


def logs(chance: random.Random, folder: Path) -> list[str]:
    """A log of pieces of messages, bytes that are no text, and broken tracebacks."""
    pieces = [
        *TRACE.split(),
        "exit",
        "--A",
        "1-",
        "\\n",
        "'a': ",
        EVIL,
        "| ",
        "100%|#",
        "\r",
        "é",
        "\udc80",
    ]
    lines = []
    for _ in range(chance.randrange(1, 40)):
        unit = "".join(chance.choices(pieces, k=chance.randrange(1, 4)))
        lines.append((unit * 100_000)[: chance.choice((10, 1000, 100_000))])
        if chance.random() < 0.3:
            cut = chance.randrange(len(TRACE))
            lines.append(TRACE[:cut] if chance.random() < 0.5 else TRACE)
    file = folder / "log.txt"
    file.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    return ["explain", str(file)]


def snapshots(chance: random.Random, folder: Path) -> list[str]:
    """A snapshot with odd values, or cut, or with other bytes in it."""
    frame = {"filename": "x.py", "line": 3, "name": "f"}
    block = {
        "address": 1 << 40,
        "size": 512,
        "requested_size": 512,
        "state": "active_allocated",
        "frames": [frame],
    }
    event = {
        "action": "alloc",
        "addr": 1 << 40,
        "size": 512,
        "stream": 0,
        "frames": [frame],
        "time_us": 1,
    }
    segment = {
        "device": 0,
        "address": 1 << 40,
        "total_size": 512,
        "stream": 0,
        "segment_type": "large",
        "blocks": [block],
    }
    whole = {"segments": [segment], "device_traces": [[event, event | {"action": "oom"}]]}
    target = chance.choice([frame, block, event, segment, whole])
    target[chance.choice(list(target))] = chance.choice(ODD)
    data = bytearray(pickle.dumps(whole, protocol=chance.choice((2, 4))))
    if chance.random() < 0.5:
        for _ in range(chance.randrange(1, 9)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    if chance.random() < 0.2:
        del data[chance.randrange(len(data)) :]
    file = folder / "snapshot.pickle"
    file.write_bytes(data)
    return ["snapshot", str(file), *chance.choice(([], ["--html", str(folder / "page.html")]))]


def models(chance: random.Random, folder: Path) -> list[str]:
    """A config.json with odd values, or damaged."""
    config = dict(MODEL)
    for _ in range(chance.randrange(1, 3)):
        config[chance.choice([*MODEL, "rope_scaling", "text_config", "quantization_config"])] = (
            chance.choice(ODD)
        )  # type: ignore[assignment]
    text = json.dumps(config)
    if chance.random() < 0.3:
        text = text[: chance.randrange(len(text))]
    (folder / "config.json").write_text(text, encoding="utf-8")
    return ["plan", str(folder), "--gpu", "L4", "--recipe", "quick", "--micro-batch", "1"]


def settings(chance: random.Random, folder: Path) -> list[str]:
    """A file of settings with odd values, in YAML, JSON or TOML."""
    names = [
        "model_name_or_path",
        "per_device_train_batch_size",
        "max_length",
        "lora_r",
        "optim",
        "bf16",
        "fsdp",
        "deepspeed",
        "lora_target_modules",
        "gradient_checkpointing",
    ]
    values = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "per_device_train_batch_size": 1}
    values |= {chance.choice(names): chance.choice(ODD) for _ in range(3)}  # type: ignore[misc]
    file = folder / chance.choice(("train.yaml", "train.json", "train.toml"))
    text = json.dumps(values)
    if chance.random() < 0.3:
        text = text.replace(
            ":", chance.choice((": &a", ": *a", ":\t", ": !!python/object:os.system")), 2
        )
    file.write_text(text, encoding="utf-8")
    start = chance.choice(
        (
            ["plan", "--gpu", "L4", "--recipe", "none", "--from"],
            ["explain", str(ROOT / "README.md"), "--config"],
        )
    )
    return [*start, str(file)]


def reports(chance: random.Random, folder: Path) -> list[str]:
    """A stored report with odd values or damaged, shown or made a page of."""
    source = chance.choice(sorted((ROOT / "tests" / "data" / "golden").glob("*.json")))
    report = json.loads(source.read_text("utf-8"))
    text = json.dumps(_odd(report, chance, [chance.randrange(1, 400)]))
    if chance.random() < 0.3:
        text = text[: chance.randrange(len(text))]
    (folder / "report.json").write_text(text, encoding="utf-8")
    (folder / "request.json").write_text(json.dumps(report.get("request") or {}), encoding="utf-8")
    return ["show", str(folder), *chance.choice(([], ["--html", str(folder / "page.html")]))]


def _odd(value: object, chance: random.Random, left: list[int]) -> object:
    left[0] -= 1
    if left[0] == 0:
        return chance.choice(ODD)
    if isinstance(value, dict):
        return {key: _odd(one, chance, left) for key, one in value.items()}
    if isinstance(value, list):
        return [_odd(one, chance, left) for one in value]
    return value + EVIL if isinstance(value, str) and chance.random() < 0.05 else value


def arguments(chance: random.Random, folder: Path) -> list[str]:
    """A command line of odd words."""
    plain = (
        "plan probe explain show diff runs --gpu L4 --seq-len -1 2k 1e99 --micro-batch 0 --gpus "
        "10**9 --rung method=lora,lora_rank=-1 ../../etc --json --recipe /dev/null --lengths "
        "Qwen/Qwen2.5-0.5B --vram -5GiB"
    )
    words = [*plain.split(), EVIL, "\udc80"]
    return chance.choices(words, k=chance.randrange(1, 8))


def stored(chance: random.Random, folder: Path) -> list[str]:
    """What earlier commands left, with something else in the place of one file or folder."""
    shutil.copytree(_template(folder.parent), folder / "kept", symlinks=True)
    (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    paths = sorted((folder / "kept").rglob("*"))
    name = chance.choice(sorted({re.sub(r"[0-9a-f]{6,}|[0-9]+", "N", one.name) for one in paths}))
    alike = [one for one in paths if re.sub(r"[0-9a-f]{6,}|[0-9]+", "N", one.name) == name]
    for path in chance.choices(alike, k=chance.randrange(1, 3)):
        _plant(chance, path)
    run = next(iter((folder / "kept" / "oomdoctor" / "runs").glob("2*")), folder)
    return list(chance.choice(
        (["runs"], ["show"], ["show", run.name], ["show", "--list"], ["env"], ["watch", "--json"],
         ["runs", "--prune", "--keep", "0", "--yes"], ["export", run.name], ["diff"],
         ["show", str(run), "--html", str(folder / "page.html")],
         ["plan", str(folder), "--gpu", "L4", "--recipe", "quick"])
    ))  # fmt: skip


def _plant(chance: random.Random, path: Path) -> None:
    """Put something that nobody expects in the place of a file or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if not path.parent.is_dir():  # another plant has taken it
        return
    kind = chance.choice(("nothing", "link", "loop", "folder", "pipe", "empty", "noise", "big"))
    if kind == "link":
        path.symlink_to("/nonexistent/there")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "big":
        path.touch()
        os.truncate(path, 3 << 30)
    elif kind != "nothing":
        path.write_bytes(b"" if kind == "empty" else chance.randbytes(3000))


def _template(kept: Path) -> Path:
    """A folder for `XDG_STATE_HOME` and `XDG_CACHE_HOME` in which commands left their files."""
    made = kept / "template"
    if not made.exists():
        (kept / "model").mkdir()
        (kept / "model" / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        variables = {"XDG_STATE_HOME": str(made), "XDG_CACHE_HOME": str(made)}
        for gpu in ("L4", "H100"):
            words = ["plan", str(kept / "model"), "--gpu", gpu, "--recipe", "quick"]
            list(_faults(words, kept, kept, variables))
        if python := os.environ.get("OOMDOCTOR_CUDA_PYTHON"):
            code = "import torch; torch.empty(1 << 40, device='cuda')"
            words = ["run", "--emulate", "L4", "--stop-at-oom", "--", python, "-c", code]
            list(_faults(words, kept, kept, {"XDG_STATE_HOME": str(made)}))
        (made / "oomdoctor" / "calibration").mkdir()
        (made / "oomdoctor" / "calibration" / "l4-0.json").write_text("{}", encoding="utf-8")
        log = {"pid": 1, "host": "elsewhere", "started_at": "2026-01-01T00:00:00+00:00"}
        (made / "oomdoctor" / "live").mkdir(exist_ok=True)
        (made / "oomdoctor" / "live" / "1.jsonl").write_text(json.dumps(log), encoding="utf-8")
    return made


KINDS: dict[str, Callable[[random.Random, Path], list[str]]] = {
    kind.__name__: kind for kind in (logs, snapshots, models, settings, reports, arguments, stored)
}


def main() -> int:
    options = _options()
    kept = Path(tempfile.mkdtemp(prefix="attack-"))
    rows = [_attack(kind, options, kept) for kind in KINDS if kind in options.only]
    if "disks" in options.only:
        rows.append(_full_disks(options, kept))
    if options.python is not None:
        rows.append(_kills(options, kept))
    print(f"\n{'kind':12} {'inputs tried':>12} {'kills survived':>14} {'faults':>6}")
    for row in rows:
        print(f"{row.kind:12} {row.tried:12} {row.killed:14} {row.faults:6}")
    if any(row.faults for row in rows):
        print(f"what failed: {kept}")
        return 3
    shutil.rmtree(kept)
    return 0


def _attack(kind: str, options: argparse.Namespace, kept: Path) -> Row:
    row = Row(kind)
    for number in range(options.count):
        chance = random.Random(f"{options.seed} {kind} {number}")
        folder = kept / f"{kind}-{number}"
        folder.mkdir()
        words = KINDS[kind](chance, folder)
        row.tried += 1
        faults = list(_faults(words, folder, kept))
        if faults:
            row.faults += 1
            print(f"{folder.name}: {', '.join(faults)}: {' '.join(words)[:120]!r}", flush=True)
        else:
            shutil.rmtree(folder)
    return row


def _faults(
    words: list[str], folder: Path, kept: Path, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "oomdoctor", *words],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "HF_HUB_OFFLINE": "1",
                "XDG_STATE_HOME": str(kept / "state"),
                **_places(folder),
                **(variables or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            preexec_fn=_limit_memory,
            check=False,
        )
    except subprocess.TimeoutExpired:
        yield f"more than {LIMIT_S} s"
        return
    except ValueError:  # a null byte is no argument
        return
    (folder / "output.txt").write_bytes(done.stdout + done.stderr)
    if done.returncode == 1 or done.returncode < 0:
        yield f"exit {done.returncode} after {time.monotonic() - began:.1f} s"
    if CONTROL.search(done.stdout + done.stderr):
        yield "a control character reaches the terminal"
    page = folder / "page.html"
    if page.exists() and (
        CONTROL.search(page.read_bytes()) or b"<script>alert" in page.read_bytes()
    ):
        yield "a page with control characters or a script of the input"


def _places(folder: Path) -> dict[str, str]:
    """The variables that send a command to what was stored for it, if anything was."""
    there = folder / "kept"
    names = ("XDG_STATE_HOME", "XDG_CACHE_HOME") if there.is_dir() else ()
    return dict.fromkeys(names, str(there))


def _full_disks(options: argparse.Namespace, kept: Path) -> Row:
    """Plans whose runs, cache or temporary files are on a disk that fills up at a random moment."""
    row, disk = Row("disks"), kept / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "attack", str(disk)], check=False
        ).returncode
    ):
        print("disks: only root can mount a small one")
        return row
    try:
        for number in range(options.count):
            chance = random.Random(f"{options.seed} disks {number}")
            for left in disk.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            (disk / "fill").write_bytes(bytes(chance.randrange(500, 1024) << 10))
            folder = kept / f"disks-{number}"
            folder.mkdir()
            words = models(random.Random(0), folder)
            (folder / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
            full = chance.choice(("XDG_STATE_HOME", "XDG_CACHE_HOME", "TMPDIR"))
            row.tried += 1
            faults = list(_faults(words, folder, kept, {full: str(disk)}))
            row.faults += bool(faults)
            if faults:
                print(f"{folder.name}: {full}: {', '.join(faults)}", flush=True)
    finally:
        subprocess.run(["umount", str(disk)], check=False)
    return row


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))


def _kills(options: argparse.Namespace, kept: Path) -> Row:
    """`run --emulate` killed at random moments, from the first build on: does the next one work?"""
    row, chance = Row("kills"), random.Random(options.seed)
    cache = kept / "cache"
    path = f"{options.python.absolute().parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache), "PATH": path}
    command = [sys.executable, "-m", "oomdoctor", "run", "--emulate", "L4", "--", "python", "-c",
               "import torch; torch.ones(9, device='cuda')"]  # fmt: skip
    for _ in range(options.kills):
        which = chance.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL))
        process = subprocess.Popen(
            command,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        time.sleep(chance.uniform(0.2, 8))
        process.send_signal(which)
        output = process.communicate()[0]
        row.tried += 1
        if b"internal error" in output or CONTROL.search(output):
            row.faults += 1
            print(f"{which.name}: {output[-200:]!r}", flush=True)
        else:
            row.killed += 1
    done = subprocess.run(command, env=env, capture_output=True, check=False)
    left = [one.name for one in (cache / "oomdoctor" / "emulator").glob("tmp*")]
    if done.returncode or left:
        row.faults += 1
        print(f"after all kills: exit {done.returncode}, left {left}: {done.stderr[-300:]!r}")
    return row


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [*KINDS, "disks"]
    parser.add_argument("--only", nargs="+", default=list(every), choices=every)
    parser.add_argument("--count", type=int, default=40, help="inputs of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--python", type=Path, help="with a CUDA build of torch, to kill emulated runs"
    )
    parser.add_argument("--kills", type=int, default=12)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
