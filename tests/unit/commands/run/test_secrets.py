"""No secret of the environment, the command or a token file is in what may be sent to somebody."""

from __future__ import annotations

from pathlib import Path

import pytest

from oomdoctor.commands.run.case import Secrets, known_secrets

TOKEN = "s3cr3t-of-the-group/with+signs"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MY_APIKEY", "GH_PAT"],
)
def test_a_variable_whose_name_says_so_is_secret(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, TOKEN)
    assert TOKEN not in known_secrets().out_of(f"login with {TOKEN}!")


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "KEYBOARD", "PATH_TO_DATA"])
def test_other_variables_are_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "harmless-value")
    assert known_secrets().out_of("a harmless-value") == "a harmless-value"


@pytest.mark.parametrize(
    "words",
    [
        ["python", "t.py", f"--hf_token={TOKEN}"],
        ["python", "t.py", "--hf-token", TOKEN],
        ["env", f"HF_TOKEN={TOKEN}", "python", "t.py"],
    ],
)
def test_what_the_command_names_is_secret_in_the_output_too(words: list[str]) -> None:
    secrets = known_secrets(words)
    document = secrets.out_of_document({"command_line": words, "text": f"got {TOKEN}", "size": 7})
    assert TOKEN not in str(document)
    assert (document["size"] == 7 and document["command_line"][-1] != words[-1]) or "env" in words


def test_short_and_plain_values_leave_a_document_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("A_TOKEN", "true"), ("B_KEY", "1"), ("C_SECRET", "12345678")):
        monkeypatch.setenv(name, value)
    document = {"status": "true", "size": 12345678, "text": "1 of 12345678"}
    assert known_secrets().out_of_document(document) == document


def test_a_saved_token_a_netrc_and_a_private_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("DEPLOY_KEY", "-----BEGIN-----\nline-of-the-private-key\n")
    (tmp_path / "token").write_text("saved-token-of-the-hub\n")
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine api.example login user password of-the-tracker\n")
    netrc.chmod(0o600)
    text = "saved-token-of-the-hub of-the-tracker line-of-the-private-key"
    assert known_secrets().out_of(text) == "(hidden) (hidden) (hidden)"


def test_the_marks_of_services_need_no_name() -> None:
    text = Secrets(()).out_of("https://me:pass@host/x and hf_AbCdEfGhIjKlMnOpQrSt")
    assert "pass" not in text and "hf_Ab" not in text


def test_a_file_that_is_no_text_keeps_its_length(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    before = b"\x80\x04" + TOKEN.encode() + b"\x00" + TOKEN.encode() + b"."
    path.write_bytes(before)
    Secrets((TOKEN,)).blot_out(path)
    after = path.read_bytes()
    assert len(after) == len(before) and TOKEN.encode() not in after
    assert after[:2] == before[:2] and after[-1:] == b"."
