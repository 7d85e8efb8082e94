"""Whole logs of our own making: ranks, consequences, survived failures, look-alikes and facts."""

from __future__ import annotations

import pytest
from growth import grows_no_faster
from hypothesis import given
from hypothesis import strategies as st

from oomdoctor.explain.reading.lines.prefixes import split_line
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.scan import scan

MIB, GIB = 1024**2, 1024**3


def oom(asked: str = "2.00 GiB", free: str = "512.00 MiB") -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total "
        f"capacity of 16.00 GiB of which {free} is free. Including non-PyTorch memory, this "
        "process has 15.50 GiB memory in use. Of the allocated memory 12.00 GiB is allocated by "
        "PyTorch, and 3.00 GiB is reserved by PyTorch but unallocated."
    )


BACKWARD = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 30, in <module>\n    step(batch)\n'
    '  File "/home/me/train.py", line 12, in step\n    loss.backward()\n'
    '  File "/env/lib/python3.11/site-packages/torch/_tensor.py", line 630, in backward\n'
    "    torch.autograd.backward(\n" + oom() + "\n"
)
FORWARD = (
    "Traceback (most recent call last):\n"
    '  File "/home/me/train.py", line 30, in <module>\n    model(batch)\n'
    '  File "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 1, in forward\n'
    "    return F.linear(x)\n"
)


def read(text: str):
    return scan(lines([text.encode()]))


def prefixed(prefix: str, text: str) -> list[str]:
    return [prefix + line for line in text.strip("\n").split("\n")]


def test_a_traceback_gives_phase_place_and_evidence():
    (incident,), facts = read("start\n" + BACKWARD)
    assert (incident.phase, incident.resource, incident.rank) == ("backward", "gpu", None)
    assert (incident.where.line, incident.where.function) == (12, "step")
    assert incident.where.code == "loss.backward()"
    assert incident.line_number == 9
    assert incident.lines[0].startswith("torch.OutOfMemoryError")
    assert incident.exception == "torch.OutOfMemoryError"
    assert not incident.survived
    assert facts.line_count == 9


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "[default3]:",
        "[1,3]<stderr>:",
        "2026-01-02 03:04:05,678 - trainer - ERROR - ",
        "2026-01-02T03:04:05.678Z ",
        "ERROR 01-02 03:04:05 [core.py:634] ",
        "(RayWorker pid=77, ip=10.0.0.1) ",
        "wandb: ERROR ",
        "Jan  2 03:04:05 node1 train[77]: ",
        "trainer-1  | ",
        "  | ",
        "# ",
        "    ",
        "3: ",
        "[trainer3]:",
        "[prterun-node1-77@1,3]<stderr>: ",
        "worker-3  | ",
        "trainer_3_1 | ",
        "app-worker-3-1  | ",
        "[pod/trainer-3/pytorch] ",
        "[pod/tune-job-3-x7k2p/main] ",
        "(Worker_TP3 pid=77) ERROR 01-02 03:04:05 [core.py:634] ",
        "[2026-01-02 03:04:05 TP3] ",
        "trainer-1  | [rank3]: ",
    ],
)
def test_prefixes_do_not_hide_a_traceback(prefix):
    (incident, *_), _ = read("\n".join(prefixed(prefix, BACKWARD)))
    assert incident.phase == "backward"
    assert incident.where.line == 12
    assert incident.event.requested_bytes == 2 * GIB
    named = not prefix.startswith(("2026", "(Ray", "ERROR", "Jan", "wandb", "trainer-1  | |"))
    assert incident.rank == (3 if "3" in prefix and named else None)


def test_a_first_replica_is_a_rank_only_beside_others():
    alone = "\n".join(prefixed("trainer-1  | ", BACKWARD))
    assert read(alone)[0][0].rank is None
    assert read("trainer-2  | ready\n" + alone)[0][0].rank == 1
    assert read("redis-2  | ready\n" + alone)[0][0].rank is None


