"""What contrastive prefixes do to generated text: sentiment, perplexity and variety.

python benchmarks/prefixes.py --sst2 data/sst2 --imdb data/imdb --wiki wiki.txt --out work

A small GPT-2 is pretrained on the phrases of SST-2's training file, half of the training reviews of
IMDB and some of Wikipedia. Prefixes are learned for it from the labels of these phrases, and from
the phrases alone. Texts continue neutral prompts, as many for each attribute, with a prefix and
without. Two classifiers that were trained apart say which sentiment a text has: TF-IDF with
logistic regression on the other half of the reviews, and a BERT on SST-2's dev rows. Perplexity is
that of a 3-gram model of those reviews and dev rows, which the decoder has not seen.
"""

import argparse
import csv
import gzip
import json
import lzma
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

PROMPTS = (
    *("the film", "the movie", "this movie", "the story", "the plot", "the acting", "the director"),
    *("the characters", "the script", "the cast", "it", "this is", "a", "the performances", "and"),
)
ATTRIBUTES = ("0", "1")  # negative and positive, as in SST-2
# The settings of prefixes beside those of the command line; None generates without a prefix.
ARMS: dict[str, dict[str, Any] | None] = {
    "no prefix": None,
    "labelled": {},
    "labelled, more contrast": {"lm_weight": 1.0, "discriminative_weight": 5.0},
    "latent": {"latent": True},
}
RESAMPLES = 1000


def rows(path: Path) -> list[tuple[str, str]]:
    """Return the texts of a table with a header, and their labels."""
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "rt", encoding="utf-8") as file:
        table = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [((r.get("sentence") or r["text"]).strip(), r["label"]) for r in table]


def pretrain_decoder(
    options: argparse.Namespace, phrases: Sequence[str], reviews: Sequence[str]
) -> Path:
    """Pretrain the decoder on phrases, reviews and Wikipedia."""
    import kinfolk

    folder, run = options.out / "decoder", options.out / "decoder" / "run"
    if (run / "report.html").is_file():
        return run
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"phrases": phrases, "reviews": reviews}
    for name, found in texts.items():
        (folder / f"{name}.txt").write_text("\n\n".join(found), encoding="utf-8")
    files = [folder / "phrases.txt", folder / "reviews.txt"]
    tokenizer = kinfolk.train_tokenizer(files, kind="bpe", vocab_size=options.vocab)
    corpora = {}
    for file, weight in zip([*files, options.wiki], (0.45, 0.45, 0.1), strict=True):
        name = folder / f"corpus-{file.stem}"
        kinfolk.prepare(file, tokenizer, name, holdout=0.01)
        corpora[name] = weight
    recipe = kinfolk.recipe(
        options.model,
        corpora,
        length=128,
        steps=options.steps,
        lr=options.lr,
        batch_size=32,
        device=options.device,
    )
    return kinfolk.pretrain(recipe, run)


def train_bert(options: argparse.Namespace) -> Any:
    """Return a classifier that was trained on the dev rows of SST-2."""
    import kinfolk

    run = options.out / "bert"
    if not (run / "scores.json").is_file():
        rows = options.sst2 / "dev.tsv"
        kinfolk.finetune("bert/tiny", rows, run, epochs=4, lr=1e-3, device=options.device)
    return kinfolk.load_predictor(run, device=options.device)


