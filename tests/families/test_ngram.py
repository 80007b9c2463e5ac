"""N-gram runs: counted order by order, resumed to the same bytes, scored, filled and exported."""

import gzip
import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kinfolk
from kinfolk.batch import Inputs
from kinfolk.data.corpus import Corpus
from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.families.base import STANDARD_SIZES
from kinfolk.families.ngram import NGram, NGramConfig
from kinfolk.hub.arpa import read_arpa, write_arpa
from kinfolk.text import train_tokenizer
from kinfolk.workflows.baselines import document_nll, fit_documents, fit_ngram, score_text
from kinfolk.workflows.pretrain import pretrain, resume
from kinfolk.workflows.recipe import recipe
from support.killed_runs import counting, death
from support.runs import Home, Kinfolk, OnStep

FOUR_LINES = ["the cat saw the dog", "the dog saw a cat", "a cat ran", "the dog ran to the cat"]
# What lmplz -o 3 --discount_fallback writes for these lines (KenLM 0.2.0): log10 of a probability,
# the tokens, log10 of the back-off weight.
KENLM = Path(__file__).parent / "golden" / "kenlm.arpa"


@pytest.fixture(scope="module")
def run(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("ngram") / "run"
    return pretrain(recipe("ngram/4", home.corpus), out)


def log(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]


def weights(run: Path) -> bytes:
    return (run / "checkpoints" / "last" / "model.safetensors").read_bytes()


def test_a_run_counts_one_order_a_step(run: Path, home: Home) -> None:
    lines = log(run)
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    losses = [line["eval_loss"] for line in lines]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] / 2
    assert all("lr" not in line and "grad_norm" not in line for line in lines)
    files = {path.name for path in run.iterdir()}
    assert files >= {"recipe.json", "log.jsonl", "report.html", "checkpoints"}
    assert "counts" not in files
    assert "4-grams" in (run / "report.html").read_text("utf-8")
    model, tokenizer = kinfolk.load(run)
    assert isinstance(model, NGram) and model.config.order == len(model.config.sizes) == 4
    assert model.config.sizes[0] == tokenizer.vocab_size


def test_the_loss_of_a_run_is_that_of_the_line_under_the_curves(run: Path, home: Home) -> None:
    corpus, held_out = Corpus.open(home.corpus), Corpus.open(home.corpus / "holdout")
    for order in (3, 4):
        expected = score_text(fit_ngram([(corpus, 1.0)], order), held_out)
        if order == 4:
            assert log(run)[-1]["eval_loss"] == pytest.approx(expected.loss, abs=1e-12)
            found = kinfolk.evaluate(run, corpus=home.corpus / "holdout")
            assert found.bits_per_byte == pytest.approx(expected.bits_per_byte, rel=1e-9)
        else:  # that of every report
            assert expected.loss == pytest.approx(0.5746794, abs=1e-6)


def test_a_run_that_is_killed_while_it_counts_ends_in_the_same_bytes(
    run: Path, home: Home, tmp_path: Path
) -> None:
    chosen = recipe("ngram/4", home.corpus)
    out = tmp_path / "run"
    for orders in (2, 3):
        death(chosen, out, counting, orders + 1)
        assert (out / "counts" / f"{orders}-keys").is_file()
        assert not (out / "counts" / f"{orders + 1}-keys").exists()
    resume(out)
    assert weights(out) == weights(run)
    assert log(out) == log(run)


def test_an_interrupted_run_has_the_model_of_its_last_order(
    run: Path, home: Home, tmp_path: Path
) -> None:
    def watch(progress: Any) -> None:
        if progress.step == 2:
            raise KeyboardInterrupt

    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe("ngram/4", home.corpus), out, callbacks=[OnStep(watch)])
    model, _ = kinfolk.load(out)
    assert model.config.order == 2
    shutil.rmtree(out / "counts")  # they follow from the corpus
    resume(out)
    assert weights(out) == weights(run)


def test_sizes_are_orders() -> None:
    sizes = family("ngram").sizes
    assert [sizes[name].order for name in STANDARD_SIZES] == [2, 3, 4, 5, 5, 6, 6]  # type: ignore[attr-defined]
    assert [sizes[str(order)].order for order in range(1, 7)] == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]


