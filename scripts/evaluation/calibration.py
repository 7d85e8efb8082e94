"""How exact estimates are on a CPU that `probe --calibrate` measured, for three other models.

    python scripts/evaluation/calibration.py [--seconds 22]

It measures the CPU, then trains each model for a few steps, and compares them with what a
simulation estimates from the measured operators. Everything runs on one thread, and times are CPU
times, so other processes count little. It exits with 1 if a model is off by more than 15 %.
"""

from __future__ import annotations

import argparse
import os
import sys

LIMIT = 0.15


def main() -> int:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=22.0)
    seconds = parser.parse_args().seconds
    if os.environ.get("OMP_NUM_THREADS") != "1":  # torch reads it when it is imported
        os.environ["OMP_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    from cases.calibrated import MODELS, compared

    print(f"{'model':12} {'measured':>10} {'estimated':>10} {'error':>7}")
    worst = 0.0
    # Imported here, because it imports torch.
    for row in compared(MODELS, seconds):
        worst = max(worst, abs(row.error))
        print(f"{row.model:12} {row.measured_s:9.4f}s {row.estimated_s:9.4f}s {row.error:+7.1%}")
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
