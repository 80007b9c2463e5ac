"""Every row of the table of deviations in docs/weights.md holds."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import kinfolk
from kinfolk.attention_mask import AttentionMask
from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.families import family
from kinfolk.families.glm import GLMConfig
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.xlnet import XLNetConfig
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.prompts import encode_prompt
from kinfolk.hub import load_model, save
from kinfolk.objectives.full_sentences import FullSentences
from kinfolk.objectives.mlm import MLM
from kinfolk.objectives.nsp import NSP
from kinfolk.objectives.rtd import RTD
from kinfolk.objectives.sop import SOP
from kinfolk.objectives.unilm import UniLM
from kinfolk.rng import Stream, generator
from kinfolk.tasks.formulations.sequences import apply_template, build_example
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.text.tokenizer import SpecialTokens, glm_tokens
from support.marian import ENGLISH, GERMAN, both_logits, marian, marian_files
from support.peers import ids, inputs, near, shake
from support.runs import command, text

PAGE = Path(__file__).parents[2] / "docs" / "weights.md"
SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=3, cls=4, sep=5, mask=6, sentinels=(7, 8, 9))
VOCAB = 200
MASKED_LM: tuple[tuple[Any, dict[str, Any]], ...] = (
    (MLM, {}),
    (MLM, {"whole_word_masking": True}),
    (NSP, {}),
    (SOP, {}),
    (FullSentences, {}),
    (UniLM, {}),
    (RTD, {}),
)


def random_text(seed: int = 0) -> InMemoryDocuments:
    """Draw documents of sentences in which one token of five is special, half of these [UNK]."""
    draws = np.random.default_rng(seed)

    def sentence() -> list[int]:
        size = int(draws.integers(4, 15))
        tokens = draws.integers(10, VOCAB, size)
        unknown, special = draws.random((2, size)) < 0.1
        tokens[special] = draws.integers(0, 10, special.sum())
        tokens[unknown] = SPECIALS.unk
        return tokens.tolist()

    documents = [[sentence() for _ in range(6)] for _ in range(20)]
    total = sum(len(sentence) for document in documents for sentence in document)
    return InMemoryDocuments.from_lists(documents, words=(draws.random(total) < 0.6).tolist())


def draws_of(objective: Any, documents: Any, epochs: int = 4) -> list[Any]:
    """Return the examples of all chunks in several epochs."""
    return [
        objective.example(chunk, generator(0, Stream.EXAMPLE, epoch, number))
        for epoch in range(epochs)
        for number, chunk in enumerate(objective.chunks(documents))
    ]


@pytest.mark.parametrize(
    ("kind", "settings"),
    MASKED_LM,
    ids=[f"{kind.__name__}{'-words' if more else ''}" for kind, more in MASKED_LM],
)
def test_special_and_unknown_tokens_are_never_masked(kind: Any, settings: dict[str, Any]) -> None:
    common = {"special_tokens": SPECIALS, "vocab_size": VOCAB, "max_length": 48}
    objective = kind(**common, mask_rate=0.4, **settings)
    predicted, read = Counter[int](), Counter[int]()
    for example in draws_of(objective, random_text()):
        chosen = example.labels != IGNORE_INDEX
        predicted.update(example.labels[chosen].tolist())
        read.update(example.input_ids[~chosen].tolist())
        replaced = set(example.input_ids[chosen].tolist()) - {SPECIALS.mask}
        assert not replaced & SPECIALS.ids
    assert sum(predicted.values()) > 1000 and not predicted.keys() & SPECIALS.ids
    assert read[SPECIALS.unk] > 200


def test_evaluation_scores_unknown_tokens() -> None:
    scorer = MLM(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=16).for_evaluation()
    documents = InMemoryDocuments.from_lists([[[20, SPECIALS.unk, 21]]])
    labels = [example.labels.max() for example in draws_of(scorer, documents, epochs=1)]
    assert labels == [20, SPECIALS.unk, 21]


def test_electra_masks_all_chosen_tokens() -> None:
    common = {"special_tokens": SPECIALS, "vocab_size": VOCAB, "max_length": 48}
    shares = {}
    for kind in (RTD, MLM):
        examples = draws_of(kind(**common, mask_rate=0.3), random_text(1))
        chosen = np.concatenate([example.labels != IGNORE_INDEX for example in examples])
        shown = np.concatenate([example.input_ids for example in examples])[chosen]
        assert len(shown) > 1000
        shares[kind] = (shown == SPECIALS.mask).mean()
    assert shares[RTD] == 1.0
    assert 0.76 < shares[MLM] < 0.84  # the share of BERT, so that the draws are those of chance


def test_texts_of_glm_have_no_cls_before_them_but_those_of_a_task_head() -> None:
    tokenizer = train_tokenizer([text()], kind="wordpiece", vocab_size=250)
    special_tokens = tokenizer.special_tokens
    marks = glm_tokens(special_tokens)
    objective = family("glm").objective()(
        special_tokens=special_tokens, vocab_size=tokenizer.vocab_size, max_length=64
    )
    lines = text(seed=2).split("\n\n")
    documents = InMemoryDocuments.from_lists(
        [[tokenizer.encode(line, add_special_tokens=False)] for line in lines]
    )
    for way in (objective, objective.for_evaluation()):
        for number, chunk in enumerate(way.chunks(documents)):
            example = way.example(chunk, generator(0, Stream.EXAMPLE, 0, number))
            first = {chunk.ids[0], marks.mask, marks.sentence, marks.gmask}
            assert example.input_ids[0] in first
            assert special_tokens.cls not in example.input_ids
    sizes: dict[str, Any] = {"hidden_size": 8, "num_layers": 1, "num_heads": 1, "max_length": 64}
    model = GLMConfig(vocab_size=tokenizer.vocab_size, **sizes).build()
    prompt = encode_prompt(model, tokenizer, lines[0], GenerationConfig())[0].prompt
    answered = build_example("blanks", special_tokens, documents.ids(0, 5).tolist(), [20])
    for read in (prompt, answered.input_ids.tolist()):
        assert read[:5] == documents.ids(0, 5).tolist() and special_tokens.cls not in read
    template = family("glm").task_template
    assert template is not None
    assert apply_template(template, special_tokens, [[20]]).ids[0] == special_tokens.cls


def test_words_of_gpt_are_those_of_bert(tmp_path: Path) -> None:
    """tests/text/test_gpt_words.py compares them with those of OpenAI's code."""
    letters = [*"adinotu.s", *(f"{letter}</w>" for letter in "adinotus.'")]
    vocab = {token: id for id, token in enumerate(["<unk>", *letters])}
    (tmp_path / "encoder_bpe_40000.json").write_text(json.dumps(vocab))
    (tmp_path / "vocab_40000.bpe").write_text("#version: 0.2\n")
    tokenizer = Tokenizer.load(tmp_path)
    spelled = [tokenizer.id_to_token(id) for id in tokenizer.encode("don't U.S.")]
    assert "".join(spelled).split("</w>")[:-1] == ["don", "'", "t", "u", ".", "s", "."]


