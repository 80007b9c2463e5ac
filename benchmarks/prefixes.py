"""What contrastive prefixes do to generated text: sentiment, perplexity and variety.

python benchmarks/prefixes.py --data DATA --out OUT --h200     about 8.5 minutes on one GPU
python benchmarks/prefixes.py --data DATA --out OUT --small    a test of all parts on a CPU
python benchmarks/prefixes.py --data DATA --out OUT            a small decoder on a CPU

DATA has sst2/{train,test}.tsv, imdb/{train,test}.tsv, sst_trees/test.txt and wiki_en/train.txt,
or these files as .gz or .xz. No text is read on two of these sides:

- The decoder, a GPT-2, is pretrained on the longest phrases of SST-2's training file, the first
  half of IMDB's training reviews and some of Wikipedia. Prefixes are learned from the labels of
  SST-2's training file ("sst2"), from these and those of the decoder's reviews ("mix"), or from
  parts of these reviews that a classifier of the former finds as positive or negative ("clear").
- Classifiers A: phrases of a third of SST's test trees, half of the other reviews of IMDB.
- Classifiers B: phrases of the other test trees, the remaining reviews.

SST's test trees are no part of SST-2. Texts that share eight words in a row with SST-2's training
or test rows are left out of A and B, and so are reviews that occur twice.

Both A and B are a BERT, which was pretrained on the other reviews, and TF-IDF with logistic
regression. Texts continue neutral prompts, as many for each attribute. A chooses a setting of
prefixes on texts of one draw, "dev", among those whose perplexity is below a limit. B reports on
texts of another draw, "test". Perplexity is that of a 3-gram model and of a second GPT-2, of the
text of A and B. OUT gets results.jsonl and texts.jsonl; both grow while the parts run.
"""

import argparse
import csv
import gzip
import json
import lzma
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Row = tuple[str, str]  # a text and its label
Array = NDArray[np.float64]

PROMPTS = (
    *("the film", "the movie", "this movie", "the story", "the plot", "the acting", "the director"),
    *("the characters", "the script", "the cast", "it", "this is", "a", "the performances", "and"),
)
ATTRIBUTES = ("0", "1")  # negative and positive, as in SST-2
SEEDS = {"dev": 10, "test": 0}  # of the first attribute in each draw
LONG = {"prefix_length": 20, "lr": 5e-3}


def weights(lm: float, discriminative: float, **more: Any) -> dict[str, Any]:
    """Return the settings of prefixes of 20 slots with these weights of the losses."""
    return LONG | {"lm_weight": lm, "discriminative_weight": discriminative} | more


# The settings of prefixes beside those of the command line, the most important ones first; None
# generates without a prefix. "rows" are the texts: sst2, mix, clear, or none with labels (latent).
ARMS: dict[str, dict[str, Any] | None] = {
    "no prefix": None,
    "clear, 1 and 5": weights(1, 5, rows="clear"),
    "mix, 1 and 5": weights(1, 5, rows="mix"),
    "sst2, 1 and 5": weights(1, 5),
    "clear, 1 and 2": weights(1, 2, rows="clear"),
    "clear, no contrast": weights(1, 0, rows="clear"),
    "sst2, 0.8 and 0.2": weights(0.8, 0.2),
    "sst2, no contrast": weights(1, 0),
    "latent": LONG | {"rows": "latent"},
}
REAL = "real sentences"  # the rows of SST-2's test file, scored like an arm
CLASSIFIERS = ("bert A", "bert B", "tfidf A", "tfidf B")
LANGUAGE_MODELS = ("ngram", "gpt2")
RESAMPLES = 1000
SHARED_WORDS = 8  # texts that share so many words in a row are not disjoint
TRIAL_STEPS = 60  # of prefixes, to measure the seconds of a step

PRESETS: dict[str, dict[str, Any]] = {
    "h200": {
        "device": "cuda",
        "seconds": 505.0,
        "workers": 3,
        "model": "gpt2/small",
        "vocab": 8192,
        "steps": 4000,
        "batch": 64,
        "lr": 1e-3,
        "prefix_steps": 3000,
        "prefix_batch": 128,
        "judge": "bert/small",
        "judge_steps": 6000,
        "second": "gpt2/mini",
        "second_steps": 3000,
        "judge_epochs": 3.0,
        "judge_lr": 2e-4,
        "texts": 100,
    },
    "small": {
        "seconds": 240.0,
        "workers": 1,
        "model": "gpt2/nano",
        "vocab": 1024,
        "steps": 60,
        "batch": 8,
        "prefix_steps": 20,
        "prefix_batch": 16,
        "judge": "bert/nano",
        "judge_steps": 20,
        "second": "gpt2/nano",
        "second_steps": 20,
        "judge_epochs": 1.0,
        "texts": 2,
        "rows": 400,
        "arms": ["no prefix", "clear, 1 and 5", "mix, 1 and 5"],
    },
}


# ------------------------------------------------------------------------------------------ data
def find(folder: Path, name: str) -> Path | None:
    """Return a file, or the compressed one of this name."""
    names = (folder / f"{name}{suffix}" for suffix in ("", ".gz", ".xz"))
    return next((path for path in names if path.is_file()), None)


def read(folder: Path, name: str) -> str:
    """Return the text of a file, compressed or not; "" where there is none."""
    path = find(folder, name)
    if path is None:
        return ""
    opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:
        return file.read()


