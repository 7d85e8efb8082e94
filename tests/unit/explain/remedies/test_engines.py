"""What engines, and trainings with an engine beside them, are told to type, and never are."""

from __future__ import annotations

import pytest

from oomdoctor.explain.diagnose import diagnose
from oomdoctor.explain.reading.scan import scan
from oomdoctor.explain.training.known import Given
from oomdoctor.records.report.diagnosis import Diagnosis

FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
    "capacity of 40.00 GiB of which 512.00 MiB is free. "
)
OWN = "Including non-PyTorch memory, this process has 39.00 GiB memory in use. "
CORE = "(EngineCore_DP0 pid=7) ERROR 10-01 10:00:00 [core.py:700] "


def _read(*lines: str) -> Diagnosis:
    found, facts = scan(lines)
    return diagnose("log", found, facts, Given())[0]


def _typed(found: Diagnosis) -> list[str]:
    return [line for remedy in found.remedies for line in remedy.lines.values()]


def _frames(*calls: tuple[str, str]) -> list[str]:
    return [f'{CORE}  File "/s/vllm/{file}", line 9, in {name}' for file, name in calls]


def test_what_is_free_at_the_start_is_the_share_to_type() -> None:
    found = _read(
        f"{CORE}ValueError: Free memory on device (11.62/47.41 GiB) on startup is less than "
        "desired GPU memory utilization (0.9, 42.67 GiB). Decrease GPU memory utilization."
    )
    assert found.causes[0].cause == "other_process"
    # 11.62 of 47.41 is 0.245, and 0.02 is left for what changes meanwhile
    assert "--gpu-memory-utilization 0.22" in _typed(found)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            "To serve at least one request with the model's max seq len (131072), 16.0 GiB KV "
            "cache is needed. Based on the available memory, the estimated maximum model length "
            "is 80,272.",
            "--max-model-len 80272",
        ),
        (
            "The model's max seq len (32768) is larger than the maximum number of tokens that can "
            "be stored in KV cache (12976).",
            "--max-model-len 12976",
        ),
        ("max_num_seqs (1024) exceeds available Mamba cache blocks (702).", "--max-num-seqs 702"),
    ],
)
def test_a_printed_limit_is_the_first_line_to_type(message: str, line: str) -> None:
    found = _read(f"{CORE}ValueError: {message}")
    assert list(found.remedies[0].lines.values()) == [line]


def test_a_limit_that_a_terminal_has_wrapped_is_still_read() -> None:
    found = _read(
        "> ValueError: To serve at least one request with the model's max seq len (131072), (16.00",
        "> GiB KV cache is needed, which is larger than the available KV cache memory (9.8 GiB).",
        "> Based on the available memory, the estimated maximum model length is 80,272. Try",
        "> increasing `gpu_memory_utilization`",
    )
    assert list(found.remedies[0].lines.values()) == ["--max-model-len 80272"]


def test_a_context_too_short_to_serve_is_no_advice() -> None:
    found = _read(
        f"{CORE}ValueError: To serve at least one request with the model's max seq len (32768), "
        "the estimated maximum model length is 240."
    )
    assert not any("max-model-len" in line for line in _typed(found))


@pytest.mark.parametrize(
    ("share", "higher"), [("0.7", "0.80"), ("0.9", "0.95"), ("0.95", None), ("0.98", None)]
)
def test_more_of_the_gpu_only_while_there_is_more(share: str, higher: str | None) -> None:
    found = _read(
        f"vllm serve m --gpu-memory-utilization {share}",
        f"{CORE}ValueError: No available memory for the cache blocks.",
    )
    more = [line for line in _typed(found) if line.startswith("--gpu-memory-utilization")]
    assert more == ([] if higher is None else [f"--gpu-memory-utilization {higher}"])


def test_each_moment_of_the_start_has_its_own_first_line() -> None:
    start = ("v1/engine/core.py", "_initialize_kv_caches")
    moments = {
        "weights": [("model_executor/layers/linear.py", "create_weights")],
        "private_pool": [start, ("v1/worker/gpu_model_runner.py", "capture_model")],
        "activations": [start, ("v1/worker/gpu_model_runner.py", "profile_run")],
        "kv_cache": [("v1/worker/gpu_model_runner.py", "_allocate_kv_cache_tensors")],
    }
    first = {}
    for cause, calls in moments.items():
        found = _read(*_frames(*calls), CORE + FULL + OWN)
        assert found.causes[0].cause == cause
        first[cause] = found.remedies[0].key
    assert first == {
        "weights": "engine_quantized",
        "private_pool": "engine_share_lower",
        "activations": "engine_prefill",
        "kv_cache": "engine_share_lower",
    }


