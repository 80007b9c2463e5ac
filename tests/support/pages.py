"""Pages of made-up values, through the functions that make the real ones."""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from kinfolk.families import family
from kinfolk.reports import (
    audit_page,
    claims_page,
    evaluation_page,
    inspect_page,
    isotropy_page,
    lr_find_page,
    neurons_page,
    probe_page,
    race_page,
    run_page,
    tokenizers_page,
)
from kinfolk.reports.charts import (
    Bar,
    Bin,
    IntervalRow,
    Point,
    ReferenceLine,
    Series,
    bars,
    heatmap,
    histogram,
    interval_chart,
    line_chart,
    scatter,
)
from kinfolk.reports.page import environment
from kinfolk.text import train_tokenizer
from kinfolk.text.token_views import TokenView
from kinfolk.text.tokenizer_stats import TokenizerStats
from kinfolk.workflows.compare_tokenizers import comparison_of
from kinfolk.workflows.inspection.model_view import model_view
from kinfolk.workflows.inspection.page import inspect_page as inspected_page
from support.races import race

LONG = "electra/small (objective=rtd, objective.discriminator_weight=25)"
COUNTS = [[i * j for i in range(14)] for j in range(14)]
EVIL = "</script><img src=x onerror=alert(1)>"

# Texts that reach beyond the window, beyond a box that does not scroll, or beyond their drawing.
CUT_OFF = """() => {
  const cut = [];
  const scrolls = (node) => {
    for (; node; node = node.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(node).overflowX) && node.scrollWidth > node.clientWidth) return node;
    return null;
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode, parent = text.parentElement;
    if (!text.data.trim() || parent.closest("script, style, noscript, [hidden]") || !parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const drawing = parent.closest("svg");
    const box = (drawing || scrolls(parent))?.getBoundingClientRect();
    for (const rect of range.getClientRects()) {
      if (!rect.width) continue;
      if (drawing && (rect.left < box.left - 1 || rect.right > box.right + 1 || rect.top < box.top - 2 || rect.bottom > box.bottom + 2))
        cut.push(`drawing: ${text.data}`);
      if (!scrolls(parent) && (rect.left < -1 || rect.right > innerWidth + 1)) cut.push(`window: ${text.data}`);
    }
  }
  return cut;
}"""  # noqa: E501


def without_scripts(page: str) -> str:
    """Return a page less what stands inside its scripts."""
    return re.sub(r"(<script[^>]*>).*?</script>", r"\1</script>", page, flags=re.DOTALL)


def chart_json(chart: str) -> Any:
    """Return the data of a chart."""
    return json.loads(chart.partition('<script type="application/json">')[2].partition("</")[0])


def loss(name: str, start: float, end: float, steps: int = 500, noise: float = 0.12) -> Series:
    """Return a falling, noisy curve."""
    rng = random.Random(name)
    ys = [
        end + (start - end) * math.exp(-4.5 * i / steps) + rng.gauss(0, noise) for i in range(steps)
    ]
    return Series(name, range(1, steps + 1), ys)


def held_out(curve: Series, gap: float, color: int) -> Series:
    """Return a curve of few points above another one."""
    places = range(49, len(curve.xs), 50)
    xs, ys = ([values[i] for i in places] for values in (curve.xs, curve.ys))
    return Series(f"{curve.name}, held out", xs, [y + gap for y in ys], color, dashed=True)


def quickstart_page() -> str:
    """Return the page of three families."""
    shown = [
        ("gpt2/tiny", "clm: each token from those before it", 6.2, 2.9, True),
        ("bert/tiny", "mlm: masked tokens", 6.2, 3.4, False),
        ("t5/tiny", "spans: masked spans", 5.8, 1.9, False),
    ]
    panels = []
    for color, (name, title, start, end, likelihood) in enumerate(shown):
        curve = loss(name, start, end)
        curves = [Series(name, curve.xs, curve.ys, color), held_out(curve, 0.06, color)]
        panels.append(
            run_page.LossPanel(title=f"{name}, {title}", curves=curves, with_baselines=likelihood)
        )
    kinds = ["likelihood, left to right", "pseudo-likelihood, each token from all others"]
    kinds.append("pseudo-likelihood, each span from the text around it")
    scores = [
        run_page.ModelScore(name, kind, nats, bits, 91_234, 512_000, 95.0, comparable=likelihood)
        for (name, _, _, _, likelihood), kind, nats, bits in zip(
            shown, kinds, (2.91, 2.2, 2.5), (2.13, 1.61, 1.83), strict=True
        )
    ]
    filled = [run_page.TextSpan("Return "), run_page.TextSpan("True", generated=True)]
    return run_page.render(
        run_page.Report(
            title="Three families, one text",
            subtitle="A decoder, an encoder and an encoder-decoder, each trained for a few minutes "
            "on the docstrings of Python's standard library.",
            facts=[
                ("text", "2.9 MB, 14,117 documents"),
                ("vocabulary", "512 byte-level BPE tokens"),
                ("size", "tiny: 2 layers, hidden size 128"),
                ("time", "4.8 minutes in total"),
            ],
            panels=panels,
            scores=scores,
            baselines=[
                run_page.ReferenceScore("unigram entropy", 5.1, 3.74, is_unigram=True),
                run_page.ReferenceScore("3-gram, Kneser-Ney", 3.2, 2.35),
            ],
            samples=[
                run_page.Sample("gpt2/tiny", "continues a text", "Return a list of", filled),
                run_page.Sample("bert/tiny", "fills a word", EVIL, filled),
            ],
            notes=["BERT and T5 predict tokens from both sides."],
        )
    )


