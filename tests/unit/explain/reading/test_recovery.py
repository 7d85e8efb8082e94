"""Failures that the run survived, kills after its end, and full shared memory."""

from __future__ import annotations

import pytest

from oomdoctor.errors import ExitCode
from oomdoctor.explain.diagnose import diagnose, exit_of
from oomdoctor.explain.reading.lines.stream import lines
from oomdoctor.explain.reading.parse import parse_oom
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis


def oom(asked: str = "2.00 GiB") -> str:
    return (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 16.00 GiB "
        f"of "
        "which 512.00 MiB is free. Of the allocated memory 12.00 GiB is allocated by PyTorch."
    )


TRACE = (
    'Traceback (most recent call last):\n  File "/home/me/train.py", line 12, in step\n'
    "    loss.backward()\n"
)
UNCAUGHT = f"{TRACE.replace('in step', 'in <module>')}torch.OutOfMemoryError: {oom()}\n"
FAILED = f"{TRACE}torch.OutOfMemoryError: {oom()}\n"
AGAIN = f"{TRACE}torch.OutOfMemoryError: {oom('1.00 GiB')}\n"
STEP = "step 10 loss 1.3\n"


def read(text: str) -> tuple[Diagnosis, ...]:
    incidents, facts = scan(lines([text.encode()]))
    return diagnose("log", incidents, facts, Given())


