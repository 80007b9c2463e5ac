"""The page of one run: its curve, and the lines under it."""

from pathlib import Path

from kinfolk.data.parallel_text import TargetDocuments
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.reports.charts import Series
from kinfolk.reports.run_page import Baseline, Report, write
from kinfolk.training.log import read, speed, token_loss
from kinfolk.workflows.evaluate import Baselines, CountableText, mixture_baselines
from kinfolk.workflows.recipe import Recipe


def report(run: Path) -> Path:
    """Write RUN/report.html."""
    recipe = Recipe.read(run / "recipe.json")
    texts = [(share.open(), share.held_out(), share.weight) for share in recipe.corpora]
    lined: list[tuple[CountableText, CountableText | None, float]] = [*texts]
    if isinstance(recipe.objective, Seq2Seq):  # lines for what is predicted
        lined = [
            (TargetDocuments(text), held and TargetDocuments(held), weight)
            for text, held, weight in texts
        ]
    found = mixture_baselines(lined)
    train = recipe.train
    facts = [
        ("steps", f"{train.steps:,}"),
        ("rows a step", f"{train.batch_size} of {recipe.objective.max_length} tokens"),
        ("learns by", type(recipe.objective).__name__),
        *corpora(recipe),
        ("optimiser", f"{train.optimizer}, peak {train.lr:g}, {train.schedule}"),
        ("seed", str(train.seed)),
    ]
    if (tokens_per_second := speed(run)) is not None:
        facts.append(("speed", f"{tokens_per_second:,.0f} input tokens a second"))
    page = Report(
        title=recipe.name,
        subtitle="the loss of one run, and what counting alone would reach",
        facts=facts,
        curves=curves(run, recipe.name),
        x="step",
        baselines=baseline_rows(found),
    )
    return write(page, run / "report.html")


def corpora(recipe: Recipe) -> list[tuple[str, str]]:
    """Say what text a run learned from, a line a corpus."""
    whole = sum(share.weight for share in recipe.corpora)
    facts = []
    for share in recipe.corpora:
        text = share.open()
        said = f"{text.tokens:,} tokens, {text.documents:,} documents"
        if len(recipe.corpora) > 1:
            said = f"{text.folder.name}, {share.weight / whole:.1%} of rows: {said}"
        facts.append(("corpus", said))
    return facts


def curves(run: Path, name: str) -> list[Series]:
    """Return the token loss of a run, in training and on held-out documents."""
    log = read(run)
    held = [e for e in log if "eval_loss" in e]
    found = [Series(name, [e["step"] for e in log], [token_loss(e) for e in log])]
    if held:
        losses = [token_loss(e, "eval_loss") for e in held]
        found.append(Series(f"{name}, held out", [e["step"] for e in held], losses))
    return found


def baseline_rows(found: Baselines) -> list[Baseline]:
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
