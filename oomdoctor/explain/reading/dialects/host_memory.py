"""Messages about host memory and shared memory, and kills that end a process without a message."""

from __future__ import annotations

import re

from oomdoctor.explain.reading.dialects.dialect import Dialect, figures

HOST: tuple[Dialect, ...] = (
    Dialect(
        "numpy",
        "NumPy 1.17 and later",
        "numpy/core/_exceptions.py",
        re.compile(r"Unable to allocate (?:array with shape|[\d.]+ [KMGTP]?i?B for an array)"),
        figures(requested_bytes=r"Unable to allocate SIZE"),
        resource="host",
        prints_shape=True,
        hints="llocat",
    ),
    Dialect(
        "dataloader_shm",
        "torch 1.0 and later",
        "torch/utils/data/_utils/signal_handling.py",
        re.compile(
            r"killed by signal: Bus error|insufficient shared memory \(shm\)"
            r"|unable to (?:open shared memory object|mmap \d+ bytes from file) <(?:/torch"
            r"|filename not)"
            r"|unable to (?:write to|resize) file </?torch"
            r"|unable to allocate shared memory ?\(shm\)"
            r"|Torch: unable to mmap memory"
            r"|No space left on device: '/(?:dev/shm|psm_|torch_)"
        ),
        resource="shm",
        hints="Bus error|hared memory|unable to|No space left|illed",
    ),
    Dialect(
        # The system's words for a full disk, while tensors or arrays move between processes.
        "dataloader_shm",
        "Python, torch 1.0 and later",
        "multiprocessing/heap.py, torch/storage.py",
        re.compile(r"\[Errno 28\] No space left on device(?!: '/(?!dev/shm))"),
        resource="shm",
        phase="data",
        hints="No space left",
        in_frames=r"multiprocessing/(?:heap|shared_memory|reductions|sharedctypes)|_new_shared"
        r"|_share_(?:fd|filename)|_new_using_(?:fd|filename)|share_memory_|_utils/collate\.py",
    ),
    Dialect(
        # A memory volume, mounted on /dev/shm because the container's own is small.
        "dataloader_shm",
        "Kubernetes 1.9 and later",
        "kubernetes/pkg/kubelet/eviction/eviction_manager.go",
        re.compile(r"Usage of EmptyDir volume \S*(?:shm|mem)\S* exceeds the limit"),
        resource="shm",
        lived_on=True,
        hints="EmptyDir",
    ),
    Dialect(
        "dataloader_worker",
        "torch 0.4 and later",
        "torch/csrc/DataLoader.cpp",
        re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed"),
        resource="host",
        hints="illed",
    ),
    Dialect(
        "host_oom_killer",
        "Linux",
        "mm/oom_kill.c",
        re.compile(
            r"invoked oom-killer|oom-kill:(?:constraint|\.\.\.)|oom_reaper: reaped process"
            r"|(?:Out of memory|[Mm]emory cgroup out of memory): Kill(?:ed)? process"
            r"|(?<!ut of memory: )Killed process \d+ \("
        ),
        figures(process_bytes=r"anon-rss:(\d+k)B"),  # the kernel's kB is 1024 bytes
        resource="host",
        lived_on=True,
        hints="oom[-_]|illed|ut of memory",
    ),
    Dialect(
        # `run` counts what the kernel did, because the output of a killed command cannot say it.
        "host_oom_killer",
        "oomdoctor run",
        "oomdoctor/runs/watched/seen/outside.py",
        re.compile(r"oomdoctor: the kernel killed (?:a process|\d+ processes)"),
        resource="host",
        lived_on=True,
        hints="illed",
    ),
    Dialect(
        "dataloader_shm",
        "oomdoctor run",
        "oomdoctor/runs/watched/seen/outside.py",
        re.compile(r"oomdoctor: a bus error ended the command, and /dev/shm was full"),
        resource="shm",
        phase="data",
        lived_on=True,
        hints="bus error",
    ),
    Dialect(
        "host_oom_killer",
        "systemd 243 and later, earlyoom",
        "systemd/src/core/unit.c",
        re.compile(
            r"has been killed by the OOM killer|Failed with result 'oom-kill'"
            r"|systemd-oomd killed \d+ process|Killed /\S+ due to memory pressure"
            r"|earlyoom\S* sending SIG(?:TERM|KILL)"
        ),
        resource="host",
        lived_on=True,
        hints="illed|oom[-_]|OOM|memory pressure|earlyoom",
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
        hints="illed|low on |memory pressure",
    ),
    Dialect(
        "slurm",
        "Slurm 17 and later",
        "slurm/src/plugins/jobacct_gather/common",
        re.compile(
            r"oom[-_]kill event(?:\(s\)|s)? in (?:StepId=|step )|srun: error: .*: Out Of Memory"
            r"|[Ee]xceeded (?:job|step|virtual) memory limit|error: (?:Job|Step)\S* .{0,40}"
            r"exceeded (?:virtual )?memory limit|State[=: ]+OUT_OF_MEMORY|\bOUT_OF_ME\+"
            r"|Slurm .{0,120}\bOUT_OF_MEMORY\b"
        ),
        # The lines that `system.slurm.records` writes; Slurm's K is 1024 bytes.
        figures(process_bytes=r"\bMaxRSS=(\d+K)\b", allowed_bytes=r"\bReqMem=(\d+K)\b"),
        resource="host",
        lived_on=True,
        hints="oom[-_]|Out Of Memory|OUT_OF|emory limit",
    ),
    Dialect(
        # `slurm` is the contract's name for any scheduler that enforces a memory limit.
        "slurm",
        "LSF 6 and later",
        "bacct(1), Termination reasons",
        re.compile(r"TERM_MEMLIMIT: job killed"),
        resource="host",
        lived_on=True,
        hints="MEMLIMIT",
    ),
    Dialect(
        "slurm",
        "PBS, Torque",
        "openpbs/src/resmom/linux/mom_mach.c",
        re.compile(r"PBS: job killed: p?v?mem (?:job total )?\d+"),
        figures(  # their kb are 1024 bytes
            process_bytes=r"p?v?mem (?:job total )?(\d+ ?k)b",
            allowed_bytes=r"exceeded limit (\d+ ?k)b",
        ),
        resource="host",
        lived_on=True,
        hints="illed",
    ),
    Dialect(
        "slurm",
        "Grid Engine (SGE, UGE)",
        "gridengine/source/daemons/execd/msg_execd.h",
        re.compile(r'exceeds job (?:hard|soft) limit "[hs]_(?:vmem|rss|data)" of queue'),
        resource="host",
        lived_on=True,
        hints="exceeds job",
    ),
    Dialect(
        "container",
        "Docker, Kubernetes",
        "containerd",
        re.compile(r"\bOOMKilled\b(?!\W{1,4}false)"),
        resource="host",
        lived_on=True,
        hints="OOM",
    ),
    Dialect(
        "container",
        "Kubernetes 1.9 and later",
        "kubernetes/pkg/kubelet/eviction/helpers.go, pkg/kubelet/oom/oom_watcher_linux.go",
        re.compile(r"node was low on resource: memory|System OOM encountered, victim process"),
        resource="host",
        lived_on=True,
        hints="low on |OOM",
    ),
    Dialect(
        "container",
        "Colab, Kaggle",
        "the notebook's page",
        re.compile(
            r"session crashed after using all available RAM"
            r"|notebook tried to allocate more memory than is available"
        ),
        resource="host",
        lived_on=True,
        hints=r"RAM\b|llocat",
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
        figures(requested_bytes=r"(?:memory allocation|alloc) of (?:size )?BYTES"),
        resource="host",
        hints="llocat|bad_alloc|alloc of size|1455",
    ),
    Dialect(
        "cpu_allocator",
        "Python",
        "Objects/obmalloc.c",
        re.compile(r"MemoryError(?::? *$|: *\()"),
        resource="host",
        whole_line=True,
        hints="MemoryError",
    ),
    Dialect(
        "container",
        "Docker, Kubernetes, shells",
        "the shell",
        re.compile(
            r"(?:exit(?:ed)?|return(?:ed|s)?)\s?(?:with|non-zero)?\s?(?:exit)?\s?"
            r"(?:code|status):? ?=? ?137\b|Exit Code: +137\b|\bExited \(137\)",
            re.IGNORECASE,
        ),
        resource="host",
        hints_only=True,
        hints="137",
    ),
    Dialect(
        "host_oom_killer",
        "torchelastic, DeepSpeed, subprocess",
        "torch/distributed/elastic/multiprocessing/api.py",
        re.compile(
            r"exitcode\s*: -9\b|Signal 9 \(SIGKILL\) received|died with <Signals\.SIGKILL: 9>"
            r"|exit(?:s|ed)? with return code = -9|(?:exit status|exitcode|exit code):? -9\b"
            r"|terminated (?:with|by) signal (?:9\b|SIGKILL)|Negsignal\.SIGKILL"
            r"|srun: error: \S+: tasks? [\d,-]+: Killed"
        ),
        resource="host",
        hints_only=True,
        hints=r"-[79]\b|SIGKILL|signal 9|illed",
    ),
    Dialect(
        # The file system, usually /dev/shm, had no room for a page of a shared mapping.
        "dataloader_shm",
        "torchelastic, DeepSpeed, subprocess, shells",
        "torch/distributed/elastic/multiprocessing/api.py",
        re.compile(
            r"exitcode\s*: -7\b|Signal 7 \(SIGBUS\) received|died with <Signals\.SIGBUS: 7>"
            r"|(?:exit status|exitcode|exit code|return code =):? -7\b"
            r"|Fatal Python error: Bus error|Bus error\s+\(core dumped\)"
        ),
        resource="shm",
        hints_only=True,
        hints=r"-[79]\b|SIGBUS|Bus error",
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
        hints="illed|已杀死",
    ),
)
