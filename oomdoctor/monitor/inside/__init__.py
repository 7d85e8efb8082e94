"""Watches the memory of a process that `oomdoctor run` started, without a change to its script.

    entry/      the folder's `sitecustomize.py` runs first in every Python process of the command
    imports     calls us once torch, and transformers' Trainer, are imported
    start       what happens then
    watch       one process: steps, what is written and when
    device/     its memory: traced (emulated GPU) or counted (real GPU), peaks, snapshots, reads
    position    the phase and the module, from hooks of torch
    ranks/      all ranks stop after the same step, or one answers for all (`--ranks 1`)
    ending      whether memory repeats, and how the training is stopped
    live        the log that `oomdoctor watch` reads
    process     facts about the process and its devices
    trainer     transformers' Trainer; engines: DeepSpeed's
    pending     what torch still holds of collectives that are done
    failure     out-of-memory errors, and the exception that ended the process
    folder      the folder that is shared with the parent; files are replaced as a whole
    weights/    checkpoints without data, for `--weights synthetic`

The process must not notice: nothing is printed, and an error in here is only noted in the record.
"""
