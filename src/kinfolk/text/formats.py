"""Load the tokenizer files of BERT, GPT, GPT-2, RoBERTa, ALBERT, T5, XLNet, GLM, Marian, ULMFiT."""

import json
import math
import pickle
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from kinfolk.config import convert_value, field, from_fields
from kinfolk.errors import UserError
from kinfolk.text import patterns, sentencepiece
from kinfolk.text.segment import HAN

# By file format: tokenizer_class of tokenizer_config.json, without "Tokenizer", to our format name.
TOKENIZER_CLASSES = {
    "vocab.txt": {
        **dict.fromkeys(("Bert", "DistilBert", "Electra", "MobileBert", "GLMBert"), "bert")
    },
    "merges": {
        **dict.fromkeys(("GPT2", "GLMGPT2"), "gpt2"),
        **dict.fromkeys(("Roberta", "Bart", "GLMRoberta"), "roberta"),
        "OpenAIGPT": "gpt",
    },
    "model": {"Albert": "albert", "T5": "t5", "MT5": "t5", "XLNet": "xlnet", "GLMChinese": "plain"},
    "spm": {"Marian": "marian"},
}
GENERIC_TOKENIZER_CLASSES = ("PreTrained", "Tokenizers")  # transformers' classes of any format

MAX_JSON_BYTES = 2**29  # of a tokenizer.json
MAX_GROWTH = 64  # of a text by the replacements of a normalizer or decoder

TokenizerConfig = Mapping[str, Any]
SPECIAL_TOKEN_ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")


@dataclass(frozen=True)
class SettingFields:
    """The fields of tokenizer_config.json that are read, besides the tokens of roles."""

    tokenizer_class: str | None = None
    do_lower_case: bool | None = None
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool | None = None
    keep_accents: bool | None = None
    add_prefix_space: bool | None = None
    separate_vocabs: bool | None = None
    extra_ids: int | None = field(default=None, ge=0, le=2**16)
    model_max_length: float | None = field(default=None, gt=0)  # 1e30 where there is no limit


@dataclass(frozen=True)
class LoadedTokenizer:
    """A backend with the settings and the template of its files."""

    backend: tokenizers.Tokenizer
    settings: TokenizerConfig  # tokenizer_config.json, with a token for each role
    template: str | None = None  # a key of TEMPLATES
    target: Path | None = None  # files of the tokenizer of targets, where it is another one


def tokenizer_family(settings: TokenizerConfig, files: str, guess: str, file: Path) -> str:
    """Return the format name for the class in the settings, or the guess where it is generic."""
    name = str(settings.get("tokenizer_class") or "PreTrainedTokenizer")
    name = name.removesuffix("Fast").removesuffix("Tokenizer")
    if name in GENERIC_TOKENIZER_CLASSES:
        return guess
    if name not in TOKENIZER_CLASSES[files]:
        raise UserError(
            f"{file} belongs to a {name}Tokenizer (supported: "
            f"{', '.join(TOKENIZER_CLASSES[files])}): "
            "load it in transformers and save it as tokenizer.json"
        )
    return TOKENIZER_CLASSES[files][name]


def special_token_map(standard: Mapping[str, str], settings: TokenizerConfig) -> dict[str, str]:
    """Return the token of each role from the settings, or else the standard one."""
    configured = {role: configured_token(settings, role) for role in standard}
    return {**standard, **{role: t for role, t in configured.items() if t is not None}}


def configured_token(settings: TokenizerConfig, role: str) -> str | None:
    """Return the token that tokenizer_config.json sets for a role."""
    token = settings.get(f"{role}_token")
    return token.get("content") if isinstance(token, dict) else token


