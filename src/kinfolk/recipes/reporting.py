"""The page of one run: its curve, and the lines under it."""

from pathlib import Path

from kinfolk.comparison.charts import Series
from kinfolk.comparison.report import Baseline, Report, write
from kinfolk.data.shards import Corpus
from kinfolk.recipes.evaluation import Baselines, baselines
from kinfolk.recipes.recipe import Recipe
from kinfolk.training.log import read


def report(run: Path) -> Path:
    """Write RUN/report.html."""
    recipe = Recipe.read(run / "recipe.json")
    corpus = Corpus.open(Path(recipe.corpus))
    held_out = Path(recipe.corpus) / "holdout"
    found = baselines(corpus, Corpus.open(held_out) if held_out.is_dir() else None)
    train = recipe.train
    facts = [
        ("steps", f"{train.steps:,}"),
        ("rows a step", f"{train.batch} of {recipe.objective.length} tokens"),
        ("learns by", type(recipe.objective).__name__),
        ("corpus", f"{corpus.tokens:,} tokens, {corpus.documents:,} documents"),
        ("optimiser", f"{train.optimiser}, peak {train.peak:g}, {train.schedule}"),
        ("seed", str(train.seed)),
    ]
    page = Report(
        title=recipe.name,
        subtitle="the loss of one run, and what counting alone would reach",
        facts=facts,
        curves=curves(run, recipe.name),
        x="step",
        baselines=lines(found),
    )
    return write(page, run / "report.html")


def curves(run: Path, name: str) -> list[Series]:
    """Return the token loss of a run, in training and on held-out documents."""
    log = read(run)
    token = [(e["step"], e.get("parts", {}).get("tokens", e["loss"])) for e in log]
    held = [(e["step"], e["held_out"]) for e in log if "held_out" in e]
    found = [Series(name, [s for s, _ in token], [y for _, y in token])]
    if held and not any("parts" in e for e in log):
        found.append(Series(f"{name}, held out", [s for s, _ in held], [y for _, y in held]))
    return found


def lines(found: Baselines) -> list[Baseline]:
    """Return the baselines as the page wants them."""
    unigram = Baseline("unigram entropy", found.unigram)
    if found.trigram is None:
        return [unigram]
    trigram = found.trigram
    per_byte = found.unigram * trigram.tokens / trigram.bytes / 0.6931471805599453
    return [
        Baseline("unigram entropy", found.unigram, per_byte),
        Baseline("3-gram, Kneser-Ney", trigram.loss, trigram.bits_per_byte),
    ]
