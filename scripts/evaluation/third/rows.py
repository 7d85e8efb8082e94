"""The scripts: where each is from, how it is started and on which cards.

In a command, `{script}` is the script, `{python}` the environment's interpreter and `{inputs}` the
folder that `inputs` fills, which is not the working directory. `{checkout}` is the repository.
`{settings} {script} NAME=VALUE --`
runs the script with other values of its own settings, `{unchecked} {script}` with images that are
made here.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB = 1 << 30
CARD = "A100 SXM4 80GB"
MODEL = "Qwen/Qwen3-0.6B"
SYNTHETIC = ("--weights", "synthetic")


@dataclass(frozen=True, slots=True)
class Published:
    """A peak that the authors of a script measured on a real GPU.

    `value` is as printed, in units of `unit` bytes; `figure` is what it counts, `allocated` or
    `reserved`; `source` is a file of the repository, or an address.
    """

    value: float
    unit: int
    figure: str
    source: str
    remark: str = ""  # what the source leaves open, or why the two may differ


@dataclass(frozen=True, slots=True)
class Swept:
    """Peaks that a benchmark writes to CSV files, a row a size, and that its authors published.

    `files` are what it writes, relative to the working folder, and the authors' own in the
    repository. Rows with the same `keys` are compared by `column`, in units of `unit` bytes. Only
    rows count that have the values of `only`.
    """

    files: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]
    column: str
    unit: int
    only: tuple[tuple[str, str], ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One script. `package` installed it, or it is a file of `repository` at `commit`.

    `path` is the folder of the repository that its modules are imported from; `bare` if its
    packages have no `__init__.py`.
    """

    name: str
    command: str
    script: str = ""
    package: str = ""
    repository: str = ""
    commit: str = ""
    cards: str = CARD
    options: tuple[str, ...] = ()
    steps: str = "3"
    older: str = ""  # the sets of `sources.OLDER` that are imported first
    path: str = ""
    bare: bool = False
    varies: str = ""  # why its peak may differ a little between two runs
    reserves: str = ""  # why what it reserves differs between two runs, and is not compared
    beside: bool = False  # the script's folder is copied, and finds data beside itself
    stand_in: str = ""  # the folders of `stand_ins` that take the place of packages
    published: Published | None = None
    swept: Swept | None = None


# Seen in a dozen runs of one script: up to 0.15 % of what is allocated, 0.7 % of what is reserved.
AUTOCAST = "autocast frees its 16-bit copies of weights in the order of their addresses"

NANOGPT = ("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291")
ACCELERATE = ("huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83")
LIGHTNING = ("Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414")
# A copy of transformers' repository; its examples ask for a version that exists.
TRANSFORMERS = ("macorisd/transformers-qwen3", "4a42c1b083066a4ae212edd4bd8d28ff713c0088")
# A small copy of torchvision's repository; its scripts are those of torchvision 0.16.
TORCHVISION = ("zhuwq0/torchvision", "dafaa3343f888f162891d8d568fc9c00d76c89a3")
EXAMPLES = ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8")
MINGPT = ("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26")
TIMM = ("huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d")
DIFFUSERS = ("huggingface/diffusers", "58eb52c0803ea9af3abec60841c2a093bdf1f951")
BUILD_NANOGPT = ("karpathy/build-nanogpt", "6104ab1b53920f6e2159749676073ff7d815c1fa")
LECTURE = ("karpathy/ng-video-lecture", "52201428ed7b46804849dea0b3ccf0de9df1a5c3")
MAKEMORE = ("karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4")
LLM_C = ("karpathy/llm.c", "f1e2ace651495b74ae22d45d1723443fd00ecd3a")
MEGABYTE = ("lucidrains/MEGABYTE-pytorch", "21eec73ae6e9268ad5b77be3c5dd5cbd7daeaa4d")
X_TRANSFORMERS = ("lucidrains/x-transformers", "9252ed7838021ee61e6c5be0930b3a9a88efdf06")
PALM = ("lucidrains/PaLM-rlhf-pytorch", "bd0d0f3893ec62f827fa35e759cb38d748829d51")
SCHEDULE_FREE = ("facebookresearch/schedule_free", "70785b53e778d0e872c0bbb75ff4ee54ee10c291")
TUTORIAL = ("yunjey/pytorch-tutorial", "0500d3df5a2a8080ccfccbc00aca0eacc21818db")
PEFT = ("huggingface/peft", "5d602fdbff04c33c1c4de55cda9d4ae1d7cb7e40")
MISTRAL_FINETUNE = ("mistralai/mistral-finetune", "1943535d8e6d46b2eb47de8b81df07fec3ca5c15")
NANOTRON = ("huggingface/nanotron", "26ba5a88173bcb801ae87b0cf32486d7bc00d1ef")
OPEN_INSTRUCT = ("allenai/open-instruct", "e6c3044aa6201c8bfa4573c1b03142af599e730d")
SD_SCRIPTS = ("kohya-ss/sd-scripts", "48d368fa557731ad0488c07304dfeba8c07910eb")
SENTENCES = ("huggingface/sentence-transformers", "cad211983f36ce458e9b3360f3e11b29fc54cbd8")


