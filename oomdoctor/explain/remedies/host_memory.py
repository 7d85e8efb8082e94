"""Remedies for host memory and /dev/shm, and for saving checkpoints."""

from __future__ import annotations

from oomdoctor.explain.diagnosis.case import Case
from oomdoctor.explain.remedies.row import Row, always, rule


def _workers(case: Case) -> bool:
    """Whether DataLoader workers are configured or mentioned."""
    if case.setup.workers is not None:
        return case.setup.workers > 0
    mentioned = case.logged(r"num_workers|DataLoader|data ?loader|pt_data_worker") or case.shows(
        "DataLoader"
    )
    return case.dialect.startswith("dataloader") or bool(mentioned)


def _offloads(case: Case) -> bool:
    return bool(
        case.setup.offload in ("optimizer", "parameters")
        or case.logged(r"offload|zero3|zero-3|stage3")
    )


def _several_ranks(case: Case) -> bool:
    return (case.setup.world_size or 0) > 1 or bool(case.logged(r"torchrun|local_rank|\[rank\d"))


def _not_slurm(case: Case) -> bool:
    """Whether a scheduler other than Slurm reports its limit; its job options differ."""
    return bool(case.logged(r"TERM_MEMLIMIT|PBS: job killed|exceeds job (?:hard|soft) limit"))


HOST_MEMORY_ROWS: tuple[Row, ...] = (
    Row("confirm_kill", 0, "Confirm that memory was the reason", always,
        rule("a scheduler or a person can send signal 9 too"),
        {"shell": "dmesg -T | grep -i 'killed process'; sacct -j JOBID -o State,MaxRSS,ReqMem"}),
    Row("more_job_memory", 1, "Request more host memory from the scheduler", _not_slurm,
        rule("as much as the largest process needs, for each process"),
        {"pbs": "#PBS -l select=1:mem=SIZE", "lsf": "#BSUB -M SIZE",
         "grid engine": "#$ -l h_vmem=SIZE"}),
    Row("more_host_memory", 1, "Request more host memory", lambda case: not _not_slurm(case),
        rule("as much as the largest process needs, for each process"),
        {"slurm": "#SBATCH --mem=SIZE  # 0: all of the node", "docker": "docker run -m SIZE"}),
    Row("fewer_workers", 1, "Use fewer DataLoader workers", _workers,
        rule("each worker has its own copy of the data it touches"),
        {"transformers": "TrainingArguments(dataloader_num_workers=$workers)",
         "pytorch": "DataLoader(..., num_workers=$workers, prefetch_factor=2)"}),
    Row("less_offload", 2, "Offload less to host memory", _offloads,
        rule("ZeRO offload takes 12 to 16 bytes of host memory per parameter"),
        {"deepspeed": '"offload_optimizer": {"device": "none"}'}),
    Row("load_once", 2, "Load the checkpoint without a second copy in host memory",
        lambda case: case.phase in ("load", "init", "unknown"),
        rule("each rank that loads the checkpoint itself holds another copy of the model"),
        {"transformers": "from_pretrained(..., dtype=torch.bfloat16)  "
                         "# safetensors are memory-mapped",
         "accelerate": "fsdp_config: {fsdp_cpu_ram_efficient_loading: true}",
         "pytorch": 'torch.load(path, map_location="cpu", mmap=True)'}),
    Row("load_half_host", 2, "Use a smaller data type", always,
        rule("float32 instead of float64, or bfloat16 instead of float32, halves the size"),
        {"pytorch": "x.to(torch.bfloat16)", "numpy": "array.astype(numpy.float32)"}),
    Row("wsl_limit", 1, "Give WSL more memory", always,
        rule("the default is half of the host memory"),
        {"shell": "%UserProfile%\\.wslconfig: [wsl2] memory=SIZE; then wsl --shutdown"}),
    Row("no_pinning", 1, "Turn off pinned memory", always,
        rule("WSL limits pinned memory"),
        {"transformers": "TrainingArguments(dataloader_pin_memory=False)",
         "pytorch": "DataLoader(..., pin_memory=False)", "vllm": "--swap-space 0"}),
    Row("shm_size", 0, "Give the container more shared memory", always,
        rule("Docker's default is 64 MiB"),
        {"docker": "docker run --shm-size=16g  # or --ipc=host",
         "kubernetes": "emptyDir: {medium: Memory} mounted at /dev/shm"}),
    Row("file_system_sharing", 2, "Share tensors through files", always,
        rule("slower, but not limited by /dev/shm"),
        {"pytorch": 'torch.multiprocessing.set_sharing_strategy("file_system")'}),
    # saving
    Row("sharded_save", 1, "Save shards instead of one gathered file",
        lambda case: case.phase == "save" or _several_ranks(case),
        rule("no rank holds the whole model"),
        {"accelerate": "fsdp_config: {fsdp_state_dict_type: SHARDED_STATE_DICT}",
         "deepspeed": '"stage3_gather_16bit_weights_on_model_save": false',
         "pytorch": "torch.distributed.checkpoint.save(state, checkpoint_id=path)"}),
    Row("save_on_cpu", 1, "Gather into host memory, on rank 0 only",
        lambda case: case.phase == "save",
        rule("the copy never reaches the GPU"),
        {"pytorch": "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, "
                    "cpu_offload=True))"}),
)  # fmt: skip
