"""Open the tokenizer folders of BERT, GPT, GPT-2, RoBERTa, ALBERT, T5 and XLNet."""

import json
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from kinfolk.errors import UserError
from kinfolk.text import sentencepiece

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


def tokenizer_family(settings: TokenizerConfig, files: str, guess: str, file: Path) -> str:
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
    for token, id in sorted(read_settings(file).items(), key=lambda pair: pair[1]):
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


def read_settings(file: Path) -> dict[str, Any]:
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


# The vocabulary and the merges of byte pair encoding: as transformers names them, as OpenAI did.
BPE_FILES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("encoder_bpe_40000.json", "vocab_40000.bpe"),
)

BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ALBERT = {**BERT, "pad": "<pad>", "unk": "<unk>"}
GPT2 = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
T5 = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}
ROBERTA = {**T5, "bos": "<s>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
XLNET = {**T5, "bos": "<s>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>"}


def load_backend(path: Path) -> LoadedTokenizer:
    """Open a folder, or one file of it."""
    folder = path if path.is_dir() else path.parent
    settings = {
        **read_settings(folder / "special_tokens_map.json"),
        **read_settings(folder / "tokenizer_config.json"),
    }
    file = _file(path)
    if file.name.endswith("tokenizer.json"):
        return LoadedTokenizer(_load_tokenizer_json(file), settings)
    if file.suffix == ".model":
        found = _sentencepiece(file, settings)
    elif pair := _bpe_file_pair(file):
        found = _load_bpe(*pair, settings)
    else:
        found = _wordpiece(file, settings)
    add_extra_tokens(found.backend, folder / "added_tokens.json")
    return replace(found, settings={**found.settings, **settings})


def _file(path: Path) -> Path:
    """Choose the file that holds the vocabulary."""
    if path.is_file():
        return path
    names = ["tokenizer.json", *(vocab for vocab, _ in BPE_FILES), "vocab.txt"]
    if (file := next((path / name for name in names if (path / name).is_file()), None)) is not None:
        return file
    if len(found := sorted(path.glob("*.model"))) == 1:
        return found[0]
    raise UserError(
        f"{path} holds no tokenizer.json, vocab.txt, vocab.json or (one) .model: "
        "give a folder that kinfolk or transformers saved a tokenizer to, or one of these files"
    )


def _load_tokenizer_json(file: Path) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{file} is no tokenizer that can be read: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    return backend


def _wordpiece(file: Path, settings: TokenizerConfig) -> LoadedTokenizer:
    tokenizer_family(settings, "vocab.txt", "bert", file)
    vocab: dict[str, int] = {}
    for number, token in enumerate(lines(file), 1):
        if not token:
            raise UserError(f"{file}, line {number} is empty: a vocabulary has a token a line")
        if token in vocab:
            raise UserError(
                f"{file}, line {number}: {token!r} is already on line {vocab[token] + 1}"
            )
        vocab[token] = len(vocab)
    roles = special_token_map(BERT, settings)
    if missing := [token for token in roles.values() if token not in vocab]:
        raise UserError(f"{file} has no {missing[0]}: a vocabulary of BERT's kind needs one")
    lowered = settings.get("do_lower_case")
    lowered = _looks_uncased(vocab) if lowered is None else bool(lowered)
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocab, unk_token=roles["unk"]))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowered,
        strip_accents=settings.get("strip_accents"),  # where unset, they go with the capitals
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=False)
    return finished(backend, roles, "bert")


def _looks_uncased(vocab: Mapping[str, int]) -> bool:
    """Tell by the vocabulary: one that met capitals holds some, outside names like [CLS] and <S>.

    Google's uncased, multilingual uncased and Chinese vocabularies hold none.
    """
    words = (token for token in vocab if not re.fullmatch(r"\[.+\]|<.+>", token))
    return not any(re.search("[A-Z]", word) for word in words)


def _bpe_file_pair(file: Path) -> tuple[Path, Path] | None:
    """Return the vocabulary and the merges where a file is one of them."""
    for vocab, merges in BPE_FILES:
        for name in (vocab, merges):
            if file.name.endswith(name):
                before = file.name.removesuffix(name)
                return file.with_name(before + vocab), file.with_name(before + merges)
    return None


