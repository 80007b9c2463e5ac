"""The report of a run: values from its log, recipe and data, for the page."""

import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.config import read_json
from kinfolk.data.parallel_text import TargetDocuments
from kinfolk.nn.meta import parameter_count
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.reports.charts import Series
from kinfolk.reports.page import write
from kinfolk.reports.run_page import LossPanel, ReferenceScore, Report, SampleTimeline, render
from kinfolk.tasks.baselines import BASELINE_TITLES
from kinfolk.tasks.task import format_score, metric_title
from kinfolk.training import checkpoint
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import Processes
from kinfolk.training.log import alarms, read, samples, speed, speed_lines, token_loss
from kinfolk.training.provenance import Provenance
from kinfolk.workflows.baselines import Baselines, CountableText
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.prefix_tuning.recipe import PrefixRecipe
from kinfolk.workflows.recipe import Recipe

LOSS_TITLES = {
    "clm": "each token from those before it",
    "bptt": "each token from those before it",
    "bilm": "each token from those before it, and from those after it",
    "mlm": "masked tokens",
    "full_sentences": "masked tokens",
    "permutation": "tokens in a random order",
    "prefix": "each token after the prefix",
    "spans": "masked spans",
    "blanks": "masked spans",
    "pairs": "each token of the target",
    "nsp": "whether a sentence follows",
    "sop": "the order of two segments",
    "rtd": "which tokens are replaced",
    "label_smoothing": "what label smoothing adds",
    "lm": "each token after the prefix of its text",
    "discriminative": "which prefix a text belongs to",
    "kl": "guessed attributes that are not equally likely",
    "contrastive": "margin between the prefix of a text and the others",
    "label": "labels",
    "label_weights": "weights of label sets",
    "lm_auxiliary": "tokens of the labelled texts",
}
STEP_TIMES = {"seconds": "whole step", "wait_seconds": "waiting for the batch"}
MEMORY = {"memory_bytes": "in use", "peak_memory_bytes": "highest so far"}
STEP_LOG_KEYS = ("step", "loss", "lr", "grad_norm", "counts", "losses", "eval_losses")


def write_report(run: Path, baselines: Baselines | None = None, *, finished: bool = True) -> Path:
    """Write RUN/report.html, for a finished run or an interrupted one."""
    recipe = read_json(run / "recipe.json")
    if isinstance(recipe, FineTuneRecipe):
        report, kind = finetuning_report(recipe, run), "finetune"
    elif isinstance(recipe, PrefixRecipe):
        report, kind = prefix_report(recipe, run), "prefixes"
    else:
        report = pretraining_report(recipe, run, baselines or recipe_baselines(recipe))
        kind = "pretrain"
    report = replace(
        report,
        training=training_panels(run),
        timelines=sample_timelines(run),
        commands=commands(run, kind, finished=finished),
        recipe=(run / "recipe.json").read_text(encoding="utf-8"),
    )
    return write(render(report), run / "report.html")


def training_panels(run: Path) -> list[LossPanel]:
    """Return learning rate, gradient norm, speed, waiting and memory by step, where logged."""
    log, timed = read(run), speed_lines(run)
    wanted = [
        ("learning rate", "rate", log, {"lr": "learning rate"}, 1.0),
        ("gradient norm before clipping", "norm", log, {"grad_norm": "gradient norm"}, 1.0),
        ("throughput", "input tokens per second", timed, {"tokens_per_second": "tokens/s"}, 1.0),
        ("time of a step", "milliseconds", timed, STEP_TIMES, 1000.0),
        ("memory", "GB", timed, MEMORY, 1e-9),
    ]
    panels = []
    for title, y, lines, names, scale in wanted:
        curves = [
            Series(label, [e["step"] for e in found], [scale * e[name] for e in found])
            for name, label in names.items()
            if (found := [e for e in lines if e.get(name) is not None])
        ]
        if curves:
            panels.append(LossPanel(title=title, curves=curves, y=y))
    return panels


