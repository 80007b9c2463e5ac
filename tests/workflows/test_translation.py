"""Translation: what is written comes in order, and a small Transformer learns a small language."""

import json
import random
from itertools import product
from pathlib import Path

import pytest
import torch

from kinfolk.data.parallel_text import ParallelText
from kinfolk.errors import UserError
from kinfolk.families.transformer import Transformer, TransformerConfig
from kinfolk.files import new_folder
from kinfolk.generation import generate as generation
from kinfolk.generation.config import GREEDY
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows import pretrain
from kinfolk.workflows.translation import translate
from kinfolk.workflows.translation.parallel import ParallelData
from kinfolk.workflows.translation.translate import (
    evaluate_bleu,
    generate_texts,
    prepare_translation_run,
    score,
)
from support.decoding import write

WHO = {"a dog": "ein Hund", "the man": "der Mann", "two cats": "zwei Katzen"}
DOES = {"runs": "rennt", "sleeps": "schläft", "plays": "spielt", "waits": "wartet"}
WHEN = {"now": "jetzt", "today": "heute", "often": "oft"}


def sentences() -> list[tuple[str, str]]:
    """All there are to say: in German the time comes first, and the verb before who does it."""
    found = [
        (f"{who} {does} {when}", f"{WHEN[when]} {DOES[does]} {WHO[who]}")
        for who, does, when in product(WHO, DOES, WHEN)
    ]
    random.Random(0).shuffle(found)
    return found


def table(path: Path, rows: list[tuple[str, str]]) -> ParallelText:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    return ParallelText(path)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(
        [text for pair in sentences() for text in pair], kind="bpe", vocab_size=400
    )


@pytest.fixture
def model(tokenizer: Tokenizer) -> Transformer:
    """A network that says something else about every source, and comes to an end."""
    torch.manual_seed(1)
    config = TransformerConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=32, num_layers=2, num_heads=2
    )
    model = config.build().eval()
    with torch.no_grad():
        model.token_embeddings.weight *= 2
    return model


def test_translations_come_in_order_however_they_are_batched(
    model: Transformer, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "EXTRA_LENGTH", 6)
    sources = ["a dog", "two cats sleep often", "the man runs", "now", "two cats sleep often"]
    alone = [generate_texts(model, tokenizer, [source])[0] for source in sources]
    assert alone[1] == alone[4] and len(set(alone)) == 4
    assert generate_texts(model, tokenizer, sources) == alone
    monkeypatch.setattr(translate, "TRANSLATION_BATCH_SIZE", 2)
    assert generate_texts(model, tokenizer, sources) == alone


def test_a_translation_is_the_likeliest_token_after_the_likeliest(
    model: Transformer, tokenizer: Tokenizer
) -> None:
    eos = tokenizer.special_tokens.require("eos")
    ids = [*tokenizer.encode("the man runs", add_special_tokens=False), eos]
    banned = tokenizer.special_tokens.ids - {eos}
    (written,) = write(
        model,
        [[tokenizer.special_tokens.pad]],
        max_new_tokens=len(ids) + 50,
        eos_ids={eos},
        method=GREEDY,
        encoder_ids=[ids],
        banned=banned,
    )
    expected = " ".join(tokenizer.decode(written.ids).split())
    assert expected and generate_texts(model, tokenizer, ["the man runs"]) == [expected]


def test_a_failure_leaves_nothing_and_what_was_left_before_is_no_hindrance(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    with pytest.raises(KeyboardInterrupt), new_folder(out) as folder:
        (folder / "half").write_text("x", encoding="utf-8")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "deep" / ".run.partial").mkdir(parents=True)
    (tmp_path / "deep" / ".run.partial" / "old").touch()
    with new_folder(out) as folder:
        (folder / "whole").touch()
    assert [path.name for path in out.iterdir()] == ["whole"]


def test_bleu_needs_a_model_that_reads_sources(runs: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="gpt2 models cannot translate"):
        evaluate_bleu(runs["gpt2"], [], "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["transformer", "cove"])
def test_a_small_model_learns_to_translate_what_it_never_saw(family: str, tmp_path: Path) -> None:
    known = sentences()
    train, dev = table(tmp_path / "train.tsv", known[:30]), table(tmp_path / "dev.tsv", known[30:])
    settings = ["steps=150", "batch_size=4", "warmup=20", "device=cpu", "eval_every=1000"]
    settings = [f"train.{one}" for one in (*settings, "lr=4e-3", "schedule=linear")]
    run, texts = tmp_path / "run", ParallelData(train=train, dev=dev, vocab_size=400)
    prepare_translation_run(f"{family}/nano", texts, run, length=48, settings=settings)
    assert not (run / "checkpoints").exists()
    pretrain.resume(run)
    found = score(run)
    assert found is not None and found["pairs"] == 6
    written = (run / "translations.txt").read_text(encoding="utf-8").splitlines()
    for (source, _), text in zip(known[30:], written, strict=True):
        print(f"{source} -> {text}")
    print(f"BLEU {found['bleu']:.1f}")
    assert json.loads((run / "translation.json").read_text(encoding="utf-8")) == found
    assert isinstance(found["bleu"], float) and found["bleu"] > 60
