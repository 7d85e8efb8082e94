"""The memory of this machine, as its limits leave it to a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oomdoctor.errors import OomDoctorError
from oomdoctor.system.machine import limits as limits_module
from oomdoctor.system.machine.limits import available_memory, total_memory
from oomdoctor.units import KIB


class Host:
    """A host's /proc and /sys/fs/cgroup in a folder."""

    def __init__(self, root: Path, cgroup: str = "0::/\n") -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(cgroup)
        (self.proc / "meminfo").write_text(
            "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    800 kB\n"
        )

    def limit(self, path: str, **files: str) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)

    def kib(self) -> tuple[int, int]:
        with self.seen():
            return total_memory() // KIB, available_memory() // KIB

    @contextmanager
    def seen(self) -> Iterator[None]:
        """While this is the host of the process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits_module, "PROC", self.proc)
            patch.setattr(limits_module, "CGROUPS", self.cgroups)
            yield


def test_memory_without_limits(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.limit("", memory__max="max\n", memory__current="5\n")
    assert host.kib() == (1000, 800)
    (host.proc / "self" / "cgroup").unlink()
    assert host.kib() == (1000, 800)


def test_memory_is_lowered_by_every_cgroup_v2_above(tmp_path: Path) -> None:
    host = Host(tmp_path, "0::/slurm/job_1/step_0\n")
    host.limit("slurm/job_1/step_0", memory__max="max\n", memory__current=f"{10 * KIB}\n")
    host.limit(
        "slurm/job_1",
        memory__max=f"{500 * KIB}\n",
        memory__current=f"{300 * KIB}\n",
        memory__stat=f"anon 1\ninactive_file {50 * KIB}\nactive_file 9\n",
    )
    host.limit("slurm", memory__max=f"{700 * KIB}\n", memory__current=f"{600 * KIB}\n")
    assert host.kib() == (500, 100)
    host.limit("slurm", memory__current=f"{300 * KIB}\n")
    assert host.kib() == (500, 250)
    host.limit("slurm/job_1", memory__current=f"{600 * KIB}\n")
    assert host.kib() == (500, 0)


@pytest.mark.parametrize("path", ["/", "/../outside", "/docker/abc"])
def test_a_container_has_its_limit_at_the_mounted_root(tmp_path: Path, path: str) -> None:
    host = Host(tmp_path, f"0::{path}\n")
    host.limit("", memory__max=f"{400 * KIB}\n", memory__current=f"{100 * KIB}\n")
    host.limit("../outside", memory__max=f"{9 * KIB}\n", memory__current="0\n")
    assert host.kib() == (400, 300)


def test_memory_under_cgroup_v1(tmp_path: Path) -> None:
    host = Host(tmp_path, "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n")
    host.limit(
        "memory",
        memory__limit_in_bytes="9223372036854771712\n",
        memory__usage_in_bytes=f"{900 * KIB}\n",
    )
    assert host.kib() == (1000, 800)
    host.limit(
        "memory/docker/abc",
        memory__limit_in_bytes=f"{300 * KIB}\n",
        memory__usage_in_bytes=f"{200 * KIB}\n",
        memory__stat=f"cache 1\ninactive_file 3\ntotal_inactive_file {40 * KIB}\n",
    )
    assert host.kib() == (300, 140)


def test_slurm_bounds_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    (host.proc / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1024")
    assert host.kib() == (1024 * KIB, 1024 * KIB)


def test_unknown_memory_is_an_error_not_a_number(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (host.proc / "meminfo").write_text("MemTotal: 1 kB\n")
    for _ in range(2):
        with host.seen(), pytest.raises(OomDoctorError) as caught:
            available_memory()
        assert caught.value.code == "no_memory_facts"
        (host.proc / "meminfo").unlink(missing_ok=True)


def test_this_machine_has_memory() -> None:
    assert 0 < available_memory() <= total_memory()
