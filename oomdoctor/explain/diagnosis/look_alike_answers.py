"""What to say about failures that look like memory but are not: one short answer each."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """For look-alikes of this name whose message has these words: what it is and what to do."""

    name: str
    words: str
    what: str
    todo: str


_LOCATE = "run once with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the true line"

# The first row that fits answers; a row without words fits every message of its name.
ANSWERS: tuple[Answer, ...] = (
    Answer("device_mismatch", "", "tensors lie on different devices",
           "move the inputs to the model's device: batch.to(model.device)"),
    Answer("device_assert", "",
           "a check inside a CUDA kernel failed, mostly a label or token id out of range", _LOCATE),
    Answer("illegal_memory_access", "",
           "a kernel touched an address that is not its own: a fault of a kernel, an extension or "
           "the card, not a lack of memory", _LOCATE + "; update or leave out custom kernels"),
    Answer("hardware", r"out of resource|OutOfResources",
           "a kernel wants more on-chip shared memory than this card has on each multiprocessor; "
           "the card's memory is not involved",
           "smaller block sizes or fewer num_stages, or another kernel for this card"),
    Answer("hardware", r"no kernel image|Ampere|compute capability",
           "this build or kernel does not support this card",
           "install the build for this card, or choose another kernel (attn_implementation=sdpa)"),
    Answer("hardware", r"driver|No CUDA GPUs", "the driver is missing, old, or shows no card",
           "nvidia-smi; compare its CUDA version with torch.version.cuda"),
    Answer("hardware", r"NODE_FAIL|BOOT_FAIL|NODE FAILURE",
           "the node failed, not the program", "submit again; scontrol show node NODE says why"),
    Answer("hardware", "", "the card or the driver failed",
           "nvidia-smi -q -d ECC; dmesg | grep -i xid"),
    Answer("dtype", r"Half|FP16|fp16|bf16|[Bb][Ff]loat16",
           "half precision is not supported by this operation or this hardware",
           "bfloat16 needs compute capability 8.0; else float16 under autocast with float32 "
           "weights, or float32"),
    Answer("dtype", "", "types do not fit together", "cast one side: x.to(weight.dtype)"),
    Answer("nan_loss", "", "the loss became NaN or infinite",
           "bfloat16 instead of float16, a lower learning rate, gradient clipping"),
    Answer("disk_full", "", "the disk is full",
           "df -h; keep fewer checkpoints: TrainingArguments(save_total_limit=2)"),
    Answer("connection", r"NCCL|nccl",
           "the ranks lost each other: the network, or a rank that died first",
           "look for the first error of any rank; NCCL_DEBUG=INFO names the cause"),
    Answer("connection", r"[Gg]ated|401|403", "the hub refuses without a login",
           "hf auth login, and accept the model's terms on its page"),
    Answer("connection", "", "a server could not be reached",
           "check network and proxy; HF_HUB_OFFLINE=1 works from the cache"),
    Answer("timeout", r"TIME LIMIT|RUNLIMIT|walltime", "the scheduler's time limit ended it",
           "#SBATCH --time=..., and save checkpoints to go on from"),
    Answer("timeout", "", "something took too long, mostly a rank that others waited for",
           "find the rank that was late or dead; the first error of any rank is the cause"),
    Answer("preemption", "", "the scheduler took the node back",
           "#SBATCH --requeue, and save checkpoints to go on from"),
    Answer("cancelled", "", "the job was cancelled by a person or a script",
           "sacct -j JOB --format=State%40 says by whom"),
    Answer("context_length", "",
           "a request is longer than the model's context: a limit of tokens, not of memory",
           "shorten the prompt or ask for fewer new tokens"),
    Answer("shutdown_artifact", "", "noise of a program that was ending: the run was over",
           "nothing, if the results are there"),
    Answer("import", r"CUDA [Ss]etup failed|bitsandbytes",
           "bitsandbytes finds no CUDA library that fits",
           "python -m bitsandbytes tells what is missing; install the build for your CUDA"),
    Answer("import", "", "a module or a library could not be loaded",
           "install what the message names, in the environment of the run"),
    Answer("shape", "", "shapes do not fit together", "compare the shapes that the message names"),
    Answer("index", "", "an index is out of range", "check labels and token ids for their range"),
    Answer("key", "", "a key is missing", "check the name that the message quotes"),
    Answer("type", "", "a value has the wrong type",
           "look at the call in the last line of the traceback"),
)  # fmt: skip
_OTHER = Answer("other", "", "another kind of failure", "the last line of the traceback says which")


def short_answer(name: str, message: str = "") -> Answer:
    """What a look-alike is and what to do about it; a general answer for names without one."""
    for answer in ANSWERS:
        if answer.name == name and re.search(answer.words, message):
            return answer
    return _OTHER
