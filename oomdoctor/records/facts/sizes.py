"""How large the numbers of a rung usually are, above what they are questioned, and refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """A number of a rung: above `questioned` the report warns, above `refused` it is an error."""

    words: str
    usual: str
    questioned: int
    refused: int

    def refusal(self, value: int) -> str:
        """Why a value is refused."""
        return f"{value:,} is above the maximum of {self.refused:,}; usual are {self.usual}"


SIZES = {
    "micro_batch_size": Size("micro-batch size", "1 to 64", 4096, 2**20),
    # Contrastive training of embeddings uses tens of thousands; fine-tuning never does.
    "effective_batch_size": Size("effective batch size", "8 to 512", 8192, 2**20),
    # No published model reads more than 10M tokens (Llama 4 Scout).
    "sequence_length": Size("sequence length", "512 to 131,072", 2**20, 2**24),
    "lora_rank": Size("LoRA rank", "8 to 256", 1024, 2**14),
}