@pytest.mark.parity
def test_special_tokens_are_not_generated(tmp_path: Path) -> None:
    """Large logits of [MASK]: transformers generates it, and the greedy text is otherwise equal."""
    tokenizer = train_tokenizer([text()], kind="bpe", vocab_size=420)
    sizes: dict[str, Any] = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "max_length": 64}
    model: Any = shake(GPT2Config(vocab_size=tokenizer.vocab_size, **sizes).build(), by=0.5)
    special_tokens = tokenizer.special_tokens
    prompt = "The cat saw"
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False)])
    model.token_embeddings.weight.data[special_tokens.mask] = 10 * model.final_norm.bias.data
    save(tmp_path, model, tokenizer)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    greedy = {"max_new_tokens": 8, "do_sample": False}
    never = sorted(special_tokens.ids - {special_tokens.eos})
    free, bound = (
        theirs.generate(ids, pad_token_id=0, suppress_tokens=tokens, **greedy)[0, ids.shape[1] :]
        for tokens in (None, never)
    )
    assert special_tokens.mask in free and not set(bound.tolist()) & {*never}
    assert kinfolk.generate(model, tokenizer, prompt, **greedy) == tokenizer.decode(bound.tolist())


def test_texts_of_decoders_with_a_vocabulary_of_bert_are_between_cls_and_sep(
    tmp_path: Path,
) -> None:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
    (tmp_path / "vocab.txt").write_text("\n".join(names) + "\n")
    with pytest.warns(UserWarning, match="no end token"):
        tokenizer = Tokenizer.load(tmp_path).with_end_token(family("gpt2").required_tokens)
    objective = family("gpt2").objective()(
        special_tokens=tokenizer.special_tokens, vocab_size=7, max_length=8
    )
    (example,) = draws_of(objective, InMemoryDocuments.from_lists([[[5, 6]]]), epochs=1)
    assert [names[id] for id in example.input_ids] == ["[CLS]", "the", "cat"]
    assert [names[id] for id in example.labels] == ["the", "cat", "[SEP]"]


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marian_splits_what_transformers_does_not_know(tmp_path: Path) -> None:
    def tokens(line: str) -> tuple[list[str], list[str]]:
        ours, theirs = (
            Tokenizer.load(tmp_path),
            transformers.MarianTokenizer.from_pretrained(tmp_path),
        )
        named = [ours.id_to_token(id) for id in ours.encode(line)]
        return named, theirs.convert_ids_to_tokens(theirs(line)["input_ids"])

    marian_files(tmp_path, "unigram")
    # The source lacks x, q and z; z is a token of the target.
    end = "</s>"
    assert tokens("the catxqz") == (
        ["▁the", "▁cat", "<unk>", "z", end],
        ["▁the", "▁cat", "<unk>", end],
    )
    ours, theirs = tokens("你好 cat")
    assert ours == theirs == ["▁", "<unk>", "▁cat", end]
    vocab = json.loads((tmp_path / "vocab.json").read_text())
    kept = [token for token in vocab if token != "▁garden"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: id for id, token in enumerate(kept)}))
    ours, theirs = tokens("the garden")
    assert theirs == ["▁the", "<unk>", end]
    assert "<unk>" not in ours and "".join(ours) == f"▁the▁garden{end}"


