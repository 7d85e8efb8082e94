"""Check what articles say about memory, by `plan` and on the emulated GPU.

    python scripts/evaluation/check_claims.py --python .venv-cuda/bin/python --write
    python scripts/evaluation/check_claims.py --python .venv-cuda/bin/python --only zero
    python scripts/evaluation/check_claims.py --stored

Each claim names trainings. They are simulated, and run on an emulated GPU with room for all; the
claim is compared with what they need. --write keeps the figures in tests/data/claims.json, from
which docs/claims.md is made. About ten minutes on two cores. The emulated GPU tells no times, so
times are estimates of `plan`.
Exit code 0; 3 if a simulated peak is more than 5 % from the emulated one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from claims.every import CLAIMS, KEPT
from claims.page import rows
from claims.runs import Answers, answers, dumped, loaded

NEAR = 0.05
_LIBRARIES = ("torch", "transformers", "accelerate", "peft", "bitsandbytes", "deepspeed")


def main() -> int:
    options = _options()
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {"answers": {}}
    chosen = [claim for claim in CLAIMS if not options.only or claim.key in options.only]
    if not options.stored:
        kept["versions"] = _versions(options.python)
        known = Answers({}, {})
        for claim in chosen:
            found = answers(claim.trainings, options.python, known)
            known = Answers(
                {**known.simulated, **found.simulated}, {**known.emulated, **found.emulated}
            )
            kept["answers"][claim.key] = dumped(found)
            print(f"{claim.key}: {claim.check(loaded(kept['answers'][claim.key]))}", flush=True)
            if options.write:
                kept["answers"] = {
                    each.key: kept["answers"][each.key]
                    for each in CLAIMS
                    if each.key in kept["answers"]
                }
                KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    for said, verdict, truth, why in rows(chosen, kept):
        print(f"\n{said}\n  {verdict}: {truth}\n  {why}")
    far = differences(kept)
    for name, share in far.items():
        print(f"{name}: simulated {share:+.1%} from emulated", file=sys.stderr)
    return 3 if far else 0


def differences(kept: dict[str, Any]) -> dict[str, float]:
    """The trainings whose simulated peak is far from the emulated one."""
    far = {}
    for data in kept["answers"].values():
        found = loaded(data)
        for name in found.simulated.keys() & found.emulated.keys():
            share = found.simulated[name].allocated_bytes / found.emulated[name].allocated_bytes - 1
            if abs(share) > NEAR:
                far[name] = share
    return far


def _versions(python: Path) -> dict[str, str]:
    code = (
        "from importlib.metadata import version; import json; "
        f"print(json.dumps({{n: version(n) for n in {_LIBRARIES!r}}}))"
    )
    ended = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(ended.stdout)
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, help="an interpreter with a CUDA build of torch")
    parser.add_argument("--only", action="append", choices=[claim.key for claim in CLAIMS])
    parser.add_argument("--write", action="store_true", help="keep the figures")
    parser.add_argument("--stored", action="store_true", help="run nothing; print the kept figures")
    options = parser.parse_args()
    if options.python is None and not options.stored:
        parser.error("give --python, or --stored")
    if options.python is not None:
        options.python = options.python.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
