"""Published measurements of real GPUs against the same training on the emulated GPU.

`training` runs in an environment of its own with the library versions of the time, so of oomdoctor
it imports only what writes checkpoints without data. `environment` makes that environment, and
`rows` says which rows can be run.

`rungs`, `both` and `table` compare simulated rungs with the same on the emulated GPU.
"""