@pytest.mark.parity
def test_marian_generates_neither_padding_nor_unknown_tokens(tmp_path: Path) -> None:
    marian_files(tmp_path, "unigram")
    special_tokens = Tokenizer.load(tmp_path).special_tokens
    pad, unk = special_tokens.pad, special_tokens.require("unk")
    theirs = marian(vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad)
    theirs.final_logits_bias[:, [pad, unk]] += 50
    theirs.save_pretrained(tmp_path)
    model, tokenizer = kinfolk.load(tmp_path)
    options = {"max_new_tokens": 6, "num_beams": 2}
    source = torch.tensor([tokenizer.encode("The cat saw a ball.")])

    def expected(*banned: int) -> list[int]:
        words = [[id] for id in banned]
        found = theirs.generate(source, bad_words_ids=words, forced_eos_token_id=None, **options)
        return found[0, 1:].tolist()

    output = kinfolk.generate(model, tokenizer, "The cat saw a ball.", **options)
    assert unk in expected(pad)
    assert str(output) == tokenizer.decode(expected(pad, unk)) != ""


@pytest.mark.parity
def test_positions_of_marian_have_no_bound(tmp_path: Path) -> None:
    theirs = marian(max_position_embeddings=32)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    longer = marian(max_position_embeddings=128)
    weights = {n: t for n, t in theirs.state_dict().items() if "embed_positions" not in n}
    longer.load_state_dict(weights, strict=False)
    near(*both_logits(model, longer, sources=(100, 3, 60)))
    save(tmp_path / "ours", model, None)
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written["max_position_embeddings"] == 1024


