"""Train a translation model from pairs of texts: vocabulary, corpus, run, BLEU."""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.data.parallel_text import TextPair
from kinfolk.errors import UserError
from kinfolk.families import family, family_of, index
from kinfolk.files import new_file, new_folder
from kinfolk.generation.config import GREEDY
from kinfolk.generation.generate import generate_batches, limit_by_source
from kinfolk.generation.prompts import EncodedPrompt, non_text_ids
from kinfolk.metrics.text import BLEU, CHRF
from kinfolk.text import Tokenizer
from kinfolk.training.distributed import Processes
from kinfolk.training.loggers import check_installed
from kinfolk.training.provenance import Provenance
from kinfolk.training.workload import select_device, uses_bfloat16
from kinfolk.workflows.folders import RESUME_ADVICE, check_new_folder, find_model_folder
from kinfolk.workflows.generate import PREFIX_FILE
from kinfolk.workflows.load import check_trained, load
from kinfolk.workflows.pretrain import PretrainWorkload, process_grid, with_estimated_steps
from kinfolk.workflows.recipe import CorpusShare, Recipe, recipe, recipe_of
from kinfolk.workflows.translation.languages import find_route, target_languages
from kinfolk.workflows.translation.parallel import (
    DEV_FILE,
    MultilingualData,
    ParallelData,
    SentencePairs,
)

SCORE_FILE = "translation.json"
TRANSLATIONS_FILE = "translations.txt"
TRANSLATION_BATCH_SIZE = 64

# BLEU, its signature and the number of pairs; or `directions`, with these and more for each.
TranslationScore = dict[str, Any]


def prepare_translation_run(
    name: str,
    texts: SentencePairs,
    out: Path,
    *,
    objective: str | None = None,
    length: int | None = None,
    vectors: Path | str | None = None,
    fast: bool = False,
    settings: Sequence[str] = (),
    on_message: Callable[[str], None] = lambda message: None,
) -> Recipe:
    """Make a run folder with the corpora of its pairs in it, for `pretrain.resume` to run.

    `name` is FAMILY/SIZE, or a model folder, whose tokenizer is kept.
    """
    check_new_folder(out, RESUME_ADVICE)
    family_name, _, size = name.partition("/")
    from_folder = family_name not in index()
    if from_folder:
        texts = texts.with_tokenizer_of(name)
    else:
        family(family_name).config(size or "tiny")
        family(family_name).objective(objective or "pairs")
    texts.check()
    with new_folder(out) as folder:
        tokenizer = texts.open_tokenizer()
        corpora = texts.write(tokenizer, folder)
        chosen = recipe(
            name,
            corpora,
            objective=objective or "pairs",
            length=length,
            vectors=vectors,
            tokenizer=tokenizer if from_folder else None,
            fast=fast,
            settings=settings,
        )
        processes = process_grid(chosen)
        chosen = with_estimated_steps(chosen, out, processes)
        check_translation(chosen, out, processes)
        Provenance.of_this_process(processes).write(folder)
        moved = [out / corpus.relative_to(folder) for corpus in corpora]
        chosen = replace(chosen, corpus=place_corpora(moved), directions=texts.directions)
        chosen.write(folder / "recipe.json")
        (folder / PREFIX_FILE).write_text(texts.prefix, encoding="utf-8")
    opened = [share.open() for share in chosen.corpora]
    pairs, tokens = sum(c.documents for c in opened), sum(c.tokens for c in opened)
    ways = f" in {', '.join(chosen.directions)}" if chosen.directions else ""
    on_message(
        f"{pairs:,} sentence pairs{ways}, {tokens:,} tokens, vocabulary size "
        f"{opened[0].vocab_size:,}"
    )
    return chosen


def place_corpora(folders: Sequence[Path]) -> str | tuple[CorpusShare, ...]:
    """Return the corpora of a recipe: one, or several with equal weights."""
    shares = tuple(CorpusShare(str(folder.resolve())) for folder in folders)
    return shares if len(shares) > 1 else shares[0].corpus


def check_translation(chosen: Recipe, out: Path, processes: Processes) -> None:
    """Refuse wrong settings of a run, in process 0 alone: nothing waits for other processes."""
    train = chosen.train
    check_installed(train.loggers)
    processes.rows(train.batch_size, train.gradient_accumulation)
    alone = replace(train, parallel="ddp", tensor=1, pipeline=1)
    with warnings.catch_warnings(action="ignore"):  # repeated when the run starts
        work = PretrainWorkload(replace(chosen, train=alone))
    if processes.splits_model:
        from kinfolk.training.model_shard import check_shards  # takes a second

        check_shards(work.model, train, layer_lr_decay=work.layer_lr_decay)
    device = select_device(train.device)
    work.make_step(out, device, bfloat16=uses_bfloat16(train, device))


def is_unscored(run: Path) -> bool:
    """Return whether a run has dev pairs and was ended before they were translated."""
    return (run / DEV_FILE).is_file() and not (run / SCORE_FILE).is_file()


def score(run: Path) -> TranslationScore | None:
    """Translate the dev pairs of a run; write BLEU and the translations into its folder."""
    path = run / DEV_FILE
    if not path.is_file():
        return None
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    chosen = Recipe.read(run / "recipe.json")
    facts: TranslationScore
    if chosen.directions:
        pairs: dict[str, list[TextPair]] = {}
        for row in rows:
            pairs.setdefault(row["direction"], []).append(TextPair(row["source"], row["target"]))
        facts, outputs = evaluate_directions(run, pairs, chosen.train.device)
    else:
        single = [TextPair(row["source"], row["target"]) for row in rows]
        facts, outputs = evaluate_bleu(run, single, chosen.train.device)
    with new_file(run / TRANSLATIONS_FILE) as file:
        file.writelines(f"{text}\n" for text in outputs)
    with new_file(run / SCORE_FILE) as file:
        file.write(json.dumps(facts, indent=2) + "\n")
    return facts