def _trl(name: str, script: str, words: str, start: str = "{python}", **more: object) -> Row:
    command = (
        f"{start} {{script}} --model_name_or_path {MODEL} --output_dir out --report_to none "
        f"--bf16 True {words}"
    )
    file = f"trl/scripts/{script}.py"
    return Row(name, command, file, "trl", options=SYNTHETIC, **more)  # type: ignore[arg-type]


def _example(name: str, script: str, words: str = "", cards: str = CARD) -> Row:
    """A row of pytorch/examples; one for several cards is started by torchrun."""
    start = "{python}" if cards == CARD else f"torchrun --nproc-per-node {cards[0]}"
    return Row(f"examples-{name}", f"{start} {{script}} {words}", script, "", *EXAMPLES, cards)


def _verl(name: str, words: str, older: str = "verl", stand_in: str = "vllm") -> Row:
    """A run with all models and the engine on one card."""
    actor = "actor_rollout_ref"
    command = (
        "{python} -m verl.trainer.main_ppo data.train_files={inputs}/verl/prompts.parquet "
        "data.val_files={inputs}/verl/prompts.parquet data.train_batch_size=4 "
        "data.max_prompt_length=128 data.max_response_length=256 data.dataloader_num_workers=0 "
        f"{actor}.model.path={MODEL} +{actor}.model.override_config.attn_implementation=sdpa "
        f"{actor}.actor.ppo_mini_batch_size=4 {actor}.actor.ppo_micro_batch_size_per_gpu=4 "
        f"{actor}.rollout.name=vllm {actor}.rollout.tensor_model_parallel_size=1 "
        f"{actor}.rollout.gpu_memory_utilization=0.3 {actor}.rollout.n=4 "
        f"{actor}.rollout.log_prob_micro_batch_size_per_gpu=4 "
        f"{actor}.rollout.agent.num_workers=1 trainer.n_gpus_per_node=1 "
        "trainer.val_before_train=False trainer.save_freq=-1 trainer.total_epochs=1 "
        "ray_kwargs.ray_init.num_cpus=32 reward.num_workers=1 "
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1 "
        f"trainer.logger=[console] {words}"
    )
    return Row(f"verl-{name}", command, "", "verl", older=older, options=SYNTHETIC,
               stand_in=stand_in, varies=AUTOCAST)  # fmt: skip


def _openrlhf(name: str, words: str) -> Row:
    """A run with all models and the engine on one card. flash-attn: see `openrlhf-sft`."""
    command = (
        "env FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE {python} -m openrlhf.cli.train_ppo_ray "
        f"--actor.model_name_or_path {MODEL} --reward.remote_url {{inputs}}/reward.py "
        "--actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --critic.num_gpus_per_node 1 "
        "--train.colocate_all --vllm.num_engines 1 --vllm.enable_sleep "
        "--vllm.gpu_memory_utilization 0.3 --data.prompt_dataset {inputs}/instruct/train.jsonl "
        "--data.input_key input --data.max_len 512 --rollout.max_new_tokens 256 "
        "--rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --rollout.micro_batch_size 4 "
        "--train.batch_size 16 --train.micro_batch_size 4 --ds.attn_implementation sdpa "
        "--actor.optim muon --actor.gradient_checkpointing_enable --ckpt.output_dir out "
        f"--ckpt.path out {words}"
    )
    return Row(f"openrlhf-{name}", command, "", "openrlhf", older="openrlhf", options=SYNTHETIC,
               stand_in="vllm", varies="0.2 %, seen in three runs",
               reserves="2.2 to 4.0 GiB for the reference model, in three runs")  # fmt: skip