def sample_timelines(run: Path) -> list[SampleTimeline]:
    """Return what the model made of each prompt, by step."""
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for step, sample in samples(run):
        shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in sample.text)
        found.setdefault((sample.title, sample.prompt), []).append((step, shown))
    return [SampleTimeline(title, prompt, texts) for (title, prompt), texts in found.items()]


def commands(run: Path, kind: str, *, finished: bool) -> list[tuple[str, str]]:
    """Return the command that started a run, where, and the one that resumes it."""
    lines = []
    started = Provenance.read(run)
    if started is not None and started.command is not None:
        lines = [("started with", started.command), ("in the folder", started.folder)]
    if started is not None:
        versions = f"kinfolk {started.kinfolk}, torch {started.torch}, Python {started.python}"
        lines.append(("versions", versions))
    if not finished:
        command = Processes.from_environment().command(f"{kind} --resume {shlex.quote(str(run))}")
        lines.append(("resume with", command))
    return lines


def recipe_baselines(recipe: Recipe) -> Baselines:
    """Return the baselines of the tokens that a recipe predicts."""
    corpora = [(share.open(), share.held_out(), share.weight) for share in recipe.corpora]
    texts: list[tuple[CountableText, CountableText | None, float]] = [*corpora]
    if isinstance(recipe.objective, Seq2Seq):  # baselines for what is predicted
        texts = [
            (TargetDocuments(text), held_out and TargetDocuments(held_out), weight)
            for text, held_out, weight in corpora
        ]
    return Baselines(texts)


def pretraining_report(recipe: Recipe, run: Path, baselines: Baselines) -> Report:
    """Gather the loss curves of pretraining, and the baselines of the same tokens."""
    rows = baseline_rows(baselines)
    return Report(
        title=recipe.name,
        subtitle="Training and held-out loss, with unigram and 3-gram baselines.",
        facts=pretraining_facts(recipe, run),
        panels=loss_panels(run, recipe.name, kind=recipe.objective.loss_name, y="nats per token"),
        x="step" if recipe.model.counting_steps is None else "order",
        baselines=rows,
        alarms=alarm_messages(run),
        notes=passed_baselines(run, rows),
    )


def pretraining_facts(recipe: Recipe, run: Path) -> list[tuple[str, str]]:
    """Return the settings and the data of pretraining."""
    if recipe.model.counting_steps is not None:
        return counting_facts(recipe, run)
    length = recipe.objective.max_length
    return [
        ("parameters", f"{parameter_count(recipe.model):,}"),
        ("steps", step_words(recipe.train, run)),
        ("batch", f"{recipe.train.batch_size} sequences of {length} tokens"),
        ("objective", type(recipe.objective).__name__),
        *(("corpus", size) for size in corpus_sizes(recipe)),
        *training_facts(recipe.train, run),
    ]


def step_words(train: TrainConfig, run: Path) -> str:
    """Return the number of steps; of a run that ends by the clock, those that it has done."""
    if train.minutes is None:
        return f"{train.steps:,}"
    done = max((line["step"] for line in read(run)), default=0)
    return f"{done:,} (train.minutes={train.minutes:g})"


def counting_facts(recipe: Recipe, run: Path) -> list[tuple[str, str]]:
    """Return the settings of a run that counts, and the n-grams of its newest checkpoint."""
    config = run / "checkpoints" / "last" / "config.json"
    sizes = json.loads(config.read_text(encoding="utf-8"))["sizes"] if config.is_file() else []
    prune = " ".join(map(str, recipe.model.prune))
    return [
        ("order", str(recipe.model.order)),
        ("pruned up to a count of", prune or "0"),
        *((f"{order}-grams", f"{size:,}") for order, size in enumerate(sizes, 1)),
        *(("corpus", size) for size in corpus_sizes(recipe)),
        *speed_facts(run),
    ]


