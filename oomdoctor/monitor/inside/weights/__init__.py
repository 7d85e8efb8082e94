"""`run --weights synthetic`: `from_pretrained` loads a checkpoint that is not there.

The config is the model's own, from a folder, the Hugging Face cache, the hub or the built-in
catalogue. `checkpoint` writes files with the right names, shapes and types and no data, `tokenizer`
a tokenizer if the cache has none, and `serve` gives both to the script. Nothing is downloaded but a
config, and loading takes transformers' real code.
"""
