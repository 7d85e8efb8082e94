"""What other programs call: an estimate of the memory of a training that exists as objects.

    import oomdoctor
    estimate = oomdoctor.estimate(trainer, gpu="RTX 4090")

    estimate   runs `oomdoctor plan` and gives a typed answer
    preflight  a callback that stops a Trainer at its start if it will run out of memory
    budget     a block of code that must stay within a budget
    live       writes the objects as the script that would make them, which `--from` reads

Importing it loads neither torch nor the rest of oomdoctor.
"""
