"""Train on several GPUs, as transformers' Trainer does it: DDP, FSDP and DeepSpeed ZeRO."""
