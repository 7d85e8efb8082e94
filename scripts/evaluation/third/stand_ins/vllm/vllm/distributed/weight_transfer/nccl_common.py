def trainer_init(*_, **settings):
    raise NotImplementedError