def test_a_launcher_names_the_rank_of_a_failure_that_names_none():
    elastic = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "Failures:\n[1]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 6)\n"
        "Root Cause (first observed failure):\n[0]:\n"
        "  rank      : 3 (local_rank: 1)\n  exitcode  : 1 (pid: 7)\n"
    )
    assert read(BACKWARD + elastic)[0][0].rank == 3
    named = "\n".join(prefixed("[rank1]: ", BACKWARD)) + "\n"
    assert read(named + elastic)[0][0].rank == 1
    survived = BACKWARD + "{'train_runtime': 3.2}\n"
    assert read(survived + elastic)[0][0].rank is None


def test_the_process_that_spawn_names_is_the_rank():
    text = (
        "torch.multiprocessing.spawn.ProcessRaisedException:\n\n"
        "-- Process 5 terminated with the following error:\n"
    )
    assert read(text + BACKWARD)[0][0].rank == 5
    assert read(BACKWARD + text)[0][0].rank is None


def test_interleaved_ranks_are_taken_apart():
    first = prefixed("[rank1]: ", BACKWARD)
    second = prefixed("[rank0]: ", FORWARD + oom("3.00 GiB"))
    mixed = [line for pair in zip(first, second, strict=False) for line in pair]
    mixed += first[len(second) :]
    found, _ = read("\n".join(mixed))
    told = {i.rank: (i.phase, i.event.requested_bytes) for i in found}
    assert told == {1: ("backward", 2 * GIB), 0: ("forward", 3 * GIB)}


def test_the_rank_that_failed_first_is_the_cause_and_aborts_are_not_told():
    abort = (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited"
        "\n[rank0]: ncclRemoteError: A call failed possibly due to a network error\n"
    )
    elastic = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        "train.py FAILED\n  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 7)\n"
    )
    text = "\n".join(prefixed("[rank1]: ", BACKWARD)) + "\n" + abort + elastic
    found, _ = read(text)
    assert [(i.event.dialect, i.consequence) for i in found] == [
        ("cuda_caching_allocator", False),
        ("host_oom_killer", True),
    ]
    assert found[0].rank == 1


def test_a_kill_with_no_other_failure_is_one_of_the_host():
    (incident,), _ = read(
        "errors.ChildFailedError:\nRoot Cause (first observed failure):\n[0]:\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 7)\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 7\n"
    )
    assert (incident.event.dialect, incident.resource, incident.rank) == (
        "host_oom_killer",
        "host",
        2,
    )


def test_a_kill_after_another_exception_is_its_consequence():
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/a.py", line 3, in f\n    x[3]\n'
        "IndexError: list index out of range\n  exitcode  : -9 (pid: 7)\n"
    )
    assert [i.look_alike for i in read(text)[0]] == ["index"]


def test_reports_of_one_kill_are_one_failure():
    found, _ = read(
        "python invoked oom-killer: gfp_mask=0x1\n"
        "oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=9\n"
        "Memory cgroup out of memory: Killed process 9 (python) anon-rss:1024kB\n"
        "run.sh: line 1: 9 Killed    python train.py\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.batch.\n"
    )
    assert [(i.event.dialect, i.consequence) for i in found] == [
        ("slurm", False),
        ("host_oom_killer", True),
    ]
    assert [i.repeats for i in found] == [1, 1]
    assert found[0].event.process_bytes == 1024**2  # from the kernel's report
    assert found[1].event.process_bytes == MIB


def test_a_report_of_the_kernel_after_the_word_of_the_shell_is_the_stronger():
    text = "Killed\n" + BACKWARD + "Out of memory: Killed process 9 (python) anon-rss:1024kB\n"
    found, _ = read(text)
    assert [(i.event.dialect, i.consequence, i.survived) for i in found] == [
        ("host_oom_killer", False, False),
        ("cuda_caching_allocator", False, False),
    ]


