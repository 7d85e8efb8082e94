"""Published measurements of real GPUs against the same training on the emulated GPU.

`training` runs in an environment of its own with the library versions of the time, so it imports
nothing of oomdoctor; `environment` makes that environment; `rows` says which rows can be run.
"""
