#!/usr/bin/env python3
"""Build oomdoctor.pyz: one file that runs where nothing but Python 3.11 or newer is installed.

It holds oomdoctor, its recipes, typer, rich and what these need, all pure Python, and no torch.
The same sources give the same bytes. The packages are downloaded once, into build/pyz.

Usage: scripts/build_pyz.py [FILE]          (default: dist/oomdoctor.pyz)
       scripts/build_pyz.py --packages      only download the packages
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "scripts" / "pyz" / "requirements.txt"
START = ROOT / "scripts" / "pyz" / "start.py"
SHEBANG = b"#!/usr/bin/env python3\n"
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # of a zip file
# What pip adds, which differs from machine to machine.
_NOT_IN_WHEELS = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json")


def packages() -> Path:
    """The folder with typer, rich and what these need; downloaded if it is not there."""
    name = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    folder = ROOT / "build" / "pyz" / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as new:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-compile", "--only-binary", ":all:", "--require-hashes"]
        subprocess.run([*command, "--target", f"{new}/all", "-r", str(REQUIREMENTS)], check=True)
        shutil.rmtree(f"{new}/all/bin", ignore_errors=True)
        if not folder.is_dir():
            Path(f"{new}/all").rename(folder)
    return folder


def contents() -> dict[str, bytes]:
    """The files of the archive by name, without the start."""
    found = {str(path): data for path, data in _files(packages())}
    found |= {f"oomdoctor/{path}": data for path, data in _files(ROOT / "oomdoctor")}
    found |= {f"oomdoctor/_recipes/{path}": data for path, data in _files(ROOT / "recipes")}
    found["LICENSE"] = (ROOT / "LICENSE").read_bytes()
    compiled = [name for name in found if name.endswith((".so", ".pyd"))]
    if compiled:
        sys.exit(f"error: {compiled[0]} is compiled, so it would not run everywhere")
    return found


def archive(files: dict[str, bytes]) -> bytes:
    """The bytes of the archive, behind a line that starts Python."""
    digest = hashlib.sha256()
    for name, data in sorted(files.items()):
        digest.update(f"{name}\0{len(data)}\0".encode() + data)
    whole = files | {
        "__main__.py": START.read_bytes(),
        "digest.txt": digest.hexdigest()[:16].encode(),
    }
    written = io.BytesIO()
    written.write(SHEBANG)
    with zipfile.ZipFile(written, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for name, data in sorted(whole.items()):
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            file.writestr(entry, data)
    return written.getvalue()


def _files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        cached = "__pycache__" in inside.parts or path.suffix == ".pyc"
        added = inside.parent.suffix == ".dist-info" and path.name in _NOT_IN_WHEELS
        if path.is_file() and not cached and not added:
            yield inside, path.read_bytes()


def main(arguments: list[str]) -> None:
    """Write the archive, or only download what it needs."""
    if set(arguments) & {"-h", "--help"}:
        print(__doc__)
        return
    if arguments == ["--packages"]:
        print(packages())
        return
    target = Path(arguments[0] if arguments else ROOT / "dist" / "oomdoctor.pyz")
    target.parent.mkdir(parents=True, exist_ok=True)
    data = archive(contents())
    target.write_bytes(data)
    target.chmod(0o755)
    print(f"{target}: {len(data) / 2**20:.1f} MiB")


if __name__ == "__main__":
    main(sys.argv[1:])
