"""What would have been: a trace replayed with other settings, another GPU or smaller blocks.

replays       the trace as births and deaths, one replay, and whether it agrees with the trace
changes       whether it would have fitted a GPU, and what would have let a failed request pass
"""