def run_report() -> str:
    """Return the page of a run whose loss has three parts, one of them with a name to escape."""
    name = EVIL
    main = loss(name, 9, 3.1, 3000)
    part = loss("nsp", 0.7, 0.3, 3000, 0.05)
    curves = [main, held_out(main, 0.05, 1)]
    rates = Series("learning rate", main.xs, [3e-4 * (1 - x / 3001) for x in main.xs])
    speed = Series("tokens/s", main.xs, [65_000 + 100 * y for y in part.ys])
    waited = Series("waiting for the batch", main.xs, [0.1 * y for y in part.ys])
    score = loss("accuracy", 0.2, 0.8, 12, 0.01)
    return run_page.render(
        run_page.Report(
            title="bert/mini",
            subtitle="Training and held-out loss, with unigram and 3-gram baselines.",
            facts=[("steps", "3,000"), ("corpus", "a" * 120)],
            panels=[
                run_page.LossPanel(title="mlm: masked tokens", curves=curves, with_baselines=True),
                run_page.LossPanel(title="nsp: whether a sentence follows", curves=[part]),
            ],
            metrics=[score, Series("BLEU", score.xs, [30 * y for y in score.ys])],
            training=[
                run_page.LossPanel(title="learning rate", curves=[rates], y="learning rate"),
                run_page.LossPanel(title="gradient norm before clipping", curves=[part], y="norm"),
                run_page.LossPanel(title="throughput", curves=[speed], y="input tokens per second"),
                run_page.LossPanel(title="time of a step", curves=[part, waited], y="milliseconds"),
                run_page.LossPanel(title="memory", curves=[part], y="GB"),
            ],
            timelines=[
                run_page.SampleTimeline(
                    "continues a text",
                    f"A dog carried {EVIL}",
                    [(step, "the letter by chance. " * (step // 500)) for step in (500, 3000)],
                )
            ],
            commands=[
                ("started with", f"kinfolk pretrain bert/mini --corpus {'c' * 150} -o runs/bert"),
                ("resume with", "kinfolk pretrain --resume runs/bert"),
            ],
            recipe=json.dumps({"name": EVIL, "train": {"lr": 0.0003}}, indent=2),
            results=[("accuracy", "0.8123", "0.5012", "0.7410")],
            result_columns=["best checkpoint", "majority", "TF-IDF + logistic regression"],
            baselines=[run_page.ReferenceScore("unigram entropy", 6.4)],
        )
    )


def evaluation() -> str:
    """Return the page of an evaluation with five classes, one of them with a long name."""
    labels = ["billing", "bug", "feature request", "a class with quite a long name", EVIL]
    counts = [
        [80 if row == column else (row + 2 * column) % 7 for column in range(5)] for row in range(5)
    ]
    classes = {n: {"precision": 0.9, "recall": 0.8, "f1": 0.85, "support": 95} for n in labels}
    bins = [(0.3, 0.35, 0.3, 41), (0.5, 0.56, 0.49, 120), (0.9, 0.97, 0.93, 1204)]
    return evaluation_page.render(
        evaluation_page.EvaluationPage(
            title="triage.tsv",
            rows=1365,
            metric="accuracy",
            score=0.842,
            formatted=("0.8420", "0.8210", "0.8615"),
            scores=[("accuracy", "0.8420"), ("macro F1", "0.8112"), ("Matthews", "0.7901")],
            confusion={"labels": labels, "counts": counts},
            class_heading="class",
            classes=classes,
            calibration=[
                {"low": low, "high": low + 0.1, "probability": p, "accuracy": a, "count": n}
                for low, p, a, n in bins
            ],
            calibration_error=0.031,
            lengths=[
                {"low": 10 * i, "high": 10 * i + 9, "rows": 300, "score": 0.9 - 0.04 * i}
                for i in range(4)
            ],
            errors=[
                {
                    "number": 17,
                    "text": "The invoice " + "of March " * 30 + EVIL,
                    "label": "billing",
                    "prediction": "feature request",
                    "probability": 0.981,
                }
            ]
            * 3,
            details=[("model", "runs/triage/checkpoints/best"), ("rows", "1,365")],
            notes=["3 rows are longer than the model's maximal length and were cut."],
        )
    )


def audit() -> str:
    """Return the page of an audit."""
    row = audit_page.FileRow(
        path="corpus/a/rather/deep/folder/with/a/long/name/part-00001.jsonl.zst",
        problems=["line 7 is not JSON"],
        documents=12_345,
        characters=9_876_543,
        lines=54_321,
        blank=17,
        bytes=4_000_000,
    )
    return audit_page.render(
        audit_page.AuditPage(
            title="2 files",
            lead="24,690 documents with 19.8M characters.",
            cards=[
                audit_page.FigureCard(name, "24,690", "in 2 files")
                for name in ("documents", "lines")
            ],
            findings=["corpus/part-00001.jsonl: line 7 is not JSON"],
            lengths=[
                (0, 2),
                *((1 << i, round(900 * math.exp(-((i - 9) ** 2) / 8))) for i in range(15)),
            ],
            shortest=0,
            longest=31_000,
            scripts={"Latin": 900_000, "Han": 50_000, "Greek": 2_000, "Cyrillic": 1_500},
            languages={"English": 800, "German": 120, "Chinese": 30, EVIL: 5},
            repeated_lines=[("All rights reserved.", 812)],
            exact_duplicates=[("a.txt:1", "b.txt:9", "All rights " * 20)],
            near_duplicates=[],
            files=[row, row],
        )
    )


def tokenizers() -> str:
    """Return the page that compares three tokenizers."""
    words = Counter(Latin=60, Han=40)
    measures = TokenizerStats(200, 100, 500, 5, Counter(Latin=150, Han=50), words)
    views = [TokenView(7, "token", "token"), TokenView(1, "[UNK]", f"[UNK]⟨{EVIL}⟩", unknown=True)]
    labels = [("runs/bpe", "bpe", 8192), ("runs/unigram", "unigram", 8192), (LONG, "word", 90)]
    return tokenizers_page.render(
        comparison_of(labels, [measures] * 3, [views * 20] * 3, held_out=True)
    )


def gallery() -> str:
    """Return a page with every kind of chart, and long names in each."""
    rows = [
        IntervalRow(name, value, value - 1.4, value + 1.2, note, muted, color, group)
        for group in ("16 labels", "all labels")
        for color, (name, value, note, muted) in enumerate(
            [
                ("gpt2/tiny", 71.2 + len(group), "3 seeds", False),
                (LONG, 78.4 + len(group), "3 seeds", False),
                ("TF-IDF + logistic regression", 74.9, "baseline", True),
            ]
        )
    ]
    points = [
        Point("gpt2/tiny", 2.1e12, 71.2, "3 min", 0, False, 69.8, 72.4),
        Point("bert/tiny", 3.4e12, 78.4, "3 min", 1, False, 77.0, 79.6),
        Point(LONG, 4.0e12, 79.0, "3 min", 2),
        Point("TF-IDF", 1e9, 74.9, "", 3, muted=True),
    ]
    charts = [
        line_chart(
            [loss(name, 7, 2 + i / 3) for i, name in enumerate(["gpt2", "t5", "glm", LONG])],
            [ReferenceLine("unigram", 5.9)],
            x="step",
            y="nats per token",
        ),
        line_chart(
            [Series("bert", [16, 64, 256, 1024], [0.5, 0.61, 0.7, 0.8])],
            x="labels",
            y="accuracy",
            log_x=True,
            smooth=False,
        ),
        bars(
            [Bar("gpt2", 1.5, "exact"), Bar(LONG, 2.5, muted=True, color=1)],
            [ReferenceLine("unigram", 2.2)],
            x="bits per byte",
        ),
        interval_chart(rows, [ReferenceLine("majority", 61.0)], x="accuracy, points", digits=1),
        scatter(points, x="FLOPs", y="accuracy, points", digits=1),
        heatmap(
            [str(i) for i in range(14)],
            [f"column {i}" for i in range(14)],
            COUNTS,
            x="prediction",
            y="reference",
        ),
        histogram(
            [Bin(str(i), str(i + 1), i * i) for i in range(9)], x="tokens", y="texts", digits=0
        ),
    ]
    template = environment().from_string(
        '{% extends "page.html" %}{% block title %}Charts{% endblock %}{% block content %}'
        "<h1>Charts</h1>{% for chart in charts %}<section><h2>{{ loop.index }}</h2>{{ chart }}"
        "</section>{% endfor %}{% endblock %}"
    )
    return template.render(charts=charts)


def race_report() -> str:
    """Return the page of a race."""
    return race_page.render(race())


def uneven_vectors() -> str:
    """Return the page of isotropy of a model of 7 layers."""
    layers = range(7)
    curves = [
        ("tokens", [0.1 + 0.05 * n for n in layers]),
        ("texts", [0.6 + 0.05 * n for n in layers]),
    ]
    names = ("none", "standardize", "remove-components-2", "whiten", "flow")
    values = isotropy_page.IsotropyPage(
        title=f"Isotropy of {LONG}",
        layers=[*layers],
        measures={"mean cosine": curves, "IsoScore": curves, "uniformity": curves}
        | {"alignment": [("similar texts", [0.3 - 0.02 * n for n in layers])]},
        similarity=[(0.5 + 0.05 * n, 0.45 + 0.05 * n, 0.54 + 0.05 * n) for n in layers],
        spectra={
            kind: [(f"layer {n}", [0.5 / 2**k for k in range(32)]) for n in layers]
            for kind in ("tokens", "texts")
        },
        transforms=[
            (
                name,
                (0.6 + 0.02 * n, 0.55 + 0.02 * n, 0.64 + 0.02 * n),
                (0.02 * n, 0.01 * n, 0.03 * n) if n else None,
                (0.9 - 0.2 * n, 0.1 + 0.1 * n, -1.5),
                0.25,
            )
            for n, name in enumerate(names)
        ],
        facts=[("model", LONG), ("texts", "4,000"), ("embeddings", "tied")],
        notes=["whitened vectors have 381 of 384 dimensions", EVIL],
    )
    return isotropy_page.render(values)


def probed_layers() -> str:
    """Return the page of the probes of a model of 13 layers."""

    def points(low: float, high: float) -> list[tuple[float, float, float]]:
        found = (low + (high - low) * math.sin(math.pi * n / 13) for n in range(13))
        return [(value, value - 0.02, value + 0.02) for value in found]

    names = ("linear", "one hidden layer")
    values = probe_page.ProbePage(
        title=f"Probes of {LONG}",
        metric="accuracy",
        scores=[
            ("linear", points(0.7, 0.9)),
            ("one hidden layer", points(0.75, 0.92)),
            ("linear, random weights", points(0.6, 0.65)),
        ],
        control=[(name, points(0.6, 0.7)) for name in names],
        selectivity=[(name, points(0.1, 0.2)) for name in names],
        mix_columns=["accuracy", "control task", "selectivity"],
        mixes=[
            *((name, [(0.91, 0.9, 0.92), (0.6, 0.58, 0.62), (0.31, 0.3, 0.32)]) for name in names),
            ("linear, random weights", [(0.66, 0.64, 0.68), None, None]),
        ],
        mix_weights=[1 / 13] * 13,
        mix_center=6.0,
        majority=0.18,
        facts=[("model", LONG), ("task", "tag, 17 labels"), ("seeds", "3")],
        notes=["no --test: 20 dev rows choose penalties, the other 20 are scored"],
    )
    return probe_page.render(values)


def knowledge_neurons() -> str:
    """Return the page of the knowledge neurons of 30 facts in a model of 12 layers."""
    names = ("suppressed, prompts they were found on", "amplified, other prompts of the facts")
    values = neurons_page.NeuronsPage(
        title=f"Knowledge neurons of {LONG}",
        effects=[
            neurons_page.EffectView(
                name,
                0.62,
                (-0.3 + 0.5 * n, -0.35 + 0.5 * n, -0.25 + 0.5 * n),
                (-0.01, -0.02, 0.0),
                (-0.29 + 0.5 * n, -0.34 + 0.5 * n, -0.24 + 0.5 * n),
                0.001,
            )
            for n, name in enumerate(names)
        ],
        over="facts",
        layers=[(f"layer {n}", n * n) for n in range(1, 13)],
        completeness=[(f"layer {n}", 0.01 * n, 0.01 * n) for n in range(1, 13)],
        highest=[(f"12.{40 * n}", 0.05 / n) for n in range(1, 11)],
        facts=[
            neurons_page.FactView(
                f"The capital of {n} {EVIL} is [MASK].", "Paris", 0.6, 0.1, 0.7, ["12.1042"] * n
            )
            for n in range(1, 31)
        ]
        + [neurons_page.FactView("The capital of Norway is [MASK].", "Oslo", 0.1, None, None, [])],
        settings=[("model", LONG), ("facts", "31")],
        notes=["A causal model reads what is before the blank; what follows is left out.", EVIL],
    )
    return neurons_page.render(values)


def rising_rates() -> str:
    """Return the page of a learning-rate range test."""
    rates = [10 ** (-6 + 6 * step / 99) for step in range(100)]
    smoothed = [6.2 - 1.2 / (1 + (2e-3 / rate) ** 2) + 3 * rate**2 for rate in rates]
    rng = random.Random(0)
    values = lr_find_page.LRFindPage(
        title=f"Learning rates of {EVIL}",
        rates=rates,
        losses=[loss + rng.gauss(0, 0.1) for loss in smoothed],
        smoothed=smoothed,
        suggestions=[("steepest descent", 2e-3), ("one tenth of where it diverges", None)],
        facts=[("model", "gpt2/nano, clm"), ("range", "1e-06 to 1 in 100 steps")],
        notes=["the loss does not diverge up to 1: use a higher --to"],
    )
    return lr_find_page.render(values)


def claims() -> str:
    """Return the page of claims: of text and of tasks, long names, and one that was not run."""

    def effect(value: float, half: float, **changes: Any) -> dict[str, Any]:
        verdict = "undecided" if abs(value) < half else "holds" if value > 0 else "reversed"
        found = {"first": "electra/small", "second": "bert/small", "unit": "points", "stage": ""}
        found |= {"value": value, "low": value - half, "high": value + half, "secondary": False}
        return found | {"verdict": verdict, "words": f"a gain of {value}: {verdict}"} | changes

    effects = {
        "electra": [
            effect(2.1, 0.8, stage="16 labels"),
            effect(0.4, 0.9, secondary=True, first=LONG, second="bert/small (objective=mlm)"),
        ],
        "next-sentence": [effect(-1.3, 0.6)],
        "recurrence": [effect(0.041, 0.02, unit="bits per byte", first="transformer_xl/small")],
        EVIL: [effect(0.003, 0.02, unit="bits per byte")],
        "not-run": [],
    }
    listed = [
        {
            "name": name,
            "sentence": f"{name} is better, at equal compute, than what came before it",
            "source": "Clark et al. 2020",
            "setting": "equal compute",
            "budget": "small, 2e13 FLOPs each, 3 seeds",
            "command": f"kinfolk claims {name} --corpus {'c' * 60} -o runs/claims",
            "verdict": found[0]["verdict"] if found else "not run",
            "words": found[0]["words"] if found else "not run: there is no task with pairs",
            "effects": found,
            "races": [name] if found else [],
            "text": "1.01 MB of text for training (1,028 documents), 99 kB held out",
        }
        for name, found in effects.items()
    ]
    return claims_page.render({"claims": listed, "scale": {"size": "small"}, "seeds": 3})


INSPECTED = "The quick fox jumps over a dog. It was not amused.\n\nA second text follows. It ends."


def inspection() -> str:
    """Return the page of a text through five families, and of networks that know nothing."""
    tokenizer = train_tokenizer([INSPECTED], kind="word", vocab_size=1000, fewer=True)
    page = inspected_page(INSPECTED, ["gpt2/nano", "bert/nano", "t5/nano", "xlnet/nano", "ngram/3"])
    models = []
    for name in ("gpt2", "t5", "ulmfit", "electra", "transformer_xl"):
        sizes = {"vocab_size": tokenizer.vocab_size, "decoder_start_token_id": 0}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = family(name).config("nano").with_fields(**sizes).build()
        models.append(model_view(f"{name} {EVIL}", model, tokenizer, INSPECTED))
    return inspect_page.render(replace(page, models=models, notes=[EVIL]))


PAGES: dict[str, Callable[[], str]] = {
    "quickstart": quickstart_page,
    "run": run_report,
    "evaluation": evaluation,
    "claims": claims,
    "audit": audit,
    "tokenizers": tokenizers,
    "lr-find": rising_rates,
    "inspect": inspection,
    "isotropy": uneven_vectors,
    "probe": probed_layers,
    "neurons": knowledge_neurons,
    "gallery": gallery,
    "race": race_report,
}