def rows(folder: Path, name: str) -> list[Row]:
    """Return the texts of a table with a header, and their labels."""
    lines = read(folder, name).split("\n")
    table = csv.DictReader(filter(None, lines), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [((r.get("sentence") or r["text"]).strip(), r["label"]) for r in table]


def normal(review: str) -> str:
    """Return a review as SST-2 writes: lower case, marks apart."""
    review = re.sub(r"<br\s*/?>", " ", review.lower())
    return re.sub(r"\s+", " ", re.sub(r"([.,!?;:()\"])", r" \1 ", review)).strip()


def chunks(review: str, most: int = 45) -> list[str]:
    """Cut a review into parts of whole sentences of up to this many words."""
    parts: list[list[str]] = [[]]
    for sentence in re.split(r"(?<=[.!?]) ", normal(review)):
        words = sentence.split()
        if parts[-1] and len(parts[-1]) + len(words) > most:
            parts.append([])
        parts[-1] += words
    return [" ".join(part) for part in parts if 4 <= len(part) <= most]


def phrases_of(tree: str) -> list[tuple[str, int]]:
    """Return the phrases of a tree of SST with their classes from 0 to 4, the sentence last."""
    found: list[tuple[str, int]] = []
    open_phrases: list[tuple[int, list[str]]] = []
    for token in re.findall(r"\(\d |\)|[^\s()]+", tree):
        if token.startswith("("):
            open_phrases.append((int(token[1]), []))
        elif token == ")":
            label, words = open_phrases.pop()
            text = " ".join(words).lower().replace("-lrb-", "(").replace("-rrb-", ")")
            found.append((text.replace("\\/", "/"), label))
            if open_phrases:
                open_phrases[-1][1].extend(words)
        else:
            open_phrases[-1][1].append(token)
    return found


def tree_rows(trees: Sequence[Sequence[tuple[str, int]]]) -> list[Row]:
    """Return the phrases of trees of two words or more that are not neutral."""
    return [
        (text, str(int(label > 2)))
        for tree in trees
        for text, label in tree
        if label != 2 and len(text.split()) > 1
    ]


def grams(text: str, size: int) -> set[str]:
    """Return the sequences of this many words; of a shorter text the whole."""
    words = text.split()
    return {" ".join(words[i : i + size]) for i in range(max(1, len(words) - size + 1))}


def longest(texts: Sequence[str]) -> list[str]:
    """Leave out texts whose words all occur in longer ones, in sequences of up to five.

    SST-2 has most phrases of a sentence. A decoder that reads them all knows it by heart.
    """
    kept: list[str] = []
    covered = set[str]()
    for text in sorted(set(texts), key=lambda text: (-len(text.split()), text)):
        if not grams(text, 5) <= covered:
            kept.append(text)
            covered.update(*(grams(text, size) for size in range(1, 6)))
    random.Random(0).shuffle(kept)
    return kept


def disjoint(found: Sequence[Row], others: set[str]) -> list[Row]:
    """Leave out texts that share a sequence of eight words with others, and repeated ones."""
    return [(t, y) for t, y in dict(found).items() if not grams(t, SHARED_WORDS) & others]


class Data:
    """The texts of every side.

    SST-2's dev rows are no side of their own: nearly all are phrases of sentences of its training
    file. Only where the trees are missing A and B divide them.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        sst2, imdb, most = options.sst2, options.imdb, options.rows
        self.train, self.test = rows(sst2, "train.tsv")[:most], rows(sst2, "test.tsv")[:most]
        reviews = rows(imdb, "train.tsv")
        half = len(reviews) // 2
        self.reviews = reviews[:half][:most]
        read_before = {normal(text) for text, _ in self.reviews}
        others = dict(reviews[half:] + (rows(imdb, "test.tsv") if find(imdb, "test.tsv") else []))
        others_left = [row for row in others.items() if normal(row[0]) not in read_before][:most]
        self.judged = {"A": others_left[::2], "B": others_left[1::2]}
        seen = set[str]().union(*(grams(t, SHARED_WORDS) for t, _ in [*self.train, *self.test]))
        trees = [phrases_of(x) for x in read(options.trees, "test.txt").splitlines() if x][:most]
        trees = [tree for tree in trees if not grams(tree[-1][0], SHARED_WORDS) & seen]
        if trees:
            parts = {"A": trees[::3], "B": [tree for i, tree in enumerate(trees) if i % 3]}
            of_a, of_b = (tree_rows(part) for part in parts.values())
            of_a = disjoint(of_a, seen)
            self.sentences = {"A": of_a, "B": disjoint(of_b, seen | {text for text, _ in of_a})}
        else:
            dev = rows(sst2, "dev.tsv")[:most]
            self.sentences = {"A": dev[::2], "B": dev[1::2]}
        self.other = [normal(text) for text, _ in others_left] + [tree[-1][0] for tree in trees]
        size = 200_000 if options.small else options.wiki_characters
        self.wiki = read(options.wiki.parent, options.wiki.name)[:size].lower()

    def long_phrases(self) -> list[Row]:
        """Return the phrases that prefixes are learned from."""
        return [row for row in self.train if len(row[0].split()) >= 5] or self.train

    def mixed(self) -> list[Row]:
        """Return as many parts of the decoder's reviews beside the phrases."""
        phrases = self.long_phrases()
        parts = [(part, label) for text, label in self.reviews for part in chunks(text)]
        random.Random(0).shuffle(parts)
        mixed = [*phrases, *parts[: len(phrases)]]
        random.Random(1).shuffle(mixed)
        return mixed

    def clear(self) -> list[Row]:
        """Return the parts of the decoder's reviews that show the sentiment of their review.

        Most sentences of a review have no sentiment, or another one than the whole. A classifier
        of the phrases that prefixes are learned from, TF-IDF, keeps those of which it is surest
        that they are as their review is: as many of each label, a third of the parts.
        """
        from kinfolk.metrics.tfidf import TfidfClassifier

        parts = [(part, label) for text, label in self.reviews for part in chunks(text)]
        phrases = self.long_phrases()
        model = TfidfClassifier.fit([[text] for text, _ in phrases], [y for _, y in phrases])
        scores = model.scores([[text] for text, _ in parts])
        labels = np.array([model.labels.index(label) for _, label in parts])
        margins = scores[np.arange(len(parts)), labels] - scores[np.arange(len(parts)), 1 - labels]
        surest = [int(i) for i in np.argsort(-margins, kind="stable")]
        most = len(parts) // 6
        kept = [i for label in (0, 1) for i in [i for i in surest if labels[i] == label][:most]]
        return [parts[i] for i in sorted(kept)]


# --------------------------------------------------------------------------------- time and files
def now(options: argparse.Namespace) -> float:
    """Return the seconds since the start of the benchmark."""
    return time.time() - options.start


def moment(options: argparse.Namespace, share: float) -> float:
    """Return when a share of all seconds has passed, in seconds since the start."""
    return math.inf if options.seconds is None else share * options.seconds


def write(options: argparse.Namespace, **line: Any) -> None:
    """Append a line to the results in one system call, since several processes do."""
    data = json.dumps({"at": round(now(options), 1), **line}) + "\n"
    append(options.out / "results.jsonl", data)
    print(data[:600].rstrip(), file=sys.stderr, flush=True)


def append(path: Path, data: str) -> None:
    """Append to a file in one system call."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, data.encode())
    finally:
        os.close(file)


def attempt(
    options: argparse.Namespace, what: str, do: Callable[..., T], *arguments: Any
) -> T | None:
    """Do a part; a failure is written down and loses nothing else."""
    began = now(options)
    try:
        found = do(*arguments)
    except Exception as error:
        if options.seconds is None:
            raise
        traceback.print_exc()
        write(options, failed=what, error=f"{type(error).__name__}: {error}"[:600])
        return None
    write(options, did=what, seconds=round(now(options) - began, 1))
    return found


def complete(path: Path, data: str) -> Path:
    """Write a file that other processes never see half written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(data, encoding="utf-8")
    return partial.replace(path)


def wait_for(options: argparse.Namespace, path: Path, share: float) -> None:
    """Wait for a file of another process until a share of the time has passed."""
    while not path.exists():
        if now(options) > moment(options, share):
            raise TimeoutError(f"{path.name} is not there after {share:.0%} of the time")
        time.sleep(0.3)


def slug(arm: str) -> str:
    """Return a name for files."""
    return re.sub(r"[^\w.]+", "-", arm)


# -------------------------------------------------------------------------------------- training
def pretrain(options: argparse.Namespace, recipe: Any, run: Path, until: float) -> Path:
    """Pretrain until the end or a moment, when the last checkpoint is kept."""
    import kinfolk
    from kinfolk.errors import Terminated
    from kinfolk.training.loop import Callback, Progress

    class Stop(Callback):
        def on_step(self, progress: Progress) -> None:
            if now(options) > until:
                os.kill(os.getpid(), signal.SIGTERM)

    began = now(options)
    how = "finished"
    try:
        kinfolk.pretrain(recipe, run, callbacks=[Stop()])
    except Terminated:
        how = "stopped"
    found = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    losses = {line["step"]: round(line["eval_loss"], 3) for line in found if "eval_loss" in line}
    seconds = round(now(options) - began, 1)
    write(options, run=run.name, how=how, step=found[-1]["step"], losses=losses, seconds=seconds)
    return run


def run_settings(options: argparse.Namespace, steps: int) -> dict[str, Any]:
    """Return settings that all pretraining shares."""
    shared = {"device": options.device, "steps": steps, "warmup": max(1, steps // 10)}
    shared |= {"eval_every": max(1, steps // 6), "save_every": steps, "keep_checkpoints": 1}
    # Without the compiler a step of a small network starts at once, and is replayed as a graph.
    return shared | ({"compile": "no", "workers": 1} if options.device == "cuda" else {})


def corpora(
    folder: Path, texts: dict[str, tuple[str, float]], tokenizer: Any, small: bool
) -> dict[Path, float]:
    """Prepare texts, each with its weight."""
    import kinfolk

    found = {}
    for name, (text, weight) in texts.items():
        if text.strip():
            path = complete_text(folder / f"{name}.txt", text)
            kinfolk.prepare(path, tokenizer, folder / name, holdout=0.05 if small else 0.01)
            found[folder / name] = weight
    return found


def complete_text(path: Path, text: str) -> Path:
    """Write a text file, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return complete(path, text)


def pretrain_decoder(options: argparse.Namespace, data: Data) -> Path:
    """Pretrain the decoder; its tokenizer is saved first, for the models of perplexity."""
    import kinfolk

    run = options.work / "decoder"
    if (run / "report.html").is_file():
        return run
    folder = options.work / "decoder-text"
    phrases = "\n\n".join(longest([text for text, _ in data.train]))
    reviews = "\n\n".join(normal(text) for text, _ in data.reviews)
    files = [
        complete_text(folder / "tokens-1.txt", phrases),
        complete_text(folder / "tokens-2.txt", reviews),
    ]
    tokenizer = kinfolk.train_tokenizer(files, kind="bpe", vocab_size=options.vocab)
    tokenizer.save(options.work / "tokenizer")
    complete(options.work / "tokenizer.ready", "")
    share = options.phrase_weight
    texts = {"phrases": (phrases, share), "reviews": (reviews, 0.88 - share)}
    texts |= {"wiki": (data.wiki[: options.wiki_characters // 2], 0.12)}
    recipe = kinfolk.recipe(
        options.model,
        corpora(folder, texts, tokenizer, small=len(data.train) < 10_000),
        length=128,
        lr=options.lr,
        batch_size=options.batch,
        settings=[f"model.dropout={options.dropout}"],
        **run_settings(options, options.steps),
    )
    return pretrain(options, recipe, run, moment(options, 0.27))


# ------------------------------------------------------------------------------------------- arms
def learn(options: argparse.Namespace, arm: str, steps: int) -> Path:
    """Learn the prefixes of an arm."""
    import kinfolk

    settings = dict(ARMS[arm] or {})
    source = settings.pop("rows", "sst2")
    run = options.work / "prefixes" / f"{slug(arm)}-{steps}"
    if (run / "prefixes.safetensors").is_file():
        return run
    every = max(1, steps // 4)
    shared = {"steps": steps, "device": options.device, "warmup": max(1, steps // 10)}
    shared |= {"eval_every": every, "save_every": every, "batch_size": options.prefix_batch}
    given = dict(setting.split("=", 1) for setting in options.settings)
    settings = {**shared, "eval_batches": 8, "schedule": "linear", **settings, **given}
    decoder = options.decoder or options.work / "decoder"
    if source == "latent":
        text = options.work / "latent.txt"
        kinfolk.learn_prefixes(decoder, None, run, text=text, **settings)
    else:
        kinfolk.learn_prefixes(decoder, options.work / f"{source}.tsv", run, **settings)
    found = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    names = ("step", "eval_loss", "eval_losses", "accuracy")
    evaluations = [{n: r[n] for n in names if n in r} for r in found if "eval_loss" in r]
    write(options, prefixes=arm, steps=steps, evaluations=evaluations)
    return run


def seconds_of_step(run: Path) -> float:
    """Return the median seconds of a step of a run, without its start."""
    lines = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines()]
    times = sorted(line["seconds"] / max(1, line.get("steps", 1)) for line in lines[2:] or lines)
    return times[len(times) // 2]


def generate(
    options: argparse.Namespace, model: Any, tokenizer: Any, run: Path | None, arm: str
) -> list[dict[str, str]]:
    """Return texts of both draws that continue the prompts, after the prefix of each attribute."""
    import kinfolk

    found = []
    for split, seed in SEEDS.items():
        for number, attribute in enumerate(ATTRIBUTES):
            name = str(number + 1) if arm == "latent" else attribute  # which is which is not known
            after = {} if run is None else {"prefix_from": run, "attribute": name}
            texts = kinfolk.generate(
                model,
                tokenizer,
                list(PROMPTS),
                num_return_sequences=options.texts,
                max_new_tokens=options.new_tokens,
                min_new_tokens=options.new_tokens,  # a sentiment cannot be told from two words
                top_p=options.top_p,
                add_bos_token=True,
                seed=seed + number,
                **after,
            )
            prompts = [prompt for prompt in PROMPTS for _ in range(options.texts)]
            found += [
                {"arm": arm, "split": split, "attribute": attribute, "text": prompt + text}
                for prompt, text in zip(prompts, texts, strict=True)
            ]
    return found


def publish(options: argparse.Namespace, arm: str, texts: Sequence[dict[str, str]]) -> None:
    """Hand the texts of an arm to the other processes, and append them to the results."""
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    if arm != REAL:
        append(options.out / "texts.jsonl", lines)
    complete(options.work / "texts" / f"{slug(arm)}.jsonl", lines)


def claim(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Yield arms that no other process works on, and how many are left with it."""
    for number, arm in enumerate(options.arms):
        try:
            (options.work / "claims" / slug(arm)).mkdir()
        except FileExistsError:
            continue
        yield arm, len(options.arms) - number


def run_arms(options: argparse.Namespace) -> None:
    """Learn the prefixes of arms and generate, as long as there is time."""
    import kinfolk
    from kinfolk.training.workload import select_device

    model, tokenizer = kinfolk.load(options.decoder or options.work / "decoder")
    model = model.to(select_device(options.device))
    step = overhead = 0.0

    def texts(arm: str, run: Path | None) -> None:
        publish(options, arm, generate(options, model, tokenizer, run, arm))

    for arm, left in claim(options):
        if ARMS[arm] is None:
            attempt(options, f"texts: {arm}", texts, arm, None)
            continue
        steps, end = options.prefix_steps, moment(options, 0.86)
        if options.seconds is not None:
            if not step:
                began, trial = now(options), min(TRIAL_STEPS, steps)
                run = attempt(options, f"trial: {arm}", learn, options, arm, trial)
                step = seconds_of_step(run) if run is not None else 0.1
                overhead = max(2.0, now(options) - began - trial * step) + 5  # and texts
            rounds = math.ceil(left / options.workers)
            steps = int(min(steps, ((end - now(options)) / rounds - overhead) / step))
            least = min(TRIAL_STEPS, options.prefix_steps)
            if steps < least and (end - now(options) - overhead) / step < least:
                write(options, skipped=arm)
                continue
            steps = max(steps, least)
        run = attempt(options, f"learn: {arm}", learn, options, arm, steps)
        if run is not None:
            attempt(options, f"texts: {arm}", texts, arm, run)


# ----------------------------------------------------------------------------------------- judges
Scorer = Callable[[Sequence[str]], Array]  # labels (texts,), or nats and tokens (texts, 2)


def score_texts(options: argparse.Namespace, scorers: dict[str, Scorer]) -> None:
    """Score the texts of all arms as they come, until there are no more or the time is over."""
    folder, done = options.work / "texts", set[Path]()
    while True:
        last = (folder / "end").exists() or now(options) > moment(options, 0.94)
        for path in sorted({*folder.glob("*.jsonl")} - done):
            texts = [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]
            for name, scorer in scorers.items():
                found = attempt(options, f"{name}: {path.stem}", scorer, texts)
                if found is not None:
                    save(options.work / "scores" / f"{path.stem}.{slug(name)}.npy", found)
            done.add(path)
        if last:
            return
        time.sleep(0.5)


def save(path: Path, array: Array) -> None:
    """Write an array that other processes never see half written."""
    partial = path.with_name(f"partial-{path.stem}.{os.getpid()}.npy")
    np.save(partial, array)
    partial.replace(path)


def train_bert(options: argparse.Namespace, data: Data) -> str:
    """Pretrain the network of both classifiers on their unlabelled text."""
    import kinfolk

    run = options.work / "bert"
    if not options.judge_steps or (run / "report.html").is_file():
        return str(run) if options.judge_steps else options.judge
    folder = options.work / "bert-text"
    other, wiki = "\n\n".join(data.other), data.wiki[options.wiki_characters // 2 :]
    files = [complete_text(folder / "tokens.txt", other)]
    tokenizer = kinfolk.train_tokenizer(
        files, kind="wordpiece", vocab_size=options.vocab, lowercase=True
    )
    texts = {"other": (other, 0.85), "wiki": (wiki, 0.15)}
    recipe = kinfolk.recipe(
        options.judge,
        corpora(folder, texts, tokenizer, small=len(data.train) < 10_000),
        objective="mlm",
        length=128,
        lr=5e-4,
        batch_size=2 * options.batch,
        **run_settings(options, options.judge_steps),
    )
    return str(pretrain(options, recipe, run, moment(options, 0.36)))


def fine_tune(options: argparse.Namespace, data: Data, network: str, name: str) -> Scorer:
    """Return a classifier that was fine-tuned on sentences and parts of reviews."""
    import kinfolk

    run = options.work / f"bert-{name}"
    if not (run / "scores.json").is_file():
        sentences = list(data.sentences[name])
        random.Random(0).shuffle(sentences)
        held = max(8, min(800, len(sentences) // 10))
        parts = [(part, label) for text, label in data.judged[name] for part in chunks(text)]
        # Labels of parts are those of whole reviews; labels of phrases are of the phrases.
        train = [*parts, *sentences[held:] * 2]
        random.Random(1).shuffle(train)
        as_rows = [[{"text": t, "label": y} for t, y in part] for part in (train, sentences[:held])]
        kinfolk.finetune(
            network,
            as_rows[0],
            run,
            dev=as_rows[1],
            length=64,
            epochs=options.judge_epochs,
            lr=options.judge_lr,
            batch_size=64,
            raw_weights=True,  # masked words alone do not train the state of [CLS]
            device=options.device,
        )
    predictor = kinfolk.load_predictor(run, device=options.device)

    def labels(texts: Sequence[str]) -> Array:
        return np.array([float(p.value) for p in kinfolk.predict(predictor, list(texts))])

    write_accuracy(options, f"bert {name}", data.test, labels)
    return labels


def write_accuracy(
    options: argparse.Namespace, name: str, test: Sequence[Row], labels: Scorer
) -> None:
    """Write how many rows of SST-2's test file a classifier labels correctly."""
    right = labels([text for text, _ in test]) == np.array([float(y) for _, y in test])
    write(options, classifier=name, real_sentences=round(float(right.mean()), 4))


def train_second_gpt2(options: argparse.Namespace) -> Scorer:
    """Return the nats of texts under a GPT-2 that was trained on the text of A and B."""
    import torch

    import kinfolk
    from kinfolk.batch import Inputs
    from kinfolk.nn.embeddings import LinearLogits
    from kinfolk.nn.losses import frozen_logprobs
    from kinfolk.training.workload import select_device

    run = options.work / "second"
    if not (run / "report.html").is_file():
        wait_for(options, options.work / "other.ready", 0.6)
        recipe = kinfolk.recipe(
            options.second,
            options.work / "other",
            length=128,
            lr=1e-3,
            batch_size=options.batch,
            settings=[f"model.dropout={options.dropout}"],
            **run_settings(options, options.second_steps),
        )
        pretrain(options, recipe, run, moment(options, 0.72))
    model, tokenizer = kinfolk.load(run)
    device = select_device(options.device)
    model = model.to(device).eval()
    special = tokenizer.special_tokens
    start = special.require("eos") if special.bos is None else special.bos

    @torch.inference_mode()
    def nats(texts: Sequence[str]) -> Array:
        encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        found = np.zeros((len(texts), 2))
        by_length: dict[int, list[int]] = {}
        for index, ids in enumerate(encoded):
            by_length.setdefault(len(ids), []).append(index)
        for length, group in by_length.items():
            for at in range(0, len(group), 512):
                part = group[at : at + 512]
                labels = torch.tensor([list(encoded[index]) for index in part], device=device)
                shifted = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], 1)
                hidden = model(Inputs.from_ids(shifted, causal=True)).hidden.flatten(0, 1)
                logits = model.lm_logits(hidden)
                assert isinstance(logits, LinearLogits) and logits.bias is None
                each = frozen_logprobs(
                    logits.hidden, logits.weight, labels.flatten(), logits.vocab_size
                )
                found[part, 0] = -each.view(len(part), -1).double().sum(1).cpu().numpy()
                found[part, 1] = length
        return found

    return nats


def run_networks(options: argparse.Namespace) -> None:
    """Train the BERTs of A and B and the second GPT-2, and score all texts."""
    data = Data(options)
    scorers: dict[str, Scorer] = {}
    network = attempt(options, "pretrain bert", train_bert, options, data)
    for name in "BA" if network is not None else "":
        scorer = attempt(options, f"fine-tune bert {name}", fine_tune, options, data, network, name)
        if scorer is not None:
            scorers[f"bert {name}"] = scorer
    if now(options) < moment(options, 0.62) and options.second_steps:
        scorer = attempt(options, "second gpt2", train_second_gpt2, options)
        if scorer is not None:
            scorers["gpt2"] = scorer
    score_texts(options, scorers)


def fit_tfidf(options: argparse.Namespace, data: Data, name: str) -> Scorer:
    """Return a classifier of word counts in whole reviews and sentences."""
    from kinfolk.metrics.tfidf import TfidfClassifier

    train = [(normal(text), label) for text, label in data.judged[name]] + data.sentences[name]
    model = TfidfClassifier.fit([[text] for text, _ in train], [label for _, label in train])

    def labels(texts: Sequence[str]) -> Array:
        return np.array([float(label) for label in model.predict([[text] for text in texts])])

    write_accuracy(options, f"tfidf {name}", data.test, labels)
    return labels


def count_ngrams(options: argparse.Namespace, data: Data) -> Scorer:
    """Return the nats of texts under a 3-gram model of the text of A and B."""
    import kinfolk
    from kinfolk.workflows.baselines import document_nll, end_ids, ngram_of_corpus

    corpus = options.work / "other"
    wait_for(options, options.work / "tokenizer.ready", 0.3)
    if not (options.work / "other.ready").exists():
        path = complete_text(options.work / "other.txt", "\n\n".join(data.other))
        tokenizer = options.work / "tokenizer"
        kinfolk.prepare(path, tokenizer, corpus, holdout=0.01 if len(data.other) > 5000 else 0.05)
        complete(options.work / "other.ready", "")
    model, tokenizer = ngram_of_corpus(corpus)
    ends = end_ids(kinfolk.Corpus.open(corpus))

    def nats(texts: Sequence[str]) -> Array:
        encoded = tokenizer.encode_batch(list(texts), add_special_tokens=False)
        losses = document_nll(model, [np.array(ids, np.int64) for ids in encoded], *ends)
        return np.array([(float(nll[:-1].sum()), len(nll) - 1) for nll in losses])

    return nats


def run_counts(options: argparse.Namespace) -> None:
    """Fit TF-IDF of A and B and the 3-gram model, and score all texts."""
    data = Data(options)
    scorers: dict[str, Scorer] = {}
    scorer = attempt(options, "ngram", count_ngrams, options, data)
    if scorer is not None:
        scorers["ngram"] = scorer
    for name in "BA":
        scorer = attempt(options, f"tfidf {name}", fit_tfidf, options, data, name)
        if scorer is not None:
            scorers[f"tfidf {name}"] = scorer
    score_texts(options, scorers)


# ---------------------------------------------------------------------------------------- summary
def perplexity(nats: Array) -> float:
    """Return the perplexity of texts from their nats and tokens: (texts, 2)."""
    return math.exp(nats[:, 0].sum() / nats[:, 1].sum())


def mean(values: Array) -> float:
    """Return the mean of values."""
    return float(values.mean())


def resample(values: Array, of: Callable[[Array], float], seed: int = 0) -> Array:
    """Return a statistic of texts that are drawn with replacement, many times."""
    rng = np.random.default_rng(seed)
    size = len(values)
    return np.array([of(values[rng.integers(0, size, size)]) for _ in range(RESAMPLES)])


def interval(value: float, drawn: Array) -> list[float]:
    """Return a value and its 95 % interval."""
    return [round(float(x), 5) for x in (value, *np.percentile(drawn, [2.5, 97.5]))]


def distinct(texts: Sequence[dict[str, str]]) -> list[float]:
    """Return the fractions of distinct 1- to 3-grams, the mean over the attributes."""
    from kinfolk.metrics.diversity import distinct_n, word_tokenize

    apart = [[word_tokenize(t["text"]) for t in texts if t["attribute"] == a] for a in ATTRIBUTES]
    found = [[distinct_n(each, n) or 0.0 for each in apart] for n in (1, 2, 3)]
    return [round(float(np.mean(each)), 4) for each in found]


class Scored:
    """The texts of an arm with all scores: whether a text has its attribute, and its nats."""

    def __init__(self, options: argparse.Namespace, arm: str) -> None:
        path = options.work / "texts" / f"{slug(arm)}.jsonl"
        self.arm = arm
        self.texts = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        asked = np.array([float(text["attribute"]) for text in self.texts])
        split = np.array([text["split"] for text in self.texts])
        self.at = {name: split == name for name in SEEDS}
        self.scores: dict[str, Array] = {}
        for name in (*CLASSIFIERS, *LANGUAGE_MODELS):
            file = options.work / "scores" / f"{slug(arm)}.{slug(name)}.npy"
            if file.is_file():
                found = np.load(file)
                for text, value in zip(self.texts, found.tolist(), strict=True):
                    text[name] = round(value[0], 2) if name in LANGUAGE_MODELS else int(value)
                self.scores[name] = (found == asked).astype(float) if found.ndim == 1 else found
        by_a = self.scores.get("bert A", self.scores.get("tfidf A"))
        # What the attributes without labels stand for is decided by A on dev texts.
        if arm == "latent" and by_a is not None and by_a[self.at["dev"]].mean() < 0.5:
            for name in {*CLASSIFIERS} & {*self.scores}:
                self.scores[name] = 1 - self.scores[name]

    def value(self, name: str, split: str) -> float | None:
        """Return an accuracy or a perplexity."""
        if name not in self.scores or not self.at[split].any():
            return None
        of = perplexity if name in LANGUAGE_MODELS else mean
        return of(self.scores[name][self.at[split]])

    def drawn(self, name: str) -> Array:
        """Return accuracies or perplexities of resampled test texts."""
        of = perplexity if name in LANGUAGE_MODELS else mean
        return resample(self.scores[name][self.at["test"]], of, seed=len(self.arm))


def summarize(
    options: argparse.Namespace, scored: Scored, base: dict[str, tuple[float, Array]]
) -> dict[str, Any]:
    """Return the measures of an arm; gains and ratios are over no prefix, on test texts."""
    result: dict[str, Any] = {"arm": scored.arm, "texts": int(scored.at["test"].sum())}
    result["dev"] = {name: scored.value(name, "dev") for name in scored.scores}
    keys = {"bert B": "bert", "tfidf B": "tfidf", "ngram": "perplexity", "gpt2": "gpt2 perplexity"}
    for name in scored.scores:
        value, drawn = scored.value(name, "test"), scored.drawn(name)
        assert value is not None
        key = keys.get(name, name)
        result[key] = interval(value, drawn)
        if name in base and scored.arm not in (REAL, "no prefix"):
            other, others = base[name]
            if name in LANGUAGE_MODELS:
                result[f"{key} ratio"] = interval(value / other, drawn / others)
            else:
                result[f"{key} gain"] = interval(value - other, drawn - others)
        if scored.arm == "no prefix":
            base[name] = (value, drawn)
    at = scored.at["test"]
    for n, each in enumerate(distinct([t for t, x in zip(scored.texts, at, strict=True) if x]), 1):
        result[f"distinct-{n}"] = each
    return result


def choose(options: argparse.Namespace, arms: Sequence[Scored]) -> str | None:
    """Return the arm that A finds most accurate on dev texts, below the limit of perplexity."""
    base = next((arm for arm in arms if arm.arm == "no prefix"), None)
    plain = None if base is None else base.value("ngram", "dev")
    judge = "bert A" if all("bert A" in arm.scores for arm in arms) else "tfidf A"
    allowed: dict[str, float] = {}
    for arm in arms:
        accuracy, found = arm.value(judge, "dev"), arm.value("ngram", "dev")
        if arm is base or plain is None or accuracy is None or found is None:
            continue
        if found < options.max_ratio * plain:
            allowed[arm.arm] = accuracy
    best = max(allowed, key=allowed.__getitem__, default=None)
    write(options, chosen=best, by=judge, allowed=allowed, limit=options.max_ratio)
    return best


def finish(options: argparse.Namespace) -> None:
    """Choose, report, and write all texts with their scores."""
    names = [arm for arm in (REAL, *options.arms) if has_texts(options, arm)]
    scored = [Scored(options, arm) for arm in names]
    best = choose(options, [each for each in scored if each.arm != REAL])
    base: dict[str, tuple[float, Array]] = {}
    results = [summarize(options, each, base) for each in scored]
    for result in results:
        write(options, **result)
        print(json.dumps(result), flush=True)
    lines = [json.dumps(text) + "\n" for each in scored[1:] for text in each.texts]
    complete(options.out / "texts.jsonl", "".join(lines))
    found = next((result for result in results if result["arm"] == best), None)
    if found is not None:
        cells = [f"chosen by A on dev texts: {best}; on test texts"]
        for key in ("bert gain", "tfidf gain"):
            if key in found:
                value, low, high = (100 * x for x in found[key])
                cells.append(f"{key} {value:+.1f} [{low:.1f}, {high:.1f}] points")
        for key in ("perplexity ratio", "gpt2 perplexity ratio"):
            if key in found:
                value, low, high = found[key]
                cells.append(f"{key} {value:.3f} [{low:.3f}, {high:.3f}]")
        plain = next((result for result in results if result["arm"] == "no prefix"), found)
        variety = ("distinct-1", "distinct-2", "distinct-3")
        cells += [f"{key} {found[key]:.3f} (no prefix {plain[key]:.3f})" for key in variety]
        print(", ".join(cells), flush=True)
    show(results)


def has_texts(options: argparse.Namespace, arm: str) -> bool:
    """Return whether an arm has texts."""
    return (options.work / "texts" / f"{slug(arm)}.jsonl").is_file()


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print a line for each arm, as judged by B on test texts."""
    print(
        f"\n{'':24} {'BERT':>19} {'TF-IDF':>19} {'perplexity':>23} {'GPT-2':>7} {'d-1':>5} "
        f"{'d-2':>5} {'d-3':>5}"
    )
    for result in results:
        cells = [f"{result['arm']:24}"]
        for name in ("bert", "tfidf"):
            value, low, high = (100 * x for x in result.get(name, [math.nan] * 3))
            cells.append(f"{value:5.1f} [{low:4.1f}, {high:4.1f}]".rjust(19))
        value, low, high = result.get("perplexity", [math.nan] * 3)
        cells.append(f"{value:7.1f} [{low:6.1f}, {high:6.1f}]".rjust(23))
        cells.append(f"{result.get('gpt2 perplexity', [math.nan])[0]:7.1f}")
        cells += [f"{result[f'distinct-{n}']:5.2f}" for n in (1, 2, 3)]
        print(" ".join(cells))


# ------------------------------------------------------------------------------------------- main
def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("data"), help="folder with the four below")
    add("--sst2", type=Path, help="train.tsv and test.tsv, as they are or .gz or .xz")
    add("--imdb", type=Path, help="folder with train.tsv and test.tsv")
    add("--trees", type=Path, help="folder with test.txt of SST")
    add("--wiki", type=Path, help="text of other kinds")
    add("--out", type=Path, required=True, help="folder of the results")
    add("--work", type=Path, help="folder of runs; what it has is kept (OUT/work)")
    add("--h200", action="store_true", help="settings for one large GPU")
    add("--small", action="store_true", help="settings for a test on a CPU")
    add("--seconds", type=float, help="limit of all of it, which parts are fitted to")
    add("--workers", type=int, default=0, help="processes that learn prefixes; 0: all in one")
    add("--rows", type=int, help="of each file at most")
    add("--wiki-characters", type=int, default=9_000_000)
    add("--model", default="gpt2/tiny")
    add("--vocab", type=int, default=4096)
    add("--steps", type=int, default=2000, help="of pretraining")
    add("--batch", type=int, default=32, help="of pretraining, in rows of 128 tokens")
    add("--lr", type=float, default=3e-3, help="of pretraining")
    add("--dropout", type=float, default=0.1)
    add("--phrase-weight", type=float, default=0.05, help="share of phrases in pretraining")
    add("--decoder", type=Path, help="a model in place of a new one")
    add("--prefix-steps", type=int, default=120, help="most steps of prefixes")
    add("--prefix-batch", type=int, default=256)
    add("--settings", nargs="*", default=[], help="such as prefix_length=20")
    add("--judge", default="bert/tiny")
    add("--judge-steps", type=int, default=0, help="of pretraining; 0: new weights")
    add("--judge-epochs", type=float, default=4.0)
    add("--judge-lr", type=float, default=1e-3)
    add("--second", default="gpt2/tiny", help="the GPT-2 of perplexity")
    add("--second-steps", type=int, default=0, help="0: none")
    add("--texts", type=int, default=20, help="for each prompt, attribute and draw")
    add("--new-tokens", type=int, default=32)
    add("--top-p", type=float, default=0.9)
    add("--max-ratio", type=float, default=1.25, help="most perplexity of a chosen arm on dev")
    add("--arms", nargs="*", default=list(ARMS))
    add("--device", default="cpu")
    add("--role", choices=["main", *ROLES], default="main", help=argparse.SUPPRESS)
    add("--start", type=float, default=time.time(), help=argparse.SUPPRESS)
    first = parser.parse_args(words)
    for name, values in PRESETS.items():
        if vars(first)[name]:
            parser.set_defaults(**values)
    options = parser.parse_args(words)
    folders = {"sst2": "sst2", "imdb": "imdb", "trees": "sst_trees", "wiki": "wiki_en/train.txt"}
    for name, folder in folders.items():
        if vars(options)[name] is None:
            setattr(options, name, options.data / folder)
    options.work = options.work or options.out / "work"
    return options


ROLES: dict[str, Callable[[argparse.Namespace], None]] = {
    "arms": run_arms,
    "networks": run_networks,
    "counts": run_counts,
}


def table(path: Path, rows: Sequence[Row]) -> Path:
    """Write a table of labelled texts."""
    return complete(path, "sentence\tlabel\n" + "".join(f"{t}\t{y}\n" for t, y in rows))


def make_folders(options: argparse.Namespace) -> None:
    """Make the folders; models of an earlier call are kept, texts and scores are not."""
    options.out.mkdir(parents=True, exist_ok=True)
    for name in ("texts", "claims", "scores"):
        shutil.rmtree(options.work / name, ignore_errors=True)
        (options.work / name).mkdir(parents=True)
    for name in ("results.jsonl", "texts.jsonl"):
        (options.out / name).unlink(missing_ok=True)


def prepare(options: argparse.Namespace) -> Data:
    """Write the files of labelled texts that arms read, and the real sentences."""
    data = Data(options)
    phrases = data.long_phrases()
    table(options.work / "sst2.tsv", phrases)
    table(options.work / "mix.tsv", data.mixed())
    clear = data.clear()
    table(options.work / "clear.tsv", clear)
    complete(options.work / "latent.txt", "".join(f"{text}\n" for text, _ in phrases))
    real = [{"arm": REAL, "split": "test", "attribute": y, "text": t} for t, y in data.test]
    publish(options, REAL, real)
    sizes = {f"sentences {name}": len(found) for name, found in data.sentences.items()}
    sizes |= {f"reviews {name}": len(found) for name, found in data.judged.items()}
    sizes |= {"phrases": len(phrases), "reviews": len(data.reviews), "clear": len(clear)}
    sizes["other"] = len(data.other)
    write(options, sizes=sizes)
    return data


def main(words: Sequence[str] | None = None) -> None:
    """Train everything, choose and report; with workers, in processes of their own."""
    options = parse(words)
    if options.role != "main":
        ROLES[options.role](options)
        return
    arguments = list(sys.argv[1:] if words is None else words)

    def start(role: str) -> "subprocess.Popen[bytes]":
        own = ["--role", role, "--start", str(options.start)]
        return subprocess.Popen([sys.executable, __file__, *arguments, *own])

    make_folders(options)
    others = [start(role) for role in ("networks", "counts")] if options.workers else []
    data = prepare(options)
    try:
        if options.decoder is None:
            attempt(options, "decoder", pretrain_decoder, options, data)
        elif not (options.work / "tokenizer.ready").exists():
            import kinfolk

            kinfolk.load(options.decoder)[1].save(options.work / "tokenizer")
            complete(options.work / "tokenizer.ready", "")
        arms = [start("arms") for _ in range(options.workers - 1)]
        attempt(options, "arms", run_arms, options)
        wait(options, arms, 0.89)
        complete(options.work / "texts" / "end", "")
        if not others:
            run_counts(options)
            run_networks(options)
        wait(options, others, 0.955)
        finish(options)
    finally:
        for process in others:
            process.kill()


def wait(
    options: argparse.Namespace, processes: Sequence["subprocess.Popen[bytes]"], share: float
) -> None:
    """Wait for processes until a share of the time has passed, and end them."""
    for process in processes:
        left = moment(options, share) - now(options)
        try:
            process.wait(None if left == math.inf else max(0.0, left))
        except subprocess.TimeoutExpired:
            write(options, ended=str(process.args[-3]))  # type: ignore[index]
            process.kill()


if __name__ == "__main__":
    main()
