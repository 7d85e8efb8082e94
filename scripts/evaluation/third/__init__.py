"""Training scripts that nobody here wrote, unchanged, under `oomdoctor run --emulate`.

`rows` says which, `inputs` makes their small data sets, models and settings, `sources` finds the
scripts, and `running` runs one.
"""