def test_pruned_runs_are_smaller(run: Path, home: Home, tmp_path: Path) -> None:
    chosen = recipe("ngram/4", home.corpus, settings=["model.prune=0,0,1"])
    pruned, _ = kinfolk.load(pretrain(chosen, tmp_path / "pruned"))
    whole, _ = kinfolk.load(run)
    assert pruned.config.sizes[:2] == whole.config.sizes[:2]
    assert all(a < b for a, b in zip(pruned.config.sizes[2:], whole.config.sizes[2:], strict=True))


def test_masks_are_filled_with_the_most_probable_text(run: Path) -> None:
    model, tokenizer = kinfolk.load(run)
    assert isinstance(model, NGram)
    result = kinfolk.fill(model, tokenizer, "The cat saw[MASK]river again. My[MASK]r.")
    bos = tokenizer.special_tokens.require("bos")
    before, after = (tokenizer.encode(part) for part in ("The cat saw", "river again. My"))
    every = [np.array([*before, token, *after]) for token in range(tokenizer.vocab_size)]
    nats = torch.tensor([-nll[:-1].sum() for nll in document_nll(model, every, bos, bos)])
    nats[list(tokenizer.special_tokens.ids)] = -torch.inf
    best = nats.log_softmax(0).topk(5)
    words = [tokenizer.decode([token]) for token in best.indices.tolist()]
    assert [text for text, _ in result.masks[0].candidates] == words
    probabilities = [chance for _, chance in result.masks[0].candidates]
    assert probabilities == pytest.approx(best.values.exp().tolist(), rel=1e-3)
    assert result.text.startswith(f"The cat saw{words[0]}river again. My")


def test_it_generates_the_words_of_its_text(run: Path) -> None:
    text = kinfolk.generate(run, "The cat", max_new_tokens=40, seed=2)
    assert "." in text and "\N{REPLACEMENT CHARACTER}" not in text


@pytest.mark.parametrize("kind", ["char", "byte", "wordpiece"])
def test_chinese_is_counted(kind: str, tmp_path: Path) -> None:
    lines = ["床前明月光，疑是地上霜。", "举头望明月，低头思故乡。", "明月几时有？把酒问青天。"] * 8
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(lines), encoding="utf-8")
    tokenizer = train_tokenizer(lines, kind=kind, vocab_size=180, fewer=True)
    prepare([text], tokenizer=tokenizer, out=tmp_path / "corpus")
    run = pretrain(recipe("ngram/3", tmp_path / "corpus"), tmp_path / "run")
    assert kinfolk.evaluate(run, text="举头望明月").perplexity < 4
    assert "月" in kinfolk.generate(run, "举头望明", do_sample=False, max_new_tokens=6)
    arpa = write_arpa(*kinfolk.load(run), tmp_path / "x.arpa")  # type: ignore[arg-type]
    again = kinfolk.load(arpa, tokenizer)[0]
    same_scores(kinfolk.load(run)[0], again)


def same_scores(one: Any, other: Any) -> None:
    """Compare the distributions after a few tokens."""
    vocab = one.config.vocab_size
    ids = torch.randint(vocab, (4, 9), generator=torch.Generator().manual_seed(0))
    found = [
        m.lm_logits(m(Inputs.from_ids(ids, causal=True)).hidden).logits() for m in (one, other)
    ]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=2e-6)


def test_an_arpa_file_comes_back(run: Path, kinfolk: Kinfolk, tmp_path: Path) -> None:
    import kinfolk as package

    arpa = tmp_path / "x.arpa"
    assert kinfolk("export", run, "-o", arpa).code == 0
    model, tokenizer = package.load(run)
    same_scores(model, read_arpa(arpa, tokenizer)[0])
    packed = tmp_path / "x.arpa.gz"
    packed.write_bytes(gzip.compress(arpa.read_bytes()))
    said = kinfolk("import", packed, "-o", tmp_path / "folder", "--tokenizer", run)
    assert said.code == 0, said.err
    same_scores(model, package.load(tmp_path / "folder")[0])
    # Without a tokenizer the tokens are words between white space.
    words, own = package.load(arpa)
    assert own.kind == "word" and own.vocab_size == tokenizer.vocab_size + 1  # <s> and </s>
    assert words.config.sizes[1:] == model.config.sizes[1:]