def learn(options: argparse.Namespace, decoder: Path, arm: str, phrases: Path) -> Path:
    """Learn the prefixes of an arm."""
    import kinfolk

    settings = dict(ARMS[arm] or {})
    latent = settings.pop("latent", False)
    run = options.out / "prefixes" / arm.replace(", ", "-").replace(" ", "-")
    if (run / "prefixes.safetensors").is_file():
        return run
    shared = {"steps": options.prefix_steps, "lr": options.prefix_lr, "device": options.device}
    every = max(1, options.prefix_steps // 5)
    shared |= {"eval_every": every, "save_every": every, "warmup": options.prefix_steps // 10}
    shared |= {"batch_size": 256, "eval_batches": 4}
    train = None if latent else options.sst2 / "train.tsv.gz"
    source = {"text": phrases} if latent else {}
    given = dict(setting.split("=", 1) for setting in options.settings)
    return kinfolk.learn_prefixes(decoder, train, run, **source, **{**shared, **given, **settings})


def interval(values: np.ndarray[Any, Any], of: Any = np.mean) -> tuple[float, float, float]:
    """Return a statistic of texts and its 95 % bootstrap interval."""
    rng = np.random.default_rng(0)
    drawn = [of(values[rng.integers(0, len(values), len(values))]) for _ in range(RESAMPLES)]
    return float(of(values)), *map(float, np.percentile(drawn, [2.5, 97.5]))


def perplexity(nats: np.ndarray[Any, Any]) -> float:
    """Return the perplexity of texts from their nats and tokens: (texts, 2)."""
    return math.exp(nats[:, 0].sum() / nats[:, 1].sum())


class Judges:
    """The classifiers and the 3-gram model, trained on other rows than the decoder."""

    def __init__(
        self, options: argparse.Namespace, decoder: Path, reviews: Sequence[tuple[str, str]]
    ) -> None:
        import kinfolk
        from kinfolk.metrics.tfidf import TfidfClassifier
        from kinfolk.workflows.baselines import end_ids, ngram_of_corpus

        self.tfidf = TfidfClassifier.fit([[text] for text, _ in reviews], [y for _, y in reviews])
        self.bert = train_bert(options)
        folder = options.out / "judges"
        folder.mkdir(exist_ok=True)
        other = [text for text, _ in [*reviews, *rows(options.sst2 / "dev.tsv")]]
        (folder / "text.txt").write_text("\n\n".join(other), encoding="utf-8")
        if not (folder / "corpus").is_dir():
            _, tokenizer = kinfolk.load(decoder)
            kinfolk.prepare(folder / "text.txt", tokenizer, folder / "corpus", holdout=0.01)
        self.ngram, self.tokenizer = ngram_of_corpus(folder / "corpus")
        self.ends = end_ids(kinfolk.Corpus.open(folder / "corpus"))

    def sentiments(self, texts: Sequence[str]) -> dict[str, list[str]]:
        """Return the sentiment of each text by each classifier."""
        import kinfolk

        predicted = kinfolk.predict(self.bert, list(texts))
        return {
            "tfidf": self.tfidf.predict([[text] for text in texts]),
            "bert": [prediction.value for prediction in predicted],
        }

    def nats(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the nats of each text and its tokens."""
        from kinfolk.workflows.baselines import document_nll

        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        losses = document_nll(self.ngram, [np.array(ids, np.int64) for ids in encoded], *self.ends)
        return np.array([(float(nll[:-1].sum()), len(nll) - 1) for nll in losses])


def generate(
    options: argparse.Namespace, decoder: Path, run: Path | None, attribute: str, seed: int
) -> list[str]:
    """Return texts that continue the prompts, after the prefix of an attribute."""
    import kinfolk

    model, tokenizer = kinfolk.load(decoder)
    prompts = [prompt for prompt in PROMPTS for _ in range(options.texts)]
    after = {} if run is None else {"prefix_from": run, "attribute": attribute}
    texts = kinfolk.generate(
        model,
        tokenizer,
        prompts,
        max_new_tokens=options.new_tokens,
        min_new_tokens=options.new_tokens,  # a sentiment cannot be told from two words
        top_p=options.top_p,
        add_bos_token=True,
        seed=seed,
        **after,
    )
    return [prompt + text for prompt, text in zip(prompts, texts, strict=True)]


def score(judges: Judges, texts: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the measures of texts with the attributes that were asked for."""
    from kinfolk.metrics.diversity import diversity_scores

    only, asked = [text for text, _ in texts], [attribute for _, attribute in texts]
    result: dict[str, Any] = {}
    for name, found in judges.sentiments(only).items():
        right = np.array([a == b for a, b in zip(found, asked, strict=True)], float)
        result[name] = interval(right)
        result[f"{name} by attribute"] = {
            each: float(right[[a == each for a in asked]].mean()) for each in ATTRIBUTES
        }
    result["perplexity"] = interval(judges.nats(only), perplexity)
    # Of the texts of each attribute, since texts of one sentiment are compared with one another.
    apart = [diversity_scores([t for t, a in texts if a == each]) for each in ATTRIBUTES]
    for n in range(3):
        result[f"distinct-{n + 1}"] = float(np.mean([each.distinct_n[n] or 0 for each in apart]))
    result["words"] = float(np.mean([each.words for each in apart]))
    return result


def matched(texts: dict[str, list[str]], judges: Judges) -> dict[str, str]:
    """Return the latent attribute that stands for each sentiment, by the TF-IDF classifier."""
    share = {
        name: np.mean([s == "1" for s in judges.sentiments(found)["tfidf"]])
        for name, found in texts.items()
    }
    negative, positive = sorted(share, key=lambda name: float(share[name]))
    return {"0": negative, "1": positive}


def run_arm(
    options: argparse.Namespace, decoder: Path, judges: Judges, arm: str, phrases: Path
) -> dict[str, Any]:
    """Learn the prefixes of an arm, generate, and measure the texts."""
    began = time.perf_counter()
    run = None if ARMS[arm] is None else learn(options, decoder, arm, phrases)
    names = dict(zip(ATTRIBUTES, ATTRIBUTES, strict=True))
    if arm == "latent":  # names are found on texts of another seed than those that are scored
        tried = {name: generate(options, decoder, run, name, seed=99) for name in ("1", "2")}
        names = matched(tried, judges)
    texts = [
        (text, attribute)
        for number, attribute in enumerate(ATTRIBUTES)
        for text in generate(options, decoder, run, names[attribute], seed=number)
    ]
    seconds = round(time.perf_counter() - began, 1)
    path = options.out / f"texts-{arm.replace(', ', '-').replace(' ', '-')}.jsonl"
    lines = [json.dumps({"attribute": a, "text": t}) for t, a in texts]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"arm": arm, **score(judges, texts), "seconds": seconds}


def show(results: Sequence[dict[str, Any]]) -> None:
    """Print a line for each arm."""
    print(
        f"\n{'':28} {'TF-IDF':>19} {'BERT':>19} {'perplexity':>21} {'d-1':>5} {'d-2':>5} {'d-3':>5}"
    )
    for result in results:
        cells = [f"{result['arm']:28}"]
        for name in ("tfidf", "bert"):
            mean, low, high = (100 * value for value in result[name])
            cells.append(f"{mean:5.1f} [{low:4.1f}, {high:4.1f}]".rjust(19))
        mean, low, high = result["perplexity"]
        cells.append(f"{mean:6.1f} [{low:5.1f}, {high:5.1f}]".rjust(21))
        cells += [f"{result[f'distinct-{n}']:5.2f}" for n in (1, 2, 3)]
        print(" ".join(cells))


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sst2", type=Path, required=True, help="train.tsv.gz, dev.tsv, test.tsv")
    parser.add_argument("--imdb", type=Path, required=True, help="folder with train.tsv.xz")
    parser.add_argument("--wiki", type=Path, required=True, help="text of other kinds")
    parser.add_argument("--out", type=Path, required=True, help="folder; what it has is kept")
    parser.add_argument("--model", default="gpt2/tiny")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=2000, help="of pretraining")
    parser.add_argument("--lr", type=float, default=3e-3, help="of pretraining")
    parser.add_argument("--decoder", type=Path, help="a model in place of a new one")
    parser.add_argument("--prefix-steps", type=int, default=120, help="of 256 texts")
    parser.add_argument("--prefix-lr", type=float, default=1e-3)
    parser.add_argument("--settings", nargs="*", default=[], help="such as prefix_length=20")
    parser.add_argument("--texts", type=int, default=20, help="for each prompt and attribute")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--top-p", type=float, default=0.9)
    parser.add_argument("--arms", nargs="*", default=list(ARMS))
    parser.add_argument("--device", default="cpu")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Train everything, and measure each arm."""
    options = parse(words)
    options.out.mkdir(parents=True, exist_ok=True)
    train = rows(options.sst2 / "train.tsv.gz")
    reviews = rows(options.imdb / "train.tsv.xz")
    half = len(reviews) // 2
    phrases = options.out / "phrases.txt"
    phrases.write_text("\n".join(text for text, _ in train) + "\n", encoding="utf-8")
    decoder = options.decoder or pretrain_decoder(
        options, [t for t, _ in train], [t for t, _ in reviews[:half]]
    )
    judges = Judges(options, decoder, reviews[half:])
    real = rows(options.sst2 / "test.tsv")
    results = [{"arm": "real sentences", **score(judges, real), "seconds": 0.0}]
    results += [run_arm(options, decoder, judges, arm, phrases) for arm in options.arms]
    for result in results:
        print(json.dumps(result), flush=True)
    show(results)


if __name__ == "__main__":
    main()
