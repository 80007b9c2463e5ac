"""Vocabularies in the files of their authors give the ids of their authors' code."""

import gzip
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from kinfolk.text import Tokenizer
from support import reference_tokenizers

pytestmark = [pytest.mark.parity, pytest.mark.real]

AWKWARD = [
    "",
    "   ",
    " a",
    "a ",
    " two  spaces   inside ",
    "\ttabs\nand\r\nlines\r",
    "\u3000wide\xa0hard\u2028line\u2009thin ",
    "a\x00b",
    "\x01\x1f\x7fcontrol\x1cs\x85and\u200bzero\ufeffwidth\u00adsoft",
    "👩‍👩‍👧‍👦 ❤️ 🇨🇳 👍🏽! 1️⃣",
    "Cafe\u0301 n\u0303o \u0301 Ame\u0301lie",
    "Ångström naïve CAFÉ İstanbul ŒUVRE straße ẞ",
    "我love你 GPT模型，很好！「引」、。",
    "ＦＵＬＬ　ｗｉｄｔｈ１２３！～",
    "हिन्दी ไทยำ עִבְרִית العَرَبِيَّة 한국어 ひらがなカタカナ",
    "ﬁ ½ ² ™ … ① ㎏",
    "\ue000\ufffd𝒳𠀀",  # no unassigned ones: BERT's code drops what its Python does not know yet
    "word" * 2500,
    "字" * 10_000,
    "é1" * 5000,
    "1,000 2,000,000 5, 12,",
    "``quoted'' 'a' ''b'' don't I'LL we've",
    'a-b (c) "d" – £5 €6.',
    "[CLS] [MASK] <s></s> <mask><unk> <pad> x<sep> <cls><extra_id_0> <|endoftext|>[UNK] </w> ##s",
    "▁ a▁b",
]

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARKS = list('()"-.–£€')


@dataclass(frozen=True)
class Format:
    """A folder of files, the code of their authors, and what that puts around a text."""

    folder: Path
    original: reference_tokenizers.Encode
    frame: tuple[list[str], list[str]] = ([], [])


def lines(file: Path) -> list[str]:
    return [line for line in gzip.open(file, "rt", encoding="utf-8").read().split("\n") if line]


@cache
def texts(real: Path) -> list[str]:
    """Return 10,000 lines of three corpora."""
    news = [json.loads(article)["text"] for article in lines(real / "wikinews_en/valid.jsonl.gz")]
    found = [line for article in news for line in article.split("\n") if line][:1500]
    found += lines(real / "wiki_zh/valid.txt.gz")[:4000]
    return (found + lines(real / "wiki_en/valid.txt.gz"))[:10_000]


@cache
def lesson(real: Path) -> list[str]:
    """Return the text that vocabularies are learned from."""
    return [
        *lines(real / "wiki_en/test.txt.gz")[:500],
        *lines(real / "wiki_zh/test.txt.gz")[:500],
    ]


