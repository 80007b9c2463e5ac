"""Tokenizer and special tokens, on the `tokenizers` library, in Hugging Face's folder format."""

import hashlib
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, models, pre_tokenizers, processors

from kinfolk.config import config, field
from kinfolk.errors import UserError
from kinfolk.text import formats
from kinfolk.text.formats import SPECIAL_TOKEN_ROLES
from kinfolk.text.patterns import is_library_error, may_run_away, regexes, silent_stderr

# Usual names of these tokens, for folders whose settings do not name them.
KNOWN = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "bos": ("<|endoftext|>", "[BOS]", "<s>"),
    "eos": ("<|endoftext|>", "[EOS]", "</s>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}

TemplateName = Literal["bert", "roberta", "line", "t5", "xlnet"]
# Templates of one text and of two texts; ":1" is a token type.
TEMPLATES = {
    "bert": ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1"),
    "roberta": ("{cls} $A {sep}", "{cls} $A {sep} {sep} $B {sep}"),
    "line": ("{bos} $A {cls}", "{bos} $A {sep} $B {cls}"),  # GPT: classification at the last token
    "t5": ("$A {eos}", "$A {eos} $B {eos}"),
    "xlnet": ("$A {sep} {cls}:2", "$A {sep} $B:1 {sep}:1 {cls}:2"),
}

LINE_END = "\n</w>"  # in the vocabulary of GPT
_SENTINEL = re.compile(r"<extra_id_(\d+)>")
# Before a source: the language to translate into (Johnson et al. 2017, section 3).
_LANGUAGE_TAG = re.compile(r"<2([A-Za-z]\w*)>", re.ASCII)


def token_field(role: str) -> Any:
    """Declare the id of a special token."""
    return field(ge=0, lt=2**26, help=f"id of the token for {role}")


@config("special_tokens")
class SpecialTokens:
    """The ids of special tokens by role; None where a tokenizer has no such token."""

    pad: int = token_field("padding")
    unk: int | None = token_field("characters that the vocabulary lacks")
    bos: int | None = token_field("the beginning of a text")
    eos: int | None = token_field("the end of a text")
    cls: int | None = token_field("the summary of a text")
    sep: int | None = token_field("the end of a part of a text")
    mask: int | None = token_field("a token to predict")
    sentinels: tuple[int, ...] = field(
        default=(), ge=0, lt=2**26, help="ids of T5's <extra_id_0>, <extra_id_1> ... in that order"
    )

    def require(self, role: str) -> int:
        """Return the id of a role; raise UserError where there is none."""
        id: int | None = getattr(self, role)
        if id is None:
            raise UserError(
                f"the tokenizer has no {role!r} token: use one trained with kinfolk tokenizer"
            )
        return id

    @cached_property
    def ids(self) -> frozenset[int]:
        """All special ids."""
        single = (self.pad, self.unk, self.bos, self.eos, self.cls, self.sep, self.mask)
        return frozenset(i for i in (*single, *self.sentinels) if i is not None)

    def is_special(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which ids are special."""
        special: npt.NDArray[np.bool_] = self._table.take(ids, mode="clip")
        return special

    @cached_property
    def _table(self) -> npt.NDArray[np.bool_]:
        # The last entry is for all ids above the special ones.
        table = np.zeros(max(self.ids) + 2, np.bool_)
        table[list(self.ids)] = True
        return table


@dataclass(frozen=True)
class GLMTokens:
    """The ids of GLM's special tokens."""

    mask: int  # [MASK], for a few tokens
    sentence: int  # [sMASK], for a sentence
    gmask: int  # [gMASK], for all the rest of a text
    start: int  # before a span
    end: int  # after a span

    @property
    def masks(self) -> tuple[int, int, int]:
        """The three mask tokens."""
        return self.mask, self.sentence, self.gmask


def glm_tokens(special_tokens: SpecialTokens) -> GLMTokens:
    """Assign GLM's special tokens to tokens of a tokenizer; raise UserError if it has none.

    The three masks are [MASK] and the first two sentinels, or three sentinels where there is no
    [MASK] (T5), or [MASK] for all three where there are no sentinels (BERT). A start token is only
    an input and an end token only a target, so <|endoftext|> may be both.
    """
    free = [id for id in (special_tokens.mask, *special_tokens.sentinels[:3]) if id is not None]
    free = free or [special_tokens.require("mask")]
    mask, sentence, tail = (*free, free[-1], free[-1])[:3]
    ends = [id for id in (special_tokens.eos, special_tokens.sep) if id is not None]
    end = ends[0] if ends else special_tokens.require("eos")
    starts = [id for id in (special_tokens.bos, special_tokens.cls) if id is not None]
    start = starts[0] if starts else end
    return GLMTokens(mask, sentence, tail, start, end)


class Tokenizer:
    """A `tokenizers` tokenizer with the roles of its special tokens.

    Some translation models (Marian) split targets in another way than sources, into the same ids:
    `target` is the tokenizer of targets, for other models the tokenizer itself.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        names: Mapping[str, str],
        *,
        length: int | None = None,
        target: "Tokenizer | None" = None,
    ) -> None:
        self._backend = backend
        self._target = target
        self._names = dict(names)  # role to token
        self._length = length
        self.vocab_size: int = max(backend.get_vocab().values()) + 1
        self.special_tokens = _special_tokens(backend, self._names)

    @property
    def target(self) -> "Tokenizer":
        """The tokenizer of targets."""
        return self._target or self

    @cached_property
    def kind(self) -> str:
        """The kind of this tokenizer, one of KINDS."""
        state = self.to_dict
        model, decoder = state["model"], state["decoder"] or {}
        first = (decoder.get("decoders") or [decoder])[0].get("type")
        if model["type"] == "BPE":
            if model["end_of_word_suffix"]:
                return "word-bpe"
            return "bpe" if model["merges"] else "byte"
        if model["type"] == "WordLevel":
            return "char" if first == "Fuse" else "word"
        if model["type"] == "Unigram":  # words with Chinese among them
            return "word" if first == "Fuse" else "unigram"
        return str(model["type"]).lower()

    @property
    def to_dict(self) -> dict[str, Any]:
        """The contents of tokenizer.json."""
        return dict(json.loads(self._backend.to_str()))

    @property
    def model(self) -> Any:
        """The model of the `tokenizers` library, which splits words into tokens."""
        return self._backend.model

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of everything that decides ids; the template is not included."""
        state = self.to_dict
        deciding = {k: state[k] for k in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
        if self._target is not None:
            deciding["target"] = self._target.fingerprint
        return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Tokenizer({self.kind}, vocab_size={self.vocab_size})"

    @overload
    def __call__(self, text: str) -> list[int]: ...

    @overload
    def __call__(self, text: list[str]) -> list[list[int]]: ...

    def __call__(self, text: str | list[str]) -> list[int] | list[list[int]]:
        """Return the ids of a text, or a list of ids for each of several texts."""
        return self.encode(text) if isinstance(text, str) else self.encode_batch(text)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a text, with the special tokens of its template by default."""
        with self._library_errors():
            return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text, in parallel."""
        special = add_special_tokens
        with self._library_errors():
            encodings = self._backend.encode_batch(list(texts), add_special_tokens=special)
        return [list(e.ids) for e in encodings]

    def decode(self, ids: Iterable[int], *, add_special_tokens: bool = False) -> str:
        """Return the text of ids, without special tokens by default."""
        numbers, skip = [int(i) for i in ids], not add_special_tokens
        with self._library_errors():
            return str(self._backend.decode(numbers, skip_special_tokens=skip))

    def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text and the characters of each.

        Special tokens are not recognized: "[MASK]" is six characters, and the only special id
        that can occur is the unknown token.
        """
        with self._library_errors():
            encoding = self._plain.encode(text, add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        added = backend.get_added_tokens_decoder().values()
        names = [token.content for token in added if token.special and len(token.content) > 1]
        if names and isinstance(backend.model, models.Unigram):
            # The vocabulary of a unigram model contains the special tokens; splitting after their
            # first character prevents a match.
            first = "|".join(rf"{re.escape(n[0])}(?={re.escape(n[1:])})" for n in names)
            hide = pre_tokenizers.Split(Regex(first), "merged_with_previous")
            steps = [backend.pre_tokenizer] if backend.pre_tokenizer is not None else []
            backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, hide])
        return backend

    def id_to_token(self, id: int) -> str:
        """Return the token of an id."""
        token = self._backend.id_to_token(int(id))
        if token is None:
            raise UserError(
                f"unknown token id {id}: the ids of this tokenizer are 0 to {self.vocab_size - 1}"
            )
        return str(token)

    def has_id(self, id: int) -> bool:
        """Return whether a token has this id."""
        return self._backend.id_to_token(id) is not None

    def normalize(self, text: str) -> str:
        """Return a text as tokens spell it: in lower case, for example."""
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text)).strip()

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token; None for an unknown one."""
        id: int | None = self._backend.token_to_id(token)
        return id

    def save(self, folder: Path, *, template: str | None = None, length: int | None = None) -> None:
        """Write a folder for AutoTokenizer; one of TEMPLATES replaces the tokenizer's template."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        if template is not None:
            backend.post_processor = self._processor(template)
        state = json.loads(backend.to_str())
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            # GPT-2 would add the token embedding of each type id.
            "model_input_names": [
                "input_ids",
                *(["token_type_ids"] if _uses_token_types(state["post_processor"]) else []),
                "attention_mask",
            ],
            **{
                f"{role}_token": self._names[role]
                for role in SPECIAL_TOKEN_ROLES
                if role in self._names
            },
            # XLNet's summary is the last token, which must be the last of the padded row.
            **({"padding_side": "left"} if template == "xlnet" else {}),
        }
        if (longest := length or self._length) is not None:
            settings["model_max_length"] = longest
        folder.mkdir(parents=True, exist_ok=True)
        backend.save(str(folder / "tokenizer.json"))
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
        if self._target is not None:
            self._target.save(folder / formats.TARGET_FOLDER, template=template, length=length)

    def _processor(self, template: str) -> processors.PostProcessor:
        if template not in TEMPLATES:
            raise UserError(
                f"unknown input template {template!r}: choose one of {', '.join(TEMPLATES)}"
            )
        single, pair = TEMPLATES[template]
        names = dict(self._names)
        if template == "line" and "eos" in names:  # GPT-2's <|endoftext|> has all roles
            names = dict.fromkeys(("bos", "sep", "cls"), names["eos"]) | names
        needed = [role for role in SPECIAL_TOKEN_ROLES if f"{{{role}}}" in pair]
        if missing := [role for role in needed if role not in names]:
            raise UserError(
                f"the input template {template!r} needs a {missing[0]} token, which this tokenizer "
                "does not have: use one trained with kinfolk tokenizer"
            )
        return processors.TemplateProcessing(
            single=single.format(**names),
            pair=pair.format(**names),
            special_tokens=[
                (name, self.token_to_id(name)) for name in {names[role] for role in needed}
            ],
        )

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Load a tokenizer folder, or one of its files, in any format of `text.formats`."""
        loaded = formats.load_backend(Path(path))
        length = loaded.settings.get("model_max_length")
        # Hugging Face writes 1e30 where there is no limit.
        limited = isinstance(length, int) and length < 1_000_000_000
        names = _role_names(loaded.backend, loaded.settings)
        target = None if loaded.target is None else cls.load(loaded.target)
        tokenizer = cls(loaded.backend, names, length=length if limited else None, target=target)
        if loaded.template is not None:
            loaded.backend.post_processor = tokenizer._processor(loaded.template)
        return tokenizer

    @cached_property
    def language_tags(self) -> dict[str, int]:
        """The ids of the special tokens <2de>, <2zh> ... by language."""
        added = self._backend.get_added_tokens_decoder().items()
        found = ((_LANGUAGE_TAG.fullmatch(token.content), id) for id, token in sorted(added))
        return {match[1]: id for match, id in found if match}

    def with_language_tags(self, languages: Iterable[str]) -> "Tokenizer":
        """Return the tokenizer with a special token for each language, where it has none yet."""
        new = [name for name in dict.fromkeys(languages) if name not in self.language_tags]
        if not new:
            return self
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        tags = [tokenizers.AddedToken(language_tag(name), special=True) for name in new]
        backend.add_special_tokens(tags)
        return Tokenizer(backend, self._names, length=self._length, target=self._target)

    def with_end_token(self, required: Sequence[str]) -> "Tokenizer":
        """Return the tokenizer with an end token, if "eos" is required and it has none.

        The end token is then [SEP], the line end of OpenAI's GPT vocabulary, which no text
        contains after normalization, or the unknown token. A text that ends with [SEP] begins with
        [CLS], as in decoders that were trained with BERT's vocabulary.
        """
        if "eos" not in required or self.special_tokens.eos is not None:
            return self
        candidates = (self._names.get("sep"), LINE_END, self._names.get("unk"))
        token = next((t for t in candidates if t and self.token_to_id(t) is not None), None)
        if token is None:
            return self
        names = {**self._names, "eos": token}
        told = f"texts end with {token!r} (id {self.token_to_id(token)})"
        if token == names.get("sep") and "cls" in names and "bos" not in names:
            names["bos"] = names["cls"]
            told += f" and begin with {names['bos']!r} (id {self.token_to_id(names['bos'])})"
        warnings.warn(
            f"the tokenizer has no end token: {told}",
            stacklevel=1,  # one place, so that a command prints it once
        )
        return Tokenizer(self._backend, names, length=self._length, target=self._target)

    @contextmanager
    def _library_errors(self) -> Iterator[None]:
        """Raise a user error where the `tokenizers` library fails or panics."""
        # What other threads print meanwhile is lost, so it is done for few tokenizers.
        with silent_stderr() if self._may_panic else nullcontext():
            try:
                yield
            except (TypeError, UnicodeEncodeError):
                raise UserError(
                    "a text that is not valid Unicode (a lone surrogate): convert it to UTF-8 first"
                ) from None
            except BaseException as error:
                if not is_library_error(error):
                    raise
                raise UserError(
                    f"the tokenizer cannot encode or decode this text ({error}): correct the "
                    "patterns in its tokenizer.json, or use another tokenizer"
                ) from None

    @cached_property
    def _may_panic(self) -> bool:
        """Whether a regular expression may run away: only those panic, which prints a trace."""
        return any(map(may_run_away, regexes(formats.text_steps(self._backend))))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._backend.to_str(), self._names, self._length, self._target)


def language_tag(language: str) -> str:
    """Return the token that names a target language: <2de>."""
    tag = f"<2{language}>"
    if not _LANGUAGE_TAG.fullmatch(tag):
        raise UserError(
            f"language {language!r}: write a code of letters, digits and _, such as de or zho_Hans"
        )
    return tag


def _unpickle(
    state: str, names: dict[str, str], length: int | None, target: Tokenizer | None
) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(state), names, length=length, target=target)


def _special_tokens(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> SpecialTokens:
    ids: dict[str, Any] = dict.fromkeys(SPECIAL_TOKEN_ROLES)
    ids |= {role: backend.token_to_id(name) for role, name in names.items()}
    # GPT-2 has no padding token: padding is masked, so any id serves.
    ids["pad"] = next((ids[r] for r in ("pad", "eos", "unk") if ids[r] is not None), 0)
    added = {token.content: id for id, token in backend.get_added_tokens_decoder().items()}
    sentinels = sorted((int(m[1]), id) for t, id in added.items() if (m := _SENTINEL.fullmatch(t)))
    if not sentinels and all(mask in added for mask in formats.GLM_MASKS):
        sentinels = [(n, added[mask]) for n, mask in enumerate(formats.GLM_MASKS)]
    return SpecialTokens(**ids, sentinels=tuple(id for _, id in sentinels))


def _role_names(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the token of each role: from the settings, or else an added token of a usual name."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    names = {}
    for role in SPECIAL_TOKEN_ROLES:
        token = formats.configured_token(settings, role)
        if token is None:
            token = next((token for token in KNOWN[role] if token in added), None)
        if token is not None and backend.token_to_id(token) is not None:
            names[role] = token
    if added.issuperset(formats.GLM_ENDS.values()):  # GLM's <|endoftext|> only pads
        names |= formats.GLM_ENDS
    return names


def _uses_token_types(processor: Mapping[str, Any] | None) -> bool:
    """Return whether a saved post-processor gives the second text another token type."""
    return processor is not None and (
        processor["type"] == "BertProcessing" or '"type_id": 1' in json.dumps(processor)
    )