# the log, and a part of the line that shows that the run went on
SURVIVED = [
    (f"{STEP}{FAILED}step 11 loss 1.2\nstep 12 loss 1.1\n", "step 12"),
    (f"{STEP}WARNING: OOM on batch 132 ({oom()}), skipping this batch\n{STEP}", "skipping this"),
    (f"{FAILED}Skipping batch 7\n", "Skipping batch 7"),
    (f"WARN | trainer | OOM: Ran out of memory with exception: {oom()}\n"
     "WARN | trainer | attempting to recover from OOM in forward/backward pass\n", "recover"),
    (f"Out of memory at batch size 32, retrying with 16\nRuntimeError: {oom()}\n", "retrying with"),
    (f"Trying batch size 64\nOOM: {oom()}\nTrying batch size 32\n", "size 32"),
    (f"{FAILED}***** Running training *****\n{{'train_runtime': 100.1}}\n", "train_runtime"),
    (f"{FAILED}Decreasing batch size to: 8.\n", "Decreasing"),
    (f"RuntimeError: {oom()}\nBatch size 32 failed, trying batch size 16\n", "trying batch"),
    (f"{FAILED}used the CPU for this sample\nTraining completed in 3:12:01\n", "completed in"),
    (f"{FAILED}lower resolution from here\nModel saved to out/final\n", "Model saved"),
    (f"{FAILED}ok\nSaving model checkpoint to out/checkpoint-100\n", "checkpoint-100"),
    (f"{FAILED}ok\nProcess finished with exit code 0\n", "exit code 0"),
    (f"a-1  | {oom()}\na-1  | ok\na-1 exited with code 0\n", "exited with code 0"),
    (f"{FAILED}Slurm Job_id=4 Name=a Ended, Run time 00:03:11, COMPLETED, ExitCode 0\n", "Slurm"),
    (f"Trial a_1 failed: {oom()}\nTrial a_2 completed after 9 iterations\n", "Trial a_2"),
    (f"Epoch 1/3\nRuntimeError: {oom()}\nEpoch 2/3\nEpoch 3/3\n", "Epoch 3/3"),
    (f"RuntimeError: {oom()}\n跳过该批次\n", "跳过"),
    (f"Sample 3: {oom()}, skipping\nSample 4: ok\n", "skipping"),
    (f"Trial 3 failed with value None: {oom()}\nTrial 4 finished with value: 0.93.\n", "Trial 4"),
    ("Warning: Ran out of memory when regular VAE decoding, retrying with tiled VAE decoding.\n",
     "tiled"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shown"), SURVIVED)
def test_a_failure_that_the_run_survived(text, shown):
    found = read(text)
    memory = [one for one in found if one.is_oom]
    assert memory and all(one.survived for one in memory)
    assert shown in (memory[0].recovery or "")
    assert "the program caught the error and the run " in memory[0].verdict
    assert memory[0].remedies
    assert exit_of(found) is ExitCode.NO


@pytest.mark.parametrize(
    "text",
    [
        STEP + FAILED,
        f"{STEP}{FAILED}wandb: Synced 5 W&B file(s)\nwandb: Network error, entering retry loop\n",
        f"{FAILED}Saving emergency checkpoint to out/crash\n",
        f"{FAILED}Process finished with exit code 1\n",
        f"{FAILED}## Training completed\n",
        f"{FAILED}One may let it die without saving the model, of course.\n",
        f"{FAILED}## Offload Retry\n\nThe retry added flags:\n",
        f"{FAILED}    print('Saving model to disk')\n",
        f"{FAILED}Retrying (Retry(total=4)) after connection broken\n",
        f"{FAILED}\nDuring handling of the above exception:\n{TRACE}    retry()\nValueError: "
        f"fallback\n",
        f"{STEP}{FAILED}step 11 loss 1.3\nerrors.ChildFailedError:\n",
        f"{FAILED}Decreasing batch size to: 1.\n{AGAIN}RuntimeError: No executable batch size "
        f"found, "
        "reached zero.\n",
        f"{STEP}{FAILED}Skipping batch\nstep 11 loss 1\nstep 12 loss 1\n{AGAIN}",
        # another document, another command, another container
        f"{FAILED}## The second log\nTraining completed.\n",
        f"{FAILED}==> b.log <==\nstep 1 loss 2\nstep 2 loss 1\nTraining completed.\n",
        f"{FAILED}# A smaller batch\nstep 1 loss 2\nstep 2 loss 1\nModel saved to out\n",
        f"{FAILED}me@box:~/run$ python train.py\nstep 1 loss 2\nstep 2 loss 1\nAll done\n",
        f"{FAILED}$ CUDA_VISIBLE_DEVICES=1 torchrun train.py\nFinished training\n",
        f"a-1  | {oom()}\nb-1 exited with code 0\n",
        f"a-1  | {oom()}\nb-1  | step 11 loss 1\nb-1  | step 12 loss 1\nb-1  | All done\n",
        f"node01: {oom()}\nnode02: step 11 loss 1\nnode02: step 12 loss 1\nnode02: All done\n",
        f"[rank3]: {oom()}\n[rank0]: Training completed.\n",
        f"(Trainer pid=7) {oom()}\n(Trainer pid=8) Model saved to out\n",
        # another run in the same text: what starts it, its number, the opening lines once more
        f"{FAILED}===== b.log =====\nTraining completed.\n",
        f"{FAILED}=== Run 2 ===\nstep 1 loss 2\nstep 2 loss 1\nProcess finished with exit code 0\n",
        f"```\n{FAILED}```\nWith 8 bits:\n```\nTraining completed.\n```\n",
        f"{FAILED}+ python train.py --batch 4\nTraining completed.\n",
        f"{FAILED}Running command: CUDA_VISIBLE_DEVICES=1 /opt/env/bin/python b.py\nAll done\n",
        f"{FAILED}Starting job b\nFinished training\n",
        f"{FAILED}wandb: Agent Starting Run: em3qtl1s with config:\nTraining completed.\n",
        f"{FAILED}W1201 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable "
        f"for each process to be 1 in default\nstep 1 loss 2\nstep 2 loss 1\nAll done\n",
        f"SLURM_JOB_ID=41\n{FAILED}SLURM_JOB_ID=42\nTraining completed.\n",
        f"Job ID: 41\n{FAILED}Slurm Job_id=42 Name=b Ended, Run time 1:00, COMPLETED, ExitCode 0\n",
        f"Reading settings\nLoading rows of a.csv\n{FAILED}Reading settings\n"
        f"Loading rows of a.csv\n{STEP}step 11 loss 1\nTraining completed.\n",
        f"{FAILED}out/slurm-12_2.out\nTraining completed.\n",
        f"a.log:12:{oom()}\nb.log:99:Training completed.\n",
        f"[seed 1] {oom()}\n[seed 2] Training completed.\n",
        f"job-a: {oom()}\njob-b: Training completed.\n",
        f"{FAILED}trainable params: 1 || all params: 2\n{STEP}step 11 loss 1\n",
        # an error that nothing caught
        f"{UNCAUGHT}Tue Jan  2 10:00:00 UTC 2026\nTraining completed.\n",
        f"{UNCAUGHT}=== 2026-01-02 10:00:00 ===\nTraining completed.\n",
        f"{STEP}{UNCAUGHT}step 1 loss 2\nstep 2 loss 1\nstep 3 loss 1\nModel saved to out\n",
        f"{UNCAUGHT}  0%|    | 0/99 [00:00<?]\n  5%|#   | 5/99 [00:01<00:09]\n"
        f" 10%|#   | 10/99 [00:02<00:09]\n{{'train_runtime': 100.1}}\n",
        # the same failure once more, in a run that survived it
        f"{FAILED}## b.log\n{FAILED}Training completed.\n",
        # the process died before
        f"{FAILED}Process finished with exit code 1\nTraining completed.\n",
        f"{FAILED}srun: error: n1: task 3: Exited with exit code 1\nModel saved to out\n",
        f"{FAILED}wandb: ERROR Run em3qtl1s errored:\nstep 1 loss 2\nstep 2 loss 1\n",
        f"{FAILED}worker 0: exit code 0\nworker 1: exit code 1\n",
        # another failure in between, which the end may belong to
        f"{FAILED}ok\n{AGAIN}Training completed.\n",
        # people who write about it
        f"{FAILED}After that the training finished without trouble.\n",
        f"{FAILED}The job finished successfully when I used one GPU.\n",
        f"{FAILED}It should say: Training completed\n",
    ],
)
def test_a_failure_that_ended_the_run(text):
    found = read(text)
    ended = [one for one in found if one.is_oom and not one.survived]
    assert ended and ended[0].recovery is None
    assert exit_of(found) is ExitCode.OK


@pytest.mark.parametrize(
    "text",
    [
        f"=== Run 2 ===\n{FAILED}ok\n=== Run 2 finished successfully ===\n",
        f"SLURM_JOB_ID=41\n{FAILED}ok\nSlurm Job_id=41 Name=a Ended, COMPLETED, ExitCode 0\n",
        f"a-1  | {oom()}\nb-1 exited with code 1\na-1  | step 1 loss 2\na-1  | step 2 loss 1\n",
        f"{FAILED}failed (exitcode: 1) local_rank: 0\nrestarting worker group\nTraining done\n",
        f"{STEP}{FAILED}step 11 loss 1\nstep 12 loss 1\nProcess finished with exit code 1\n",
        f"Reading rows\nStarting step\n{STEP}Reading rows\nStarting step\n{FAILED}Reading rows\n"
        "Starting step\nTraining completed.\n",
        f"```\n{FAILED}ok\nTraining completed.\n```\n",
        f"node01: {oom()}\nnode01: ok\nnode01: Training completed.\n",
        f"[seed 1] {oom()}\n[seed 1] Training completed.\n",
        f"[ERROR] {oom()}\n[INFO] Training completed.\n",
        f"{UNCAUGHT}Retrying with batch size 8\n{STEP}",
        f"{STEP}{UNCAUGHT}step 11 loss 1\nstep 12 loss 1\n",
        f"{UNCAUGHT}Trying batch size 4\nstep 1 loss 1\nstep 2 loss 1\n",
    ],
)
def test_what_belongs_to_the_same_run_shows_that_it_went_on(text):
    assert all(one.survived for one in read(text) if one.is_oom)


def test_a_worker_that_was_killed_in_the_next_run_of_the_text_is_a_failure():
    assert read(f"Training completed.\n## b.log\n{TRACE}{KILL}")[0].is_oom


def test_many_runs_in_one_text_keep_the_end_of_each_apart():
    text = "".join(f"{FAILED.replace('2.00', f'{i}.00')}## {i}\n{STEP}" for i in range(1, 200))
    assert not any(one.survived for one in read(f"{text}Training completed.\n")[:-1])


def test_each_end_belongs_to_the_failure_before_it():
    found = read(f"{FAILED}ok\nTraining completed.\n{AGAIN}ok\nFinished training\n")
    assert [one.recovery for one in found] == ["Training completed.", "Finished training"]


def test_headings_within_one_run_do_not_end_it():
    text = f"### Epoch 1\nstep 1 loss 2\n{FAILED}### Epoch 2\nstep 2 loss 1\nstep 3 loss 1\n"
    assert read(text)[0].survived


def test_a_run_that_finished_says_so():
    assert read(f"{FAILED}Skipping batch\nTraining completed.\n")[0].verdict.endswith(
        "run finished"
    )
    assert read(f"Training completed.\n{FAILED}Skipping batch\n")[0].verdict.endswith("continued")


KILL = "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed. \n"
IGNORED = (
    "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>\n"
    'Traceback (most recent call last):\n  File "/x/site-packages/torch/utils/data/dataloader.py", '
    "line 1478, in __del__\n    self._shutdown_workers()\n"
)


@pytest.mark.parametrize(
    "text",
    [
        f"step 99 loss 1\n{{'train_runtime': 12.0}}\nModel saved to out\n{KILL}",
        f"100%|####| 99/99 [01:00<00:00]\nTraining completed. Bye.\n{IGNORED}{KILL}",
        f"Epoch 10/10 done\nTraining finished, best model saved\ncleaning up\n{TRACE}{KILL}",
        IGNORED + KILL,
        f"训练完成\n{KILL}",
        f"This is cleanup noise:\n{KILL}",
    ],
)
def test_a_worker_that_was_killed_after_the_training_is_no_failure(text):
    (found,) = read(text)
    assert (found.is_oom, found.look_alike) == (False, "shutdown_artifact")
    assert "already over" in found.verdict


@pytest.mark.parametrize(
    "text",
    [
        f"step 99 loss 1\n{TRACE}{KILL}",
        f"{{'train_runtime': 12.0}}\n***** Running Evaluation *****\n 10%|# | 1/10 [0]\n{KILL}",
        f"Training completed.\nstep 1 loss 2\n{TRACE}{KILL}",
        f"step 99 loss 1\n{TRACE}{KILL}{IGNORED}AssertionError: can only test a child process\n",
        f"{IGNORED}BrokenPipeError: [Errno 32] Broken pipe\n{TRACE}{KILL}",
    ],
)
def test_a_worker_that_was_killed_while_it_was_needed_is_one(text):
    found = read(text)[0]
    assert (found.is_oom, found.resource, found.dialect) == (True, "host", "dataloader_worker")


SITE = '  File "/x/site-packages/torch/'
COLLATE = (
    "RuntimeError: Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most "
    f'recent call last):\n{SITE}utils/data/_utils/fetch.py", line 54, in fetch\n'
    f'    return self.collate_fn(data)\n{SITE}utils/data/_utils/collate.py", line 265, in '
    f'default_collate\n    return collate(batch)\n{SITE}storage.py", line 866, in _new_shared\n'
    "    untyped = torch.UntypedStorage._new_shared(size)\n"
    f'{SITE}storage.py", line 260, in _new_shared\n    return cls._new_using_fd_cpu(size)\n'
)


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: No space "
        "left "
        "on device (28)",
        "RuntimeError: unable to open shared memory object </torch_12_34> in read-write mode: No "
        "space",
        "RuntimeError: unable to write to file </torch_12_34>",
        "RuntimeError: unable to mmap 8 bytes from file <filename not specified>: Cannot allocate",
        "RuntimeError: unable to mmap 1048576 bytes from file </torch_1_2>: Cannot allocate memory",
        "RuntimeError: unable to resize file </torch_1_2> to the right size: No space left on "
        "device",
        "OSError: [Errno 28] No space left on device",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
        "shared memory (shm).",
        "RuntimeError: $ Torch: unable to mmap memory: you tried to mmap 0GB. at THAllocator.cpp",
    ],
)
def test_shared_memory_that_a_worker_could_not_get(message):
    found = read(f"{STEP}{COLLATE}{message}\n")[0]
    assert (found.is_oom, found.resource, found.dialect) == (True, "shm", "dataloader_shm")
    assert found.phase == "data"
    assert found.causes[0].cause == "shared_memory"


@pytest.mark.parametrize("module", ["heap", "shared_memory", "sharedctypes"])
def test_shared_memory_of_python_s_own_modules(module):
    frame = f'  File "/usr/lib/python3.11/multiprocessing/{module}.py", line 83, in __init__\n'
    text = f"Traceback (most recent call last):\n{frame}    os.ftruncate(self.fd, size)\n"
    found = read(f"{text}OSError: [Errno 28] No space left on device\n")[0]
    assert (found.resource, found.causes[0].cause) == ("shm", "shared_memory")


def test_a_full_disk_is_no_full_shared_memory():
    frame = '  File "/x/site-packages/torch/serialization.py", line 850, in _save\n'
    message = "OSError: [Errno 28] No space left on device"
    found = read(f"Traceback (most recent call last):\n{frame}    z.write_record()\n{message}\n")[0]
    assert (found.is_oom, found.look_alike) == (False, "disk_full")
    assert parse_oom(message) is None


def test_samples_of_different_shapes_are_no_shared_memory():
    found = read(f"{COLLATE}RuntimeError: Trying to resize storage that is not resizable\n")
    assert "shape" in [one.look_alike for one in found]
    assert not any(one.is_oom for one in found)
