"""The scripts: where each is from, how it is started and on which cards.

In a command, `{script}` is the script, `{python}` the environment's interpreter and `{inputs}` the
folder that `inputs` fills, which is not the working directory.
"""

from __future__ import annotations

from dataclasses import dataclass

CARD = "A100 SXM4 80GB"
MODEL = "Qwen/Qwen3-0.6B"
SYNTHETIC = ("--weights", "synthetic")


@dataclass(frozen=True, slots=True)
class Row:
    """One script. `package` installed it, or it is a file of `repository` at `commit`."""

    name: str
    command: str
    script: str = ""
    package: str = ""
    repository: str = ""
    commit: str = ""
    cards: str = CARD
    options: tuple[str, ...] = ()
    steps: str = "3"
    older: bool = False  # with an older torchao


NANOGPT = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
ACCELERATE = ("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
LIGHTNING = ("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
# A copy of transformers' repository; its examples ask for a version that exists.
TRANSFORMERS = ("macorisd/transformers-qwen3", "4a42c1b083066a4ae212edd4bd8d28ff713c0088")


def _trl(name: str, script: str, words: str, start: str = "{python}", **more: object) -> Row:
    command = (
        f"{start} {{script}} --model_name_or_path {MODEL} --output_dir out --report_to none "
        f"--bf16 True {words}"
    )
    file = f"trl/scripts/{script}.py"
    return Row(name, command, file, "trl", options=SYNTHETIC, **more)  # type: ignore[arg-type]


_CHAT = "--dataset_name {inputs}/chat --per_device_train_batch_size 4 --max_length 512"
_PAIRS = "--dataset_name {inputs}/pairs --per_device_train_batch_size 4 --max_length 512"
_TUNE = (
    "batch_size=2 tokenizer._component_=torchtune.models.llama3.llama3_tokenizer "
    "tokenizer.path={inputs}/tokenizer.model tokenizer.max_seq_len=512 "
    "checkpointer.checkpoint_dir={inputs}/llama checkpointer.checkpoint_files=[model.safetensors] "
    "checkpointer.output_dir=out output_dir=out metric_logger.log_dir=out/logs "
    "dataset._component_=torchtune.datasets.instruct_dataset dataset.source=json "
    "dataset.data_files={inputs}/instruct/train.jsonl dataset.split=train"
)
_GPT = (
    "--dataset=shakespeare_char --wandb_log=False --max_iters=20 --eval_interval=10 "
    "--eval_iters=2 --log_interval=1"
)

ROWS = (
    _trl("deepspeed-zero2", "sft", _CHAT + " --deepspeed {inputs}/zero2.json",
         "deepspeed --num_gpus 2", cards=f"2x{CARD}"),
    _trl("deepspeed-zero3", "sft", _CHAT + " --deepspeed {inputs}/zero3.json",
         "deepspeed --num_gpus 2", cards=f"2x{CARD}"),
    _trl("deepspeed-zero2-torchrun", "sft", _CHAT + " --deepspeed {inputs}/zero2.json",
         "torchrun --nproc-per-node 2", cards=f"2x{CARD}"),
    _trl("deepspeed-zero3-torchrun", "sft", _CHAT + " --deepspeed {inputs}/zero3.json",
         "torchrun --nproc-per-node 2", cards=f"2x{CARD}"),
    _trl("trl-sft", "sft", _CHAT + " --packing True --use_peft True"),
    _trl("trl-dpo", "dpo", _PAIRS + " --use_peft True"),
    _trl("trl-reward", "reward", _PAIRS),
    _trl("trl-kto", "kto", "--dataset_name {inputs}/kto --per_device_train_batch_size 4 "
         "--max_length 512 --use_peft True"),
    _trl("trl-grpo", "grpo", "--dataset_name {inputs}/prompts --per_device_train_batch_size 4 "
         "--num_generations 4 --max_completion_length 48 --use_peft True "
         "--reward_funcs think_format_reward"),
    Row("torchtune-lora",
        "tune run lora_finetune_single_device --config llama3_2/1B_lora_single_device "
        + _TUNE, package="torchtune", older=True),
    Row("torchtune-lora-distributed",
        "tune run --nproc_per_node 2 lora_finetune_distributed --config llama3_2/1B_lora "
        + _TUNE, package="torchtune", older=True, cards=f"2x{CARD}"),
    Row("nanogpt", "{python} {script} --compile=False " + _GPT, "train.py", "", *NANOGPT),
    Row("nanogpt-compiled", "{python} {script} " + _GPT, "train.py", "", *NANOGPT),
    Row("nanogpt-2-ranks", "torchrun --standalone --nproc-per-node 2 {script} --compile=False "
        + _GPT, "train.py", "", *NANOGPT, cards=f"2x{CARD}"),
    Row("lightning", "{python} {script}", "examples/pytorch/bug_report/bug_report_model.py", "",
        *LIGHTNING),
    Row("accelerate-test", "accelerate launch --num_processes 2 --multi_gpu {script}",
        "accelerate/test_utils/scripts/test_script.py", "accelerate", cards=f"2x{CARD}",
        steps="all"),
    Row("accelerate-collectives", "accelerate launch --num_processes 2 --multi_gpu {script}",
        "accelerate/test_utils/scripts/test_ops.py", "accelerate", cards=f"2x{CARD}",
        steps="all"),
    Row("accelerate-data-loop", "accelerate launch --num_processes 2 --multi_gpu {script}",
        "accelerate/test_utils/scripts/test_distributed_data_loop.py", "accelerate",
        cards=f"2x{CARD}", steps="all"),
    Row("accelerate-nlp", "{python} {script} --mixed_precision bf16 "
        "--checkpointing_steps epoch --output_dir out",
        "examples/complete_nlp_example.py", "", *ACCELERATE, options=SYNTHETIC),
    Row("run-clm", "{python} {script} --config_name {inputs}/gpt2 "
        "--tokenizer_name {inputs}/gpt2 --train_file {inputs}/text/train.txt "
        "--validation_file {inputs}/text/train.txt --do_train --do_eval --block_size 256 "
        "--per_device_train_batch_size 4 --output_dir out --report_to none",
        "examples/pytorch/language-modeling/run_clm.py", "", *TRANSFORMERS),
    Row("run-glue", "{python} {script} --model_name_or_path google-bert/bert-base-cased "
        "--train_file {inputs}/pairs.csv --validation_file {inputs}/pairs.csv --do_train "
        "--do_eval --max_seq_length 128 --per_device_train_batch_size 8 --output_dir out "
        "--report_to none",
        "examples/pytorch/text-classification/run_glue.py", "", *TRANSFORMERS,
        options=SYNTHETIC),
    Row("run-translation", "{python} {script} --model_name_or_path google-t5/t5-small "
        "--source_lang en --target_lang fr --train_file {inputs}/translation.json "
        "--validation_file {inputs}/translation.json --do_train --do_eval "
        "--predict_with_generate --num_beams 4 --max_source_length 64 --max_target_length 64 "
        "--per_device_train_batch_size 8 --output_dir out --report_to none",
        "examples/pytorch/translation/run_translation.py", "", *TRANSFORMERS,
        options=SYNTHETIC),
)  # fmt: skip
