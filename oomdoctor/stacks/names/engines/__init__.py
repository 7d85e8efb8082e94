"""Names of what launches and shards a training: accelerate, FSDP and DeepSpeed."""
