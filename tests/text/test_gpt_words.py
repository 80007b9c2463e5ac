"""Where GPT's words are those of OpenAI's code, and where they differ as docs/text.md says.

OpenAI's code repairs a text with ftfy, puts spaces around some marks and splits it with spaCy. Its
words here were computed with `spacy.lang.en.English()` of spaCy 3.8.18 and with ftfy 4.4.3.
"""

import gzip
import json
import re
import unicodedata
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from kinfolk.text import Tokenizer
from support.reference_tokenizers import gpt_words

PAGE = (Path(__file__).parents[2] / "docs" / "text.md").read_text(encoding="utf-8")
SAME = {
    "The cat sat on the mat.": "the cat sat on the mat .",
    "It was well-known, in 1999, that 1,000 people (or more) came; why?": (
        "it was well - known , in 1999 , that 1 , 000 people ( or more ) came ; why ?"
    ),
    'he said: "no!"': 'he said : " no ! "',
    "x / y [1] {2} a_b 50 % #1": "x / y [ 1 ] { 2 } a _ b 50 % # 1",
    "  two   spaces\tand tabs ": "two spaces and tabs",
}
OTHER = {
    "John's": "john 's",
    "don't cannot": "do n't can not",
    "U.S. 3.5 a.com": "u.s. 3.5 a.com",
    "café": "café",
    "“John’s”": '" john \'s "',
    "1990–1995 — x": "1990 - 1995 - x",
    "... --": "... --",
    "4:30 6pm £5 US$": "4:30 6 pm £ 5 us$",
    "F-16 R&B": "f-16 r&b",
    "a\\nb": "a \\n b",
    "中文": "中文",
}


def letters_of(folder: Path, texts: Iterable[str]) -> Path:
    """Write a vocabulary of the characters of texts, within and at the end of a word."""
    characters = set("\n").union(*texts, *(unicodedata.normalize("NFD", t.lower()) for t in texts))
    tokens = ["<unk>", *(c + end for c in sorted(characters) for end in ("", "</w>"))]
    vocab = json.dumps({token: id for id, token in enumerate(tokens)})
    (folder / "encoder_bpe_40000.json").write_text(vocab, encoding="utf-8")
    (folder / "vocab_40000.bpe").write_text("#version: 0.2\n", encoding="utf-8")
    return folder


def words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the words of which a text has tokens."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return "".join(map(tokenizer.id_to_token, ids)).split("</w>")[:-1]


def test_ids_are_those_of_openai_and_differ_as_the_page_says(tmp_path: Path) -> None:
    originals = [*SAME.values(), *OTHER.values()]
    folder = letters_of(tmp_path, [*SAME, *OTHER, *originals])
    tokenizer = Tokenizer.load(folder)
    encode = gpt_words(folder / "encoder_bpe_40000.json", folder / "vocab_40000.bpe")
    for text, original in SAME.items():
        assert tokenizer.encode(text) == encode(original.split(" ")), text
    rows = re.findall(r"^\| [^|]+ \| `(.+)` \| `(.+)` \| `(.+)` \|$", PAGE, re.MULTILINE)
    assert {text: original for text, original, _ in rows} == OTHER
    for text, original, here in rows:
        ids = tokenizer.encode(text.replace("\\n", "\n"))
        assert ids == encode(here.split(" ")), text
        assert ids != encode([word.replace("\\n", "\n") for word in original.split(" ")]), text


def lines(file: Path) -> list[str]:
    return [line for line in gzip.open(file, "rt", encoding="utf-8").read().split("\n") if line]


@pytest.mark.real
def test_as_many_real_lines_agree_as_the_page_says(real: Path, tmp_path: Path) -> None:
    """Every tenth line of two corpora, by checksums of the words of OpenAI's code."""
    checksums = json.loads((Path(__file__).parent / "gpt_words.json").read_text())
    stated = re.search(r"(\d+) % of the lines of Wikinews and (\d+) % of", PAGE)
    assert stated is not None
    news = [json.loads(article)["text"] for article in lines(real / "wikinews_en/valid.jsonl.gz")]
    corpora = {
        "wikinews_en": [line for article in news for line in article.split("\n") if line],
        "wiki_en": lines(real / "wiki_en/valid.txt.gz")[:3000],
    }
    for (name, found), share in zip(corpora.items(), stated.groups(), strict=True):
        some = found[::10]
        tokenizer = Tokenizer.load(letters_of(tmp_path, some))
        agree = [
            zlib.crc32(" ".join(words(tokenizer, line)).encode()) == original
            for line, original in zip(some, checksums[name], strict=True)
        ]
        assert len(agree) > 150
        assert abs(sum(agree) / len(agree) - int(share) / 100) < 0.05, name
