"""The output of a training that ran out of GPU memory in the loss."""

from __future__ import annotations

MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} GiB. GPU 0 has a total "
    "capacity of 79.25 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process "
    "has 78.25 GiB memory in use. Of the allocated memory 77.00 GiB is allocated by PyTorch, and "
    "300.00 MiB is reserved by PyTorch but unallocated."
)
TRACE = f"""Traceback (most recent call last):
  File "/home/me/train.py", line 40, in <module>
    loss = model(**batch).loss
  File "/env/site-packages/transformers/models/llama/modeling_llama.py", line 800, in forward
    loss = self.loss_function(logits=logits, labels=labels)
  File "/env/site-packages/transformers/loss/loss_utils.py", line 50, in ForCausalLMLoss
    logits = logits.float()
             ^^^^^^^^^^^^^^
{MESSAGE.format(asked="9.48")}
"""
