"""Use cases: launch one job in a worker process, survey a whole ladder."""