def test_a_kill_by_the_host_shows_that_the_gpu_failure_was_survived():
    gpu, host = read(BACKWARD + "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n")[0]
    assert (gpu.resource, gpu.survived) == ("gpu", True)
    assert (host.resource, host.survived) == ("host", False)
    assert (host.frames, host.where) == ((), None)


@pytest.mark.parametrize(
    ("after", "survived"),
    [
        ("{'loss': 1.2, 'epoch': 0.1}\n{'loss': 1.1, 'epoch': 0.2}\n", True),
        ("step 11 loss 1.2\nstep 12 loss 1.1\n", True),
        ("Decreasing batch size to: 4.\n", True),
        ("{'train_runtime': 12.3}\n", True),
        (" 10%|# | 10/99 [00:01<00:09]\n", False),
        ("Loading weights: 10%|# | 1/9 [0]\nLoading weights: 20%|# | 2/9 [0]\n", False),
        ("cleaning up\nbye\n", False),
    ],
)
def test_whether_the_run_went_on(after, survived):
    before = " 10%|# | 10/99 [00:01<00:09]\nstep 10 loss 1.3\n"
    (incident,), facts = read(before + BACKWARD + after)
    assert incident.survived is survived
    assert incident.step == 10
    assert facts.total_steps == 99


def test_the_same_failure_told_again_is_folded_with_its_traceback():
    found, _ = read("ERROR - " + oom() + "\n" + BACKWARD + "wandb: ERROR " + oom() + "\n")
    assert [(i.repeats, i.phase, i.line_number) for i in found] == [(3, "backward", 1)]


def test_a_traceback_after_its_message_is_found():
    text = oom() + '\n  File "/env/site-packages/torch/optim/adam.py", line 1, in step\n    x\n'
    assert read(text)[0][0].phase == "optimizer"


def test_a_wrapped_message_of_a_rank_is_whole():
    text = "[rank1]: " + oom().replace("of which", "of\nwhich").replace("Of the", "\n   Of the")
    (incident,), _ = read(text)
    assert incident.event.free_bytes == 512 * MIB
    assert incident.event.reserved_unallocated_bytes == 3 * GIB
    assert incident.rank == 1


def test_pinned_host_memory_is_not_the_card():
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/site-packages/vllm/worker/cache_engine.py", line 9, in allocate_cpu_cache\n'
        "    key = torch.empty(pin_memory=True)\nRuntimeError: CUDA error: out of memory\n"
    )
    (linux,), _ = read(text)
    assert (linux.event.dialect, linux.resource) == ("cuda_driver", "host")
    (windows,), _ = read("Linux: WSL2, Ubuntu\n" + text)
    assert windows.event.dialect == "wsl_pinned"


