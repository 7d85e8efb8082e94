import msgspec


class LoRARequest(msgspec.Struct):
    lora_name: str
    lora_int_id: int
    lora_path: str = ""
