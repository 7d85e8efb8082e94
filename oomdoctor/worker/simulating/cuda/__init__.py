"""What CUDA does differently from the CPU: kernels, workspaces, attention, types."""
