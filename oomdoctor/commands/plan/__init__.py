"""`plan`: cards, sweeps, `--solve`, `--min`, `--why`, and what would make a rung fit."""
