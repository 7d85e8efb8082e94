"""Scripts whose authors published the peak of a run on a real GPU, with all its settings.

Each is run as they ran it: their code at their commit where they name it, their settings, rows as
long as theirs. Words of the rows differ, which does not matter to memory.
"""

from __future__ import annotations

from third.litgpt import MODELS
from third.rows import CARD, GIB, Published, Row, Swept

GB = 10**9
A100 = "A100 SXM4 40GB"

# The commit that added the table. The page names 8641822, of a week before.
LITGPT = ("Lightning-AI/litgpt", "0cc02afa1dca7434418cf612690da13d38d294fd")
RASBT = ("rasbt/LLMs-from-scratch", "28c65cdfbc3338e2e040016eea4b7fdf556e4d57")
MEMORY = ("rasbt/pytorch-memory-optim", "f6eddcd28c40770a097ffd9f18797a043457a2d0")
EFFICIENT = ("mgmalek/efficient_cross_entropy", "049d44460051a82f58f7ff49a2ad0653ecf026d8")
TORCHAO = ("pytorch/ao", "f3342a0aa1d30da7ad33a9ae93a886af1a5534b9")


def _litgpt(model: str, script: str, gigabytes: float, batch: int = 1, bits: str = "") -> Row:
    shape = next(m for m in MODELS if m.folder.endswith(model))
    command = (
        f"{{settings}} {{script}} micro_batch_size={batch} -- --precision bf16-true --out_dir out "
        f"--checkpoint_dir {{inputs}}/litgpt/checkpoints/{shape.folder} "
        f"--data_dir {{inputs}}/litgpt/alpaca/{shape.longest}"
    )
    command += f" --quantize bnb.{bits}" if bits else ""
    name = "-".join(["litgpt", model.split("-hf")[0].lower(), script, bits or f"batch{batch}"])
    remark = "bitsandbytes 0.41 and Lightning 2.1 then, today's here" if bits else ""
    peak = Published(gigabytes, GB, "allocated", "tutorials/resource-tables.md", remark)
    return Row(name, command, f"finetune/{script}.py", "", *LITGPT, cards=A100, steps="1",
               published=peak)  # fmt: skip


def _rasbt(name: str, script: str, words: str, value: float, unit: int, figure: str) -> Row:
    peak = Published(value, unit, figure, f"{script.rpartition('/')[0]}/README.md")
    varies = "torch.compile, 16 MiB" if name == "optimized" else ""
    return Row(f"rasbt-{name}", f"{{python}} {{script}} {words}", script, "", *RASBT, cards=A100,
               steps="all", published=peak, varies=varies)  # fmt: skip


_PACKED = (
    "tokenizer._component_=torchtune.models.llama3.llama3_tokenizer "
    "tokenizer.path={inputs}/tokenizer.model tokenizer.max_seq_len=4096 "
    "checkpointer.checkpoint_dir={inputs}/llama3b "
    "checkpointer.checkpoint_files=[model-00001-of-00002.safetensors,"
    "model-00002-of-00002.safetensors] "
    "checkpointer.output_dir=out output_dir=out metric_logger.log_dir=out/logs "
    "dataset._component_=torchtune.datasets.instruct_dataset dataset.source=json "
    "dataset.data_files={inputs}/instruct/long.jsonl dataset.split=train dataset.packed=True "
    "batch_size=2 gradient_accumulation_steps=1"
)
_FUSED = "optimizer=torch.optim.AdamW optimizer.fused=True"
_CHUNKED = "compile=True loss=torchtune.modules.loss.CEWithChunkedOutputLoss"
_NOTHING = "optimizer_in_bwd=False enable_activation_checkpointing=False"


def _adamw(config: str, words: str) -> str:
    """What the table leaves open. Its command for QLoRA names AdamW, which the config fuses."""
    if config != "full":
        return "torch 2.5 and its compiler then"
    if "compile=True" not in words:
        return (
            "torch 2.12 and torchtune 0.6.1 here: with torch 2.5.1 and the code of the time, 59.95 "
            "GiB, with either AdamW"
        )
    if "8bit" in words:
        return "the page does not say which 8-bit AdamW; bitsandbytes' here"
    return "the page does not say which AdamW; fused here"


