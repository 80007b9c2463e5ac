"""Text to ids and back, on the `tokenizers` library, in the folders that Hugging Face writes."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, models, pre_tokenizers, processors

from kinfolk.config import config
from kinfolk.errors import UserError
from kinfolk.text import formats

SPECIAL_TOKEN_ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")

# What tokenizers in the wild call these tokens, for folders whose settings do not say.
KNOWN = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "bos": ("<|endoftext|>", "[BOS]", "<s>"),
    "eos": ("<|endoftext|>", "[EOS]", "</s>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}

# frame: what stands around one text, and around two (":1" is the second segment's type).
TEMPLATES = {
    "bert": ("{cls} $A {sep}", "{cls} $A {sep} $B:1 {sep}:1"),
    "roberta": ("{cls} $A {sep}", "{cls} $A {sep} {sep} $B {sep}"),
    "line": ("{bos} $A {cls}", "{bos} $A {sep} $B {cls}"),  # GPT's, where it reads a text's end
    "t5": ("$A {eos}", "$A {eos} $B {eos}"),
    "xlnet": ("$A {sep} {cls}:2", "$A {sep} $B:1 {sep}:1 {cls}:2"),
}

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


@config("special_tokens")
class SpecialTokens:
    """The ids with a part to play; None where a tokenizer has no such token."""

    pad: int
    unk: int | None
    bos: int | None
    eos: int | None
    cls: int | None
    sep: int | None
    mask: int | None
    sentinels: tuple[int, ...] = ()  # T5's <extra_id_0>, <extra_id_1> ... in that order

    def require(self, role: str) -> int:
        """Return the id with a part to play, or complain that there is none."""
        found: int | None = getattr(self, role)
        if found is None:
            raise UserError(f"this needs a token for {role!r}, and the tokenizer has none")
        return found

    @cached_property
    def ids(self) -> frozenset[int]:
        """Return every id with a part to play."""
        single = (self.pad, self.unk, self.bos, self.eos, self.cls, self.sep, self.mask)
        return frozenset(i for i in (*single, *self.sentinels) if i is not None)

    def is_special(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Tell of each id whether it has a part to play."""
        found: npt.NDArray[np.bool_] = self._table[np.minimum(ids, len(self._table) - 1)]
        return found

    @cached_property
    def _table(self) -> npt.NDArray[np.bool_]:
        # One entry more than there are specials: all the ids above them.
        table = np.zeros(max(self.ids) + 2, np.bool_)
        table[list(self.ids)] = True
        return table


@dataclass(frozen=True)
class GLMTokens:
    """The id of each mark."""

    mask: int  # [MASK], for a few tokens
    sentence: int  # [sMASK], for a sentence
    gmask: int  # [gMASK], for all the rest of a text
    start: int  # before a span
    end: int  # after a span

    @property
    def masks(self) -> tuple[int, int, int]:
        """The three that stand for a span."""
        return self.mask, self.sentence, self.gmask


