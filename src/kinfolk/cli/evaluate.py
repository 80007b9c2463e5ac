"""The command `evaluate`: scores of a model on text, on labelled data or on sentence pairs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column as TableColumn

from kinfolk.cli.app import EVALUATE, AsJson, Device, Report, command, note, option, print_json
from kinfolk.cli.options import UsageError, given_options, option_name
from kinfolk.cli.predict import NullThreshold, TaskIndex
from kinfolk.cli.pretrain import Pairs, Source, SourcePrefix, Target
from kinfolk.cli.progress import row_progress
from kinfolk.cli.tables import numbers, print_facts, print_table, short, table
from kinfolk.errors import UserError
from kinfolk.workflows.folders import check_model_folder

if TYPE_CHECKING:
    from kinfolk.tasks.task import EvaluationResult
    from kinfolk.workflows.predict import Predictor

MAX_CLASSES = 20  # classes with their scores; the report has more
TEXT, LABELS, FEW_SHOT = "Language modeling", "Labelled data", "Zero-shot and few-shot"
SAMPLES = "Generated samples"
FEW_SHOT_OPTIONS = (
    "formulation",
    "num_fewshot",
    "fewshot_from",
    "task",
    "pattern",
    "verbalizer",
    "seed",
)
TEST_OPTIONS = (*FEW_SHOT_OPTIONS, "columns", "null_score_diff_threshold", "out")

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


@command("kinfolk evaluate runs/gpt2 --text chapter.txt --json", panel=EVALUATE)
def evaluate(
    context: typer.Context,
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="Run, checkpoint or model folder.")
    ] = None,
    text: Annotated[
        Path | None, option("FILE", "Text to score: loss, perplexity, bits per byte.", TEXT)
    ] = None,
    corpus: Annotated[Path | None, option("DIR", "Score a prepared corpus.", TEXT)] = None,
    length: Annotated[int | None, option("N", "Context length for scoring.", TEXT)] = None,
    test: Annotated[
        Path | None, option("FILE", "Test data: metrics, confusion matrix, errors.", LABELS)
    ] = None,
    columns: Annotated[
        str | None, option("LIST", "Text columns and label column: a,b,label.", LABELS)
    ] = None,
    out: Report = None,
    task_index: TaskIndex = 1,
    null_score_diff_threshold: NullThreshold = None,
    formulation: Annotated[
        str | None, option("prompt", "prompt: evaluate without fine-tuning.", FEW_SHOT)
    ] = None,
    num_fewshot: Annotated[
        int | None, option("N", "Labelled examples in the prompt.", FEW_SHOT)
    ] = None,
    fewshot_from: Annotated[
        Path | None, option("FILE", "File of the few-shot examples.", FEW_SHOT)
    ] = None,
    task: Annotated[
        str | None, option("NAME", "Task of the file: classify, choose ...", FEW_SHOT)
    ] = None,
    pattern: Annotated[
        str | None, option("TEXT", "Template, e.g. '{text} It was {answer}.'", FEW_SHOT)
    ] = None,
    verbalizer: Annotated[
        str | None, option("LIST", "One word per class: bad,good.", FEW_SHOT)
    ] = None,
    seed: Annotated[
        int | None, option("N", "Seed for drawing few-shot examples.", FEW_SHOT)
    ] = None,
    source: Source = None,
    target: Target = None,
    pairs: Pairs = None,
    source_prefix: SourcePrefix = None,
    samples: Annotated[
        Path | None, option("FILE", "Score generated texts without a model.", SAMPLES)
    ] = None,
    device: Device = "auto",
    json: AsJson = False,
) -> None:
    """Score a model on text (loss, perplexity, bits per byte) or on labelled data.

    Decoders are scored by the likelihood of the text; encoders by its pseudo-likelihood, with one
    token masked at a time; encoder-decoders likewise by spans. Pseudo-likelihoods are not
    comparable with likelihoods. `--test` adds a 95% bootstrap interval and a report; `--samples`
    measures distinct-n, repetition and self-BLEU, with `--corpus` also 3-gram perplexity.
    """
    given = given_options(context)
    few_shot = [name for name in FEW_SHOT_OPTIONS if name in given]
    if test is not None:
        if model is None or given & {"corpus", "text", "samples", "source", "pairs"}:
            raise UsageError(
                "--test needs MODEL and excludes --corpus, --text, --samples, --source and --pairs"
            )
        check_model_folder(model)
        for file in (test, target, fewshot_from):
            if file is not None and not file.is_file():
                raise UserError(f"no such file: {file}")
        if out is not None and out.is_dir():
            raise UsageError(f"{out} is a folder: -o must name a file, such as {out}/test.html")
        if few_shot and formulation not in (None, "prompt"):
            raise UsageError(
                f"--formulation {formulation}: evaluate supports prompt, or the formulation used "
                "in fine-tuning without this option"
            )
        if not few_shot and length is not None:
            raise UsageError("--length cannot be changed for a fine-tuned model")
        prompt = None
        if few_shot:
            prompt = {
                "train": fewshot_from,
                "shots": num_fewshot or 0,
                "seed": seed or 0,
                "task": task,
                "pattern": pattern,
                "words": None if verbalizer is None else verbalizer.split(","),
                "length": length,
            }
        evaluate_test(
            model,
            test,
            target=target,
            columns=columns,
            task_index=task_index,
            null_score_diff_threshold=null_score_diff_threshold,
            device=device,
            prompt=prompt,
            out=out,
            json=json,
        )
        return
    if needs_test := [name for name in TEST_OPTIONS if name in given]:
        raise UsageError(f"{option_name(needs_test[0])} requires --test FILE")
    from kinfolk.workflows.parallel import parallel_data

    texts = parallel_data(source=source, target=target, pairs=pairs, prefix=source_prefix)
    if samples is not None:
        if model is not None or texts is not None or given & {"text", "length"}:
            raise UsageError("--samples takes no MODEL and none of --text, --length, --source")
        print_samples(samples, corpus, json=json)
        return
    if model is None:
        raise UsageError("missing MODEL (or --samples FILE)")
    if texts is not None and (corpus is not None or text is not None):
        raise UsageError("sentence pairs cannot be combined with --corpus or --text")
    check_model_folder(model)
    values: dict[str, float | int | str]
    if texts is not None:
        texts.check()
        from kinfolk.workflows import translate

        values = translate.evaluate(model, texts, device=device)
    else:
        values = likelihood(model, corpus, text, length, device)
    if json:
        print_json(values)
        return
    formats = {float: ",.4f", int: ","}
    print_facts(
        (name.replace("_", " "), format(value, formats.get(type(value), "")))
        for name, value in values.items()
    )


def likelihood(
    model: Path, corpus: Path | None, text: Path | None, length: int | None, device: str
) -> dict[str, float | int | str]:
    """Return the scores of a model on a corpus or a text."""
    if (corpus is None) == (text is None):
        raise UsageError("give either --corpus or --text")
    if corpus is not None:
        from kinfolk.data.corpus import Corpus

        Corpus.open(corpus)
    if text is not None and not text.exists():
        raise UserError(f"no such file: {text}")
    from kinfolk.workflows.evaluate import open_evaluation

    found = open_evaluation(model, corpus, text, length, device)
    score = found.likelihood()
    return {
        "loss": score.loss,
        "perplexity": score.perplexity,
        "bits_per_byte": score.bits_per_byte,
        "tokens": score.tokens,
        "bytes": score.bytes,
        "kind": score.kind,
        **found.auxiliary_metrics(),
    }


def print_samples(samples: Path, corpus: Path | None, *, json: bool) -> None:
    """Print measures of generated texts, beside those of real text where there is a corpus."""
    from kinfolk.workflows.evaluate import measure_samples, samples_as_dict

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
    test: Path,
    *,
    target: Path | None,
    columns: str | None,
    task_index: int,
    null_score_diff_threshold: float | None,
    device: str,
    prompt: dict[str, Any] | None,
    out: Path | None,
    json: bool,
) -> None:
    """Score a model on labelled rows, print the scores and write a report."""
    from kinfolk.tasks.dataset import format_counts
    from kinfolk.tasks.error_analysis import to_plain
    from kinfolk.tasks.formats.base import ReadReport
    from kinfolk.tasks.formats.labelled_file import LabelledFile
    from kinfolk.workflows import predict

    report, notes = ReadReport(), list[str]()
    predictor: Predictor
    if prompt is None:
        predictor = predict.load_predictor(model, device=device, number=task_index - 1)
        file = LabelledFile(test, target=target)
        rows, spec = predict.read_test_file(predictor, file, columns=columns, report=report)
        notes = predict.format_notes(predictor, file, spec)
    else:
        predictor, rows = predict.few_shot_predictor(
            model, test, columns=columns, target=target, device=device, notes=report, **prompt
        )
    if null_score_diff_threshold is not None:
        predictor = predictor.with_null_score_diff_threshold(null_score_diff_threshold)
    predictor.task.check_references(rows)
    notes += [*report.messages(), *predict.truncation_report(predictor, rows)]
    notes += predictor.task.score_notes(rows)
    with row_progress("test", len(rows)) as watch:
        result = predict.evaluate_rows(predictor, rows, watch=watch)
    if result.unseen_labels:
        notes.append(
            f"{sum(result.unseen_labels.values()):,} test rows have labels not seen in training "
            f"(counted as errors): {format_counts(result.unseen_labels)}"
        )
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
        page = None if out is None else str(out)
        print_json({**result.scores, **to_plain(result), "page": page})
        return
    print_result(result)
    if out is not None:
        print(f"\nreport: {out}")


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
    confusion = error_analysis.confusion_table(result)
    if confusion is not None:
        names = [escape(str(label)) for label in confusion.labels]
        columns = [TableColumn(name, justify="right", overflow="ellipsis") for name in names]
        matrix = table("true \\ predicted", *columns)
        for name, counts in zip(names, confusion.counts, strict=True):
            matrix.add_row(name, *(f"{count:,}" if count else "·" for count in counts))
        print_table(matrix, "confusion matrix")
    classes = error_analysis.per_class_scores(result)
    if classes:
        rows = table("", *numbers("precision", "recall", "F1", "support"))
        for label, score in list(classes.items())[:MAX_CLASSES]:
            values = [f"{value:.3f}" for value in (score.precision, score.recall, score.f1)]
            rows.add_row(escape(label), *values, f"{score.support:,}")
        print_table(rows, "per-class metrics")
    worst = error_analysis.worst_errors(result)
    if worst:
        rows = table("line", "text", "label", "prediction", "probability")
        for error in worst:
            probability = "" if error.probability is None else f"{error.probability:.1%}"
            cells = (short(error.text), short(error.label), short(error.prediction))
            rows.add_row(f"{error.number:,}", *cells, probability)
        print_table(rows, "most confident errors")
