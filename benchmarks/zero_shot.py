"""Zero-shot translation: German and Chinese without a single German-Chinese pair in training.

python benchmarks/zero_shot.py --data DATA --out runs/zero-shot
python benchmarks/zero_shot.py --data DATA --out runs/zero-shot --device cuda --size small \
    --steps 20000 --pretrain-steps 20000 --batch 128 --test-rows 997
python benchmarks/zero_shot.py --data DATA --out runs/zero-shot --device cuda --size small \
    --jobs 6 --pretrain-minutes 10 --minutes 30 --batch 64

A Transformer learns English-German (Multi30k, WMT) and English-Chinese (Tatoeba), in both
directions, with a tag for the target language (Johnson et al. 2017). One model starts from random
weights; one from an encoder that predicted masked tokens of text in the three languages, with a
decoder that starts from random values (a multilingual masked-LM encoder); one from span corruption
of the same text, where both are trained. "Denoising" adds sentences without some of their words and
the whole sentences as more pairs, en-en, de-de and zh-zh (after Siddhant et al. 2020): where every
German source becomes English, a model need not read the tag. All have one tokenizer and as many
steps on pairs, or as many minutes: with --minutes the learning rate is constant and falls to 0 in
the last fifth. With --jobs, the text before the pairs is learned first, and then that many variants
train at a time.

German-Chinese and Chinese-German of FLORES and of the questions of XQuAD are translated directly
and through English, beside copied sources and beside outputs that belong to other sentences, which
show what a model scores that writes the language and does not read the source. Scores have 95%
bootstrap intervals over sentences. A line of JSON for each score is appended to
OUT/scores.jsonl. What a run has translated is in its folder and not translated again.
"""

import argparse
import gzip
import json
import lzma
import multiprocessing
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

LANGUAGES = {"en": "English", "de": "German", "zh": "Chinese"}
FLORES = {"en": "eng_Latn", "de": "deu_Latn", "zh": "zho_Hans"}
TRAINED, ZERO_SHOT = ("en-de", "de-en", "en-zh", "zh-en"), ("de-zh", "zh-de")
STARTS = {"masked LM": "mlm", "spans": "spans"}  # objectives of the text before the pairs
VARIANTS = (
    "pairs alone",
    *(f"{start}, then pairs" for start in STARTS),
    "pairs and denoising",
    *(f"{start}, then pairs and denoising" for start in STARTS),
)
RESAMPLES, DEV_ROWS, LENGTH = 200, 200, 128
ARTICLE_LINES = 30_000  # of each Wikipedia
NOISE = 0.3  # share of words that are left out
CHARACTERS = {"en": (20, 250), "de": (20, 250), "zh": (7, 80)}  # of sentences that denoising adds
SENTENCE_MARKS = (".", "!", "?", "。", "！", "？")
SENTENCE_END = re.compile(r"(?<=[。！？])|(?<=[.!?]) +(?=[A-Z])")
DECAY = 0.2  # share of the minutes in which the learning rate falls
ROWS = 300  # texts that are translated at once
# Moses-tokenized text: marks that stand apart join the word beside them.
JOINED = (
    (r" ([.,;:!?%)\]”])", r"\1"),
    (r"([(\[„]) ", r"\1"),
    (r" ?@-@ ?", "-"),
    (r" ' ?s\b", "'s"),
)
ENTITIES = (("&apos;", "'"), ("&quot;", '"'), ("&amp;", "&"), ("&#91;", "["), ("&#93;", "]"))

Lines = list[str]
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Score:
    """The score of one way to translate a direction, with its interval."""

    seed: int
    variant: str
    test: str
    direction: str
    way: str
    metric: str
    score: float
    low: float
    high: float
    in_language: float  # share of outputs that are in the target language, as guessed by words


def read(path: Path) -> Lines:
    """Read a text file, compressed or not."""
    packed = path.with_name(path.name + ".gz")
    path = packed if packed.exists() else path
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    with openers.get(path.suffix, open)(path, "rt", encoding="utf-8") as stream:
        return stream.read().split("\n")[:-1]


