"""`check`: the memory of training commands as a test, with budgets and a baseline."""
