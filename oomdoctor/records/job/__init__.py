"""What a worker is asked and answers: a model, a device, a try and its measurement."""
