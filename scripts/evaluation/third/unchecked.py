"""Run a script that takes made-up images for CIFAR-10: torchvision does not compare their hashes.

unchecked.py SCRIPT arguments
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from torchvision.datasets import cifar


def main() -> None:
    cifar.check_integrity = lambda path, md5=None: Path(path).exists()
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