def _torchtune(name: str, gibibytes: float, words: str, config: str = "full") -> Row:
    """A row of torchtune's table of techniques: Llama 3.2 3B, 2 x 4,096 tokens, bf16, one A100."""
    recipe = "full_finetune" if config == "full" else "lora_finetune"
    command = (
        f"tune run {recipe}_single_device --config llama3_2/3B_{config}_single_device "
        f"{_PACKED} {words}"
    )
    peak = Published(gibibytes, GIB, "allocated", "https://github.com/meta-pytorch/torchtune",
                     _adamw(config, words))  # fmt: skip
    varies = "what is offloaded comes back in time or not" if "offloading" in words else ""
    return Row(f"torchtune-{name}", command, "", "torchtune", older="torchao", published=peak,
               varies=varies)  # fmt: skip


_ADAM = "torch 2.1's Adam needs one more copy of the weights; with it, 3.91 GB here too"
_COPY = (
    "torch 2.1's flash attention leads to one more copy of its output per layer; with it and its "
    "Adam, 03 is within 1 % here too"
)


def _vision(script: str, gigabytes: float, steps: str = "6", remark: str = "") -> Row:
    """A row of logs.md: ViT-L/16 on CIFAR-10, torch 2.1 of June 2023."""
    return Row(f"memory-optim-{script.replace('_', '-')}",
               "env TORCH_HOME={inputs}/torch {unchecked} {script}", f"{script}.py", "", *MEMORY,
               cards=A100, steps=steps,
               published=Published(gigabytes, GB, "reserved", "logs.md", remark))  # fmt: skip


def _torchao(optimizer: str, gigabytes: float) -> Row:
    """A row of torchao's table of optimizers: ViT-H/14, 8 images, compiled, torch 2.4."""
    words = (
        "--model vit_huge_patch14_224.orig_in21k --amp bf16 --compile --batch_size 8 "
        f"--n_epochs 1 --cosine_lr_scheduler --seed 2024 --n_workers 0 --optim {optimizer}"
    )
    return Row(f"torchao-{optimizer.lower()}",
               "env HF_HUB_CACHE={inputs}/hub {python} {script} " + words,
               "benchmarks/benchmark_low_bit_adam.py", "", *TORCHAO, cards="RTX 4070 Ti SUPER",
               published=Published(gigabytes, GB, "allocated", "torchao/optim/README.md",
                                   "torch 2.4 and its compiler then"))  # fmt: skip


def _modded(record: str, commit: str, mebibytes: int, remark: str) -> Row:
    """A record of modded-nanogpt: its file at the commit is the code at the head of the log."""
    peak = Published(round(mebibytes / 1024, 3), GIB, "allocated",
                     f"records/track_1_short/{record}", remark)  # fmt: skip
    return Row(f"modded-nanogpt-{record[:10]}",
               "torchrun --standalone --nproc_per_node=8 {script}", "train_gpt.py", "",
               "KellerJordan/modded-nanogpt", commit, "8xH100", ("--ranks", "1"), "12",
               published=peak)  # fmt: skip


_EFFICIENT_FILES = tuple(f"benchmark_data/{name}.csv" for name in ("n_classes", "n_tokens", "dim"))


def _liger(kernel: str, commit: str, card: str, remark: str = "") -> Row:
    """A benchmark of a kernel of Liger's, with the kernels of the checkout."""
    swept = Swept(
        (("../data/all_benchmark_data.csv", "benchmark/data/all_benchmark_data.csv"),),
        ("kernel_provider", "kernel_operation_mode", "x_value", "extra_benchmark_config_str"),
        "y_value_50", 1 << 20, (("kernel_name", kernel), ("metric_name", "memory")), remark,
    )  # fmt: skip
    script = f"benchmark/scripts/benchmark_{kernel}.py"
    return Row(f"liger-{kernel.replace('_', '-')}", "{python} {script}", script, "",
               "linkedin/Liger-Kernel", commit, card, steps="all", path="src", bare=True,
               older="transformers", beside=True, swept=swept)  # fmt: skip


