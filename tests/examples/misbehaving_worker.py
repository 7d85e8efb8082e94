"""The real worker host with a job function that ends in every way a child can end.

The label of the job names the way; WAYS in the environment has the ways of other labels. Started
in place of the interpreter, so nothing else is faked:
fork, session, log, reaping and the protocol are those of `oomdoctor.worker.host`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path

from oomdoctor.records.codec import dumps, loads
from oomdoctor.records.job.measurement import Measurement, OomEvent, PhaseMemory, Timing
from oomdoctor.records.job.model import ParameterCounts
from oomdoctor.records.job.result import Failure, Inspection, ProbeJob, Reply
from oomdoctor.worker import host
from oomdoctor.worker.protocol import PhaseFile, phase_file

MEASUREMENT = Measurement(
    peak_allocated_bytes=1000,
    peak_reserved_bytes=None,
    peak_device_bytes=None,
    overhead_bytes=None,
    peak_rss_bytes=None,
    peak_phase="backward",
    phases={"backward": PhaseMemory(1000)},
    first_step={},
    steady={},
    breakdown=None,
    allocation_retries=None,
    managed_bytes=0,
    timing=Timing(1.0, 0.0, 1.0, 0.0, 1.0, 1, 3, "spread"),
    attention_kernel=None,
    trainable_parameters=1,
    parameters=1,
    losses=(1.0,),
    skipped_optimizer_steps=0,
    notes=(),
    versions={},
)

INSPECTION = Inspection(
    architecture="LlamaForCausalLM",
    parameters=ParameterCounts(total=1000, linear=800, embedding=150, rest=50, buffers_bytes=0),
    max_sequence_length=128,
    versions={"torch": "0"},
    device_name=None,
    device_total_bytes=None,
    device_free_bytes=None,
    compute_capability=None,
    positions=128,
)


def run_job(job_path: Path, reply_path: Path) -> None:
    job = loads(ProbeJob, job_path.read_text())
    phases = PhaseFile(phase_file(reply_path))
    phases.enter("forward")
    print("the log of", job.label, flush=True)
    ways = json.loads(os.environ.get("WAYS", "{}"))
    way, _, argument = ways.get(job.label, ways.get("*", job.label)).partition(" ")
    if job.mode == "inspect" and "torch" in os.environ.get("LACKING", ""):
        failure = Failure("ModuleNotFoundError", "No module named 'torch'")
        reply_path.write_text(dumps(Reply(status="failed", failure=failure)))
        return
    if job.mode == "inspect":
        reply_path.write_text(dumps(Reply(status="inspected", inspection=INSPECTION)))
        return
    reply = Reply(status="measured", measurement=MEASUREMENT)
    if way == "oom":
        reply = Reply(status="oom", oom=OomEvent("out of memory", "cpu_budget", argument, 10))
    elif way == "exception":
        reply = Reply(status="failed", failure=Failure("ValueError", "shapes differ"))
    elif way == "host-oom":
        reply = Reply(status="host_oom", reason="host memory ran out in load")
    elif way == "unsupported":
        reply = Reply(status="unsupported", reason="needs a GPU")
    elif way == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "segfault":
        ctypes.string_at(0)
    elif way == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    elif way == "library-oom":
        print("Error out of memory at line 405 in file /src/csrc/pythonInterface.cpp", flush=True)
        os._exit(1)
    elif way == "no-host-memory":
        if argument == "abort":
            print("terminate called after throwing an instance of 'std::bad_alloc'", flush=True)
            os.abort()
        print("ImportError: libcublas.so: failed to map segment from shared object", flush=True)
        os._exit(1)
    elif way == "exit":
        os._exit(int(argument))
    elif way == "unreadable":
        reply_path.write_text('{"status": "measured"')
        return
    elif way == "grandchild":
        _leave_a_grandchild(Path(argument))
    reply_path.write_text(dumps(reply))
    if way == "abort-after-reply":
        os.abort()


def _leave_a_grandchild(note: Path) -> None:
    """One in our group and one that fled into a session of its own; both hold our log open."""
    for flees in (False, True):
        if os.fork() == 0:
            if flees:
                os.setsid()
                if os.fork():
                    os._exit(0)
            with note.open("a") as file:
                file.write(f"{os.getpid()}\n")
            time.sleep(600)
            os._exit(0)
    while not note.exists() or len(note.read_text().split()) < 2:
        time.sleep(0.01)


if __name__ == "__main__":
    host._PRELOAD = host._PRELOAD_TO_COMPILE = host._PRELOAD_ON_CPU = ()
    host._PRELOAD_WITHOUT_TORCHAO = ()
    sys.exit(host.serve(run_job))
