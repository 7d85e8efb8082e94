"""Who uses vLLM."""
