"""The floor that loads torch, always in a process of its own.

It runs in the user's interpreter, so it needs only the standard library, `records` and `analysis`
beside torch, transformers, peft, accelerate and bitsandbytes, all imported inside functions.
"""
