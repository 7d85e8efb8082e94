"""A job on several GPUs: its ranks run together, or one stands for all on an emulated GPU."""
