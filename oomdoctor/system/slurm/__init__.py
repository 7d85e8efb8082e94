"""Jobs of Slurm: their states, outputs and nodes."""
