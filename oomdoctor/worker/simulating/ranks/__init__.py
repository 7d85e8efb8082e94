"""One rank of a training on several GPUs that are not there; the others are fake."""