def with_special_tokens(
    backend: tokenizers.Tokenizer,
    roles: Mapping[str, str],
    template: str | None,
    *,
    mask_lstrip: bool = False,
) -> LoadedTokenizer:
    """Register the special tokens; with `mask_lstrip` the mask includes the space before it."""
    present = {r: token for r, token in roles.items() if backend.token_to_id(token) is not None}
    backend.add_special_tokens(
        [
            AddedToken(token, normalized=False, lstrip=mask_lstrip and role == "mask")
            for role, token in present.items()
        ]
    )
    return LoadedTokenizer(
        backend, {f"{role}_token": token for role, token in present.items()}, template
    )


def add_extra_tokens(backend: tokenizers.Tokenizer, file: Path, settings: TokenizerConfig) -> None:
    """Add the tokens of added_tokens.json; those with a role are special."""
    roles = {configured_token(settings, role) for role in SPECIAL_TOKEN_ROLES}
    added = read_settings(file)
    for token, id in added.items():
        convert_value(id, int, f"{file}: {token}")
        convert_value(token, str, f"{file}: token")
    for token, id in sorted(added.items(), key=lambda pair: pair[1]):
        special = token in roles or token in (*GLM_MASKS, *GLM_ENDS.values())
        backend.add_tokens([AddedToken(token, normalized=False, special=special)])
        if backend.token_to_id(token) != id:
            raise UserError(
                f"{file}: {token!r} has the id {id} instead of {backend.token_to_id(token)}: "
                "ids of added tokens must continue those of the vocabulary"
            )


def lines(file: Path) -> Sequence[str]:
    """Return the lines of a file, split at line feeds only: tokens may contain other line ends."""
    if not file.is_file():
        raise UserError(f"{file} not found: pass a tokenizer folder or one of its files")
    try:
        text = file.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 (byte {error.start}): save it again") from error
    if not text.strip():
        raise UserError(f"{file} is empty: copy it again")
    return text.removesuffix("\n").split("\n")


def read_settings(file: Path) -> dict[str, Any]:
    """Read a JSON object; a missing file is an empty object."""
    return read_json_object(file) if file.is_file() else {}


def read_config(file: Path) -> TokenizerConfig:
    """Read tokenizer_config.json or special_tokens_map.json, and check what is used of it."""
    settings = read_settings(file)
    from_fields(SettingFields, settings, f"{file}: ")
    for role in SPECIAL_TOKEN_ROLES:
        convert_value(configured_token(settings, role), str | None, f"{file}: {role}_token")
    return settings


def read_json_object(file: Path) -> dict[str, Any]:
    """Read a JSON object."""
    text = "\n".join(lines(file))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON ({error}): save the tokenizer again") from error
    if not isinstance(value, dict):
        raise UserError(f"{file} must hold a JSON object: save the tokenizer again")
    return value


# Vocabulary and merges of byte pair encoding, by the names of transformers and of OpenAI.
BPE_FILES = (
    ("vocab.json", "merges.txt"),
    ("encoder.json", "vocab.bpe"),
    ("encoder_bpe_40000.json", "vocab_40000.bpe"),
)

FAIRSEQ_FILE = "dict.txt"  # a token and its count on each line
FASTAI_SUFFIX = ".pkl"  # itos.pkl: the list of the tokens
MARIAN_FILE = "source.spm"  # SentencePiece; vocab.json beside it has the ids of both languages
MARIAN_TARGET_FILE = "target.spm"
TARGET_FOLDER = "target_tokenizer"  # in folders of ours

