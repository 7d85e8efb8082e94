"""Memory snapshots of PyTorch, read offline: what held the memory, where and when.

reading/      the file, as plain data: nothing in it is run
blocks        from the events of a trace to the life of each block
"""