def _torchtitan(cards: int) -> Row:
    """Its small model, with compiled attention and CUDA graphs, on a newer torch."""
    command = (
        f"torchrun --standalone --nproc-per-node {cards} -m torchtitan.train --module llama3 "
        "--config llama3_debugmodel --hf_assets_path {inputs}/torchtitan/tokenizer "
        "--dataloader.dataset_path {inputs}/torchtitan/text"
    )
    name = "torchtitan" if cards == 1 else f"torchtitan-{cards}-ranks"
    return Row(name, command, "", "torchtitan", older="torchtitan",
               cards=CARD if cards == 1 else f"{cards}x{CARD}")  # fmt: skip


def _media(name: str, script: str, words: str, start: str = "{python}", **more: str) -> Row:
    """A row of transformers' examples for images and sound, whose model is a config."""
    command = f"{start} {{script}} --output_dir out --report_to none --do_train {words}"
    file = f"examples/pytorch/{script}.py"
    return Row(name, command, file, "", *TRANSFORMERS, options=SYNTHETIC, **more)


def _detection(name: str, script: str, words: str) -> Row:
    command = f"{{python}} {{script}} --data-path {{inputs}}/coco --dataset coco -j 0 {words}"
    file = f"references/{script}/train.py"
    return Row(name, command, file, "", *TORCHVISION, path=f"references/{script}")


