"""Remedies for generation and inference servers: transformers, vLLM, llama.cpp."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.row import Row, always, rule


def _vllm_wants_too_much(case: Case) -> bool:
    """Whether vLLM's share of the GPU is too large, not too small for the KV cache."""
    return bool(case.logged(r"less than desired GPU memory|warming up sampler"))


GENERATION_ROWS: tuple[Row, ...] = (
    Row("fewer_tokens", 5, "Generate fewer tokens, or use shorter prompts", always,
        rule("the KV cache grows with each token"),
        {"transformers": "model.generate(..., max_new_tokens=256)"}),
    Row("offload_cache", 3, "Keep the KV cache in host memory, layer by layer", always,
        rule("same result, slower"),
        {"transformers": 'model.generate(..., cache_implementation="offloaded")'}),
    Row("smaller_generation", 2, "Generate fewer sequences at once",
        lambda case: case.setup.eval_batch_size != 1,
        rule("the KV cache grows with each sequence and beam"),
        {"transformers": "model.generate(..., num_beams=1)  # and smaller batches"}),
    Row("vllm_utilization", 0, "Let vLLM use more of the GPU",
        lambda case: not _vllm_wants_too_much(case),
        rule("the default is 0.90; each 0.01 is 1% of the GPU"),
        {"vllm": "--gpu-memory-utilization 0.95"}),
    Row("vllm_less", 0, "Let vLLM use less of the GPU", _vllm_wants_too_much,
        rule("vLLM's share of the GPU must be free at the start, plus some room"),
        {"vllm": "--gpu-memory-utilization 0.80"}),
    Row("vllm_length", 5, "Use a shorter context", always,
        rule("one full-length sequence must fit into the KV cache"),
        {"vllm": "--max-model-len 8192"}),
    Row("vllm_eager", 3, "Turn off CUDA graphs", always, rule("the graphs take 1 to 3 GiB"),
        {"vllm": "--enforce-eager"}),
    Row("vllm_batch", 2, "Use a smaller profiling batch", always,
        rule("the profiling run allocates activations for this many tokens"),
        {"vllm": "--max-num-batched-tokens 8192 --max-num-seqs 64"}),
    Row("vllm_parallel", 7, "Use more GPUs, or quantized weights", always,
        rule("the weights are split across the GPUs"),
        {"vllm": "--tensor-parallel-size 2  # or --quantization fp8"}),
    Row("llamacpp_layers", 2, "Put fewer layers on the GPU", always,
        rule("each layer on the CPU frees its weights and its KV cache"),
        {"llamacpp": "-ngl N  # lower until it loads"}),
    Row("llamacpp_context", 4, "Use a shorter context", always,
        rule("the KV cache and compute buffers grow with it"), {"llamacpp": "-c 4096 -ub 256"}),
    Row("llamacpp_cache", 3, "Quantize the KV cache", always, rule("halves the KV cache"),
        {"llamacpp": "-fa on -ctk q8_0 -ctv q8_0"}),
)  # fmt: skip
