"""Host memory, shared memory and the kills that end a process without a message of its own."""

from __future__ import annotations

import re

from oomdoctor.analysis.oom.dialect import Dialect, figures

HOST: tuple[Dialect, ...] = (
    Dialect(
        "numpy",
        "NumPy 1.17 and later",
        "numpy/core/_exceptions.py",
        re.compile(r"Unable to allocate (?:array with shape|[\d.]+ [KMGTP]?i?B for an array)"),
        figures(requested_bytes=r"Unable to allocate SIZE"),
        resource="host",
    ),
    Dialect(
        "dataloader_shm",
        "torch 1.0 and later",
        "torch/utils/data/_utils/signal_handling.py",
        re.compile(
            r"killed by signal: Bus error|insufficient shared memory \(shm\)"
            r"|unable to (?:open shared memory object|mmap \d+ bytes from file) </torch"
            r"|unable to (?:write to|resize) file </?torch"
            r"|No space left on device: '/dev/shm"
        ),
        resource="shm",
    ),
    Dialect(
        "dataloader_worker",
        "torch 0.4 and later",
        "torch/csrc/DataLoader.cpp",
        re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed"),
        resource="host",
    ),
    Dialect(
        "host_oom_killer",
        "Linux",
        "mm/oom_kill.c",
        re.compile(
            r"invoked oom-killer|oom-kill:(?:constraint|\.\.\.)|oom_reaper: reaped process"
            r"|(?:Out of memory|[Mm]emory cgroup out of memory): Kill(?:ed)? process"
        ),
        {"process_bytes": re.compile(r"anon-rss:(\d+k)B")},  # the kernel's kB is 1024 bytes
        resource="host",
        lived_on=True,
    ),
    Dialect(
        "host_oom_killer",
        "systemd 243 and later, earlyoom",
        "systemd/src/core/unit.c",
        re.compile(
            r"has been killed by the OOM killer|Failed with result 'oom-kill'"
            r"|systemd-oomd killed \d+ process|earlyoom\S* sending SIG(?:TERM|KILL)"
        ),
        resource="host",
        lived_on=True,
    ),
    Dialect(
        "host_oom_killer",
        "Ray 2.0 and later",
        "ray/src/ray/raylet/node_manager.cc",
        re.compile(
            r"(?:Task|Actor|Worker)\S* (?:was|were) killed due to the node running low on memory"
            r"|killed due to memory pressure \(OOM\)"
        ),
        resource="host",
        lived_on=True,
    ),
    Dialect(
        "slurm",
        "Slurm 17 and later",
        "slurm/src/plugins/jobacct_gather/common",
        re.compile(
            r"oom[-_]kill event(?:\(s\)|s)? in (?:StepId=|step )|srun: error: .*: Out Of Memory"
            r"|[Ee]xceeded (?:job|step|virtual) memory limit|error: (?:Job|Step)\S* .{0,40}"
            r"exceeded (?:virtual )?memory limit|State[=: ]+OUT_OF_MEMORY|\bOUT_OF_ME\+"
        ),
        resource="host",
        lived_on=True,
    ),
    Dialect(
        "slurm",
        "LSF, PBS",
        "the batch system",
        re.compile(r"TERM_MEMLIMIT: job killed|PBS: job killed: (?:v?mem|pmem) \d+"),
        resource="host",
        lived_on=True,
    ),
    Dialect(
        "container",
        "Docker, Kubernetes",
        "containerd",
        re.compile(r"\bOOMKilled\b(?!\W{1,4}false)"),
        resource="host",
        lived_on=True,
    ),
    Dialect(
        "cpu_allocator",
        "Python, C++, Arrow, Windows",
        "the C library",
        re.compile(
            r"\[Errno 12\] Cannot allocate memory|std::bad_alloc(?!: out_of_memory)"
            r"|ArrowMemoryError: (?:m|re)alloc of size|os error 1455|\[WinError 1455\]"
            r"|mmap failed: Cannot allocate memory|memory allocation of \d+ bytes failed"
        ),
        figures(requested_bytes=r"memory allocation of SIZE failed"),
        resource="host",
    ),
    Dialect(
        "cpu_allocator",
        "Python",
        "Objects/obmalloc.c",
        re.compile(r"MemoryError(?::? *$|: *\()"),
        resource="host",
        whole_line=True,
    ),
    Dialect(
        "container",
        "Docker, Kubernetes, shells",
        "the shell",
        re.compile(
            r"(?:exit(?:ed)?|return(?:ed|s)?)\s?(?:with|non-zero)?\s?(?:exit)?\s?"
            r"(?:code|status):? ?=? ?137\b|Exit Code: +137\b",
            re.IGNORECASE,
        ),
        resource="host",
        hints_only=True,
    ),
    Dialect(
        "host_oom_killer",
        "torchelastic, DeepSpeed, subprocess",
        "torch/distributed/elastic/multiprocessing/api.py",
        re.compile(
            r"exitcode\s*: -9\b|Signal 9 \(SIGKILL\) received|died with <Signals\.SIGKILL: 9>"
            r"|exit(?:s|ed)? with return code = -9|(?:exit status|exitcode|exit code):? -9\b"
            r"|terminated (?:with|by) signal (?:9\b|SIGKILL)"
        ),
        resource="host",
        hints_only=True,
    ),
    Dialect(
        "host_oom_killer",
        "shells",
        "bash, zsh",
        re.compile(
            r"(?:Killed(?:: 9)?|已杀死)\s*$|zsh: killed\s|\[\d+\]\s*[+-]?\s+(?:\d+ )?[Kk]illed\s"
            r"|\S+: line \d+:\s+\d+ Killed\s"
        ),
        resource="host",
        whole_line=True,
        hints_only=True,
    ),
)
