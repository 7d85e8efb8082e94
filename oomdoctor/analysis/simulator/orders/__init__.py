"""The order of events in a recording: chains, layers at full depth, steps."""
