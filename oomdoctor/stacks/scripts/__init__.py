"""Training scripts of a rung: one module a target, and the parts that they share.

Each target has `render(rung) -> str`. The text is a whole script that holds only what the rung
needs, so it is assembled from parts and not from a template with conditions.
"""
