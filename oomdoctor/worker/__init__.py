"""The only floor that loads torch, always in a separate process.

It runs in the user's interpreter. It needs only the standard library, the floors below it, and
torch, transformers, peft, accelerate and bitsandbytes. What runs before a job does imports none of
them; of the rest, modules import torch, and functions the other libraries.
"""