def learn_pieces(model: Path, text: Iterable[str], **settings: Any) -> Path:
    """Train SentencePiece; minloglevel 2 keeps it quiet."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_prefix=str(model.with_suffix("")),
        vocab_size=1500,
        character_coverage=0.98,
        num_threads=1,
        minloglevel=2,
        **settings,
    )
    return model


def learn_pairs(
    vocab: Path, merges: Path, text: Iterable[str], *, special_tokens: list[str], suffix: str = ""
) -> None:
    """Train byte pair encoding and write the two files."""
    backend = tokenizers.Tokenizer(models.BPE())
    if suffix:
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=special_tokens,
        initial_alphabet=[] if suffix else sorted(pre_tokenizers.ByteLevel.alphabet()),
        limit_alphabet=800,
        end_of_word_suffix=suffix,
        show_progress=False,
    )
    backend.train_from_iterator(text, trainer)
    state = json.loads(backend.to_str())["model"]
    vocab.write_text(json.dumps(state["vocab"]), encoding="utf-8")
    rows = ["#version: 0.2", *(" ".join(pair) for pair in state["merges"])]
    merges.write_text("\n".join(rows) + "\n", encoding="utf-8")


def bert(folder: Path, text: list[str], *, lowercase: bool, configured: bool = False) -> Format:
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=3000, special_tokens=BERT, limit_alphabet=1000, show_progress=False
    )
    backend.train_from_iterator(text, trainer)
    ids = backend.get_vocab()
    rows = "".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__))
    (folder / "vocab.txt").write_text(rows, encoding="utf-8")
    if configured:
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    original = reference_tokenizers.bert(folder / "vocab.txt", lowercase=lowercase)
    return Format(folder, original, (["[CLS]"], ["[SEP]"]))


def gpt2(folder: Path, text: list[str]) -> Format:
    files = folder / "encoder.json", folder / "vocab.bpe"
    learn_pairs(*files, text, special_tokens=["<|endoftext|>"])
    return Format(folder, reference_tokenizers.gpt2(*files))


def roberta(folder: Path, text: list[str]) -> Format:
    files = folder / "vocab.json", folder / "merges.txt"
    learn_pairs(*files, text, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return Format(folder, reference_tokenizers.gpt2(*files), (["<s>"], ["</s>"]))


def gpt(folder: Path, text: list[str]) -> Format:
    files = folder / "encoder_bpe_40000.json", folder / "vocab_40000.bpe"
    learn_pairs(*files, text, special_tokens=["<unk>"], suffix="</w>")
    return Format(folder, reference_tokenizers.gpt(*files))


def albert(folder: Path, text: list[str]) -> Format:
    """Train with the settings of ALBERT's README."""
    model = learn_pieces(
        folder / "30k-clean.model",
        text,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=MARKS,
    )
    return Format(folder, reference_tokenizers.xlnet(model, lowercase=True), (["[CLS]"], ["[SEP]"]))


def xlnet(folder: Path, text: list[str]) -> Format:
    """Train with the settings of XLNet's README."""
    model = learn_pieces(
        folder / "spiece.model",
        text,
        control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"],
        user_defined_symbols=["<eop>", *MARKS],
    )
    return Format(
        folder, reference_tokenizers.xlnet(model, lowercase=False), ([], ["<sep>", "<cls>"])
    )


def t5(folder: Path, text: list[str]) -> Format:
    model = learn_pieces(folder / "spiece.model", text, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return Format(folder, reference_tokenizers.t5(model), ([], ["</s>"]))


def folded(folder: Path, text: list[str]) -> Format:
    rule = "nmt_nfkc_cf"
    model = learn_pieces(folder / "m.model", text, normalization_rule_name=rule, byte_fallback=True)
    return Format(folder, reference_tokenizers.t5(model))


def pieced(folder: Path, text: list[str]) -> Format:
    return Format(
        folder, reference_tokenizers.t5(learn_pieces(folder / "m.model", text, model_type="bpe"))
    )


FORMATS: dict[str, Callable[[Path, list[str]], Format]] = {
    "bert-uncased": lambda folder, text: bert(folder, text[:500], lowercase=True),
    "bert-cased": lambda folder, text: bert(folder, text, lowercase=False),
    "bert-chinese": lambda folder, text: bert(folder, text[500:], lowercase=True, configured=True),
    "gpt2": gpt2,
    "roberta": roberta,
    "gpt": gpt,
    "albert": albert,
    "xlnet": xlnet,
    "t5": t5,
    "sentencepiece-folded": folded,
    "sentencepiece-bpe": pieced,
}
# Each way of reading meets 10,000 lines, which several vocabularies of one way share.
SHARES = {
    "roberta": slice(0, None, 3),
    "bert-uncased": slice(0, None, 3),
    "bert-cased": slice(1, None, 3),
    "bert-chinese": slice(2, None, 3),
    "sentencepiece-folded": slice(0, None, 2),
    "sentencepiece-bpe": slice(1, None, 2),
}


@pytest.fixture(scope="session")
def formats(
    real: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Format, Tokenizer]]:
    @cache
    def learned(name: str) -> tuple[Format, Tokenizer]:
        made = FORMATS[name](tmp_path_factory.mktemp(name), lesson(real))
        return made, Tokenizer.load(made.folder)

    return learned


Formats = Callable[[str], tuple[Format, Tokenizer]]


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FORMATS)
def test_ids_equal_the_authors_on_real_text(
    name: str, every: int, formats: Formats, real: Path
) -> None:
    format, tokenizer = formats(name)
    some = texts(real)[SHARES.get(name, slice(None))][::every]
    ours = tokenizer.encode_batch(some, add_special_tokens=False)
    different = [text for text, ids in zip(some, ours, strict=True) if ids != format.original(text)]
    assert not different
    assert len(texts(real)) == 10_000


