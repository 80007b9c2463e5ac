"""Train a translation model from pairs of texts: vocabulary, corpus, run, BLEU."""

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kinfolk.data.parallel_text import ParallelText, TextPair, write_parallel_corpus
from kinfolk.errors import UserError
from kinfolk.families import family, family_of, index
from kinfolk.files import new_file, new_folder
from kinfolk.generation.config import GREEDY
from kinfolk.generation.generate import generate_batches, limit_by_source
from kinfolk.generation.prompts import EncodedPrompt, non_text_ids
from kinfolk.metrics.text import BLEU
from kinfolk.text import Tokenizer
from kinfolk.training.distributed import Processes
from kinfolk.training.loggers import check_installed
from kinfolk.training.provenance import Provenance
from kinfolk.training.workload import select_device, uses_bfloat16
from kinfolk.workflows.folders import RESUME, check_new_folder
from kinfolk.workflows.generate import PREFIX_FILE
from kinfolk.workflows.load import load
from kinfolk.workflows.parallel import ParallelData
from kinfolk.workflows.pretrain import PretrainWorkload, process_grid
from kinfolk.workflows.recipe import Recipe, recipe

DEV_FILE = "dev.jsonl"  # in the run: the pairs that BLEU is measured on
SCORE_FILE = "translation.json"
TRANSLATIONS_FILE = "translations.txt"
BATCH_SIZE = 64

TranslationScore = dict[str, float | int | str]  # BLEU, its signature and the number of pairs


def prepare_translation_run(
    name: str,
    texts: ParallelData,
    out: Path,
    *,
    objective: str | None = None,
    length: int | None = None,
    vectors: Path | str | None = None,
    settings: Sequence[str] = (),
    on_message: Callable[[str], None] = lambda message: None,
) -> Recipe:
    """Make a run folder with a corpus of pairs in it, for `pretrain.resume` to run.

    `name` is FAMILY/SIZE, or a model folder, whose tokenizer is kept.
    """
    check_new_folder(out, RESUME)
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
        write_parallel_corpus(texts.train, tokenizer, folder / "corpus", prefix=texts.prefix)
        if texts.dev is not None:
            holdout = folder / "corpus" / "holdout"
            write_parallel_corpus(texts.dev, tokenizer, holdout, prefix=texts.prefix)
            save_dev_pairs(texts.dev, texts.prefix, folder / DEV_FILE)
        chosen = recipe(
            name,
            folder / "corpus",
            objective=objective or "pairs",
            length=length,
            vectors=vectors,
            tokenizer=tokenizer if from_folder else None,
            settings=settings,
        )
        processes = process_grid(chosen)
        check_translation(chosen, out, processes)
        Provenance.of_this_process(processes).write(folder)
        chosen = replace(chosen, corpus=str((out / "corpus").resolve()))
        chosen.write(folder / "recipe.json")
        (folder / PREFIX_FILE).write_text(texts.prefix, encoding="utf-8")
    corpus = chosen.corpora[0].open()
    on_message(
        f"{corpus.documents:,} sentence pairs, {corpus.tokens:,} tokens, vocabulary size "
        f"{corpus.vocab_size:,}"
    )
    return chosen


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


def save_dev_pairs(files: ParallelText, prefix: str, path: Path) -> None:
    """Write the pairs that BLEU is measured on into the run, for a resume."""
    with path.open("w", encoding="utf-8") as file:
        for _, pair in files.pairs():
            row = {"source": prefix + pair.source, "target": pair.target}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def is_unscored(run: Path) -> bool:
    """Return whether a run has dev pairs and was ended before they were translated."""
    return (run / DEV_FILE).is_file() and not (run / SCORE_FILE).is_file()


def score(run: Path) -> TranslationScore | None:
    """Translate the dev pairs of a run; write BLEU and the translations into its folder."""
    path = run / DEV_FILE
    if not path.is_file():
        return None
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    pairs = [TextPair(row["source"], row["target"]) for row in rows]
    facts, outputs = evaluate_bleu(run, pairs, Recipe.read(run / "recipe.json").train.device)
    with new_file(run / TRANSLATIONS_FILE) as file:
        file.writelines(f"{text}\n" for text in outputs)
    with new_file(run / SCORE_FILE) as file:
        file.write(json.dumps(facts, indent=2) + "\n")
    return facts


def evaluate(
    path: Path | str,
    texts: ParallelData,
    *,
    device: str = "auto",
    tokenizer: Tokenizer | Path | str | None = None,
) -> TranslationScore:
    """Score the translations of a saved model by BLEU."""
    texts.check()
    pairs = [replace(pair, source=texts.prefix + pair.source) for _, pair in texts.train.pairs()]
    return evaluate_bleu(path, pairs, device, tokenizer)[0]


def evaluate_bleu(
    path: Path | str,
    pairs: Sequence[TextPair],
    device: str,
    tokenizer: Tokenizer | Path | str | None = None,
) -> tuple[TranslationScore, list[str]]:
    """Return BLEU of a saved model on pairs, and its translations."""
    model, tokenizer = load(path, tokenizer)
    if model.decoding != "encoder-decoder":
        raise UserError(
            f"{family_of(model).name} models cannot translate: use an encoder-decoder such as t5"
        )
    model.to(select_device(device))
    outputs = generate_texts(model, tokenizer, [pair.source for pair in pairs])
    references = [pair.target for pair in pairs]
    return {
        "bleu": BLEU(outputs, references),
        "signature": BLEU.signature(outputs, references),
        "pairs": len(pairs),
    }, outputs


def generate_texts(model: Any, tokenizer: Tokenizer, sources: Sequence[str]) -> list[str]:
    """Return the greedy output for each source, on one line."""
    eos = tokenizer.special_tokens.require("eos")
    start, suppressed = model.config.decoder_start_token_id, non_text_ids(model, tokenizer) - {eos}
    prompts = [
        EncodedPrompt([start], [*tokenizer.offsets(source)[0], eos], {eos}, suppressed)
        for source in sources
    ]
    outputs = generate_batches(
        model, tokenizer, prompts, GREEDY, batch_size=BATCH_SIZE, limit=limit_by_source
    )
    return [" ".join(output.text.split()) for (output,) in outputs]
