"""The largest value of a setting that still fits: `--solve`, and the longest row of a dataset."""