@pytest.mark.parametrize(
    ("message", "name"),
    [
        (
            "RuntimeError: Expected all tensors to be on the same device, but found",
            "device_mismatch",
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", "device_assert"),
        ("CUDA error: an illegal memory access was encountered", "illegal_memory_access"),
        ("RuntimeError: \"addmm_impl_cpu_\" not implemented for 'Half'", "dtype"),
        ("Loss is nan, stopping training", "nan_loss"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***", "timeout"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED DUE TO PREEMPTION ***", "preemption"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-02T03:04:05 ***", "cancelled"),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT x DUE TO NODE FAILURE, SEE SLURMCTLD",
            "hardware",
        ),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load", "connection"),
        ("ImportError: libcudart.so.12: cannot open shared object file", "import"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", "shape"),
        ("OutOfResources: out of resource: shared memory, Required: 9, limit: 8", "hardware"),
        ("RuntimeError: CUDA error: no kernel image is available for execution", "hardware"),
        ("KeyError: 'text'", "key"),
        ("TypeError: f() missing 1 required positional argument", "type"),
        ("ZeroDivisionError: division by zero", "other"),
        ("RuntimeError: DataLoader worker is killed by signal: Killed.", "shutdown_artifact"),
    ],
)
def test_look_alikes_are_named_and_are_not_out_of_memory(message, name):
    (incident,), _ = read(FORWARD + message + "\n")
    assert (incident.event.dialect, incident.look_alike) == ("not_oom", name)
    assert (incident.resource, incident.phase) == ("none", "forward")


def test_a_look_alike_beside_a_failure_of_memory_comes_last():
    text = BACKWARD + "RuntimeError: CUDA error: device-side assert triggered\n"
    assert [i.event.dialect for i in read(text)[0]] == ["cuda_caching_allocator", "not_oom"]


def test_a_healthy_log_has_no_failure():
    assert read("step 1 loss 2\nmemory 3 GiB\nTraining completed.\n")[0] == ()
    assert read("")[0] == ()


def test_what_else_a_log_tells():
    text = (
        "Namespace(model_name_or_path='acme/tiny-1b', per_device_train_batch_size=4, bf16=True)\n"
        '  "gradient_checkpointing": false,\n'
        "python train.py --lora_r 16 --max_seq_length=2048 --optim adamw_torch\n"
        "***** Running training *****\n"
        "  Num examples = 9,000\n  Total train batch size (w. parallel & accumulation) = 64\n"
        "trainable params: 1,024 || all params: 1,000,000 || trainable%: 0.1\n"
        "step 1 loss 2.0 mem 10.5 GiB\nstep 2 loss 1.9 mem 11.0 GiB\n"
        "|  0  NVIDIA A100-SXM4-40GB | 10240MiB / 40960MiB |\ntorch version: 2.6.0\n"
        "{'train_runtime': 3.2}\n"
    )
    facts = read(text)[1]
    assert facts.model_id == "acme/tiny-1b"
    assert facts.settings == {
        "per_device_train_batch_size": 4,
        "bf16": True,
        "gradient_checkpointing": False,
        "lora_r": 16,
        "max_length": 2048,
        "optim": "adamw_torch",
        "num_examples": 9000,
        "total_train_batch_size": 64,
        "trainable_parameters": 1024,
        "all_parameters": 1_000_000,
    }
    used = [(s.step, s.used_bytes) for s in facts.step_memory]
    assert used == [(1, 21 * GIB // 2), (2, 11 * GIB)]
    assert [r.used_bytes for r in facts.gpu_readings] == [10240 * MIB]
    assert "A100" in facts.gpu_name
    assert facts.versions["torch"] == "2.6.0"
    assert facts.finished
    assert facts.evidence["bf16"][0].startswith("Namespace")


@pytest.mark.slow
def test_a_failure_in_every_line_costs_no_more_than_the_line():
    found: list[int] = []

    def work(count):
        lines = (f"{i} {oom(free=f'{i % 900}.00 MiB')}" for i in range(count))
        found.append(len(read("\n".join(lines))[0]))

    assert grows_no_faster(work, 1_500, limit=6)
    assert min(found) > 0
    assert max(found) < 500


WORDS = [
    BACKWARD, FORWARD, oom(), "Killed\n", "\n", "[rank1]: ",
    "error: Detected 1 oom_kill event in StepId=1",
    "Error: ",
    "Process 7 has 1.00 GiB memory in use.", "\r 5%|# | 1/9 [0", "│ a │", "\x1b[31m",
    "exitcode : -9",
    '{"a": "b\\n"}', "No available memory for the cache blocks", 'File "a", line',
]  # fmt: skip


@given(st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=40)), max_size=30))
def test_any_mixture_is_read(parts):
    found, facts = scan(lines(["".join(parts).encode("utf-8", "surrogatepass")]))
    assert facts.line_count >= 0
    for incident in found:
        assert incident.line_number >= 1
        assert (incident.event.dialect == "not_oom") == (incident.look_alike is not None)


@given(st.text(max_size=120))
def test_any_line_is_split(line):
    split = split_line(line)
    assert line.endswith(split.text)


@pytest.mark.parametrize("frame", ["a", '  File "a.py", line 1, in f'])
def test_a_traceback_that_many_failures_share_is_not_slow(frame):
    """Each failure looks up to thousands of lines back; together they must not."""

    def work(failures):
        frames = f"{frame}\n" * (6 * failures)
        text = "Traceback (most recent call last):\n" + frames
        read(text + "device-side assert triggered\n" * failures)

    assert grows_no_faster(work, 120, limit=9)


def test_a_title_is_no_failure_beside_the_message_that_has_its_figures():
    message = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
        "capacity of 24.00 GiB of which 8.00 MiB is free."
    )
    found, _ = read(f"# torch.OutOfMemoryError: CUDA out of memory\n\nIt fails with\n\n{message}\n")
    assert [(i.event.requested_bytes, i.consequence) for i in found] == [
        (1024**3, False),
        (None, True),
    ]