def glm_tokens(special_tokens: SpecialTokens) -> GLMTokens:
    """Find the marks among what a tokenizer has, or complain that it has none to spare.

    A vocabulary of ours has one [MASK], and sentinels that GLM needs for nothing else: the first
    two are [sMASK] and [gMASK]. T5's has no mask, so that all three are sentinels; BERT's has no
    sentinels, so that [MASK] is all three, as where the released code tells no tasks apart.
    A start is only read and an end only predicted, so that <|endoftext|> may be both.
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
    """A `tokenizers` tokenizer that knows which of its tokens have a part to play."""

    def __init__(
        self, backend: tokenizers.Tokenizer, names: Mapping[str, str], *, length: int | None = None
    ) -> None:
        self._backend = backend
        self._names = dict(names)  # the role to the token, for the roles that have one
        self._length = length
        self.vocab_size: int = max(backend.get_vocab().values()) + 1
        self.special_tokens = _specials(backend, self._names)

    @cached_property
    def kind(self) -> str:
        """Name the kind among KINDS that this tokenizer is."""
        state = json.loads(self._backend.to_str())
        model, decoder = state["model"], state["decoder"] or {}
        first = (decoder.get("decoders") or [decoder])[0].get("type")
        if model["type"] == "BPE":
            if model["end_of_word_suffix"]:
                return "word-bpe"
            return "bpe" if model["merges"] else "byte"
        if model["type"] == "WordLevel":
            return "char" if first == "Fuse" else "word"
        if model["type"] == "Unigram":  # of whole words where Chinese ones are among them
            return "word" if first == "Fuse" else "unigram"
        return str(model["type"]).lower()

    @property
    def to_dict(self) -> dict[str, Any]:
        """Return all there is to it, as tokenizer.json has it."""
        return dict(json.loads(self._backend.to_str()))

    @property
    def model(self) -> Any:
        """Return what turns words into pieces."""
        return self._backend.model

    @cached_property
    def fingerprint(self) -> str:
        """Return the sha256 of all that decides ids, so not of the frame around a text."""
        state = self.to_dict
        deciding = {k: state[k] for k in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
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
        """Return the ids of a text, in the tokenizer's own frame unless `specials` is off."""
        return list(self._backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Return the ids of each text, many at a time."""
        encodings = self._backend.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return [list(e.ids) for e in encodings]

    def decode(self, ids: Iterable[int], *, add_special_tokens: bool = False) -> str:
        """Return the text of ids, without the special tokens unless `specials` is on."""
        return str(
            self._backend.decode([int(i) for i in ids], skip_special_tokens=not add_special_tokens)
        )

    def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of plain text and the characters each came from.

        Plain: "[MASK]" in the text is six characters here, and no special id ever comes out
        (but for the unknown token).
        """
        encoding = self._plain.encode(text, add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    @cached_property
    def _plain(self) -> tokenizers.Tokenizer:
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        backend.encode_special_tokens = True
        added = backend.get_added_tokens_decoder().values()
        names = [token.content for token in added if token.special and len(token.content) > 1]
        if names and isinstance(backend.model, models.Unigram):
            # Special tokens lie among the pieces of such a model, so it would find their names:
            # a cut behind the first character hides them.
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
                f"{id} is no id of this tokenizer: its ids are 0 to {self.vocab_size - 1}"
            )
        return str(token)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token, None where there is no such token."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def save(self, folder: Path, *, frame: str | None = None, length: int | None = None) -> None:
        """Write the folder that Hugging Face's AutoTokenizer opens; no frame keeps its own."""
        backend = tokenizers.Tokenizer.from_str(self._backend.to_str())
        if frame is not None:
            backend.post_processor = self._processor(frame)
        state = json.loads(backend.to_str())
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            # GPT-2 would add an embedding for type ids it never learned.
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
            # XLNet sums a text up in its last token, which must be the row's last, too.
            **({"padding_side": "left"} if frame == "xlnet" else {}),
        }
        if (longest := length or self._length) is not None:
            settings["model_max_length"] = longest
        folder.mkdir(parents=True, exist_ok=True)
        backend.save(str(folder / "tokenizer.json"))
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")

    def _processor(self, frame: str) -> processors.PostProcessor:
        if frame not in TEMPLATES:
            raise UserError(f"{frame!r} is no frame: choose one of {', '.join(TEMPLATES)}")
        single, pair = TEMPLATES[frame]
        names = dict(self._names)
        if frame == "line" and "eos" in names:  # GPT-2's <|endoftext|> has all parts
            names = dict.fromkeys(("bos", "sep", "cls"), names["eos"]) | names
        needed = [role for role in SPECIAL_TOKEN_ROLES if f"{{{role}}}" in pair]
        if missing := [role for role in needed if role not in names]:
            raise UserError(
                f"the frame {frame!r} needs a {missing[0]} token, and this tokenizer has none: "
                "train a tokenizer with kinfolk or choose another frame"
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
        """Open a tokenizer's folder, or one of its files, in any format of `text.formats`."""
        found = formats.load_backend(Path(path))
        length = found.settings.get("model_max_length")
        # Hugging Face writes 1e30 where there is no limit.
        limited = isinstance(length, int) and length < 1_000_000_000
        names = _names(found.backend, found.settings)
        tokenizer = cls(found.backend, names, length=length if limited else None)
        if found.frame is not None:
            found.backend.post_processor = tokenizer._processor(found.frame)
        return tokenizer

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self._backend.to_str(), self._names, self._length)


def _unpickle(state: str, names: dict[str, str], length: int | None) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(state), names, length=length)


def _specials(backend: tokenizers.Tokenizer, names: Mapping[str, str]) -> SpecialTokens:
    ids = {role: backend.token_to_id(name) for role, name in names.items()}
    # GPT-2 has no pad: a filled slot weighs nothing, so any id serves.
    pad = next((ids[role] for role in ("pad", "eos", "unk") if ids.get(role) is not None), None)
    added = {token.content: id for id, token in backend.get_added_tokens_decoder().items()}
    found = sorted((int(m[1]), id) for t, id in added.items() if (m := _SENTINEL.fullmatch(t)))
    return SpecialTokens(
        pad=pad or 0,
        unk=ids.get("unk"),
        bos=ids.get("bos"),
        eos=ids.get("eos"),
        cls=ids.get("cls"),
        sep=ids.get("sep"),
        mask=ids.get("mask"),
        sentinels=tuple(id for _, id in found),
    )


def _names(backend: tokenizers.Tokenizer, settings: Mapping[str, Any]) -> dict[str, str]:
    """Find the token of each role: as the settings say, else a well-known added token."""
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    names = {}
    for role in SPECIAL_TOKEN_ROLES:
        said = settings.get(f"{role}_token")
        said = said["content"] if isinstance(said, dict) else said
        known = next((token for token in KNOWN[role] if token in added), None)
        token = said if isinstance(said, str) else known
        if token is not None and backend.token_to_id(token) is not None:
            names[role] = token
    return names


def _uses_token_types(processor: Mapping[str, Any] | None) -> bool:
    """Tell whether a saved post-processor gives the second text a type of its own."""
    return processor is not None and (
        processor["type"] == "BertProcessing" or '"type_id": 1' in json.dumps(processor)
    )