_CHAT = "--dataset_name {inputs}/chat --per_device_train_batch_size 4 --max_length 512"
_PAIRS = "--dataset_name {inputs}/pairs --per_device_train_batch_size 4 --max_length 512"
_GRPO = (
    "--dataset_name {inputs}/prompts --per_device_train_batch_size 4 --num_generations 4 "
    "--gradient_accumulation_steps 4 --max_completion_length 256 --reward_funcs "
    "think_format_reward --use_vllm True --vllm_mode colocate --vllm_gpu_memory_utilization 0.3 "
    "--vllm_max_model_length 2048"
)
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
    _trl("trl-sft-full", "sft", _CHAT, varies=AUTOCAST),
    _trl("trl-dpo", "dpo", _PAIRS + " --use_peft True", varies="96 KB, seen once"),
    _trl("trl-reward", "reward", _PAIRS, varies=AUTOCAST),
    _trl("trl-kto", "kto", "--dataset_name {inputs}/kto --per_device_train_batch_size 4 "
         "--max_length 512 --use_peft True"),
    _trl("trl-grpo", "grpo", "--dataset_name {inputs}/prompts --per_device_train_batch_size 4 "
         "--num_generations 4 --max_completion_length 48 --use_peft True "
         "--reward_funcs think_format_reward"),
    _trl("trl-grpo-colocate", "grpo", _GRPO, stand_in="vllm", varies=AUTOCAST),
    _trl("trl-grpo-sleep", "grpo", _GRPO + " --vllm_enable_sleep_mode True", stand_in="vllm",
         varies=AUTOCAST),
    Row("torchtune-lora",
        "tune run lora_finetune_single_device --config llama3_2/1B_lora_single_device "
        + _TUNE, package="torchtune", older="torchao"),
    Row("torchtune-lora-distributed",
        "tune run --nproc_per_node 2 lora_finetune_distributed --config llama3_2/1B_lora "
        + _TUNE, package="torchtune", older="torchao", cards=f"2x{CARD}"),
    Row("llamafactory-lora", f"llamafactory-cli train --model_name_or_path {MODEL} --stage sft "
        "--do_train --finetuning_type lora --lora_rank 8 --lora_target all --dataset chat "
        "--dataset_dir {inputs}/llamafactory --template qwen3 --cutoff_len 512 "
        "--preprocessing_num_workers 1 --output_dir out --report_to none --bf16 True "
        "--per_device_train_batch_size 2 --gradient_accumulation_steps 2",
        package="llamafactory", older="llamafactory", options=SYNTHETIC),
    Row("ms-swift-lora", f"{{python}} -m swift.cli.main sft --model {MODEL} --tuner_type lora "
        "--dataset {inputs}/chat/train.jsonl --lora_rank 8 --target_modules all-linear "
        "--torch_dtype bfloat16 --max_length 512 --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 2 --output_dir out --report_to none",
        package="swift", older="msswift", options=SYNTHETIC),
    Row("verl-sft", "torchrun --standalone --nproc-per-node 1 -m verl.trainer.sft_trainer "
        "engine=fsdp optim=fsdp data.train_files={inputs}/verl/chat.parquet "
        "data.train_batch_size=16 data.num_workers=0 data.ignore_input_ids_mismatch=True "
        f"model.path={MODEL} +model.override_config.attn_implementation=sdpa "
        "trainer.logger=[console]",
        package="verl", older="verl", options=SYNTHETIC),
    _verl("grpo", "algorithm.adv_estimator=grpo actor_rollout_ref.actor.use_kl_loss=True "
          "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4"),
    # The critic takes flash-attn, whatever is asked for.
    _verl("ppo", f"critic.model.path={MODEL} critic.ppo_micro_batch_size_per_gpu=4",
          older="verl flashattn", stand_in="vllm flash_attn_2_cuda"),
    # flash-attn's Triton kernels are not used: with them its Python code can be imported.
    Row("openrlhf-sft", "env FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE deepspeed --num_gpus 1 "
        f"--master_port 29617 --module openrlhf.cli.train_sft --model.model_name_or_path {MODEL} "
        "--data.dataset {inputs}/instruct/train.jsonl --data.input_key input "
        "--data.output_key output --data.max_len 512 --train.micro_batch_size 2 "
        "--train.batch_size 4 --ds.attn_implementation sdpa --ds.zero_stage 2 --optim muon "
        "--ckpt.output_dir out",
        package="openrlhf", older="openrlhf", options=SYNTHETIC),
    _openrlhf("ppo", "--critic.optim muon --ds.enable_sleep"),
    _openrlhf("grpo", "--algo.advantage.estimator group_norm --algo.kl.use_loss "
              "--algo.kl.estimator k3"),
    _torchtitan(1),
    _torchtitan(8),
    Row("axolotl-lora", "env AXOLOTL_DO_NOT_TRACK=1 {python} -m axolotl.cli.main train "
        "axolotl/lora.yaml", package="axolotl", older="axolotl", options=SYNTHETIC),
    Row("mistral-finetune", "env CUDA_VISIBLE_DEVICES=0 torchrun --standalone --nproc-per-node 1 "
        "{script} mistral/lora.yaml",
        "train.py", "", *MISTRAL_FINETUNE, older="mistral"),
    Row("nanotron", "env CUDA_DEVICE_MAX_CONNECTIONS=1 "
        "torchrun --nproc_per_node 8 --rdzv_backend c10d --max_restarts 0 --tee 3 {script} "
        "--config-file {checkout}/examples/config_tiny_llama.yaml", "run_train.py", "", *NANOTRON,
        cards=f"8x{CARD}", options=("--ranks", "1"), older="nanotron", path="src",
        stand_in="flash_attn_2_cuda"),
    Row("open-instruct", "accelerate launch "
        f"--mixed_precision bf16 --num_processes 1 {{script}} --model_name_or_path {MODEL} "
        f"--tokenizer_name {MODEL} --dataset_mixer_list {{inputs}}/chat/train.jsonl "
        "1.0 --max_seq_length 512 --per_device_train_batch_size 2 "
        "--gradient_accumulation_steps 2 --num_train_epochs 1 --output_dir out "
        "--push_to_hub False --try_launch_beaker_eval_jobs False "
        "--try_auto_save_to_beaker False --report_to none --chat_template_name tulu",
        "open_instruct/finetune.py", "", *OPEN_INSTRUCT, older="openinstruct", path=".",
        options=SYNTHETIC),
    Row("nanogpt", "{python} {script} --compile=False " + _GPT, "train.py", "", *NANOGPT,
        beside=True),
    Row("nanogpt-compiled", "{python} {script} " + _GPT, "train.py", "", *NANOGPT, beside=True),
    Row("nanogpt-2-ranks", "torchrun --standalone --nproc-per-node 2 {script} --compile=False "
        + _GPT, "train.py", "", *NANOGPT, beside=True, cards=f"2x{CARD}"),
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
    Row("accelerate-sync", "{python} {script}", "accelerate/test_utils/scripts/test_sync.py",
        "accelerate", steps="all"),
    Row("accelerate-peak-memory", "{python} {script} --n_train 48 --n_val 16",
        "accelerate/test_utils/scripts/external_deps/test_peak_memory_usage.py", "accelerate",
        options=SYNTHETIC),
    Row("accelerate-nlp", "{python} {script} --mixed_precision bf16 "
        "--checkpointing_steps epoch --output_dir out",
        "examples/complete_nlp_example.py", "", *ACCELERATE, options=SYNTHETIC,
        varies=AUTOCAST),
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
    _media("run-image-classification", "image-classification/run_image_classification",
           "--model_name_or_path {inputs}/vit --train_dir {inputs}/images/train "
           "--validation_dir {inputs}/images/val --remove_unused_columns False --do_eval "
           "--label_column_name label --per_device_train_batch_size 16 --bf16 True",
           varies=AUTOCAST),
    _media("run-mae", "image-pretraining/run_mae",
           "--dataset_name {inputs}/images --image_column_name image "
           "--remove_unused_columns False --label_names pixel_values --do_eval "
           "--per_device_train_batch_size 16 --bf16 True", varies=AUTOCAST),
    _media("run-object-detection", "object-detection/run_object_detection",
           "--model_name_or_path {inputs}/detr --dataset_name third/boxes "
           "--image_square_size 600 --remove_unused_columns False "
           "--per_device_train_batch_size 4"),
    _media("run-semantic-segmentation", "semantic-segmentation/run_semantic_segmentation",
           "--model_name_or_path {inputs}/segformer --dataset_name third/masks "
           "--remove_unused_columns False --per_device_train_batch_size 8",
           "env HF_HUB_CACHE={inputs}/hub {python}"),
    _media("run-audio-classification", "audio-classification/run_audio_classification",
           "--model_name_or_path {inputs}/wav2vec2 --dataset_name {inputs}/sounds/classes "
           "--eval_split_name validation --max_length_seconds 1 --attention_mask False "
           "--remove_unused_columns False --do_eval --per_device_train_batch_size 32",
           older="speech"),
    _media("run-speech-ctc", "speech-recognition/run_speech_recognition_ctc",
           "--model_name_or_path third/wav2vec2 --dataset_name {inputs}/sounds/spoken "
           "--train_split_name train --eval_split_name validation --text_column_name text "
           "--do_eval --per_device_train_batch_size 4",
           "env HF_HUB_CACHE={inputs}/hub {python}", older="speech"),
    _media("run-speech-seq2seq", "speech-recognition/run_speech_recognition_seq2seq",
           "--model_name_or_path {inputs}/whisper --dataset_name {inputs}/sounds/spoken "
           "--train_split_name train --eval_split_name validation --text_column_name text "
           "--freeze_feature_encoder False --per_device_train_batch_size 8",
           older="speech"),
    _detection("torchvision-faster-rcnn", "detection",
               "--model fasterrcnn_resnet50_fpn --epochs 1 -b 2"),
    _detection("torchvision-mask-rcnn", "detection",
               "--model maskrcnn_resnet50_fpn --epochs 1 -b 2"),
    _detection("torchvision-retinanet", "detection",
               "--model retinanet_resnet50_fpn --epochs 1 -b 2 --lr 0.01"),
    _detection("torchvision-deeplab", "segmentation",
               "--model deeplabv3_resnet50 --aux-loss --epochs 1 -b 4"),
    _example("mnist", "mnist/main.py"),
    _example("mnist-rnn", "mnist_rnn/main.py", "--accel"),
    _example("imagenet-resnet50", "imagenet/main.py", "--dummy -a resnet50 -b 64 -j 0"),
    _example("imagenet-vit", "imagenet/main.py", "--dummy -a vit_b_16 -b 64 -j 0"),
    _example("imagenet-efficientnet", "imagenet/main.py",
             "--dummy -a efficientnet_b0 -b 64 -j 0"),
    _example("dcgan", "dcgan/main.py", "--dataset fake --accel --workers 0"),
    _example("word-lstm", "word_language_model/main.py", "--accel --data data"),
    _example("word-transformer", "word_language_model/main.py",
             "--accel --data data --model Transformer --lr 5"),
    _example("vae", "vae/main.py"),
    _example("siamese", "siamese_network/main.py"),
    _example("fsdp2", "distributed/FSDP2/example.py", cards=f"2x{CARD}"),
    _example("tensor-parallel", "distributed/tensor_parallelism/tensor_parallel_example.py",
             cards=f"2x{CARD}"),
    _example("sequence-parallel", "distributed/tensor_parallelism/sequence_parallel_example.py",
             cards=f"2x{CARD}"),
    _example("fsdp-tensor-parallel", "distributed/tensor_parallelism/fsdp_tp_example.py",
             cards=f"4x{CARD}"),
    Row("mingpt-characters", "{python} {script}", "projects/chargpt/chargpt.py", "", *MINGPT,
        path="."),
    Row("mingpt-adder", "{python} {script}", "projects/adder/adder.py", "", *MINGPT, path="."),
    Row("timm-resnet50", "{python} {script} --data-dir {inputs}/images --model resnet50 -b 64 "
        "-j 1 --amp", "train.py", "", *TIMM, varies=AUTOCAST),
    Row("timm-vit", "{python} {script} --data-dir {inputs}/images --model vit_base_patch16_224 "
        "-b 64 -j 1 --amp --opt adamw", "train.py", "", *TIMM, varies=AUTOCAST),
    Row("open-clip", "{python} -m open_clip_train.main --dataset-type synthetic "
        "--train-num-samples 512 --batch-size 64 --model ViT-B-32 --workers 0 "
        "--precision amp_bf16", "open_clip_train/main.py", "open_clip_train",
        varies=AUTOCAST),
    Row("diffusers-unconditional", "{python} {script} --train_data_dir {inputs}/images/train "
        "--resolution 64 --train_batch_size 16 --num_epochs 1 --dataloader_num_workers 0 "
        "--output_dir out",
        "examples/unconditional_image_generation/train_unconditional.py", "", *DIFFUSERS),
    # Latents are kept on the host; they are no sizes, which the names of its code do not show.
    Row("sd-scripts-sdxl-lora", "accelerate launch --num_processes 1 --mixed_precision bf16 "
        "{script} --pretrained_model_name_or_path stabilityai/stable-diffusion-xl-base-1.0 "
        "--tokenizer_cache_dir {inputs}/kohya/tokenizers --train_data_dir {inputs}/kohya/photos "
        "--caption_extension .txt --resolution 1024,1024 --train_batch_size 1 --network_dim 16 "
        "--network_module networks.lora --mixed_precision bf16 --no_half_vae --sdpa "
        "--gradient_checkpointing --cache_latents --max_train_steps 5 "
        "--max_data_loader_n_workers 0 --output_dir out",
        "sdxl_train_network.py", "", *SD_SCRIPTS, older="kohya", path=".",
        options=(*SYNTHETIC, "--values", "0")),
    Row("build-nanogpt", "{python} {script}", "train_gpt2.py", "", *BUILD_NANOGPT, steps="2",
        beside=True),
    Row("video-lecture-gpt", "{python} {script}", "gpt.py", "", *LECTURE),
    Row("makemore", "{python} {script} -i input.txt --device cuda", "makemore.py", "", *MAKEMORE),
    Row("llm.c-reference", "{python} {script} --input_bin {inputs}/tokens.bin --model d12 "
        "--write_tensors 0 --batch_size 4 --sequence_length 1024 --total_batch_size 4096 "
        "--dtype bfloat16", "train_gpt2.py", "", *LLM_C),
    Row("megabyte", "{python} {script}", "train.py", "", *MEGABYTE, path=".", cards="RTX 4090"),
    Row("x-transformers", "{python} {script}", "train_enwik8.py", "", *X_TRANSFORMERS, path="."),
    Row("palm", "{python} {script}", "train.py", "", *PALM, path=".", cards="RTX 4090"),
    Row("schedule-free", "{python} {script}", "examples/mnist/main.py", "", *SCHEDULE_FREE,
        path="."),
    Row("tutorial-lstm", "{python} {script}",
        "tutorials/02-intermediate/recurrent_neural_network/main.py", "", *TUTORIAL),
    Row("tutorial-vae", "{python} {script}",
        "tutorials/03-advanced/variational_autoencoder/main.py", "", *TUTORIAL),
    Row("peft-sft", f"{{python}} {{script}} --model_name_or_path {MODEL} "
        "--dataset_name {inputs}/talk --chat_template_format none --bf16 True "
        "--use_peft_lora True --lora_target_modules all-linear --max_length 512 "
        "--per_device_train_batch_size 4 --output_dir out --report_to none --eval_strategy no",
        "examples/sft/train.py", "", *PEFT, options=SYNTHETIC),
    Row("sentence-transformers", "{python} {script}",
        "examples/sentence_transformer/training/sts/training_stsbenchmark.py", "", *SENTENCES,
        options=SYNTHETIC),
)  # fmt: skip