def detokenized(line: str) -> str:
    """Return Moses-tokenized text as it is written."""
    for entity, character in ENTITIES:
        line = line.replace(entity, character)
    for pattern, joined in JOINED:
        line = re.sub(pattern, joined, line)
    return line


def training_pairs(data: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs of each two languages, shuffled once; the last ones are for development."""
    sides = [[*read(data / "multi30k_en_de" / f"train.{x}")] for x in ("en", "de")]
    for side, x in zip(sides, ("en", "de"), strict=True):
        side += map(detokenized, read(data / "wmt_en_de_10k" / f"train.{x}"))
    rows = [line.split("\t") for line in read(data / "tatoeba_en_zh" / "cmn.txt.xz")]
    found = {
        "en-de": [(a.strip(), b.strip()) for a, b in zip(*sides, strict=True)],
        "en-zh": [(row[0].strip(), row[1].strip()) for row in rows],
    }
    for pairs in found.values():
        random.Random(0).shuffle(pairs)
    return {name: [pair for pair in pairs if all(pair)] for name, pairs in found.items()}


def test_sets(data: Path, rows: int) -> dict[str, dict[str, Lines]]:
    """Return sentences in the three languages, line by line."""

    def questions(path: Path) -> dict[str, str]:
        articles = json.loads(gzip.decompress(path.read_bytes()))["data"]
        paragraphs = [p for article in articles for p in article["paragraphs"]]
        return {q["id"]: " ".join(q["question"].split()) for p in paragraphs for q in p["qas"]}

    asked = {
        "en": questions(data / "squad" / "dev-v1.1.json.gz"),
        **{x: questions(data / "xquad" / f"xquad.{x}.json.gz") for x in ("de", "zh")},
    }
    ids = [id for id in asked["de"] if id in asked["en"] and id in asked["zh"]]
    flores = {x: read(data / "flores200" / "dev" / f"{FLORES[x]}.dev")[:rows] for x in LANGUAGES}
    return {"FLORES": flores, "XQuAD": {x: [asked[x][id] for id in ids[:rows]] for x in LANGUAGES}}


def without_words(line: str, language: str, chance: random.Random) -> str:
    """Leave out some words, or Chinese characters; at least one stays."""
    units = re.findall(r"[A-Za-z0-9]+|.", line) if language == "zh" else line.split()
    kept = [unit for unit in units if chance.random() >= NOISE] or units[:1]
    return ("" if language == "zh" else " ").join(kept)


def sentences_of(lines: Lines, language: str) -> Iterator[str]:
    """Yield the sentences of articles that are neither headings nor long."""
    shortest, longest = CHARACTERS[language]
    for line in lines:
        for sentence in map(str.strip, SENTENCE_END.split(line)):
            if shortest <= len(sentence) <= longest and sentence.endswith(SENTENCE_MARKS):
                yield sentence


def write(lines: Lines, path: Path) -> Path:
    """Write lines to a file."""
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def prepare_data(data: Path, work: Path, vocab: int, denoised: int) -> None:
    """Write the pairs, text of each language with its corpus, and the tokenizer of all runs."""
    from kinfolk import prepare
    from kinfolk.data.prepare import train_tokenizer

    text: dict[str, Lines] = {x: [] for x in LANGUAGES}
    for name, pairs in training_pairs(data).items():
        for language, side in zip(name.split("-"), zip(*pairs, strict=True), strict=True):
            write([*side[:-DEV_ROWS]], work / f"{name}.{language}")
            write([*side[-DEV_ROWS:]], work / f"dev-{name}.{language}")
            text[language] += side[:-DEV_ROWS]
    more = {"de": [*map(detokenized, read(data / "wmt_en_de_10k" / "val.de"))]}
    for language in ("en", "zh"):
        articles = (line for line in read(data / f"wiki_{language}" / "train.txt.xz") if line)
        more[language] = [line for line, _ in zip(articles, range(ARTICLE_LINES), strict=False)]
    chance = random.Random(0)
    for language, lines in text.items():
        others = sentences_of(more[language], language)
        whole = lines + [line for line, _ in zip(others, range(denoised), strict=False)]
        noisy = [without_words(line, language, chance) for line in whole]
        write(noisy, work / f"noise-{language}.txt")
        write(whole, work / f"whole-{language}.txt")
        lines += more[language]
    # A blank line ends a document.
    files = [write(["\n\n".join(lines)], work / f"text.{x}.txt") for x, lines in text.items()]
    tokenizer = train_tokenizer(files, vocab_size=vocab, languages=[*LANGUAGES])
    tokenizer.save(work / "tokenizer")
    for language, file in zip(text, files, strict=True):
        prepare([file], tokenizer, work / f"text-{language}", holdout="1%")


def without_baselines() -> AbstractContextManager[Any]:
    """Leave out reports and the baselines of loss: counting 3-grams takes many seconds."""
    from kinfolk.workflows.pretrain import PretrainWorkload

    return patch.multiple(
        PretrainWorkload,
        write_report=lambda work, folder, finished: None,
        loss_baselines=lambda work: (),
    )


def settings(steps: int, minutes: float | None, seed: int, said: argparse.Namespace) -> list[str]:
    """Return the training settings of a run; with minutes it ends by the clock."""
    values = {"seed": seed, "device": said.device, "batch_size": said.batch, "lr": said.lr}
    if minutes is None:
        values |= {"steps": steps, "warmup": max(1, min(said.warmup, steps // 4))}
        values |= {"eval_every": max(1, steps // 4), "save_every": steps, "keep_checkpoints": 1}
    else:
        values |= {"minutes": minutes, "warmup": said.warmup}
        values |= {"schedule": "trapezoid", "decay_ratio": DECAY}
    dropout = f"model.dropout={said.dropout}"
    return [*(f"train.{key}={value}" for key, value in values.items()), dropout, *said.set]


def done(name: str, run: Path, began: float) -> str:
    """Return what a run has done, in a line."""
    last = json.loads((run / "log.jsonl").read_text("utf-8").splitlines()[-1])
    return f"{name}: {last['step']:,} steps, {time.perf_counter() - began:.0f} s"


def start_of(variant: str) -> str | None:
    """Return the objective of the text that a variant learns before the pairs."""
    return STARTS.get(variant.partition(", then ")[0])


def learn_text(start: tuple[int, str], said: argparse.Namespace) -> None:
    """Train a model on text, if that was not done before."""
    import kinfolk
    from kinfolk.workflows.pretrain import pretrain

    seed, objective = start
    run = said.out / f"{objective}-{seed}"
    if run.exists():
        return
    chosen = settings(said.pretrain_steps, said.pretrain_minutes, seed, said)
    corpora = [said.out / f"text-{x}" for x in LANGUAGES]
    name = f"transformer/{said.size}"
    recipe = kinfolk.recipe(name, corpora, objective=objective, length=LENGTH, settings=chosen)
    began = time.perf_counter()
    with without_baselines() if said.pretrain_minutes is not None else nullcontext():
        pretrain(recipe, run)
    print(done(f"{objective}, seed {seed}", run, began), flush=True)


def train(seed: int, variant: str, said: argparse.Namespace) -> Path:
    """Train a variant on pairs, if that was not done before; return its run."""
    from kinfolk.data.parallel_text import ParallelText
    from kinfolk.workflows.pretrain import resume
    from kinfolk.workflows.translation.parallel import LanguagePair, MultilingualData
    from kinfolk.workflows.translation.translate import prepare_translation_run

    work: Path = said.out
    run = work / f"{variant.replace(', ', '-').replace(' ', '-')}-{seed}"
    if run.exists():
        return run

    def pairs(split: str) -> tuple[LanguagePair, ...]:
        files = {n: [work / f"{split}{n}.{x}" for x in n.split("-")] for n in ("en-de", "en-zh")}
        return tuple(
            LanguagePair(*n.split("-"), ParallelText(source, target))
            for n, (source, target) in files.items()
        )

    denoising = tuple(
        LanguagePair(x, x, ParallelText(work / f"noise-{x}.txt", work / f"whole-{x}.txt"))
        for x in LANGUAGES
    )
    texts = MultilingualData(
        train=pairs("") + (denoising if "denoising" in variant else ()),
        dev=pairs("dev-"),
        tokenizer=work / "tokenizer",
    )
    began, objective = time.perf_counter(), start_of(variant)
    start = f"transformer/{said.size}" if objective is None else str(work / f"{objective}-{seed}")
    chosen = settings(said.steps, said.minutes, seed, said)
    prepare_translation_run(start, texts, run, objective="pairs", length=LENGTH, settings=chosen)
    with without_baselines() if said.minutes is not None else nullcontext():
        resume(run)
    print(done(f"{variant}, seed {seed}", run, began), flush=True)
    return run


def translations(
    run: Path, tests: dict[str, dict[str, Lines]], device: str
) -> Iterator[tuple[str, str, str, Lines]]:
    """Yield the test set, the direction, the way and the outputs, which are kept in the run."""
    from kinfolk.generation.generate import transform_lines
    from kinfolk.workflows.translation.languages import find_route
    from kinfolk.workflows.translation.translate import load_translator

    opened: list[Any] = []

    def translated(lines: Lines, target: str, pivot: str | None) -> Lines:
        opened[:] = opened or load_translator(run, device)
        model, tokenizer = opened
        for tags in find_route(run, tokenizer, target, pivot):
            lines = [*transform_lines(model, tokenizer, lines, tags=tags, batch_size=ROWS)]
        return lines

    for direction in (*ZERO_SHOT, *TRAINED):
        source, target = direction.split("-")
        for test, texts in tests.items():
            ways = {"direct": None, "through English": "en"}
            for way, pivot in ways.items() if direction in ZERO_SHOT else [("direct", None)]:
                file = run / f"{test}-{direction}-{way.replace(' ', '-')}.txt"
                if not file.exists():
                    write(translated(texts[source], target, pivot), file)
                outputs = read(file)
                yield test, direction, way, outputs
                if way == "direct":
                    yield test, direction, "of other sentences", [*outputs[1:], outputs[0]]
            yield test, direction, "copied sources", texts[source]


def score(
    seed: int, variant: str, run: Path, tests: dict[str, dict[str, Lines]], device: str
) -> Iterator[Score]:
    """Yield BLEU and chrF of every way to translate."""
    from kinfolk.metrics.bootstrap import confidence_interval
    from kinfolk.metrics.text import BLEU, CHRF
    from kinfolk.text.unicode import guess_language

    for test, direction, way, outputs in [*translations(run, tests, device)]:  # all, then scores
        target = direction.partition("-")[2]
        right = sum(guess_language(text) == LANGUAGES[target] for text in outputs) / len(outputs)
        for metric in (BLEU, CHRF):
            statistics = metric.statistics(outputs, tests[test][target])
            found = confidence_interval(metric, statistics, n_resamples=RESAMPLES)
            place = (seed, variant, test, direction, way, metric.title)
            yield Score(*place, found.score, found.low, found.high, right)


def train_and_score(arm: tuple[int, str], said: argparse.Namespace) -> list[dict[str, Any]]:
    """Train a variant with a seed and return its scores."""
    seed, variant = arm
    run, tests = train(seed, variant, said), test_sets(said.data, said.test_rows)
    return [asdict(found) for found in score(seed, variant, run, tests, said.device)]


def results(work: Callable[[Task], Result], tasks: list[Task], jobs: int) -> Iterator[Result]:
    """Yield what each task returns, as they end; a task that fails is reported and left out."""
    if jobs == 1:
        yield from map(work, tasks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(work, task): task for task in tasks}
        for future in as_completed(futures):
            if (error := future.exception()) is None:
                yield future.result()
            else:
                print(f"{futures[future]} failed: {error!r}", file=sys.stderr, flush=True)


def table(lines: list[dict[str, Any]]) -> str:
    """Return a table of the scores: a row for each direction and way, the mean over seeds."""
    cells: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in lines:
        row = tuple(line[key] for key in ("test", "direction", "way", "variant", "metric"))
        cells.setdefault(row, []).append(line)
    rows = dict.fromkeys(key[:4] for key in cells)
    written = ["| test | direction | way | model | BLEU | chrF | in the target language |"]
    written += ["| --- | --- | --- | --- | ---: | ---: | ---: |"]

    def mean(found: list[dict[str, Any]], key: str) -> float:
        return sum(line[key] for line in found) / len(found)

    for row in rows:
        scores = [
            "{:.2f} ({:.2f} to {:.2f})".format(
                *(mean(cells[*row, metric], key) for key in ("score", "low", "high"))
            )
            for metric in ("BLEU", "chrF")
        ]
        share = f"{100 * mean(cells[*row, 'BLEU'], 'in_language'):.0f} %"
        written.append(f"| {' | '.join([*row, *scores, share])} |")
    return "\n".join(written)


def not_above_copies(lines: list[dict[str, Any]]) -> list[str]:
    """Say where zero-shot translation scores no higher than copied sources do."""
    scores: dict[tuple[str, ...], list[float]] = {}
    for line in lines:
        place = (line["test"], line["direction"], line["variant"], line["metric"])
        scores.setdefault((*place, line["way"]), []).append(line["score"])
    means = {place: sum(values) / len(values) for place, values in scores.items()}
    found = [
        f"{test} {direction}, {variant}: {metric} {means[*place, 'direct']:.2f} against "
        f"{means[*place, 'copied sources']:.2f}"
        for *place, way in means
        if way == "direct" and place[1] in ZERO_SHOT
        for test, direction, variant, metric in [place]
        if means[*place, "copied sources"] >= means[*place, "direct"]
    ]
    return [f"- not above copied sources: {sentence}" for sentence in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the datasets")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and scores")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--steps", type=int, default=1200, help="on pairs")
    parser.add_argument(
        "--pretrain-steps", type=int, default=600, help="of masked LM and of span corruption"
    )
    parser.add_argument("--minutes", type=float, help="on pairs, in place of --steps")
    parser.add_argument("--pretrain-minutes", type=float, help="on text, in place of steps")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, in processes")
    parser.add_argument("--batch", type=int, default=16, help=f"rows of {LENGTH} tokens")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=400, help="steps, at most a quarter of all")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument(
        "--denoise", type=int, default=0, help="sentences of other text that denoising adds"
    )
    parser.add_argument("--set", action="append", default=[], help="train.KEY=VALUE of all runs")
    parser.add_argument("--variants", default="; ".join(VARIANTS), help="apart by '; '")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--test-rows", type=int, default=200, help="sentences of each test set")
    said = parser.parse_args()
    chosen = said.variants.split("; ")
    if unknown := [variant for variant in chosen if variant not in VARIANTS]:
        raise SystemExit(f"no variant {unknown[0]!r}: choose from {'; '.join(VARIANTS)}")
    said.out.mkdir(parents=True, exist_ok=True)
    if not (said.out / "tokenizer").exists():
        prepare_data(said.data, said.out, said.vocab, said.denoise)
    arms = [(seed, variant) for seed in range(said.seeds) for variant in chosen]
    starts = [(seed, objective) for seed, v in arms if (objective := start_of(v)) is not None]
    for _ in results(partial(learn_text, said=said), [*dict.fromkeys(starts)], said.jobs):
        pass
    lines: list[dict[str, Any]] = []
    with (said.out / "scores.jsonl").open("a", encoding="utf-8") as file:
        for found in results(partial(train_and_score, said=said), arms, said.jobs):
            lines += found
            file.writelines(json.dumps(line) + "\n" for line in found)
            file.flush()
    if len({(line["seed"], line["variant"]) for line in lines}) < len(arms):
        raise SystemExit("some variants failed, as said above")
    lines.sort(key=lambda line: arms.index((line["seed"], line["variant"])))
    print(table(lines), "", *not_above_copies(lines), sep="\n")


if __name__ == "__main__":
    main()
