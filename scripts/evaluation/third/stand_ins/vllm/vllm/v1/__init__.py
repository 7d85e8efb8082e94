"""vLLM V1."""