def test_the_bias_of_marian_is_fine_tuned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = marian_files(tmp_path, "unigram")
    pad = Tokenizer.load(folder).special_tokens.pad
    theirs = marian(vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad)
    assert "final_logits_bias" not in dict(theirs.named_parameters())
    theirs.save_pretrained(folder)
    table = tmp_path / "pairs.tsv"
    pairs = zip(ENGLISH, GERMAN, strict=False)
    rows = ["source\ttarget", *(f"{source}\t{target}" for source, target in pairs)]
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    run = ("--steps", 2, "--batch", 4, "--length", 32, "--device", "cpu", "-o", tmp_path / "out")
    said = command(monkeypatch, capsys)("finetune", folder, "--train", table, *run)
    assert said.code == 0, said.err
    tuned: Any = kinfolk.load(tmp_path / "out")[0]
    before: Any = load_model(folder)
    assert not torch.equal(tuned.lm_bias, before.lm_bias)


@pytest.mark.parity
@torch.no_grad()
def test_a_token_of_causal_xlnet_without_any_to_its_left_attends_to_its_text(
    tmp_path: Path,
) -> None:
    """Two texts of four tokens in a row; the first token of the second is predicted."""
    sizes: dict[str, Any] = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}
    ours: Any = shake(XLNetConfig(vocab_size=70, causal=True, dropout=0.0, **sizes).build(), by=0.2)
    save(tmp_path, ours, None)
    theirs = transformers.XLNetLMHeadModel.from_pretrained(tmp_path).eval()
    document = torch.tensor([[0] * 4 + [1] * 4])
    order = torch.tensor([[0, 0, 0, 0, 1, 0, 0, 0]])
    mask = AttentionMask(document, order, order)
    hidden = (~mask.dense()).float()
    hidden[0, 4, 4] = 1.0  # the query does not attend to the token that it predicts
    targets = torch.tensor([[4]])

    def logits(tokens: Tensor) -> tuple[Tensor, Tensor]:
        output = ours(inputs(tokens, mask, target_positions=targets))
        mapping = torch.nn.functional.one_hot(targets, 8).float()
        return ours.lm_logits(output.hidden).logits(), theirs(
            tokens, perm_mask=hidden, target_mapping=mapping
        ).logits

    tokens = ids(70, length=8, rows=1)
    first, their_first = logits(tokens)
    for position, of_its_text in ((1, False), (6, True)):
        changed = tokens.clone()
        changed[0, position] = (tokens[0, position] + 7) % 70
        now, their_now = logits(changed)
        assert torch.equal(now, first) != of_its_text
        assert not torch.equal(their_now, their_first)


TESTS = {
    "masked language modelling": test_special_and_unknown_tokens_are_never_masked,
    "ELECTRA": test_electra_masks_all_chosen_tokens,
    "GLM": test_texts_of_glm_have_no_cls_before_them_but_those_of_a_task_head,
    "GPT": test_words_of_gpt_are_those_of_bert,
    "generation": test_special_tokens_are_not_generated,
    "decoders with a vocabulary of BERT": (
        test_texts_of_decoders_with_a_vocabulary_of_bert_are_between_cls_and_sep
    ),
    "Marian, ids": test_marian_splits_what_transformers_does_not_know,
    "Marian, generation": test_marian_generates_neither_padding_nor_unknown_tokens,
    "Marian, length": test_positions_of_marian_have_no_bound,
    "Marian, fine-tuning": test_the_bias_of_marian_is_fine_tuned,
    "XLNet `uni`": test_a_token_of_causal_xlnet_without_any_to_its_left_attends_to_its_text,
}


def test_every_row_of_the_page_has_its_test() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("## Deviations from the originals")[2]
    rows = re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    assert rows[2:] == list(TESTS)