def corpus_sizes(recipe: Recipe) -> list[str]:
    """Return the size of each corpus; of several also the name and the fraction of rows."""
    total = sum(share.weight for share in recipe.corpora)
    sizes = []
    for share in recipe.corpora:
        name = Path(share.corpus).name
        size = f"{name}, which is not on this machine"
        if Path(share.corpus).is_dir():
            text = share.open()
            size = f"{text.tokens:,} tokens, {text.documents:,} documents"
        many = len(recipe.corpora) > 1
        sizes.append(f"{name}, {share.weight / total:.1%} of rows: {size}" if many else size)
    return sizes


def finetuning_report(recipe: FineTuneRecipe, run: Path) -> Report:
    """Gather the curves of fine-tuning, the dev scores of its best evaluation, and baselines."""
    scores: dict[str, Any] = {}
    if (run / "scores.json").is_file():
        scores = json.loads((run / "scores.json").read_text("utf-8"))
    baselines = scores.get("baselines", {})
    evaluations = [e for e in read(run) if "eval_loss" in e]
    steps = [e["step"] for e in evaluations]
    names = [name for name in recipe.main_metrics if evaluations and name in evaluations[0]]
    return Report(
        title=f"{recipe.name}: {', '.join(Path(file.train).name for file in recipe.datasets)}",
        subtitle="Training and dev loss, and scores on dev rows.",
        facts=[
            ("parameters", f"{parameter_count(recipe.model):,}"),
            ("steps", f"{recipe.train.steps:,}"),
            ("batch", f"{recipe.train.batch_size} examples"),
            ("task", ", ".join(formulation.task.kind for formulation in recipe.formulations)),
            ("formulation", recipe.formulations[0].name),
            ("initial weights", Path(recipe.init_from).name or "random"),
            *training_facts(recipe.train, run),
        ],
        panels=loss_panels(run, recipe.name, "dev", alternating=recipe.unlabelled is not None),
        metrics=[Series(metric_title(n), steps, [e[n] for e in evaluations]) for n in names],
        result_columns=["best checkpoint", *(BASELINE_TITLES[name] for name in baselines)],
        results=[
            (
                metric_title(name),
                *(
                    format_score(name, math.nan if value is None else value)
                    for value in (value, *(each.get(name) for each in baselines.values()))
                ),
            )
            for name, value in best_metrics(run).items()
        ],
        notes=scores.get("messages", ()),
        alarms=alarm_messages(run),
    )


def prefix_report(recipe: PrefixRecipe, run: Path) -> Report:
    """Gather the curves of prefixes, and how well they tell dev texts apart."""
    evaluations = [e for e in read(run) if "accuracy" in e]
    steps = [e["step"] for e in evaluations]
    scores = [e["accuracy"] for e in evaluations]
    return Report(
        title=f"prefixes of {recipe.name}: {recipe.file.name}",
        subtitle="Training and dev loss of each part, and texts told apart by their prefixes.",
        facts=[
            ("steps", f"{recipe.train.steps:,}"),
            ("batch", f"{recipe.train.batch_size} texts"),
            ("attributes", ", ".join(recipe.attributes)),
            ("labels", "none" if recipe.dataset is None else "of each text"),
            ("slots of a prefix", str(recipe.prefixes.prefix_length)),
            ("frozen model", recipe.init_from),
            *training_facts(recipe.train, run),
        ],
        panels=loss_panels(run, recipe.name, "dev", kind="lm", y="nats per token"),
        metrics=[Series(metric_title("accuracy"), steps, scores)] if steps else [],
        alarms=alarm_messages(run),
    )


def alarm_messages(run: Path) -> list[str]:
    """Return the alarms of a run, in words."""
    return [entry["message"] for entry in alarms(run)]


def passed_baselines(run: Path, baselines: Sequence[ReferenceScore]) -> list[str]:
    """Return when the held-out loss fell below each baseline, where it did."""
    evaluated = [e for e in read(run) if e.get("eval_loss") is not None]
    held_out = [(e["step"], token_loss(e, "eval_loss")) for e in evaluated]
    first = {
        line.name: next((step for step, loss in held_out if loss < line.loss), None)
        for line in baselines
    }
    return [
        f"The held-out loss is below the {name} from step {step:,}."
        for name, step in first.items()
        if step is not None
    ]