def evaluate_translation(
    path: Path | str,
    texts: SentencePairs,
    *,
    pivot: str | None = None,
    device: str = "auto",
    tokenizer: Tokenizer | Path | str | None = None,
) -> TranslationScore:
    """Score the translations of a saved model by BLEU; of several languages, each direction.

    `pivot` translates into that language first, and from there into the target language.
    """
    texts.check()
    if isinstance(texts, MultilingualData):
        named = {
            pair.name: [text for _, text in pair.files.pairs()] for pair in texts.train_directions
        }
        return evaluate_directions(path, named, device, tokenizer, pivot=pivot)[0]
    assert isinstance(texts, ParallelData)
    pairs = [replace(pair, source=texts.prefix + pair.source) for _, pair in texts.train.pairs()]
    return evaluate_bleu(path, pairs, device, tokenizer)[0]


def evaluate_bleu(
    path: Path | str,
    pairs: Sequence[TextPair],
    device: str,
    tokenizer: Tokenizer | Path | str | None = None,
) -> tuple[TranslationScore, list[str]]:
    """Return BLEU of a saved model on pairs, and its translations."""
    model, tokenizer = load_translator(path, device, tokenizer)
    if known := target_languages(path, tokenizer):
        raise UserError(
            f"{path} translates into {', '.join(known)}: name the languages of the files, such as "
            "--pair en-de=FILE,FILE"
        )
    outputs = generate_texts(model, tokenizer, [pair.source for pair in pairs])
    references = [pair.target for pair in pairs]
    return {
        "bleu": BLEU(outputs, references),
        "signature": BLEU.signature(outputs, references),
        "pairs": len(pairs),
    }, outputs


def evaluate_directions(
    path: Path | str,
    pairs: Mapping[str, Sequence[TextPair]],
    device: str,
    tokenizer: Tokenizer | Path | str | None = None,
    *,
    pivot: str | None = None,
) -> tuple[TranslationScore, list[str]]:
    """Return BLEU and chrF of each direction beside those of copied sources, and translations."""
    model, tokenizer = load_translator(path, device, tokenizer)
    recipe = recipe_of(find_model_folder(path).resolve())
    if not target_languages(path, tokenizer):
        raise UserError(
            f"{path} was not trained with --pair and has one direction: score it on --source FILE "
            "--target FILE"
        )
    routes = {
        name: find_route(path, tokenizer, name.partition("-")[2], pivot_of(name, pivot))
        for name in pairs
    }
    found: dict[str, TranslationScore] = {}
    written: list[str] = []
    for name, texts in pairs.items():
        sources, references = [text.source for text in texts], [text.target for text in texts]
        outputs = sources
        for tags in routes[name]:
            outputs = generate_texts(model, tokenizer, outputs, tags=tags)
        found[name] = {
            "bleu": BLEU(outputs, references),
            "chrf": CHRF(outputs, references),
            "copied_bleu": BLEU(sources, references),
            "copied_chrf": CHRF(sources, references),
            "signature": BLEU.signature(outputs, references),
            "pairs": len(texts),
        }
        if recipe is not None:
            found[name]["trained"] = name in recipe.directions
        written += outputs
    return {"directions": found}, written


def pivot_of(direction: str, pivot: str | None) -> str | None:
    """Return the pivot of a direction; a text that is in that language, or goes to it, has none."""
    return None if pivot in direction.split("-") else pivot


def score_lines(score: TranslationScore) -> list[str]:
    """Return a line of text for each score of a run or of an evaluation."""
    if "directions" not in score:
        return [f"BLEU {score['bleu']:.1f} on {score['pairs']:,} pairs ({score['signature']})"]
    return [
        f"{name}: BLEU {found['bleu']:.1f}, chrF {found['chrf']:.1f} (copied sources: "
        f"{found['copied_bleu']:.1f}, {found['copied_chrf']:.1f}) on {found['pairs']:,} pairs"
        + (", zero-shot" if found.get("trained") is False else "")
        for name, found in score["directions"].items()
    ]


def load_translator(
    path: Path | str, device: str, tokenizer: Tokenizer | Path | str | None = None
) -> tuple[Any, Tokenizer]:
    """Open an encoder-decoder on its device."""
    model, tokenizer = load(path, tokenizer)
    if model.decoding != "encoder-decoder":
        raise UserError(
            f"{family_of(model).name} models cannot translate: use an encoder-decoder such as t5"
        )
    check_trained(model)
    return model.to(select_device(device)), tokenizer


def generate_texts(
    model: Any, tokenizer: Tokenizer, sources: Sequence[str], *, tags: Sequence[int] = ()
) -> list[str]:
    """Return the greedy output for each source, on one line; an empty source has none."""
    eos = tokenizer.special_tokens.require("eos")
    start, suppressed = model.config.decoder_start_token_id, non_text_ids(model, tokenizer) - {eos}
    prompts = [
        EncodedPrompt([start], [*tags, *tokenizer.offsets(source)[0], eos], {eos}, suppressed)
        if source
        else None
        for source in sources
    ]
    outputs = generate_batches(
        model, tokenizer, prompts, GREEDY, batch_size=TRANSLATION_BATCH_SIZE, limit=limit_by_source
    )
    return [" ".join(texts[0].text.split()) if texts else "" for texts in outputs]