def test_ranks_of_a_launcher_are_no_strangers() -> None:
    found = _read(
        "torchrun --nproc-per-node 4 serve.py",
        *_frames(("worker/model_runner.py", "load_model")),
        FULL + "Process 1 has 13.00 GiB memory in use. Process 2 has 13.00 GiB memory in use. "
        "Process 3 has 13.00 GiB memory in use.",
    )
    assert found.remedies[0].key == "engine_ranks"
    assert not any("kill" in line for line in _typed(found))


def test_contexts_of_other_workers_are_no_strangers() -> None:
    listed = "".join(f"Process {n} has 600.00 MiB memory in use. " for n in range(3))
    text = (
        FULL + "Including non-PyTorch memory, this process has 37.70 GiB memory in use. " + listed
    )
    frames = _frames(("worker/model_runner.py", "load_model"))
    alone = _read(*frames, CORE + text)
    shared = _read("vllm serve m --tensor-parallel-size 4", *frames, CORE + text)
    assert alone.causes[0].cause == "other_process"
    assert shared.causes[0].cause == "weights"


def test_the_engine_beside_a_trainer_is_no_stranger() -> None:
    found = _read(
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.5",
        '(WorkerDict pid=3)   File "/s/verl/sharding_manager/fsdp_vllm.py", line 8, in __enter__',
        f"(WorkerDict pid=3) {FULL}Process 3 has 20.00 GiB memory in use. "
        "Process 4 has 19.00 GiB memory in use.",
    )
    assert found.remedies[0].lines == {
        "verl": "actor_rollout_ref.rollout.gpu_memory_utilization=0.40"
    }
    assert not any("kill" in line for line in _typed(found))


def test_an_allocator_that_refuses_an_empty_gpu_is_not_cured_by_less() -> None:
    found = _read(
        "vllm serve m --enable-sleep-mode",
        *_frames(("device_allocator/cumem.py", "use_memory_pool_with_allocator")),
        f"{CORE}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has "
        "a total capacity of 79.19 GiB of which 78.61 GiB is free.",
    )
    assert found.remedies[0].key == "engine_no_sleep"


def test_every_engine_speaks_its_own_words() -> None:
    message = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    assert _typed(_read(message))[0] == "--mem-fraction-static 0.95"
    message = (
        "text_generation_client: Server error: Not enough memory to handle 8192 prefill tokens. "
        "You need to decrease `--max-batch-prefill-tokens`"
    )
    assert _typed(_read(message))[0] == "--max-batch-prefill-tokens 4096"
    message = "[TRT-LLM] [E] Executor creation failed due to insufficient GPU memory."
    assert _typed(_read(message))[0].startswith("--max_seq_len ")


def test_a_program_that_runs_llamacpp_is_told_in_its_own_words() -> None:
    refused = "allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory"
    alone = _read(f"ggml_backend_cuda_buffer_type_alloc_buffer: {refused}")
    inside = _read(
        "ollama  | time=2025-11-02 msg=load",
        f"ollama  | ggml_backend_cuda_buffer_type_alloc_buffer: {refused}",
    )
    assert _typed(alone)[0].startswith("-ngl ")
    assert _typed(inside)[0].startswith("/set parameter num_gpu ")
    assert not any("utilization" in line for line in _typed(alone))


def test_an_exception_that_an_engine_logs_as_a_literal_is_a_failure() -> None:
    found = _read(
        "ERROR 12-19 09:33:44 engine.py:135] OutOfMemoryError('Error in model execution (input "
        "dumped to /tmp/err.pkl): CUDA out of memory. Tried to allocate 524.00 MiB. GPU 0 has a "
        "total capacity of 15.77 GiB of which 137.12 MiB is free.')"
    )
    assert found.is_oom
    assert _typed(found)[0] == "--gpu-memory-utilization 0.80"


def test_weights_in_32_bits_are_the_first_thing_to_change() -> None:
    found = _read("vllm serve m --dtype float32", FULL + OWN)
    assert found.remedies[0].key == "engine_half"
