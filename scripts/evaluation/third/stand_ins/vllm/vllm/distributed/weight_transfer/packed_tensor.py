def packed_nccl_broadcast_producer(*_, **settings):
    raise NotImplementedError
