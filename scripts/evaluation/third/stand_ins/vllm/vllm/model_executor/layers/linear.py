class LinearBase:
    pass
