"""Use cases: run one job in a worker process, survey a ladder, plan one."""