def training_facts(train: TrainConfig, run: Path) -> list[tuple[str, str]]:
    """Return the settings that both kinds of run have, and the speed."""
    return [
        ("optimizer", f"{train.optimizer}, lr {train.lr:g}, {train.schedule}"),
        ("seed", str(train.seed)),
        *speed_facts(run),
    ]


def speed_facts(run: Path) -> list[tuple[str, str]]:
    """Return the speed of a run, if it is known."""
    tokens_per_second = speed(run)
    if tokens_per_second is None:
        return []
    return [("speed", f"{tokens_per_second:,.0f} input tokens per second")]


def curves(
    run: Path, name: str, split: str = "held out", *, alternating: bool = False
) -> list[Series]:
    """Return the token loss of a run, in training and on held-out data.

    In an alternating run every second step is of unlabelled text; its loss is that of all views.
    """
    log = read(run)
    labelled = log[::2] if alternating else log
    series = [Series(name, [e["step"] for e in labelled], [token_loss(e) for e in labelled])]
    if alternating:
        views = log[1::2]
        series.append(
            Series(f"{name}, views", [e["step"] for e in views], [e["loss"] for e in views])
        )
    held_out = [e for e in log if "eval_loss" in e]
    if held_out:
        losses = [e["eval_loss"] if alternating else token_loss(e, "eval_loss") for e in held_out]
        series.append(Series(f"{name}, {split}", [e["step"] for e in held_out], losses))
    return series


def loss_panels(
    run: Path,
    name: str,
    split: str = "held out",
    *,
    kind: str = "label",
    y: str = "loss",
    alternating: bool = False,
) -> list[LossPanel]:
    """Return a panel for each kind of loss; the first, of tokens or labels, has the baselines.

    A log names the kinds only where there are several; `kind` is that of the first.
    """
    log = read(run)
    main = curves(run, name, split, alternating=alternating)
    parts = list(dict.fromkeys(part for entry in log for part in entry.get("losses") or ()))
    views = [main.pop(1)] if alternating else []
    panels = [LossPanel(title=loss_title(kind), curves=main, y=y, with_baselines=True)]
    if alternating:
        return [*panels, LossPanel(title="agreement of the views", curves=views, y="loss")]
    for part in parts[1:]:
        drawn = [(name, "losses"), (f"{name}, {split}", "eval_losses")]
        found = [
            (label, [e for e in log if part in (e.get(key) or {})], key) for label, key in drawn
        ]
        series = [
            Series(label, [e["step"] for e in entries], [e[key][part] for e in entries])
            for label, entries, key in found
            if entries
        ]
        panels.append(LossPanel(title=loss_title(part), curves=series, y="nats"))
    return panels


def loss_title(part: str) -> str:
    """Return the name of a component of the loss, and what is predicted."""
    return f"{part}: {LOSS_TITLES[part]}" if part in LOSS_TITLES else part


def best_metrics(run: Path) -> dict[str, Any]:
    """Return the logged metrics of the best checkpoint; empty without an evaluation."""
    best = run / "checkpoints" / "best"
    step = checkpoint.checkpoint_step(best) if best.exists() else 0
    lines = [e for e in read(run) if e["step"] == step and "eval_loss" in e]
    return {n: v for n, v in lines[0].items() if n not in STEP_LOG_KEYS} if lines else {}


def baseline_rows(baselines: Baselines) -> list[ReferenceScore]:
    """Return the baselines as the page shows them."""
    if baselines.trigram is None:
        return [ReferenceScore("unigram entropy", baselines.unigram)]
    trigram = baselines.trigram
    per_byte = baselines.unigram * trigram.tokens / trigram.bytes / math.log(2)
    return [
        ReferenceScore("unigram entropy", baselines.unigram, per_byte, is_unigram=True),
        ReferenceScore("3-gram, Kneser-Ney", trigram.loss, trigram.bits_per_byte),
    ]
