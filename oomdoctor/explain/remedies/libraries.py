"""Remedies for NCCL, JAX, TensorFlow, MPS and notebooks, and for messages that say too little."""

from __future__ import annotations

from oomdoctor.explain.remedies.row import Row, always, rule

LIBRARY_ROWS: tuple[Row, ...] = (
    Row("one_rank_a_card", 0, "Bind each rank to its own GPU", always,
        rule("ranks that share GPU 0 fill it with their CUDA contexts"),
        {"pytorch": 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
         "shell": "torchrun --nproc-per-node NUMBER_OF_GPUS"}),
    Row("leave_room", 1, "Leave room for NCCL's buffers", always,
        rule("several process groups take 0.5 to 1.5 GiB per GPU"),
        {"shell": "export NCCL_BUFFSIZE=2097152",
         "jax": "export XLA_PYTHON_CLIENT_MEM_FRACTION=0.85"}),
    Row("check_labels", 3, "Rule out other errors that produce the same message",
        lambda case: not case.requested,
        rule("CUDA runs asynchronously, so an out-of-range index can surface here"),
        {"shell": "CUDA_LAUNCH_BLOCKING=1 python train.py  # once, to see the real line"}),
    Row("xla_preallocate", 0, "Stop JAX from reserving the GPU at startup",
        lambda case: case.dialect == "xla",
        rule("JAX reserves 75% at startup and leaves little for other libraries"),
        {"jax": "export XLA_PYTHON_CLIENT_PREALLOCATE=false"}),
    Row("xla_donate", 1, "Donate arguments that are not used again", always,
        rule("a step then needs one copy of the state, not two"),
        {"jax": "jax.jit(step, donate_argnums=(0,))"}),
    Row("tf_growth", 4, "Let TensorFlow allocate memory as needed", always,
        rule("leaves the rest to other libraries"),
        {"tensorflow": "tf.config.experimental.set_memory_growth(gpu, True)"}),
    Row("mps_other", 2, "Close other applications that use the GPU", always,
        rule("on a Mac all applications share the memory"),
        {"pytorch": "torch.mps.empty_cache()",
         "shell": "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0  # lifts the limit; the Mac may swap"}),
    Row("restart_notebook", 0, "Restart the notebook kernel", always,
        rule("variables of earlier cells and the last traceback keep their tensors alive"),
        {"pytorch": "del model, optimizer; gc.collect(); torch.cuda.empty_cache()"}),
    Row("give_more", 9, "Give explain more information", always,
        rule("the full traceback, the model and the sizes say more"),
        {"shell": "oomdoctor explain LOG --model MODEL --seq-len N --micro-batch N"}),
)  # fmt: skip