def _load_bpe(vocab_file: Path, merges_file: Path, settings: TokenizerConfig) -> LoadedTokenizer:
    vocab = _vocab(vocab_file)
    merges = _merges(merges_file, vocab, vocab_file)
    guess = "roberta" if {"<s>", "</s>", "<mask>"} <= vocab.keys() else "gpt2"
    if any(token.endswith("</w>") for token in vocab):
        guess = "gpt"
    family = tokenizer_family(settings, "merges", guess, vocab_file)
    if family == "gpt":
        return _gpt(vocab, merges, settings)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    prefixed = bool(settings.get("add_prefix_space", False))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
    backend.decoder = decoders.ByteLevel()
    roles = special_token_map(ROBERTA if family == "roberta" else GPT2, settings)
    return finished(backend, roles, "roberta" if family == "roberta" else None, spaced=True)


def _gpt(
    vocab: dict[str, int], merges: list[tuple[str, str]], settings: TokenizerConfig
) -> LoadedTokenizer:
    """Set GPT up as transformers does where spaCy and ftfy are not there: words as in BERT.

    Deviation: OpenAI's own code cuts words with spaCy's English tokenizer.
    """
    roles = special_token_map({"unk": "<unk>"}, settings)
    model = models.BPE(
        vocab=vocab, merges=merges, unk_token=roles["unk"], end_of_word_suffix="</w>"
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return finished(backend, roles, None)


def _vocab(file: Path) -> dict[str, int]:
    found = read_json(file)
    if not all(isinstance(id, int) for id in found.values()):
        raise UserError(f"{file} is no vocabulary: it must give each token a number")
    if sorted(found.values()) != list(range(len(found))) or not found:
        raise UserError(f"{file} must give its {len(found):,} tokens the ids 0, 1, 2 ... once each")
    return found


def _merges(file: Path, vocab: Mapping[str, int], vocab_file: Path) -> list[tuple[str, str]]:
    if not file.is_file():
        raise UserError(f"{vocab_file.name} needs {file.name} beside it in {file.parent}")
    merges = []
    for number, line in enumerate(lines(file), 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2:
            raise UserError(f"{file}, line {number}: {line!r} is not two pieces with a space")
        if missing := [t for t in (*parts, "".join(parts)) if t not in vocab]:
            raise UserError(f"{file}, line {number}: {missing[0]!r} is not in {vocab_file.name}")
        merges.append((parts[0], parts[1]))
    return merges


def _sentencepiece(file: Path, settings: TokenizerConfig) -> LoadedTokenizer:
    found = sentencepiece.read_model(file)
    family = tokenizer_family(settings, "model", _member(found), file)
    if family in ("albert", "xlnet"):
        # Both drop accents and write quotes as ", and never join a digit and a comma.
        lowered = bool(settings.get("do_lower_case", family == "albert"))
        steps = _preprocess_text(lowered, accents=bool(settings.get("keep_accents", False)))
        backend = sentencepiece.backend(found, before=steps, commas=False)
    else:
        backend = sentencepiece.backend(found)
    # A model of nobody known: its control symbols may have familiar names.
    plain = {role: name for role, name in XLNET.items() if name in found.special}
    customary = {"albert": ALBERT, "t5": T5, "xlnet": XLNET}.get(family, plain)
    roles = special_token_map(customary, settings)
    frame = {"albert": "bert", "plain": None}.get(family, family)
    made = finished(backend, roles, frame, spaced=True)
    others = [name for name in found.special if name not in roles.values()]
    if family == "t5":
        # Counted down, so that <extra_id_0> has the last id.
        others += [f"<extra_id_{i}>" for i in reversed(range(int(settings.get("extra_ids", 100))))]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in others])
    return made


def _member(found: sentencepiece.SentencePieceModel) -> str:
    """Tell by the pieces which member of the family a model was made for."""
    if {"[CLS]", "[SEP]", "[MASK]"} <= found.names:
        return "albert"
    if {"<cls>", "<sep>", "<mask>"} <= found.names:
        return "xlnet"
    return "t5" if [p.text for p in found.subwords[:3]] == ["<pad>", "</s>", "<unk>"] else "plain"


def _preprocess_text(lowered: bool, *, accents: bool) -> list[normalizers.Normalizer]:
    """Do what XLNet's `preprocess_text` does to a text before SentencePiece sees it."""
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "),  # what Python calls white space
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not accents:
        # Combining characters alone: the library's StripAccents takes vowel signs as well.
        steps += [normalizers.NFKD(), normalizers.Replace(Regex(_combining()), "")]
    return [*steps, normalizers.Lowercase()] if lowered else steps


def _combining() -> str:
    """Return the class of all characters with a combining class, in ranges."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.combining(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"
