class LRUCacheWorkerLoRAManager:
    pass
