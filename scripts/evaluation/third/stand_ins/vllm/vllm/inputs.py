"""A prompt of token ids is a dictionary."""

TokensPrompt = dict
