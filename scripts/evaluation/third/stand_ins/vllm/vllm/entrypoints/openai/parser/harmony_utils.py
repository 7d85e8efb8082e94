def get_encoding():
    raise NotImplementedError
