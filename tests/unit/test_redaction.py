"""Secrets are removed from a command line, and nothing else is."""

from __future__ import annotations

import pytest

from oomdoctor.redaction import without_secrets

SECRET = "planted0123456789abcdef"


@pytest.mark.parametrize(
    "words",
    [
        [f"--hf_token={SECRET}"],
        ["--hf-token", SECRET],
        ["--wandb_api_key", SECRET],
        [f"WANDB_API_KEY={SECRET}"],
        [f"++trainer.hub_token={SECRET}"],
        [f"hub.token={SECRET}"],
        ["--password", SECRET],
        [f"--passwd:{SECRET}"],
        [f"--data=https://me:{SECRET}@example.com/x"],
        [f"--header=hf_{SECRET}"],
        [f"sk-{SECRET}"],
        ["bash", "-c", f"export HF_TOKEN={SECRET}; python train.py"],
        ["python", "-c", f"login(token='{SECRET}')"],
        ["--config", f'{{"api_key": "{SECRET}"}}'.replace('": "', "=")],
    ],
)
def test_a_secret_is_hidden(words: list[str]) -> None:
    found = without_secrets(["python", "train.py", *words, "--lr", "1e-4"])
    assert SECRET not in " ".join(found)
    assert found[:2] == ("python", "train.py")
    assert found[-2:] == ("--lr", "1e-4")


@pytest.mark.parametrize(
    "words",
    [
        ["--max_tokens", "2048"],
        ["--max-new-tokens=64"],
        ["--tokenizer", "gpt2"],
        ["--tokenizer_name=gpt2"],
        ["--pad_token_id", "0"],
        ["--num_token_types=2"],
        ["--author", "me"],
        ["--tokens-per-batch", "4096"],
        ["data/tokens.bin"],
        ["--use_auth_token", "--lr"],
    ],
)
def test_what_is_no_secret_stays(words: list[str]) -> None:
    assert list(without_secrets(words)) == words
