"""What the readers of tokenizer files share: settings, roles, and complaints about bad lines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from kinfolk.errors import UserError

# What tokenizer_config.json calls the class, without "Tokenizer": who reads text in that way.
TOKENIZER_CLASSES = {
    "vocab.txt": {"Bert": "bert", "DistilBert": "bert", "Electra": "bert", "MobileBert": "bert"},
    "merges": {"GPT2": "gpt2", "Roberta": "roberta", "Bart": "roberta", "OpenAIGPT": "gpt"},
    "model": {"Albert": "albert", "T5": "t5", "MT5": "t5", "XLNet": "xlnet"},
}
GENERIC_TOKENIZER_CLASSES = (
    "PreTrained",
    "Tokenizers",
)  # transformers' classes for tokenizers of any kind

TokenizerConfig = Mapping[str, Any]


@dataclass(frozen=True)
class LoadedTokenizer:
    """A tokenizer as its files describe it."""

    backend: tokenizers.Tokenizer
    settings: TokenizerConfig  # as tokenizer_config.json has them, the roles' tokens filled in
    frame: str | None = None


def family(settings: TokenizerConfig, files: str, guess: str, file: Path) -> str:
    """Follow the class that the settings name, or what the vocabulary looks like."""
    name = str(settings.get("tokenizer_class") or "PreTrainedTokenizer")
    name = name.removesuffix("Fast").removesuffix("Tokenizer")
    if name in GENERIC_TOKENIZER_CLASSES:
        return guess
    if name not in TOKENIZER_CLASSES[files]:
        raise UserError(
            f"{file} belongs to a {name}Tokenizer, and only those of "
            f"{', '.join(TOKENIZER_CLASSES[files])} are read: "
            "open it in transformers and save it as a tokenizer.json"
        )
    return TOKENIZER_CLASSES[files][name]


def special_token_map(standard: Mapping[str, str], settings: TokenizerConfig) -> dict[str, str]:
    """Return the token of each role: what the settings say, else what is customary."""
    found = {}
    for role, token in standard.items():
        said = settings.get(f"{role}_token")
        said = said.get("content") if isinstance(said, dict) else said
        found[role] = said if isinstance(said, str) else token
    return found


def finished(
    backend: tokenizers.Tokenizer,
    roles: Mapping[str, str],
    frame: str | None,
    *,
    spaced: bool = False,
) -> LoadedTokenizer:
    """Make the roles' tokens special; where pieces carry the space before a word, so does mask."""
    present = {r: token for r, token in roles.items() if backend.token_to_id(token) is not None}
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, lstrip=spaced and role == "mask")
            for role, token in present.items()
        ]
    )
    return LoadedTokenizer(
        backend, {f"{role}_token": token for role, token in present.items()}, frame
    )


def add_extra_tokens(backend: tokenizers.Tokenizer, file: Path) -> None:
    """Add the tokens that were given to a tokenizer after its training."""
    for token, id in sorted(settings(file).items(), key=lambda pair: pair[1]):
        backend.add_tokens([AddedToken(token, normalized=False)])
        if backend.token_to_id(token) != id:
            raise UserError(
                f"{file}: {token!r} cannot have the id {id}, its place is "
                f"{backend.token_to_id(token)}: the ids must go on where the vocabulary ends"
            )


def lines(file: Path) -> Sequence[str]:
    """Return the lines of a file: only a line feed ends one, as tokens may hold any other."""
    if not file.is_file():
        raise UserError(f"there is no {file}: give a tokenizer's folder or one of its files")
    try:
        text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 (byte {error.start}): save it again") from error
    if not text.strip():
        raise UserError(f"{file} is empty: copy it again")
    return text.removesuffix("\n").split("\n")


def settings(file: Path) -> dict[str, Any]:
    """Return what a JSON file says, nothing where there is none."""
    return read_json(file) if file.is_file() else {}


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file of names and values."""
    text = "\n".join(lines(file))
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}): save the tokenizer again") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} must hold names and their values: save the tokenizer again")
    return found
