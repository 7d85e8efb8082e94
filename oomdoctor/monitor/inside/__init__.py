"""Watches the memory of a process that `oomdoctor run` started, without a change to its script.

    entry/      the folder's `sitecustomize.py` runs first in every Python process of the command
    imports     calls us once torch, and transformers' Trainer, are imported
    start       what happens then
    watch       one process: steps, what is written and when
    memory      what it asks of its memory: traced (emulated GPU) or counted (real GPU)
    live        the log that `oomdoctor watch` reads
    snapshots   the file that is written when memory runs out
    process     facts about the process and its devices
    history     the allocator's own trace: peaks, a curve, events for a replay
    peaks       the peaks of a device, whatever the script resets
    position    the phase and the module, from hooks of torch
    ending      whether memory repeats, and how the training is stopped
    agreement   all ranks stop after the same step
    trainer     transformers' Trainer
    pending     what torch still holds of collectives that are done
    engines     DeepSpeed's engines
    failure     out-of-memory errors, and the exception that ended the process
    reads       values that the script read from the device although they are unknown
    alone       one rank runs and answers for all (`--ranks 1`); alone_gloo is its part for gloo
    folder      the folder that is shared with the parent; files are replaced as a whole

The process must not notice: nothing is printed, and an error in here is only noted in the record.
"""
