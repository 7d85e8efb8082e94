"""The world outside of the process: files, GPUs, the hub, Slurm. No torch."""