def words_of(line: str, ids: dict[str, int]) -> np.ndarray:
    return np.array([ids[word] for word in line.split()], np.int64)


def counted(
    lines: list[str], order: int, prune: tuple[int, ...] = ()
) -> tuple[NGram, dict[str, int]]:
    """Count lines with the vocabulary that lmplz has: the words, <unk> and </s>."""
    ids: dict[str, int] = {"<unk>": 0, "</s>": 1}
    for word in " ".join(lines).split():
        ids.setdefault(word, len(ids))
    texts = [words_of(line, ids) for line in lines]
    model = fit_documents(texts, vocab_size=len(ids), order=order, bos=1, eos=1, prune=prune)
    return model, ids


def compare_with_kenlm(arpa: Path, model: NGram, ids: dict[str, int]) -> None:
    """Compare every probability and back-off weight of an ARPA file."""
    theirs, tokenizer = read_arpa(arpa)
    assert isinstance(theirs, NGram)
    assert theirs.config.sizes[1:] == model.config.sizes[1:]
    words = [word for word in ids if word not in ("<unk>", "</s>")]
    lines = [[], *([word] for word in words), words[::-1], words]
    for line in lines:
        ours = [np.array([ids[word] for word in line], np.int64)]
        other = [np.array([tokenizer.token_to_id(word) for word in line], np.int64)]
        bos, eos = (tokenizer.special_tokens.require(role) for role in ("bos", "eos"))
        np.testing.assert_allclose(
            next(document_nll(model, ours, 1, 1)),
            next(document_nll(theirs, other, bos, eos)),
            atol=2e-6,
        )
    # All stored values, in the order of their sizes.
    for one, two in zip(model.tables[1:], theirs.tables[1:], strict=True):
        for a, b in ((one.log_probs, two.log_probs), (one.log_probs.exp(), two.log_probs.exp())):
            torch.testing.assert_close(a.sort().values, b.sort().values, rtol=0, atol=2e-6)


def test_probabilities_and_weights_are_those_of_kenlm() -> None:
    compare_with_kenlm(KENLM, *counted(FOUR_LINES, 3))


@pytest.mark.parity
@pytest.mark.parametrize("prune", [(), (0, 0, 1)])
def test_a_longer_text_is_counted_as_by_lmplz(
    prune: tuple[int, ...], home: Home, tmp_path: Path
) -> None:
    lmplz = shutil.which("lmplz")
    if lmplz is None:
        pytest.skip("KenLM's lmplz is not installed")
    lines = [line for line in home.text.read_text("utf-8").splitlines() if line.strip()]
    source, arpa = tmp_path / "text", tmp_path / "x.arpa"
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    thresholds = ["--prune", *map(str, prune)] if prune else []
    command = [lmplz, "-o", "4", "--discount_fallback", *thresholds, "--text", source]
    with arpa.open("wb") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=True)
    compare_with_kenlm(arpa, *counted(lines, 4, prune))


ARPA = "\\data\\\nngram 1=4\nngram 2=1\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\t-0.5\n-1\t</s>\n-0.5\ta\t-0.1\n\n\\2-grams:\n-0.3\t<s> a\n\n\\end\\\n"  # noqa: E501


def test_an_arpa_file_with_missing_parts_or_wrong_numbers_is_refused(tmp_path: Path) -> None:
    def read(text: str) -> NGram:
        path = tmp_path / "x.arpa"
        path.write_text(text, encoding="utf-8")
        return read_arpa(path)[0]

    assert read(ARPA).config.sizes == (4, 1)
    wrong = {
        "": "there is no \\data\\",
        ARPA.replace("\\2-grams:\n", ""): "\\2-grams: is expected, not '-0.3",
        ARPA.replace("\\1-grams:\n", ""): "\\1-grams: is expected",
        ARPA.replace("\\end\\\n", ""): "\\end\\ is expected, not 'the end of the file'",
        ARPA.replace("1=4", "1=5"): "the section \\1-grams: ends after 4 of 5",
        ARPA.replace("1=4", "1=3"): "\\2-grams: is expected, not '-0.5",
        ARPA.replace("-0.3\t", "much\t"): "line 12: 'much' is not a number",
        ARPA.replace("-0.3\t", "0.3\t"): "0.3 is not the logarithm of a probability",
        ARPA.replace("-0.3\t", "nan\t"): "nan is not the logarithm",
        ARPA.replace("<s> a", "<s> b"): "'b' has no 1-gram",
        ARPA.replace("<s> a", "a"): "a number, 2 tokens and a number are expected",
        ARPA.replace("ngram 2", "ngram 3"): "the orders must be 1, 2, 3",
        ARPA.replace("ngram 2=1\n", "".join(f"ngram {n}=1\n" for n in range(2, 8))): "order 7",
    }
    for text, message in wrong.items():
        with pytest.raises(UserError, match=r"x\.arpa") as caught:
            read(text)
        assert message in str(caught.value), (message, str(caught.value))


