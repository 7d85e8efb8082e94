"""Watches the memory of a process that `oomdoctor run` started, without a change to its script.

    entry/      the folder's `sitecustomize.py` runs first in every Python process of the command
    imports     calls us once torch, and transformers' Trainer, are imported
    process_watch   one process: its steps, and the record that it leaves
    traced, memory   its memory, on an emulated and on a real GPU; history, past: torch's trace
    passes      steps of a training without an optimizer; trainer: those of other programs
    ending      whether memory repeats, and how all ranks stop after the same step
    serve, checkpoint   models without data, for `--weights synthetic`

The process must not notice: nothing is printed, and an error in here is only noted in the record.
"""
