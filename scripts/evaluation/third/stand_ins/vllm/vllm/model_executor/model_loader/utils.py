def process_weights_after_loading(model, model_config, device) -> None:
    pass
