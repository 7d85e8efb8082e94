"""oomdoctor: which training configuration of a Hugging Face model fits this GPU, measured."""

__version__ = "0.1.0"
