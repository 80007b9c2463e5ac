"""The command `evaluate`: scores of a model on text, on labelled data or on sentence pairs."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.markup import escape
from rich.table import Column, Table

from kinfolk.cli.app import (
    DEVICE,
    EVALUATE,
    FORCE,
    JSON,
    MAX_TOKENS,
    NULL_THRESHOLD,
    NUM_SENTENCES,
    REPORT,
    TASK_INDEX,
    TOKENIZER,
    command,
    option,
)
from kinfolk.cli.options import UsageError, option_group, option_name
from kinfolk.cli.output import (
    ProgressReporter,
    duration,
    note,
    numbers,
    print_facts,
    print_json,
    print_line,
    print_table,
    row_progress,
    saved_on_interrupt,
    short,
    table,
    visible,
)
from kinfolk.cli.pair_options import PAIRS, ScoredPairOptions
from kinfolk.errors import UserError
from kinfolk.workflows.folders import check_input_file, check_model_folder, check_new_page

if TYPE_CHECKING:
    from kinfolk.objectives.evaluation import LikelihoodScores
    from kinfolk.tasks.task import EvaluationResult
    from kinfolk.workflows.predict import Predictor

MAX_PRINTED_CLASSES = 20  # classes with their scores; the report has more
SECONDS_WITHOUT_ESTIMATE = 60  # of the time that scoring a text takes
LABELS = "Labelled data"
NOTHING_SCORED = "no score is complete and nothing was written; run the same command again"

# Measures of samples: their names and formats.
MEASURES = {
    "texts": ("texts", ",d"),
    "empty": ("empty texts", ",d"),
    "words": ("words per text", ",.1f"),
    **{f"distinct_{size}": (f"distinct-{size}", ".3f") for size in (1, 2, 3, 4)},
    "repetition_rate": ("words in repeated phrases", ".1%"),
    "loop_rate": ("texts that end in a loop", ".1%"),
    "self_bleu": ("self-BLEU", ".3f"),
    "perplexity": ("3-gram perplexity per token", ",.1f"),
}


@dataclass(frozen=True)
class TextOptions:
    """Options that name a text to score."""

    text: Path | None = option("FILE", "Text to score: loss, perplexity, bits per byte.")
    corpus: Path | None = option("DIR", "Score a prepared corpus.")
    length: int | None = option("N", "Context length for scoring.", max=MAX_TOKENS)
    max_tokens: int | None = option(
        "N", "Tokens that an encoder scores, evenly spread [default: 16384].", min=1, max=2**40
    )


@dataclass(frozen=True)
class TestOptions:
    """Options that name labelled data, and how they are scored."""

    test: Path | None = option(
        "FILE", "Test data: metrics, confusion matrix, errors.", panel=LABELS
    )
    columns: str | None = option("LIST", "Text columns and label column: a,b,label.", panel=LABELS)
    out: Path | None = REPORT
    force: bool = FORCE
    task_index: int = TASK_INDEX
    null_score_diff_threshold: float | None = NULL_THRESHOLD
    num_sentences: int | None = NUM_SENTENCES


@dataclass(frozen=True)
class FewShotOptions:
    """Options of a model that is evaluated without fine-tuning."""

    formulation: str | None = option("prompt", "prompt: evaluate without fine-tuning.")
    num_fewshot: int | None = option("N", "Labelled examples in the prompt.", max=MAX_TOKENS)
    fewshot_from: Path | None = option("FILE", "File of the few-shot examples.")
    task: str | None = option("NAME", "Task of the file: classify, choose ...")
    pattern: str | None = option("TEXT", "Template, e.g. '{text} It was {answer}.'")
    verbalizer: str | None = option("LIST", "One word per class: bad,good.")
    seed: int | None = option("N", "Seed for drawing few-shot examples.", min=0, max=2**63 - 1)

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def prompt(self) -> dict[str, Any]:
        """The settings of the prompt that were given."""
        return {name: value for name, value in self.given.items() if name != "formulation"}


@command("kinfolk evaluate runs/gpt2 --text chapter.txt --json", panel=EVALUATE)
@option_group("text", TextOptions, panel="Language modeling")
@option_group("test", TestOptions)
@option_group("few_shot", FewShotOptions, panel="Zero-shot and few-shot")
@option_group("pairs", ScoredPairOptions, panel=PAIRS)
def evaluate_command(
    model: Path | None = typer.Argument(
        None, metavar="MODEL", help="Run, checkpoint or model folder."
    ),
    *,
    text: TextOptions,
    test: TestOptions,
    few_shot: FewShotOptions,
    pairs: ScoredPairOptions,
    samples: Path | None = option(
        "FILE", "Score generated texts without a model.", panel="Generated samples"
    ),
    tokenizer: Path | None = TOKENIZER,
    device: str = DEVICE,
    json: bool = JSON,
) -> None:
    """Score a model on text (loss, perplexity, bits per byte) or on labelled data.

    Decoders are scored by the likelihood of the text; encoders by its pseudo-likelihood, with one
    token masked at a time; encoder-decoders likewise by spans. Pseudo-likelihoods are not
    comparable with likelihoods. `--test` adds a 95% bootstrap interval and a report; `--samples`
    measures distinct-n, repetition and self-BLEU, with `--corpus` also 3-gram perplexity. `--pair`
    gives BLEU and chrF of each direction, beside those of copied sources.
    """
    if test.test is not None:
        others = (text.corpus, text.text, samples, pairs.source, pairs.pairs, pairs.pair)
        if model is None or any(value is not None for value in others):
            raise UsageError(
                "--test needs MODEL and excludes --corpus, --text, --samples and sentence pairs"
            )
        evaluate_test(
            model,
            test,
            few_shot,
            target=pairs.target,
            length=text.length,
            tokenizer=tokenizer,
            device=device,
            json=json,
        )
        return
    scored = {
        name: value for name, value in vars(test).items() if name not in ("task_index", "force")
    }
    for name, value in (few_shot.given | scored).items():
        if value is not None:
            raise UsageError(f"{option_name(name)} requires --test FILE")
    parallel = pairs.sentence_pairs()
    if samples is not None:
        if any(value is not None for value in (model, parallel, text.text, text.length, tokenizer)):
            raise UsageError(
                "--samples takes no MODEL and none of --text, --length, --source, --tokenizer"
            )
        print_samples(samples, text.corpus, json=json)
        return
    if model is None:
        raise UsageError("missing MODEL (or --samples FILE)")
    if parallel is not None and (text.corpus is not None or text.text is not None):
        raise UsageError("sentence pairs cannot be combined with --corpus or --text")
    check_model_folder(model)
    values: dict[str, Any]
    if parallel is not None:
        parallel.check()
        from kinfolk.workflows.translation import translate

        values = translate.evaluate_translation(
            model, parallel, pivot=pairs.pivot, device=device, tokenizer=tokenizer
        )
        if parallel.directions and not json:
            for line in translate.score_lines(values):
                print_line(line)
            return
    else:
        values = likelihood(model, text, device, tokenizer)
    if json:
        print_json(values)
        return
    formats = {float: ",.4f", int: ","}
    print_facts(
        (name.replace("_", " "), format(value, formats.get(type(value), "")))
        for name, value in values.items()
    )


def report_estimate(progress: ProgressReporter, began: float, done: int, total: int) -> None:
    """Report the batches done; after the first, say what takes over a minute and how to cut it."""
    left = (time.monotonic() - began) * (total - 1)
    if done == 1 and left > SECONDS_WITHOUT_ESTIMATE:
        note(
            f"{total:,} batches take about {duration(left)}: to cut it, pass a part of the text, "
            "a smaller --length or, for an encoder, a smaller --max-tokens"
        )
    progress(done, total)


def likelihood(
    model: Path, text: TextOptions, device: str, tokenizer: Path | None
) -> dict[str, float | int | str]:
    """Return the scores of a model on a corpus or a text."""
    if (text.corpus is None) == (text.text is None):
        raise UsageError("give either --corpus or --text")
    if text.corpus is not None:
        from kinfolk.data.corpus import Corpus

        Corpus.open(text.corpus)
    if text.text is not None and not text.text.exists():
        raise UserError(f"no such file: {text.text}")
    if text.text is not None:
        from kinfolk.workflows.input_checks import check_text

        check_text(text.text)
    from kinfolk.workflows.evaluate import open_evaluation

    with saved_on_interrupt(lambda: NOTHING_SCORED), row_progress("evaluate") as progress:
        evaluation = open_evaluation(
            model, text.corpus, text.text, text.length, device, tokenizer=tokenizer
        )
        report = partial(report_estimate, progress, time.monotonic())
        score = evaluation.likelihood(progress=report, max_tokens=text.max_tokens)
        others = evaluation.auxiliary_metrics(progress=partial(progress.stage, "other metrics"))
    if score.sampled_from is not None:
        note(
            f"{score.tokens:,} of {score.sampled_from:,} tokens were scored, evenly spread: each "
            f"takes a forward pass of its own (--max-tokens {score.sampled_from} scores all)"
        )
    return {
        "loss": score.loss,
        "perplexity": score.perplexity,
        "bits_per_byte": score.bits_per_byte,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "kind": score.kind,
        **backward_scores(score),
        **({} if score.sampled_from is None else {"sampled_from": score.sampled_from}),
        **others,
    }


def backward_scores(score: "LikelihoodScores") -> dict[str, float]:
    """Return the scores from right to left of a bidirectional model; others have none."""
    if score.backward is None:
        return {}
    return {
        "backward_loss": score.backward.loss,
        "backward_perplexity": score.backward.perplexity,
        "backward_bits_per_byte": score.backward.bits_per_byte,
    }


def print_samples(samples: Path, corpus: Path | None, *, json: bool) -> None:
    """Print measures of generated texts, beside those of real text where there is a corpus."""
    from kinfolk.workflows.samples import measure_samples, samples_as_dict

    measured = zip(("samples", "real"), measure_samples(samples, corpus), strict=True)
    columns = {name: samples_as_dict(scores) for name, scores in measured if scores is not None}
    if json:
        earlier = {"repetition": "repetition_rate", "loops": "loop_rate"}  # keys that programs read
        print_json(
            {name: c | {old: c[new] for old, new in earlier.items()} for name, c in columns.items()}
        )
        return
    rows = table("", *numbers(*("samples", "real text")[: len(columns)]))
    for name in columns["samples"]:
        values = [column[name] for column in columns.values()]
        shown = ["-" if v is None else format(v, MEASURES[name][1]) for v in values]
        rows.add_row(MEASURES[name][0], *shown)
    print_table(rows)


def evaluate_test(
    model: Path,
    options: TestOptions,
    few_shot: FewShotOptions,
    *,
    target: Path | None,
    length: int | None,
    tokenizer: Path | None,
    device: str,
    json: bool,
) -> None:
    """Score a model on labelled rows, print the scores and write a report."""
    test, out = options.test, options.out
    assert test is not None
    check_test_options(model, options, few_shot, target=target, length=length)
    from kinfolk.tasks.formats.labelled_file import LabelledFile
    from kinfolk.workflows.input_checks import check_labels, check_rows
    from kinfolk.workflows.model_use import check_finetuned

    if not few_shot.given:
        check_finetuned(model)
    labelled = LabelledFile(test, target=target)
    check_rows(labelled)
    if not few_shot.given and options.columns is None and target is None:
        check_labels(model, labelled, options.task_index)
    from kinfolk.tasks.baselines import comparison_notes
    from kinfolk.tasks.dataset import format_counts
    from kinfolk.tasks.error_analysis import to_plain
    from kinfolk.tasks.formats.base import ReadReport
    from kinfolk.workflows import predict

    report, columns, notes = ReadReport(), options.columns, list[str]()
    if few_shot.given:
        predictor, rows = predict.few_shot_predictor(
            model,
            test,
            columns=columns,
            target=target,
            length=length,
            device=device,
            tokenizer=tokenizer,
            report=report,
            **few_shot.prompt,
        )
    else:
        predictor = predict.load_predictor(
            model, device=device, task_index=options.task_index, tokenizer=tokenizer
        )
        rows, spec = predict.read_test_file(predictor, labelled, columns=columns, report=report)
        notes = predict.format_notes(predictor, labelled, spec)
    if options.null_score_diff_threshold is not None:
        predictor = predictor.with_null_score_diff_threshold(options.null_score_diff_threshold)
    if options.num_sentences is not None:
        predictor = predictor.with_num_sentences(options.num_sentences)
    notes += [*report.messages(), *predict.truncation_report(predictor, rows)]
    notes += predictor.task.score_notes(rows)
    with saved_on_interrupt(lambda: NOTHING_SCORED), row_progress("test", len(rows)) as progress:
        result = predict.evaluate_rows(predictor, rows, watch=progress)
    if result.unseen_labels:
        notes.append(
            f"{sum(result.unseen_labels.values()):,} test rows have labels not seen in training "
            f"(counted as errors): {format_counts(result.unseen_labels)}"
        )
    notes += comparison_notes(result.task, result.baselines)
    for sentence in notes:
        note(sentence)
    if out is None and (model / "scores.json").is_file():
        out = model / f"test-{test.name.partition('.')[0]}.html"
    if out is not None:
        title = f"{model.resolve().name} on {test.name}"
        details = model_details(predictor, test)
        predict.write_evaluation_page(result, out, title=title, details=details, notes=notes)
    if json:
        # Scores are also at the top level, where programs look for `accuracy` or `f1`.
        print_json({**result.scores, **to_plain(result), "page": out})
        return
    print_result(result)
    if out is not None:
        print_line(f"\nreport: {out}")


def check_test_options(
    model: Path,
    options: TestOptions,
    few_shot: FewShotOptions,
    *,
    target: Path | None,
    length: int | None,
) -> None:
    """Refuse options that do not fit, before anything is imported that takes long."""
    check_model_folder(model)
    files = (options.test, target, few_shot.fewshot_from)
    for file in files:
        if file is not None:
            check_input_file(file)
    if options.out is not None:
        check_new_page(options.out, (*files, model), force=options.force)
    formulation = few_shot.given.get("formulation", "prompt")
    if formulation != "prompt":
        raise UsageError(
            f"--formulation {formulation}: evaluate supports prompt, or the formulation used in "
            "fine-tuning without this option"
        )
    if not few_shot.given and length is not None:
        raise UsageError("--length cannot be changed for a fine-tuned model")


def model_details(predictor: "Predictor", test: Path) -> list[tuple[str, str]]:
    """Return the facts about the model and the file that a report shows."""
    formulation = predictor.formulation
    examples = vars(formulation).get("examples")
    details = [
        ("task", predictor.task.kind),
        ("family", predictor.model.family_name),
        ("formulation", formulation.name),
        ("max length", f"{formulation.max_length:,}"),
        ("file", test.name),
    ]
    if predictor.task.labels:
        details.append(("labels", f"{len(predictor.task.labels):,}"))
    return details if examples is None else [*details, ("few-shot examples", str(len(examples)))]


def baseline_table(result: "EvaluationResult") -> Table:
    """Return the scores of the model and of the baselines that need no training rows."""
    from kinfolk.tasks.baselines import BASELINE_TITLES
    from kinfolk.tasks.task import metric_title

    rows = table("", *numbers(*map(metric_title, result.scores)))
    rows.add_row("model", *(f"{value:.3f}" for value in result.scores.values()))
    for baseline in result.baselines:
        bounds = [baseline.scores[name] for name in result.scores]
        cells = (f"{b.score:.3f} [{b.low:.3f}, {b.high:.3f}]" for b in bounds)
        rows.add_row(BASELINE_TITLES[baseline.name], *map(escape, cells))
    return rows


def print_result(result: "EvaluationResult") -> None:
    """Print scores, confusion matrix, per-class metrics and the most confident errors."""
    from kinfolk.tasks import error_analysis
    from kinfolk.tasks.task import format_score, metric_title

    main, bounds = result.task.main_metric, result.confidence_interval
    scores = table()
    for name, value in result.scores.items():
        low, high = format_score(name, bounds.low), format_score(name, bounds.high)
        interval = escape(f"[95% CI {low}, {high}]") if name == main else ""
        scores.add_row(metric_title(name), format_score(name, value), interval)
    scores.add_row("rows", f"{len(result.rows):,}", "")
    print_table(scores)
    if result.baselines:
        print_table(baseline_table(result), "beside baselines, with 95% confidence intervals")
    confusion = error_analysis.confusion_table(result)
    if confusion is not None:
        names = [escape(visible(str(label))) for label in confusion.labels]
        columns = [Column(name, justify="right", overflow="ellipsis") for name in names]
        matrix = table("true \\ predicted", *columns)
        for name, counts in zip(names, confusion.counts, strict=True):
            matrix.add_row(name, *(f"{count:,}" if count else "·" for count in counts))
        print_table(matrix, "confusion matrix")
    classes = error_analysis.per_class_scores(result)
    if classes:
        rows = table("", *numbers("precision", "recall", "F1", "support"))
        for label, score in list(classes.items())[:MAX_PRINTED_CLASSES]:
            values = [f"{value:.3f}" for value in (score.precision, score.recall, score.f1)]
            rows.add_row(escape(visible(label)), *values, f"{score.support:,}")
        print_table(rows, "per-class metrics")
    worst = error_analysis.worst_errors(result)
    if worst:
        rows = table("line", "text", "label", "prediction", "probability")
        for error in worst:
            probability = "" if error.probability is None else f"{error.probability:.1%}"
            cells = (short(error.text), short(error.label), short(error.prediction))
            rows.add_row(f"{error.number:,}", *cells, probability)
        print_table(rows, "most confident errors")