@pytest.mark.parametrize("order", [0, 7])
def test_other_orders_are_refused(order: int) -> None:
    with pytest.raises(UserError, match=f"order={order}"):
        NGramConfig(order=order)


def test_settings_of_gradients_are_refused(home: Home) -> None:
    for setting in ("lr=1e-3", "batch_size=8", "steps=9", "optimizer=adafactor", "warmup=3"):
        name = setting.partition("=")[0]
        with pytest.raises(UserError, match=f"train.{name}=.* does not apply to ngram"):
            recipe("ngram", home.corpus, settings=[f"train.{setting}"])
    chosen = recipe("ngram", home.corpus, settings=["model.order=5", "train.seed=3"])
    assert chosen.train.steps == 5


def test_counts_are_not_fine_tuned(run: Path, tmp_path: Path) -> None:
    rows = [{"text": f"the cat {n}", "label": str(n % 2)} for n in range(20)]
    with pytest.raises(UserError, match=r"ngram models cannot be fine-tuned .*--num-fewshot N"):
        kinfolk.finetune(run, rows, tmp_path / "tuned")


def test_a_uniform_model_is_what_nothing_was_counted_in() -> None:
    model = NGramConfig(vocab_size=50, order=3).build()
    hidden = model(Inputs.from_ids(torch.tensor([[1, 2, 3]]), causal=True)).hidden
    scores = model.lm_logits(hidden).logits()
    torch.testing.assert_close(scores, torch.full((1, 3, 50), -math.log(50)).double())


@pytest.mark.real
@pytest.mark.slow
def test_a_run_on_penn_treebank_has_the_published_perplexity(real: Path, tmp_path: Path) -> None:
    """As by the commands of docs/results.md: 141.2 (Mikolov et al. 2011)."""
    texts = {}
    for part in ("train", "test"):
        packed = (real / "ptb_lm" / f"ptb.{part}.txt.gz").read_bytes()
        texts[part] = tmp_path / f"{part}.txt"
        lines = gzip.decompress(packed).decode().splitlines()
        texts[part].write_text("".join(f"{line}\n\n" for line in lines), encoding="utf-8")
    tokenizer = train_tokenizer(
        texts["train"].read_text("utf-8").splitlines(),
        kind="word",
        vocab_size=10_105,
        segmenter="whitespace",
    )
    prepare([texts["train"]], tokenizer=tokenizer, out=tmp_path / "corpus")
    run = pretrain(recipe("ngram/5", tmp_path / "corpus"), tmp_path / "run")
    found = kinfolk.evaluate(run, file=texts["test"])
    assert found.tokens == 82_430
    assert found.perplexity == pytest.approx(141, rel=0.02)
    assert found.perplexity == pytest.approx(141.2020, abs=1e-3)


def test_several_corpora_are_counted_together(home: Home, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(home.corpus, tmp_path / "copy")
    run = pretrain(recipe("ngram/2", [home.corpus, tmp_path / "copy"]), both)
    one, two = kinfolk.load(run)[0], fit_ngram([(Corpus.open(home.corpus), 1.0)], 2)
    assert one.config.sizes == two.config.sizes
    with pytest.raises(UserError, match="does not apply to counts"):
        pretrain(recipe("ngram/2", {home.corpus: 0.7, tmp_path / "copy": 0.3}), tmp_path / "no")
    with pytest.raises(UserError, match="cannot be continued"):
        pretrain(recipe(run, home.corpus), tmp_path / "no")
