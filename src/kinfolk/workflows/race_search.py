"""The documents on which a learning rate is chosen: every second one of those held out."""

import numpy as np

from kinfolk.data.chunks import InMemoryDocuments, TokenizedDocuments
from kinfolk.errors import UserError


def development_documents(held_out: TokenizedDocuments) -> InMemoryDocuments:
    """Return the documents with even numbers; those with odd ones are scored."""
    starts = held_out.starts
    if len(starts) < 3:
        raise UserError(
            "a search of learning rates needs two held-out documents: raise --holdout, or leave "
            "--search out"
        )
    documents = []
    for number in range(0, len(starts) - 1, 2):
        first, end = int(starts[number]), int(starts[number + 1])
        ids, sizes = held_out.ids(first, end), held_out.sentences(first, end)
        documents.append([part.tolist() for part in np.split(ids, np.cumsum(sizes)[:-1])])
    return InMemoryDocuments.from_lists(documents)
