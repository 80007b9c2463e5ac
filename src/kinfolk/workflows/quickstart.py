"""The quickstart: three families trained and scored on the docstrings of the running Python."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinfolk.data import demo_text
from kinfolk.data.corpus import Corpus
from kinfolk.data.documents import read_documents
from kinfolk.data.prepare import prepare
from kinfolk.families import family_of
from kinfolk.nn.meta import count_parameters
from kinfolk.reports.page import write
from kinfolk.reports.run_page import LossPanel, ModelScore, Report, Sample, TextSpan, render
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.training.loop import Callback
from kinfolk.workflows.baselines import Baselines
from kinfolk.workflows.evaluate import SCORE_KINDS, evaluate
from kinfolk.workflows.folders import check_new_folder
from kinfolk.workflows.generate import fill, generate
from kinfolk.workflows.load import load
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import Recipe, recipe
from kinfolk.workflows.report import baseline_rows, loss_panels

# Chosen for the lowest loss within minutes on two cores.
VOCAB_SIZE = 512
LENGTH = 64
HOLDOUT = 0.02
MODELS = {
    "gpt2/tiny": [
        *("optimizer=muon", "steps=1400", "batch_size=16", "lr=8e-3", "warmup=30"),
        *("schedule=linear", "min_lr_ratio=0", "weight_decay=0"),
    ],
    "bert/tiny": [
        *("steps=760", "batch_size=64", "lr=1.5e-3", "warmup=60"),
        *("schedule=linear", "min_lr_ratio=0"),
    ],
    "t5/tiny": ["steps=460", "batch_size=48", "lr=2e-2", "warmup=50"],
}
EVALUATIONS = ("eval_every=50", "eval_batches=4")
MASK_RATE = 0.2  # of BERT and T5; 0.15 in the papers
PROMPT = "Return a list of"
MASKED_WORD = "This method can [MASK] used to read a file."
MASKED_SPAN = "If [MASK] argument is omitted, the default is used."


@dataclass(frozen=True)
class Quickstart:
    """The results of the quickstart: a score and a sample of each model, and the baselines."""

    scores: list[ModelScore]
    samples: list[Sample]
    baselines: Baselines
    page: Path


ProgressOf = Callable[[str], AbstractContextManager[Callback]]  # of the run of a model


def quickstart(out: Path, *, on_message: Callable[[str], None], progress: ProgressOf) -> Quickstart:
    """Train a tokenizer and three models, score them, generate samples and write the page."""
    check_new_folder(out, "remove it, or choose another -o")
    began = time.perf_counter()
    text = demo_text.write(out / "text")
    tokenizer = train_tokenizer(
        (d.text for d in read_documents([text])), kind="bpe", vocab_size=VOCAB_SIZE
    )
    tokenizer.save(out / "tokenizer")
    corpus = prepare([text], tokenizer=tokenizer, out=out / "corpus", holdout=HOLDOUT)
    held_out = Corpus.open(out / "corpus" / "holdout")
    on_message(
        f"{corpus.bytes / 1e6:.1f} MB of Python's docstrings: {corpus.documents:,} documents, "
        f"{corpus.tokens:,} tokens; {held_out.documents} documents held out"
    )
    scores, samples = [], []
    for name in MODELS:
        start = time.perf_counter()
        run = out / name.partition("/")[0]
        with progress(name) as callback:
            pretrain(model_recipe(name, out / "corpus"), run, callbacks=[callback])
        seconds = time.perf_counter() - start
        model, _ = load(run)
        score = evaluate(run, corpus=out / "corpus" / "holdout")
        scores.append(
            ModelScore(
                name,
                score.kind,
                score.loss,
                score.bits_per_byte,
                score.tokens,
                count_parameters(model),
                seconds,
                comparable=score.kind == SCORE_KINDS["decoder"],
            )
        )
        samples.append(sample_output(name, model, tokenizer))
    results = Quickstart(scores, samples, Baselines([(corpus, held_out, 1.0)]), out / "report.html")
    write_page(results, corpus, time.perf_counter() - began)
    return results


def model_recipe(name: str, corpus: Path) -> Recipe:
    """Return the recipe of one model; BERT is trained without next-sentence prediction."""
    settings = [f"train.{setting}" for setting in (*MODELS[name], *EVALUATIONS)]
    if not name.startswith("gpt2"):
        settings.append(f"objective.mask_rate={MASK_RATE}")
    if name.startswith("t5"):
        settings.append("model.mimetic_init=true")  # standard in BERT of this size
    objective = "mlm" if name.startswith("bert") else None
    return recipe(name, corpus, objective=objective, length=LENGTH, settings=settings)


def sample_output(name: str, model: Any, tokenizer: Tokenizer) -> Sample:
    """Return a sample of a model: a continuation, or a filled blank."""
    kind = family_of(model).architecture
    if kind == "decoder":
        text = generate(model, tokenizer, PROMPT, max_new_tokens=80, temperature=0.5, top_p=0.9)
        return Sample(
            name, "continues a text", PROMPT, [TextSpan(PROMPT), TextSpan(text, generated=True)]
        )
    heading, prompt = (
        ("fills a word", MASKED_WORD) if kind == "encoder" else ("fills a span", MASKED_SPAN)
    )
    options = {} if kind == "encoder" else {"max_new_tokens": 24}
    filled = fill(model, tokenizer, prompt, **options)
    before, after = prompt.split("[MASK]")
    inside = filled.text.removeprefix(before).removesuffix(after)
    return Sample(
        name, heading, prompt, [TextSpan(before), TextSpan(inside, generated=True), TextSpan(after)]
    )


def write_page(results: Quickstart, corpus: Corpus, seconds: float) -> None:
    """Write the page."""
    page = Report(
        title="Three families, one text",
        subtitle="A decoder, an encoder and an encoder-decoder, each trained for a few minutes on "
        "the docstrings of Python's standard library.",
        facts=[
            ("text", f"{corpus.bytes / 1e6:.1f} MB, {corpus.documents:,} documents"),
            ("vocabulary", f"{corpus.vocab_size:,} byte-level BPE tokens"),
            ("size", "tiny: 2 layers, hidden size 128"),
            ("time", f"{seconds / 60:.1f} minutes in total"),
        ],
        panels=[
            loss_panel(results.page.parent, score, color)
            for color, score in enumerate(results.scores)
        ],
        scores=results.scores,
        baselines=baseline_rows(results.baselines),
        samples=results.samples,
        notes=[
            "The curves are losses of different objectives: GPT-2 predicts every next token, BERT "
            "20% of the tokens (10% of these are left unchanged), T5 masked spans with their "
            "sentinels. For the bars every token of the held-out text is predicted once.",
            "BERT and T5 predict tokens from both sides, so their scores are pseudo-likelihoods, "
            "which are not comparable with log-likelihoods.",
        ],
    )
    write(render(page), results.page)


def loss_panel(folder: Path, score: ModelScore, color: int) -> LossPanel:
    """Return the losses of one model in its color, held-out text dashed."""
    name = score.model
    run = folder / name.partition("/")[0]
    kind = Recipe.read(run / "recipe.json").objective.loss_name
    panel = loss_panels(run, name, kind=kind, y="nats per token")[0]
    curves = [replace(curve, color=color, dashed=i > 0) for i, curve in enumerate(panel.curves)]
    title = f"{name}, {panel.title}"
    return replace(panel, title=title, curves=curves, with_baselines=score.comparable)
