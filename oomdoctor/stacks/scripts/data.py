"""How scripts read their data, and what they say about it at the top and in their help."""

from __future__ import annotations

from dataclasses import dataclass

from oomdoctor.records.config import TrainConfig


@dataclass(frozen=True, slots=True)
class Data:
    """The file that a script takes.

    `help` is a phrase for `--help`, and `rows` what is counted in one forward pass. `functions`
    read the file and import `names`.
    """

    help: str
    rows: str
    functions: tuple[str, ...]
    names: tuple[str, ...]


_JSON_LINES = '''
def json_lines(path: Path, *names: str) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines: objects with {what} for each name."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(text_of(path).split("\\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SystemExit(f"{{path}}:{{number}}: not JSON: {{error}}") from None
        for name in names:
            if not isinstance(row, dict) or not isinstance(row.get(name), {kinds}):
                raise SystemExit(f"{{path}}:{{number}}: {{name}} must be {what}")
        rows.append({kept})
    if not rows:
        raise SystemExit(f"{{path}} has no rows")
    return rows
'''
_TEXT_OF = '''
def text_of(path: Path) -> str:
    """The whole file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SystemExit(f"{path} is not text in UTF-8: {error}") from None
'''
_NAMED = "{name: row[name] for name in names}"
_CHAT = {"what": "a text or chat messages", "kinds": "str | list"}
_TEXTS = _JSON_LINES.format(what="a text", kinds="str", kept=_NAMED)
_PAIRS = _JSON_LINES.format(**_CHAT, kept=_NAMED)
_PROMPTS = _JSON_LINES.format(**_CHAT, kept="row")
_DOCUMENTS = '''
def documents(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The tokens of each document, with a token for its end. A text file is one document."""
    texts = [text_of(path)]
    if path.suffix == ".jsonl":
        texts = [row["text"] for row in json_lines(path, "text")]
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    return [[*tokenizer(text)["input_ids"], *end] for text in texts]
'''
_PACKED_ROWS = '''
def packed_rows(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """All documents one after the other, cut into rows of SEQUENCE_LENGTH tokens.

    So no row needs padding, and every step needs the same memory. A rest at the end is dropped.
    """
    tokens = [token for document in documents(path, tokenizer) for token in document]
    starts = range(0, len(tokens) - SEQUENCE_LENGTH + 1, SEQUENCE_LENGTH)
    if not starts:
        raise SystemExit(f"{path} has only {len(tokens)} tokens: less than one row")
    return [tokens[start : start + SEQUENCE_LENGTH] for start in starts]
'''
_CUT_DOCUMENTS = '''
def cut_documents(path: Path, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """The documents; one of more than SEQUENCE_LENGTH tokens becomes several."""
    return [
        document[start : start + SEQUENCE_LENGTH]
        for document in documents(path, tokenizer)
        for start in range(0, len(document), SEQUENCE_LENGTH)
    ]
'''
_SHORT_PROMPTS = '''
def short_prompts(
    rows: list[dict[str, Any]], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, Any]]:
    """The rows whose prompt leaves room for a completion in SEQUENCE_LENGTH tokens."""
    longest = SEQUENCE_LENGTH - COMPLETION_LENGTH
    kept = [row for row in rows if prompt_length(row["prompt"], tokenizer) <= longest]
    if len(kept) < len(rows):
        print(f"left out {len(rows) - len(kept)} rows: their prompts have over {longest} tokens")
    if not kept:
        raise SystemExit(f"no prompt has at most {longest} tokens")
    return kept


def prompt_length(prompt: str | list[dict[str, str]], tokenizer: PreTrainedTokenizerBase) -> int:
    """Its tokens, with those of the chat template if it is a list of messages."""
    if isinstance(prompt, str):
        return len(tokenizer(prompt)["input_ids"])
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])
'''
_TOKENS = ("json", "pathlib:Path", "typing:Any", "transformers:PreTrainedTokenizerBase")
_ROWS = ("json", "pathlib:Path", "typing:Any")
TEXT = Data(
    "a text file, or JSON lines with a field named text",
    "rows",
    (_TEXT_OF, _TEXTS, _DOCUMENTS, _PACKED_ROWS),
    _TOKENS,
)
_OF_DOCUMENTS = Data(
    "JSON lines whose field text is a document, or a text file, which is one",
    "rows",
    (_TEXT_OF, _TEXTS, _DOCUMENTS, _CUT_DOCUMENTS),
    _TOKENS,
)
_OF_OBJECTIVES = {
    "dpo": Data(
        "JSON lines with fields named prompt, chosen and rejected",
        "pairs",
        (_TEXT_OF, _PAIRS),
        _ROWS,
    ),
    "reward": Data(
        "JSON lines with fields named chosen and rejected, each with its prompt",
        "pairs",
        (_TEXT_OF, _PAIRS),
        _ROWS,
    ),
    "grpo": Data(
        "JSON lines with a field named prompt; the reward function gets the other fields",
        "completions",
        (_TEXT_OF, _PROMPTS, _SHORT_PROMPTS),
        _TOKENS,
    ),
}


def data_of(config: TrainConfig) -> Data:
    """The file that a rung's script takes."""
    if config.objective != "default":
        return _OF_OBJECTIVES[config.objective]
    return TEXT if has_full_rows(config) else _OF_DOCUMENTS


def has_full_rows(config: TrainConfig) -> bool:
    """Whether each row of text is cut out of all documents, so that none needs padding."""
    return config.packing == "none" and config.padding == "none"
