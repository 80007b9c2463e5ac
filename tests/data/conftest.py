"""Real text, prepared once for all tests that read it."""

from pathlib import Path

import pytest

from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import read_documents
from kinfolk.data.prepare import prepare
from kinfolk.text import train_tokenizer


@pytest.fixture(scope="session")
def wiki(real: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Encyclopedia articles under a vocabulary of 4,096."""
    text = real / "wiki_en" / "valid.txt.gz"
    tokenizer = train_tokenizer(
        (d.text for d in read_documents([text])), kind="bpe", vocab_size=4096
    )
    out = tmp_path_factory.mktemp("wiki") / "corpus"
    return prepare([text], tokenizer=tokenizer, out=out)
