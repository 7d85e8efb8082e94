"""The remedies outside training on one GPU: host memory, inference servers, other frameworks."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.row import Row, always, rule


def _workers(case: Case) -> bool:
    """Where workers are known or mentioned."""
    if case.setup.workers is not None:
        return case.setup.workers > 0
    mentioned = case.logged(r"num_workers|DataLoader|data ?loader|pt_data_worker") or case.shows(
        "DataLoader"
    )
    return case.dialect.startswith("dataloader") or bool(mentioned)


def _offloads(case: Case) -> bool:
    return bool(
        case.setup.offload_optimizer
        or case.setup.offload_parameters
        or case.logged(r"offload|zero3|zero-3|stage3")
    )


def _several_ranks(case: Case) -> bool:
    return (case.setup.world_size or 0) > 1 or bool(case.logged(r"torchrun|local_rank|\[rank\d"))


def _not_slurm(case: Case) -> bool:
    """Whether another scheduler tells of its limit, whose lines differ."""
    return bool(case.logged(r"TERM_MEMLIMIT|PBS: job killed|exceeds job (?:hard|soft) limit"))


def _vllm_wants_too_much(case: Case) -> bool:
    """Whether its share of the card is too large, rather than too small for the cache."""
    return bool(case.logged(r"less than desired GPU memory|warming up sampler"))


OTHER_ROWS: tuple[Row, ...] = (
    # host memory
    Row("confirm_kill", 0, "make sure that it was memory", always,
        rule("a scheduler or a person can send signal 9 too"),
        {"shell": "dmesg -T | grep -i 'killed process'; sacct -j JOBID -o State,MaxRSS,ReqMem"}),
    Row("more_job_memory", 1, "ask the scheduler for more host memory", _not_slurm,
        rule("as much as the largest process needs, for each process"),
        {"pbs": "#PBS -l select=1:mem=SIZE", "lsf": "#BSUB -M SIZE",
         "grid engine": "#$ -l h_vmem=SIZE"}),
    Row("more_host_memory", 1, "ask for more host memory", lambda case: not _not_slurm(case),
        rule("as much as the largest process needs, for each process"),
        {"slurm": "#SBATCH --mem=SIZE  # 0: all of the node", "docker": "docker run -m SIZE"}),
    Row("fewer_workers", 1, "fewer loader workers", _workers,
        rule("each worker holds its own copy of what the dataset touches"),
        {"transformers": "TrainingArguments(dataloader_num_workers=$workers)",
         "pytorch": "DataLoader(..., num_workers=$workers, prefetch_factor=2)"}),
    Row("less_offload", 2, "offload less to the host", _offloads,
        rule("ZeRO offload keeps 12 to 16 bytes a parameter in host memory"),
        {"deepspeed": '"offload_optimizer": {"device": "none"}'}),
    Row("load_once", 2, "load the checkpoint without a second copy in host memory",
        lambda case: case.phase in ("load", "init", "unknown"),
        rule("every rank that loads for itself holds the whole model once more"),
        {"transformers": "from_pretrained(..., dtype=torch.bfloat16)  # safetensors are mapped",
         "accelerate": "fsdp_config: {fsdp_cpu_ram_efficient_loading: true}",
         "pytorch": 'torch.load(path, map_location="cpu", mmap=True)'}),
    Row("load_half_host", 2, "use a narrower type", always,
        rule("float32 instead of float64, bfloat16 instead of float32: half of it"),
        {"pytorch": "x.to(torch.bfloat16)", "numpy": "array.astype(numpy.float32)"}),
    Row("wsl_limit", 1, "give WSL more memory", always, rule("the default is half of the host's"),
        {"shell": "%UserProfile%\\.wslconfig: [wsl2] memory=SIZE; then wsl --shutdown"}),
    Row("no_pinning", 1, "do without pinned memory", always,
        rule("pinned memory is what WSL limits"),
        {"transformers": "TrainingArguments(dataloader_pin_memory=False)",
         "pytorch": "DataLoader(..., pin_memory=False)", "vllm": "--swap-space 0"}),
    Row("shm_size", 0, "give the container more shared memory", always,
        rule("docker's default is 64 MiB"),
        {"docker": "docker run --shm-size=16g  # or --ipc=host",
         "kubernetes": "emptyDir: {medium: Memory} mounted at /dev/shm"}),
    Row("file_system_sharing", 2, "share tensors by files", always,
        rule("slower, but not bound to /dev/shm"),
        {"pytorch": 'torch.multiprocessing.set_sharing_strategy("file_system")'}),
    # saving
    Row("sharded_save", 1, "save shards instead of one gathered file",
        lambda case: case.phase == "save" or _several_ranks(case),
        rule("no rank holds the whole model"),
        {"accelerate": "fsdp_config: {fsdp_state_dict_type: SHARDED_STATE_DICT}",
         "deepspeed": '"stage3_gather_16bit_weights_on_model_save": false',
         "pytorch": "torch.distributed.checkpoint.save(state, checkpoint_id=path)"}),
    Row("save_on_cpu", 1, "gather into host memory, on rank 0 only",
        lambda case: case.phase == "save",
        rule("the copy never lies on the card"),
        {"pytorch": "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
                    "cpu_offload=True))"}),
    # generation and servers
    Row("fewer_tokens", 5, "generate fewer tokens or from shorter prompts", always,
        rule("the cache grows with each token"),
        {"transformers": "model.generate(..., max_new_tokens=256)"}),
    Row("offload_cache", 3, "keep the cache in host memory, layer by layer", always,
        rule("the same result, slower"),
        {"transformers": 'model.generate(..., cache_implementation="offloaded")'}),
    Row("smaller_generation", 2, "fewer sequences at once",
        lambda case: case.setup.eval_batch_size != 1,
        rule("the cache grows with each sequence and beam"),
        {"transformers": "model.generate(..., num_beams=1)  # and smaller batches"}),
    Row("vllm_utilization", 0, "let vLLM use more of the card",
        lambda case: not _vllm_wants_too_much(case),
        rule("0.90 by default: each point is 1 % of the card"),
        {"vllm": "--gpu-memory-utilization 0.95"}),
    Row("vllm_less", 0, "let vLLM use less of the card", _vllm_wants_too_much,
        rule("its share of the whole card has to be free at the start, and some of it besides"),
        {"vllm": "--gpu-memory-utilization 0.80"}),
    Row("vllm_length", 5, "a shorter context", always, rule("one sequence must fit in the cache"),
        {"vllm": "--max-model-len 8192"}),
    Row("vllm_eager", 3, "no CUDA graphs", always, rule("the graphs take 1 to 3 GiB"),
        {"vllm": "--enforce-eager"}),
    Row("vllm_batch", 2, "smaller profiling batch", always,
        rule("the profiling run takes activations for this many tokens"),
        {"vllm": "--max-num-batched-tokens 8192 --max-num-seqs 64"}),
    Row("vllm_parallel", 7, "more cards, or fewer bits", always,
        rule("weights are split over the cards"),
        {"vllm": "--tensor-parallel-size 2  # or --quantization fp8"}),
    # communication and libraries
    Row("one_rank_a_card", 0, "bind each rank to its card", always,
        rule("ranks that share card 0 fill it with their contexts"),
        {"pytorch": 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
         "shell": "torchrun --nproc-per-node NUMBER_OF_CARDS"}),
    Row("leave_room", 1, "leave room for NCCL's buffers", always,
        rule("0.5 to 1.5 GiB a card with several groups"),
        {"shell": "export NCCL_BUFFSIZE=2097152",
         "jax": "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.85"}),
    Row("check_labels", 3, "rule out another fault that wears this message",
        lambda case: not case.requested,
        rule("an index out of range shows up here on a card that works asynchronously"),
        {"shell": "CUDA_LAUNCH_BLOCKING=1 python train.py  # once, to see the true line"}),
    # other frameworks
    Row("xla_preallocate", 0, "do not let JAX take the card at start",
        lambda case: case.dialect == "xla",
        rule("JAX takes 75 % at start; others then find nothing"),
        {"jax": "export XLA_PYTHON_CLIENT_PREALLOCATE=false"}),
    Row("xla_donate", 1, "donate arguments that are not used again", always,
        rule("a step then needs one copy of the state, not two"),
        {"jax": "jax.jit(step, donate_argnums=(0,))"}),
    Row("tf_growth", 4, "let TensorFlow take memory as it needs it", always,
        rule("leaves the rest to other libraries"),
        {"tensorflow": "tf.config.experimental.set_memory_growth(gpu, True)"}),
    Row("llamacpp_layers", 2, "fewer layers on the card", always,
        rule("each layer on the host gives back its weights and its cache"),
        {"llamacpp": "-ngl N  # lower until it loads"}),
    Row("llamacpp_context", 4, "a shorter context", always,
        rule("cache and compute buffers grow with it"), {"llamacpp": "-c 4096 -ub 256"}),
    Row("llamacpp_cache", 3, "a quantised cache", always, rule("half of the cache"),
        {"llamacpp": "-fa on -ctk q8_0 -ctv q8_0"}),
    Row("mps_other", 2, "close other applications that use the GPU", always,
        rule("memory of a Mac is shared by all"),
        {"pytorch": "torch.mps.empty_cache()",
         "shell": "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0  # lifts the limit; the Mac may swap"}),
    Row("restart_notebook", 0, "restart the kernel of the notebook", always,
        rule("variables of earlier cells and the last error keep their tensors"),
        {"pytorch": "del model, optimizer; gc.collect(); torch.cuda.empty_cache()"}),
    Row("give_more", 9, "give explain more to read", always,
        rule("the whole traceback, the model and the sizes tell more"),
        {"shell": "oomdoctor explain LOG --model MODEL --seq-len N --micro-batch N"}),
)  # fmt: skip
