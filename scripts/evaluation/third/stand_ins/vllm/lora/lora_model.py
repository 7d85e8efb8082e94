class LoRAModel:
    pass
