"""Memory snapshots of PyTorch, read offline: what held the memory, where and when.

reading/      the file, as plain data: nothing in it is run
blocks        from the events of a trace to the life of each block
growth        what stays, and why
replays       the trace as births and deaths, one replay, and whether it agrees with the trace
changes       whether it would have fitted a GPU, and what would have let a failed request pass
"""
