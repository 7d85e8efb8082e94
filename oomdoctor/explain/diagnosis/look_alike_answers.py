"""Short answers for failures that look like out of memory but are not: one row each."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """For look-alikes of this name whose message contains these words: what it is, what to do."""

    name: str
    words: str
    what: str
    todo: str


_LOCATE = "run once with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the real line"

# The first matching row is used; a row without words matches every message of its name.
ANSWERS: tuple[Answer, ...] = (
    Answer("device_mismatch", "", "tensors are on different devices",
           "move the inputs to the model's device: batch.to(model.device)"),
    Answer("device_assert", "",
           "a check inside a CUDA kernel failed, usually a label or token id out of range",
           _LOCATE),
    Answer("illegal_memory_access", "",
           "a kernel accessed an invalid address: a bug in a kernel or an extension, or a faulty "
           "GPU", _LOCATE + "; update or remove custom kernels"),
    Answer("hardware", r"out of resource|OutOfResources",
           "a kernel needs more on-chip shared memory (not GPU memory) than this GPU has per "
           "multiprocessor",
           "use smaller block sizes or fewer num_stages, or another kernel for this GPU"),
    Answer("hardware", r"no kernel image|Ampere|compute capability",
           "this build or kernel does not support this GPU",
           "install a build for this GPU, or choose another kernel (attn_implementation=sdpa)"),
    Answer("hardware", r"driver|No CUDA GPUs", "the driver is missing, too old, or finds no GPU",
           "run nvidia-smi and compare its CUDA version with torch.version.cuda"),
    Answer("hardware", r"NODE_FAIL|BOOT_FAIL|NODE FAILURE",
           "the node failed, not the program",
           "submit the job again; scontrol show node NODE says why"),
    Answer("hardware", "", "the GPU or the driver failed",
           "check nvidia-smi -q -d ECC and dmesg | grep -i xid"),
    Answer("dtype", r"Half|FP16|fp16|bf16|[Bb][Ff]loat16",
           "this operation or this hardware does not support half precision",
           "bfloat16 needs compute capability 8.0; otherwise use float32 weights, with float16 "
           "autocast if you like"),
    Answer("dtype", "", "data types do not match", "cast one side: x.to(weight.dtype)"),
    Answer("nan_loss", "", "the loss became NaN or infinite",
           "use bfloat16 instead of float16, a lower learning rate, or gradient clipping"),
    Answer("disk_full", "", "the disk is full",
           "check df -h; keep fewer checkpoints: TrainingArguments(save_total_limit=2)"),
    Answer("connection", r"NCCL|nccl",
           "the ranks lost their connection: a network problem, or another rank died first",
           "look for the first error of any rank; NCCL_DEBUG=INFO shows the cause"),
    Answer("connection", r"[Gg]ated|401|403", "the hub requires a login",
           "run hf auth login, and accept the terms on the model's page"),
    Answer("connection", "", "a server could not be reached",
           "check network and proxy; HF_HUB_OFFLINE=1 uses the cache only"),
    Answer("timeout", r"TIME LIMIT|RUNLIMIT|walltime", "the job reached its time limit",
           "raise #SBATCH --time=..., and save checkpoints to resume from"),
    Answer("timeout", "", "something took too long, usually a rank that the others waited for",
           "find the rank that was late or dead; the first error of any rank is the cause"),
    Answer("preemption", "", "the scheduler preempted the job",
           "use #SBATCH --requeue, and save checkpoints to resume from"),
    Answer("cancelled", "", "a person or a script canceled the job",
           "sacct -j JOB --format=State%40 says who did"),
    Answer("context_length", "",
           "a request is longer than the model's context: a limit on tokens, not on memory",
           "shorten the prompt or request fewer new tokens"),
    Answer("shutdown_artifact", "", "shutdown noise: the run was already over",
           "nothing to do if the results are there"),
    Answer("quoted", "", "the words about memory are quoted, as in source code or data",
           "look for the last error that the program itself printed"),
    Answer("import", r"CUDA [Ss]etup failed|bitsandbytes",
           "bitsandbytes cannot find a matching CUDA library",
           "run python -m bitsandbytes to see what is missing; install the build for your CUDA"),
    Answer("import", "", "a module or a library could not be loaded",
           "install what the message names, in the environment of the run"),
    Answer("shape", "", "tensor shapes do not match", "compare the shapes in the message"),
    Answer("index", "", "an index is out of range", "check that labels and token ids are in range"),
    Answer("key", "", "a key is missing", "check the name in the message"),
    Answer("type", "", "a value has the wrong type",
           "look at the call in the last line of the traceback"),
)  # fmt: skip
_OTHER = Answer(
    "other", "", "the program failed for another reason", "read the last line of the traceback"
)


def short_answer(name: str, message: str = "") -> Answer:
    """What a look-alike is and what to do about it; a general answer if no row matches."""
    for answer in ANSWERS:
        if answer.name == name and re.search(answer.words, message):
            return answer
    return _OTHER