BERT_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
ALBERT_TOKENS = {**BERT_TOKENS, "pad": "<pad>", "unk": "<unk>"}
GPT2_TOKENS = {"bos": "<|endoftext|>", "eos": "<|endoftext|>"}
T5_TOKENS = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}
ROBERTA_TOKENS = {**T5_TOKENS, "bos": "<s>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
GLM_MASKS = ("[sMASK]", "[gMASK]")  # of a sentence, and of the rest of a text
GLM_ENDS = {"bos": "<|startofpiece|>", "eos": "<|endofpiece|>"}  # around a generated span
# Of fastai's versions 1 and 2; 0.7 has others for three of them.
FASTAI_TOKENS = {"unk": "xxunk", "pad": "xxpad", "bos": "xxbos", "eos": "xxeos"}
FASTAI_07_TOKENS = {"unk": "_unk_", "pad": "_pad_", "bos": "xbos"}
XLNET_TOKENS = {**T5_TOKENS, "bos": "<s>", "cls": "<cls>", "sep": "<sep>", "mask": "<mask>"}


def load_backend(path: Path) -> LoadedTokenizer:
    """Load a tokenizer from a folder or from one of its files."""
    folder = path if path.is_dir() else path.parent
    settings = {
        **read_config(folder / "special_tokens_map.json"),
        **read_config(folder / "tokenizer_config.json"),
    }
    file = _vocabulary_file(path)
    if file.name.endswith("tokenizer.json"):
        target = file.with_name(TARGET_FOLDER)
        return LoadedTokenizer(
            _load_tokenizer_json(file), settings, target=target if target.is_dir() else None
        )
    if file.suffix == ".model":
        loaded = _sentencepiece(file, settings)
    elif file.suffix == ".spm":
        loaded = _marian(file, settings)
    elif pair := _bpe_file_pair(file):
        loaded = _load_bpe(*pair, settings)
    elif file.name == FAIRSEQ_FILE:
        loaded = _fairseq(file)
    elif file.suffix == FASTAI_SUFFIX:
        loaded = _fastai(file)
    else:
        loaded = _wordpiece(file, settings)
    add_extra_tokens(loaded.backend, folder / "added_tokens.json", settings)
    return replace(loaded, settings={**loaded.settings, **settings})


def find_vocabulary(folder: Path) -> Path | None:
    """Return the file of a folder that holds the vocabulary; None where there is none."""
    bpe = [vocab for vocab, _ in BPE_FILES]
    names = ["tokenizer.json", MARIAN_FILE, *bpe, "vocab.txt", FAIRSEQ_FILE]
    if (found := next((n for n in names if (folder / n).is_file()), None)) is not None:
        return folder / found
    for pattern in ("*.model", f"*{FASTAI_SUFFIX}"):
        if len(files := sorted(folder.glob(pattern))) == 1:
            return files[0]
    return None


def _vocabulary_file(path: Path) -> Path:
    """Return the file that holds the vocabulary."""
    file = path if path.is_file() else find_vocabulary(path)
    if file is None:
        raise UserError(
            f"{path} holds no tokenizer.json, vocab.txt, vocab.json or single .model file: "
            "pass a tokenizer folder saved by kinfolk or transformers, or one of these files "
            "(--tokenizer PATH where the tokenizer of a model lies elsewhere)"
        )
    return file


def _load_tokenizer_json(file: Path) -> tokenizers.Tokenizer:
    if file.stat().st_size > MAX_JSON_BYTES:
        raise UserError(
            f"{file} has {file.stat().st_size:,} bytes, more than {MAX_JSON_BYTES:,}: it is not a "
            "tokenizer that this version reads"
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"{file} is not a valid tokenizer.json ({error}): save it again") from error
    for name, part in text_steps(backend).items():
        _check_steps(file, name, part)
    if isinstance(backend.decoder, decoders.WordPiece):
        backend.decoder = join_chinese(backend.decoder)
    backend.no_padding()
    backend.no_truncation()
    return backend


def text_steps(backend: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the parts of a tokenizer.json that change or split a text, by name."""
    parts = {
        "normalizer": backend.normalizer,
        "pre_tokenizer": backend.pre_tokenizer,
        "decoder": backend.decoder,
    }
    return {name: json.loads(p.__getstate__()) for name, p in parts.items() if p is not None}


def _check_steps(file: Path, name: str, part: Mapping[str, Any]) -> None:
    """Refuse replacements that multiply a text, and patterns that take too many steps."""
    if (times := _growth(part)) > MAX_GROWTH:
        raise UserError(
            f"{file}: its {name} can make a text {times:,.0f} times longer, and {MAX_GROWTH} "
            "are allowed: remove replacements, or use another tokenizer"
        )
    for pattern in patterns.regexes(part):
        if (text := patterns.slow_text(pattern)) is not None:
            raise UserError(
                f"{file}: the pattern {pattern!r} of its {name} takes too many steps on a text of "
                f"{len(text)} characters: correct it, or use another tokenizer"
            )


def _growth(step: Mapping[str, Any]) -> float:
    """Return how many times longer a text can become by a step of a normalizer or decoder."""
    match step:
        case {"type": "Sequence", "normalizers": steps} | {"type": "Sequence", "decoders": steps}:
            return math.prod(map(_growth, steps))
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return max(1.0, len(new) / max(len(old), 1))
        case {"type": "Replace", "content": str(new)}:  # a regular expression: of one character
            return max(1.0, len(new))
    return 1.0


def join_chinese(decoder: decoders.Decoder) -> decoders.Decoder:
    """Return WordPiece's decoder without spaces between Chinese characters, which it separates."""
    chinese = f"[{HAN}\u3000-\u30ff\uff00-\uff65]"  # also kana, and punctuation of both
    space = decoders.Replace(Regex(f"(?<={chinese}) (?={chinese})"), "")
    return decoders.Sequence([decoder, decoders.Fuse(), space])


def whitespace_words(model: models.WordLevel) -> tokenizers.Tokenizer:
    """Return a tokenizer whose tokens are what stands between white space."""
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def _wordpiece(file: Path, settings: TokenizerConfig) -> LoadedTokenizer:
    tokenizer_family(settings, "vocab.txt", "bert", file)
    vocab: dict[str, int] = {}
    for number, token in enumerate(lines(file), 1):
        if not token:
            raise UserError(f"{file}, line {number} is empty: a vocabulary has one token per line")
        if token in vocab:
            raise UserError(
                f"{file}, line {number}: {token!r} is already on line {vocab[token] + 1}: "
                "remove one of them"
            )
        vocab[token] = len(vocab)
    roles = special_token_map(BERT_TOKENS, settings)
    if missing := [token for token in roles.values() if token not in vocab]:
        raise UserError(f"{file} has no {missing[0]}: a BERT vocabulary needs it")
    lowercase = settings.get("do_lower_case")
    lowercase = _looks_uncased(vocab) if lowercase is None else bool(lowercase)
    backend = tokenizers.Tokenizer(models.WordPiece(vocab=vocab, unk_token=roles["unk"]))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=settings.get("strip_accents"),  # None: as lowercase
        handle_chinese_chars=bool(settings.get("tokenize_chinese_chars", True)),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = join_chinese(decoders.WordPiece(cleanup=False))
    return with_special_tokens(backend, roles, "bert")


def _fairseq(file: Path) -> LoadedTokenizer:
    """Build the tokenizer of a fairseq dictionary: a text is tokens with spaces between them."""
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    for number, line in enumerate(lines(file), 1):
        token, _, count = line.rpartition(" ")
        if not token or not count.isdecimal():
            raise UserError(f"{file}, line {number}: {line!r} is not a token, a space and a count")
        names.append(token)
    if all(name.isdecimal() or name.startswith("madeupword") for name in names[4:]):
        raise UserError(
            f"{file} lists the ids of GPT-2's byte pairs, not tokens: use the tokenizer folder of "
            "roberta-base"
        )
    names.append("<mask>")
    vocab = {name: id for id, name in enumerate(names)}
    if len(vocab) < len(names):
        raise UserError(f"{file} lists a token twice: copy it again")
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return with_special_tokens(backend, ROBERTA_TOKENS, "roberta", mask_lstrip=True)


class _PlainUnpickler(pickle.Unpickler):
    """Read lists, texts and numbers; refuse everything that could run code."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Refuse every class and function."""
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _fastai(file: Path) -> LoadedTokenizer:
    """Build the tokenizer of fastai's list of tokens: a text is tokens with spaces between them."""
    try:
        with file.open("rb") as stream:
            names = _PlainUnpickler(stream).load()
    except (pickle.UnpicklingError, EOFError, ValueError, LookupError, AttributeError) as error:
        raise UserError(
            f"{file} is not a plain list of tokens ({error}): write the vocabulary as a list of str"
        ) from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{file} must hold a list of tokens, as itos.pkl of fastai does")
    # fastai fills up to a multiple of 8 with one name for all.
    vocab: dict[str, int] = {}
    for id, name in enumerate(names):
        vocab[name if name not in vocab else f"{name}{id}"] = id
    roles = FASTAI_TOKENS if FASTAI_TOKENS["unk"] in vocab else FASTAI_07_TOKENS
    if roles["unk"] not in vocab:
        raise UserError(f"{file} has no {FASTAI_TOKENS['unk']}: a vocabulary of fastai has it")
    backend = tokenizers.Tokenizer(models.WordLevel(vocab=vocab, unk_token=roles["unk"]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return with_special_tokens(backend, roles, None)


def _looks_uncased(vocab: Mapping[str, int]) -> bool:
    """Return whether no token has a capital letter, except names such as [CLS] and <S>.

    This holds for Google's uncased, multilingual uncased and Chinese vocabularies.
    """
    words = (token for token in vocab if not re.fullmatch(r"\[.+\]|<.+>", token))
    return not any(re.search("[A-Z]", word) for word in words)


def _bpe_file_pair(file: Path) -> tuple[Path, Path] | None:
    """Return the vocabulary and the merges file if the file is one of them."""
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
    roles = special_token_map(ROBERTA_TOKENS if family == "roberta" else GPT2_TOKENS, settings)
    template = "roberta" if family == "roberta" else None
    return with_special_tokens(backend, roles, template, mask_lstrip=True)


def _gpt(
    vocab: dict[str, int], merges: list[tuple[str, str]], settings: TokenizerConfig
) -> LoadedTokenizer:
    """Build GPT's tokenizer as transformers does without spaCy and ftfy: words split as in BERT.

    Deviation: OpenAI's code splits words with spaCy's English tokenizer.
    """
    roles = special_token_map({"unk": "<unk>"}, settings)
    model = models.BPE(
        vocab=vocab, merges=merges, unk_token=roles["unk"], end_of_word_suffix="</w>"
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return with_special_tokens(backend, roles, None)


def _vocab(file: Path) -> dict[str, int]:
    vocab = read_json_object(file)
    if not all(isinstance(id, int) for id in vocab.values()):
        raise UserError(f"{file} is not a vocabulary: every token must have an integer id")
    if sorted(vocab.values()) != list(range(len(vocab))) or not vocab:
        raise UserError(
            f"{file}: the ids of its {len(vocab):,} tokens must be 0, 1, 2 ... once each"
        )
    return vocab


def _merges(file: Path, vocab: Mapping[str, int], vocab_file: Path) -> list[tuple[str, str]]:
    if not file.is_file():
        raise UserError(f"{file} not found: {vocab_file.name} needs {file.name} in the same folder")
    merges = []
    for number, line in enumerate(lines(file), 1):
        if not line or (number == 1 and line.startswith("#version")):
            continue
        parts = line.split(" ")
        if len(parts) != 2:
            raise UserError(f"{file}, line {number}: {line!r} is not two tokens and a space")
        if missing := [t for t in (*parts, "".join(parts)) if t not in vocab]:
            raise UserError(f"{file}, line {number}: {missing[0]!r} is not in {vocab_file.name}")
        merges.append((parts[0], parts[1]))
    return merges


def _sentencepiece(file: Path, settings: TokenizerConfig) -> LoadedTokenizer:
    model = sentencepiece.read_model(file)
    family = tokenizer_family(settings, "model", _guess_family(model), file)
    if family in ("albert", "xlnet"):
        # Both remove accents, normalize quotes and never merge a digit with a comma.
        lowercase = bool(settings.get("do_lower_case", family == "albert"))
        steps = _preprocess_text(lowercase, accents=bool(settings.get("keep_accents", False)))
        backend = sentencepiece.backend(model, before=steps, commas=False)
    else:
        backend = sentencepiece.backend(model)
    plain = {role: name for role, name in XLNET_TOKENS.items() if name in model.special}
    standard = {"albert": ALBERT_TOKENS, "t5": T5_TOKENS, "xlnet": XLNET_TOKENS}.get(family, plain)
    roles = special_token_map(standard, settings)
    template = {"albert": "bert", "plain": None}.get(family, family)
    loaded = with_special_tokens(backend, roles, template, mask_lstrip=True)
    others = [name for name in model.special if name not in roles.values()]
    if family == "t5":
        # In descending order, so that <extra_id_0> has the last id.
        others += [f"<extra_id_{i}>" for i in reversed(range(int(settings.get("extra_ids", 100))))]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in others])
    return loaded


def _marian(file: Path, settings: TokenizerConfig) -> LoadedTokenizer:
    """Build Marian's tokenizer for one language, from its .spm file; ids are those of vocab.json.

    Deviation: where transformers has the unknown token for a token of the .spm file that vocab.json
    lacks, and for several unknown characters in a row, these are split into shorter tokens.
    """
    tokenizer_family(settings, "spm", "marian", file)
    if settings.get("separate_vocabs"):
        raise UserError(
            f"{file}: a vocabulary for each language (separate_vocabs) is not supported: use a "
            "model with one vocabulary"
        )
    model, vocab = sentencepiece.read_model(file), _vocab(file.with_name("vocab.json"))
    roles = special_token_map(T5_TOKENS, settings)
    if missing := [name for name in roles.values() if name not in vocab]:
        raise UserError(f"{file.with_name('vocab.json')} has no {missing[0]}: copy it again")
    languages = [name for name in vocab if re.fullmatch(">>.+<<", name)]
    numbered = sentencepiece.renumber(model, vocab, {*roles.values(), *languages})
    backend = sentencepiece.backend(
        numbered, before=[normalizers.Replace(sentencepiece.DECODE_ONLY, "")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace(sentencepiece.DECODE_ONLY, ""), backend.decoder]
    )
    loaded = with_special_tokens(backend, roles, "t5")
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in languages])
    target = file.with_name(MARIAN_TARGET_FILE)
    return replace(loaded, target=target if file.name == MARIAN_FILE and target.is_file() else None)


def _guess_family(model: sentencepiece.SentencePieceModel) -> str:
    """Guess the format of a SentencePiece model from its special tokens."""
    if {"[CLS]", "[SEP]", "[MASK]"} <= model.names:
        return "albert"
    if {"<cls>", "<sep>", "<mask>"} <= model.names:
        return "xlnet"
    return "t5" if [p.text for p in model.subwords[:3]] == ["<pad>", "</s>", "<unk>"] else "plain"


def _preprocess_text(lowercase: bool, *, accents: bool) -> list[normalizers.Normalizer]:
    """Return the steps of XLNet's `preprocess_text`, which runs before SentencePiece."""
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(r"[\s\x1c-\x1f]+"), " "),  # as str.split
        normalizers.Replace("``", '"'),
        normalizers.Replace("''", '"'),
    ]
    if not accents:
        # Only combining characters: the library's StripAccents also removes vowel signs.
        steps += [normalizers.NFKD(), normalizers.Replace(Regex(_combining()), "")]
    return [*steps, normalizers.Lowercase()] if lowercase else steps


def _combining() -> str:
    """Return a regular expression for all characters with a combining class."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.combining(chr(code)):
            if ranges and ranges[-1][1] == code - 1:
                ranges[-1][1] = code
            else:
                ranges.append([code, code])
    return "[" + "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges) + "]"
