"""What would have been: a trace replayed with other settings, another GPU or smaller blocks.

order         the trace as births and deaths
runs          one replay, and whether it agrees with the trace
half          which blocks shrink with the micro-batch
fits          whether it would have fitted a GPU
changes       what would have let a failed request pass
"""
