"""The emulated GPU: PyTorch's own CUDA code on CUDA libraries whose kernels do nothing."""