_SPEED = "ch05/10_llm-training-speed"
_LONG = "--max_new_tokens 32768 --n_heads 24 --n_layers 12"
_WIDE = "--max_new_tokens 1024 --n_heads 16 --n_layers 12 --emb_dim 4096"

# The commits that added the figures.
_2024_09_03 = "b5672a153b7b314a367996fc6cd60a57aeda4ccc"

JUDGED = (
    _litgpt("phi-1_5", "lora", 4.82),
    _litgpt("phi-1_5", "lora", 6.76, batch=2),
    _litgpt("phi-1_5", "lora", 10.68, batch=4),
    _litgpt("phi-1_5", "lora", 3.78, bits="nf4"),
    _litgpt("phi-1_5", "lora", 3.72, bits="nf4-dq"),
    _litgpt("stablelm-base-alpha-3b", "lora", 9.69),
    _litgpt("stablelm-base-alpha-3b", "lora", 12.10, batch=2),
    _litgpt("stablelm-base-alpha-3b", "lora", 16.92, batch=4),
    _litgpt("stablelm-base-alpha-3b", "lora", 6.35, bits="nf4"),
    _litgpt("stablelm-base-alpha-3b", "lora", 6.19, bits="nf4-dq"),
    _litgpt("Llama-2-7b-hf", "lora", 21.30),
    _litgpt("Llama-2-7b-hf", "lora", 29.07, batch=2),
    _litgpt("Llama-2-7b-hf", "lora", 14.14, bits="nf4"),
    _litgpt("Llama-2-7b-hf", "lora", 13.84, bits="nf4-dq"),
    _litgpt("Llama-2-13b-hf", "lora", 38.12),
    _litgpt("Llama-2-13b-hf", "lora", 23.14, bits="nf4"),
    _litgpt("Llama-2-13b-hf", "lora", 22.55, bits="nf4-dq"),
    _litgpt("stablelm-base-alpha-3b", "adapter", 9.10),
    _litgpt("stablelm-base-alpha-3b", "adapter", 5.65, bits="nf4"),
    _litgpt("stablelm-base-alpha-3b", "adapter", 5.48, bits="nf4-dq"),
    _litgpt("Llama-2-7b-hf", "adapter", 19.98),
    _litgpt("Llama-2-7b-hf", "adapter", 12.68, bits="nf4"),
    _litgpt("Llama-2-7b-hf", "adapter", 12.38, bits="nf4-dq"),
    _litgpt("stablelm-base-alpha-3b", "adapter_v2", 10.71),
    _litgpt("stablelm-base-alpha-3b", "adapter_v2", 7.41, bits="nf4"),
    _litgpt("stablelm-base-alpha-3b", "adapter_v2", 7.25, bits="nf4-dq"),
    _litgpt("Llama-2-7b-hf", "adapter_v2", 25.51),
    _litgpt("Llama-2-7b-hf", "adapter_v2", 18.30, bits="nf4"),
    _litgpt("Llama-2-7b-hf", "adapter_v2", 17.98, bits="nf4-dq"),
    _torchtune("packed", 60.0, f"{_FUSED} {_NOTHING} loss=torch.nn.CrossEntropyLoss"),
    _torchtune("compile", 51.0, f"{_FUSED} {_NOTHING} loss=torch.nn.CrossEntropyLoss "
               "compile=True"),
    _torchtune("chunked-loss", 42.9, f"{_FUSED} {_NOTHING} {_CHUNKED}"),
    _torchtune("checkpointing", 24.9, f"{_FUSED} {_CHUNKED} optimizer_in_bwd=False "
               "enable_activation_checkpointing=True"),
    _torchtune("in-backward", 23.1, f"{_FUSED} {_CHUNKED} optimizer_in_bwd=True "
               "enable_activation_checkpointing=True"),
    _torchtune("offloading", 21.8, f"{_FUSED} {_CHUNKED} optimizer_in_bwd=True "
               "enable_activation_checkpointing=True enable_activation_offloading=True"),
    _torchtune("8-bit", 17.6, f"optimizer=bitsandbytes.optim.AdamW8bit {_CHUNKED} "
               "optimizer_in_bwd=True enable_activation_checkpointing=True "
               "enable_activation_offloading=True"),
    _torchtune("3b-lora", 8.5, f"{_FUSED} {_CHUNKED} enable_activation_checkpointing=True "
               "enable_activation_offloading=True", "lora"),
    _torchtune("3b-qlora", 4.6, f"{_FUSED} {_CHUNKED} enable_activation_checkpointing=True "
               "enable_activation_offloading=True", "qlora"),
    _rasbt("baseline", f"{_SPEED}/00_orig.py", "", 26.2617, GIB, "reserved"),
    _rasbt("optimized", f"{_SPEED}/01_opt_single_gpu.py", "", 22.5078, GIB, "reserved"),
    _rasbt("mha", "ch04/04_gqa/gpt_with_kv_mha.py", _LONG, 1.54, GIB, "allocated"),
    _rasbt("gqa", "ch04/04_gqa/gpt_with_kv_gqa.py", _LONG + " --n_kv_groups 4", 0.63, GIB,
           "allocated"),
    _rasbt("mla", "ch04/05_mla/gpt_with_kv_mla.py", _LONG + " --emb_dim 768 --latent_dim 192",
           0.68, GIB, "allocated"),
    _rasbt("swa", "ch04/06_swa/gpt_with_kv_swa.py", _LONG + " --emb_dim 768 "
           "--sliding_window_size 1024 --sliding_window_stride 5", 0.63, GIB, "allocated"),
    _rasbt("dense", "ch04/07_moe/gpt_with_kv_ffn.py", _WIDE + " --hidden_dim 32768", 11.47, GIB,
           "allocated"),
    _rasbt("experts", "ch04/07_moe/gpt_with_kv_moe.py", _WIDE + " --hidden_dim 1024 "
           "--num_experts 32 --num_experts_per_tok 2", 11.48, GIB, "allocated"),
    _vision("01_pytorch-vit", 26.79),
    _vision("01-2_pytorch-fabric", 26.84),
    _vision("02_mixed-precision", 18.21, remark=_COPY),
    _vision("03_bfloat16", 13.82, remark=_COPY),
    _vision("04_lower-batchsize", 5.69, remark=_COPY),
    _vision("05_gradient-accum", 3.91, remark=_ADAM),
    _vision("06_sgd-with-scheduler", 2.02, remark=_COPY),
    _vision("07_01_init-module", 1.24, "all"),
    _vision("07_03_init-module", 0.65, "all"),
    _torchao("AdamW", 12.23),
    _torchao("AdamW8bitBnb", 8.32),
    _torchao("AdamW8bitAo", 8.33),
    _torchao("AdamWFp8Ao", 8.33),
    _torchao("AdamW4bitAo", 7.72),
    _modded("2025-05-24_StableTorch", "587b45fb6a33d7658d3e1d519c359146acba9ce0", 30724,
            "torch 2.8 then; reserved memory is 45,392 MiB in both. Newer records take a "
            "FlashAttention 3 kernel from the model hub, and were not run"),
    Row("efficient-cross-entropy", "{python} {script}", "benchmark.py", "", *EFFICIENT, cards=A100,
        steps="all", swept=Swept(tuple(zip(_EFFICIENT_FILES, _EFFICIENT_FILES, strict=True)),
                                 ("fn", "n_loop_iters", "dim", "n_classes", "n_tokens"),
                                 "peak_mem", GB)),
    _liger("geglu", _2024_09_03, CARD),
    _liger("swiglu", _2024_09_03, CARD),
    _liger("layer_norm", _2024_09_03, CARD),
    _liger("cross_entropy", _2024_09_03, CARD),
    _liger("fused_linear_cross_entropy", _2024_09_03, CARD),
    _liger("rms_norm", _2024_09_03, CARD),
    _liger("rope", _2024_09_03, CARD),
)  # fmt: skip
