"""Code that runs inside the user's own training. It loads torch only where the user has.

It runs in the user's interpreter, so it needs only the standard library; torch and transformers
are imported inside functions, after the user's code has imported them.
"""