def test_a_number_that_a_terminal_broke_is_whole_again():
    found, _ = read(
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB. GPU 1 "
        "has a total capacity of 48.00 GiB of which 1.50 GiB is free. Of the allocated memory 4\n"
        "0.25 GiB is allocated by PyTorch, and 4.50 GiB is reserved by PyTorch but unallocated.\n"
    )
    assert found[0].event.allocated_bytes == 40 * 1024**3 + 256 * 1024**2


def test_text_from_a_picture_is_read():
    found, _ = read("RuntimeError: CUDA out of menory. Tried to allocate 2.00 Gi8 (GPU 0; 8.00 GlB")
    assert found[0].event.requested_bytes == 2 * 1024**3


def test_a_warning_of_ray_is_a_failure_only_if_the_run_does_not_go_on():
    warning = (
        "WARNING: The object store is using /tmp instead of /dev/shm because /dev/shm has only "
        "67108864 bytes available.\n"
    )
    assert [i.resource for i in read(warning)[0]] == ["shm"]
    steps = "".join(f"{{'loss': 1.0, 'epoch': 0.{n}}}\n" for n in range(4))
    assert read(warning + steps)[0] == ()


def test_figures_on_lines_beside_a_message_are_its_own():
    found, _ = read(
        "Stats: \nLimit:      11281553818\nInUse:      10554916864\n"
        "OOM when allocating tensor with shape[2,3] and type float on device:GPU:0\n"
    )
    event = found[0].event
    assert (event.capacity_bytes, event.allocated_bytes) == (11281553818, 10554916864)


def test_a_warning_of_tensorflow_that_is_not_a_failure_is_none():
    assert (
        read(
            "Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.39GiB. The caller "
            "indicates that this is not a failure, but this may mean lower performance.\n"
        )[0]
        == ()
    )


def test_the_limit_of_a_pod_is_what_a_killed_process_was_allowed():
    found, facts = read(
        "    resources:\n      requests:\n        memory: 8Gi\n      limits:\n"
        "        memory: 32Gi\n      Reason:       OOMKilled\n"
    )
    assert found[0].event.allowed_bytes == facts.settings["memory_limit_bytes"] == 32 * 1024**3
    found, _ = read(
        "#SBATCH --mem=64G\nslurmstepd: error: Detected 1 oom-kill event(s) in step 3\n"
    )
    assert found[0].event.allowed_bytes == 64 * 1024**3


def test_the_last_error_is_told_where_nothing_is_known():
    _, facts = read("Loading model\nSegmentation fault (core dumped)\n")
    assert facts.evidence["last_error"] == ("Segmentation fault (core dumped)",)


def test_a_rank_that_a_logger_writes_in_capitals_is_read() -> None:
    line = (
        "[2023-12-28 10:04:57,187] [ERROR] [axolotl.load_model:453] [PID:34] [RANK:1] CUDA out of "
        "memory. Tried to allocate 28.00 MiB (GPU 1; 15.71 GiB total capacity; 15.39 GiB already "
        "allocated; 24.31 MiB free; 15.46 GiB reserved in total by PyTorch)"
    )
    incidents, _ = scan([line])
    assert [incident.rank for incident in incidents] == [1]
