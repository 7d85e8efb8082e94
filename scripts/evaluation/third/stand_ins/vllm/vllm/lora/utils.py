def get_adapter_absolute_path(path: str) -> str:
    return path
