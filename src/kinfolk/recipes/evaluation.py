"""Scoring a model on a text, and the lines it has to beat."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from kinfolk.data.encoding import Encoder
from kinfolk.data.pieces import Documents, Loose
from kinfolk.data.shards import Corpus
from kinfolk.data.sources import documents
from kinfolk.errors import UserError
from kinfolk.metrics.baselines import KneserNey, entropy
from kinfolk.metrics.likelihood import Likelihood, likelihood
from kinfolk.nn.table import Table
from kinfolk.recipes.catalogue import member_of
from kinfolk.recipes.opening import exam, load
from kinfolk.recipes.pretraining import pick
from kinfolk.text import Tokenizer

# What the score of each kind of model is; only the first is the probability of the text.
SCORES = {
    "decoder": "likelihood, left to right",
    "encoder": "pseudo-likelihood, each token from all others",
    "encoder-decoder": "pseudo-likelihood, each span from the text around it",
}
FITTED = 20_000_000  # tokens an n-gram baseline is counted on at most: a minute, and 2 GB


def evaluate(
    path: Path | str,
    *,
    corpus: Path | str | None = None,
    text: Path | str | None = None,
    length: int | None = None,
    device: str = "auto",
    rows: int = 32,
) -> tuple[Likelihood, str]:
    """Score a saved model on a corpus or a text file; also say what kind of score it is."""
    if (corpus is None) == (text is None):
        raise UserError("give either --corpus or --text to evaluate on")
    model, tokenizer = load(path)
    read: Documents
    if corpus is not None:
        read = Corpus.open(Path(corpus))
        size = read.bytes
        if read.tokenizer_hash != tokenizer.hash:
            raise UserError(
                f"{corpus} was made with another tokenizer than {path}: prepare its text again "
                f"with --tokenizer {path}, or evaluate with --text"
            )
    else:
        assert text is not None
        read, size = encoded(tokenizer, Path(text))
    model.to(pick(device))
    way = exam(model, tokenizer, path, length)
    return likelihood(model, way, read, size, rows=rows), SCORES[member_of(model).kind]


def encoded(tokenizer: Tokenizer, path: Path) -> tuple[Loose, int]:
    """Encode a text file, a document a block between blank lines; also count its bytes."""
    found = Encoder(tokenizer)([d.text for d in documents([path])])
    ends = np.cumsum(found.sentences, dtype=np.int64)
    starts = np.concatenate([[0], ends])[np.concatenate([[0], np.cumsum(found.documents)])]
    return Loose(found.ids, ends, starts), int(found.bytes.sum())


@dataclass(frozen=True)
class Baselines:
    """The two lines under every curve, in nats a token.

    `unigram` is the entropy of single tokens in the text that is scored: no model that looks at
    one token at a time can be under it. `trigram` is counted on the training text and scored on
    held-out text, where there is any.
    """

    unigram: float
    trigram: Likelihood | None


def baselines(corpus: Corpus, held_out: Corpus | None) -> Baselines:
    """Count the text: its entropy by single tokens, and a 3-gram model's loss on unseen text."""
    if held_out is None:
        return Baselines(entropy(corpus.counts()), None)
    specials = corpus.tokenizer().specials
    eos = specials.eos
    assert eos is not None
    enough = int(np.searchsorted(corpus.starts, FITTED))
    some = (corpus.document(i) for i in range(min(enough, corpus.documents)))
    model = KneserNey.fit(
        some,
        vocab=corpus.vocab,
        order=3,
        bos=eos if specials.bos is None else specials.bos,
        eos=eos,
    )
    losses = [model.nll(held_out.document(i)) for i in range(held_out.documents)]
    nats, tokens = sum(float(x.sum()) for x in losses), sum(map(len, losses))
    return Baselines(entropy(held_out.counts()), Likelihood(nats, tokens, held_out.bytes))


def parameters(model: nn.Module) -> int:
    """Count the parameters as papers do: once where tied, and no padding."""
    total = sum(p.numel() for p in model.parameters())
    tables = [m for m in model.modules() if isinstance(m, Table)]
    return total - sum((t.num_embeddings - t.vocab) * t.embedding_dim for t in tables)