@pytest.mark.parametrize("name", FORMATS)
def test_ids_equal_the_authors_on_awkward_text(name: str, formats: Formats) -> None:
    format, tokenizer = formats(name)
    for text in AWKWARD:
        if name == "bert-cased":
            # transformers' copy composes first (NFC); Google's code and the library do not.
            text = text.replace("e\u0301", "é").replace("n\u0303", "ñ")
        assert tokenizer.offsets(text)[0] == format.original(text), ascii(text[:50])


@pytest.mark.parametrize("name", FORMATS)
def test_texts_stand_in_the_authors_frame(name: str, formats: Formats) -> None:
    format, tokenizer = formats(name)
    before, after = ([tokenizer.token_to_id(token) for token in side] for side in format.frame)
    for text in ("The cat sat.", "你好，世界。", ""):
        assert tokenizer.encode(text) == [*before, *format.original(text), *after]


@pytest.mark.parametrize("name", FORMATS)
def test_a_saved_folder_gives_the_same_ids_in_transformers(
    name: str, formats: Formats, real: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    _, tokenizer = formats(name)
    tokenizer.save(tmp_path)
    again, theirs = Tokenizer.load(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in [*AWKWARD, *texts(real)[::500]]:
        ids = tokenizer.encode(text)
        assert again.encode(text) == ids
        assert theirs(text)["input_ids"] == ids
        assert theirs.decode(ids) == tokenizer.decode(ids, add_special_tokens=True)
    assert (again.fingerprint, again.kind, again.special_tokens) == (
        tokenizer.fingerprint,
        tokenizer.kind,
        tokenizer.special_tokens,
    )
    # The model pads its table to a multiple of 64; the tokenizer never does.
    assert len(theirs) == tokenizer.vocab_size == again.vocab_size


@pytest.mark.parametrize(
    ("name", "kind", "roles"),
    [
        ("bert-uncased", "wordpiece", "[PAD] [UNK] - - [CLS] [SEP] [MASK]"),
        ("gpt2", "bpe", "<|endoftext|> - <|endoftext|> <|endoftext|> - - -"),
        ("roberta", "bpe", "<pad> <unk> <s> </s> <s> </s> <mask>"),
        ("gpt", "word-bpe", "<unk> <unk> - - - - -"),
        ("albert", "unigram", "<pad> <unk> - - [CLS] [SEP] [MASK]"),
        ("xlnet", "unigram", "<pad> <unk> <s> </s> <cls> <sep> <mask>"),
        ("t5", "unigram", "<pad> <unk> - </s> - - -"),
        ("sentencepiece-folded", "unigram", "</s> <unk> <s> </s> - - -"),
        ("sentencepiece-bpe", "bpe", "</s> <unk> <s> </s> - - -"),
    ],
)
def test_kind_and_roles_are_known(name: str, kind: str, roles: str, formats: Formats) -> None:
    _, tokenizer = formats(name)
    s = tokenizer.special_tokens
    ids = (s.pad, s.unk, s.bos, s.eos, s.cls, s.sep, s.mask)
    assert tokenizer.kind == kind
    assert " ".join("-" if id is None else tokenizer.id_to_token(id) for id in ids) == roles
    if name == "t5":
        assert s.sentinels == tuple(range(1599, 1499, -1))


@pytest.mark.parametrize("name", FORMATS)
def test_no_special_id_comes_out_of_plain_text(name: str, formats: Formats) -> None:
    _, tokenizer = formats(name)
    names = [tokenizer.id_to_token(id) for id in tokenizer.special_tokens.ids]
    plain = tokenizer.special_tokens.ids - {tokenizer.special_tokens.unk}
    for text in (" ".join(names), "".join(names), f"a{'b'.join(names)}"):
        assert not plain & set(tokenizer.offsets(text)[0])
        assert plain <= set(tokenizer.encode(text, add_special_tokens=False)) | {
            tokenizer.special_tokens.unk
        }


@pytest.mark.parametrize("name", FORMATS)
def test_decoding_gives_the_words_back(name: str, formats: Formats) -> None:
    _, tokenizer = formats(name)
    text = "the history of the world"
    assert tokenizer.decode(tokenizer.encode(text)) == text
