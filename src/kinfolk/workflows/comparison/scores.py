"""What the jobs of a comparison measure: likelihood by document, curves and costs of a run."""

from collections import Counter
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from kinfolk.batch import Loss, SegmentMemory
from kinfolk.config import from_json
from kinfolk.data.chunks import InMemoryDocuments, TokenizedDocuments
from kinfolk.data.corpus import Corpus
from kinfolk.data.datasets import evaluation_dataset
from kinfolk.errors import UserError
from kinfolk.nn.embeddings import TokenEmbedding
from kinfolk.nn.meta import count_parameters, meta_network
from kinfolk.training import log
from kinfolk.workflows.baselines import document_scores, fit_ngram, fit_unigram
from kinfolk.workflows.comparison.plan import PlannedEntrant
from kinfolk.workflows.evaluate import ENCODER_SCORERS, open_evaluation
from kinfolk.workflows.recipe import Recipe

CURVE_POINTS = 200  # of a loss curve
LIKELIHOOD, PSEUDO, BASELINE = "likelihood", "pseudo-likelihood", "baseline"


def non_embedding_parameters(model: nn.Module) -> int:
    """Count the parameters but for those of embedding tables."""
    tables = [m for m in model.modules() if isinstance(m, TokenEmbedding | nn.Embedding)]
    embedded = {id(p) for table in tables for p in table.parameters()}
    return sum(p.numel() for p in model.parameters() if id(p) not in embedded)


def parameter_counts(config: Any) -> tuple[int, int]:
    """Return the parameters of a network, and those outside of embedding tables."""
    model = meta_network(config)
    return count_parameters(model), non_embedding_parameters(model)


def run_facts(run: Path, entrant: PlannedEntrant) -> dict[str, Any]:
    """Return the cost and the loss curve of a finished run, from its logs."""
    lines = log.read(run)
    if entrant.gradient_free:
        return {"steps": len(lines), "seconds": None, "curve": None}
    speeds = log.speed_lines(run)
    # Those that were read: the plan has the mean over the first steps.
    tokens = round(sum(line["seconds"] * line["tokens_per_second"] for line in speeds))
    elapsed = [*accumulate(line["seconds"] for line in speeds)]
    every = max(1, len(lines) // CURVE_POINTS)
    shown = [
        n
        for n, line in enumerate(lines)
        if n % every == 0 or n == len(lines) - 1 or line.get("eval_loss") is not None
    ]
    return {
        "steps": len(lines),
        "seconds": elapsed[-1],
        "tokens": tokens,
        "flops": run_flops(entrant, steps=len(lines), tokens=tokens),
        "curve": {
            "steps": [lines[n]["step"] for n in shown],
            "seconds": [elapsed[n] for n in shown],
            "train_loss": [log.token_loss(lines[n]) for n in shown],
            "eval_loss": [
                None if lines[n].get("eval_loss") is None else log.token_loss(lines[n], "eval_loss")
                for n in shown
            ],
            "objective": entrant.objective,
        },
    }


def run_flops(entrant: PlannedEntrant, *, steps: int, tokens: int) -> float:
    """Return the FLOPs of a run, of steps that were counted on some of its batches.

    Rows that continue from batch to batch are never padded, and may be of random lengths.
    """
    cost, recipe = entrant.cost or {}, from_json(dict(entrant.recipe or {}), group="recipe")
    assert isinstance(recipe, Recipe)
    if recipe.objective.recurrent:
        return float(cost["flops"] * tokens / cost["tokens"])
    return cost["flops"] * steps


def model_likelihood(run: Path, corpus: Path, max_tokens: int, device: str) -> dict[str, Any]:
    """Score held-out documents by a pretrained model: nats and bytes of each."""
    evaluation = open_evaluation(run, corpus / "holdout", None, device=device)
    limited = isinstance(evaluation.scoring, ENCODER_SCORERS)
    documents = evaluation.document_scores(max_tokens=max_tokens if limited else None)
    kind = PSEUDO if evaluation.kind.startswith(PSEUDO) else LIKELIHOOD
    return {"kind": kind, "words": evaluation.kind, "documents": documents}


def ngram_likelihood(corpus: Corpus, order: int) -> dict[str, Any]:
    """Score held-out documents by an n-gram model of the training documents."""
    model = fit_unigram([corpus]) if order == 1 else fit_ngram([(corpus, 1.0)], order)
    return {
        "kind": BASELINE,
        "words": f"likelihood, left to right, of {order}-gram counts",
        "documents": document_scores(model, Corpus.open(corpus.folder / "holdout")),
    }


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


@torch.no_grad()
def development_loss(run: Path, recipe: Recipe) -> float:
    """Return the loss of the objective on every second held-out document: none that is scored."""
    holdout = Path(recipe.corpora[0].corpus) / "holdout"
    evaluation = open_evaluation(run, holdout, None, device=recipe.train.device)
    documents = development_documents(evaluation.documents)
    dataset = evaluation_dataset(recipe.objective, documents, rows=recipe.train.batch_size)
    total, counts = Loss({}), Counter[str]()
    model = evaluation.model.eval()
    device = next(model.parameters()).device
    memory: SegmentMemory | None = None
    for number in range(len(dataset)):
        batch = dataset[number].to(device).with_memory(memory)
        loss = recipe.objective.loss(model, batch)
        total, memory = total + loss, loss.memory
        counts.update(batch.counts)
    return float(total.mean(counts))


def scored_documents(result: dict[str, Any]) -> dict[str, Any]:
    """Return a likelihood of the documents that no search of a learning rate has read."""
    return {**result, "documents": result["documents"][1::2] or result["documents"]}
