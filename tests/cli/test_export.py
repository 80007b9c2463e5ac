"""`kinfolk export` and `kinfolk import`: the same weights and ids on both sides of the border."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertForPreTraining,
    MarianMTModel,
    T5ForConditionalGeneration,
)

import kinfolk as package
from kinfolk.batch import Inputs
from kinfolk.families import families, family
from kinfolk.families.transformer import TransformerConfig
from kinfolk.nn.task_heads import FIXED_LABELS, Head, ModelWithHeadConfig, pooling_of
from kinfolk.workflows.folders import load_tokenizer
from support.runs import MEMBERS, Home, Kinfolk, one_sentence, tree

PEERS = {
    "gpt2": AutoModelForCausalLM,
    "bert": BertForPreTraining,
    "t5": T5ForConditionalGeneration,
}
TEXTS = ("The cat saw a ball.", "  Two  spaces, 你好 [MASK]!", "")


def asked(member: str, peer: Any, ids: list[int]) -> torch.Tensor:
    row = torch.tensor([ids])
    with torch.no_grad():
        if member == "t5":
            return peer(input_ids=row, labels=row).logits[0]  # type: ignore[no-any-return]
        said = peer(input_ids=row)
        return said.prediction_logits[0] if member == "bert" else said.logits[0]


@pytest.mark.parity
@pytest.mark.parametrize("member", MEMBERS)
def test_an_export_opens_in_transformers_and_comes_back(
    member: str, kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    out = tmp_path / "model"
    said = kinfolk("export", runs[member], "-o", out)
    assert said.out == f'exported to {out}; load with AutoModel.from_pretrained("{out}")\n'
    assert not (out / "training.safetensors").exists()
    model, tokenizer = package.load(runs[member])
    ids = tokenizer.encode(TEXTS[0], add_special_tokens=False)
    ours = package.logits(model, ids)
    peer, theirs = PEERS[member].from_pretrained(out), AutoTokenizer.from_pretrained(out)
    torch.testing.assert_close(asked(member, peer, ids), ours, rtol=0, atol=1e-5)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == package.load(out)[1].encode(text)
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(
            text, add_special_tokens=False
        )
    # What transformers writes, kinfolk reads, to the bit.
    peer.save_pretrained(tmp_path / "theirs")
    theirs.save_pretrained(tmp_path / "theirs")
    said = kinfolk("import", tmp_path / "theirs", "-o", tmp_path / "back")
    assert (said.code, said.err) == (0, "")
    assert said.out == f'imported to {tmp_path}/back; load with kinfolk.load("{tmp_path}/back")\n'
    back, again = package.load(tmp_path / "back")
    assert torch.equal(package.logits(back, ids), ours)
    assert again.fingerprint == tokenizer.fingerprint
    weights = [tree(folder)["model.safetensors"] for folder in (out, tmp_path / "back")]
    assert weights[0] == weights[1]


NETWORKS = [
    (name, head)
    for name, family in families().items()
    if "export" in family.capabilities and family.hf is not None
    for head in (None, *(get_args(Head) if family.model.pooling is not None else ()))
]


# Of networks without a head: sinusoids are computed, and RoBERTa pretrains no pooling layer.
NOT_SAVED = {
    "transformer": {f"{part}.embed_positions.weight" for part in ("encoder", "decoder")},
    "roberta": {"pooler.dense.weight", "pooler.dense.bias"},
}


@pytest.mark.parity
@pytest.mark.parametrize(("name", "head"), NETWORKS)
def test_what_an_export_prints_opens_it_with_all_weights(
    name: str, head: Head | None, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(home.tokenizer)
    ids = {"vocab_size": tokenizer.vocab_size, "padding_idx": tokenizer.special_tokens.pad}
    config = family(name).sizes["nano"].with_fields(**ids)
    if head is not None:
        labels = FIXED_LABELS.get(head, ("poor", "fine"))
        config = ModelWithHeadConfig(
            backbone=config, head=head, labels=labels, pooling=pooling_of(config)
        )
    model, out = config.build(), tmp_path / "out"
    package.save(model, tokenizer, tmp_path / "model")
    said = kinfolk("export", tmp_path / "model", "-o", out)
    assert said.code == 0, said.err
    command = said.out.rpartition("load with ")[2]
    module = command.partition(".")[0]
    opened = eval(command, {module: getattr(transformers, module, package)})
    hf = family(name).hf
    assert hf is not None
    if head is not None and head not in hf.heads:
        assert "transformers has no class for it" in said.out
        assert {*opened[0].state_dict()} == {*model.state_dict()}
        return
    expected = hf.heads[head].name if head is not None else type(opened).__name__
    assert type(opened).__name__ == expected
    _, info = type(opened).from_pretrained(out, output_loading_info=True)
    if head is not None:
        assert not info["missing_keys"] and not info["unexpected_keys"]
    else:
        assert {*info["missing_keys"]} == NOT_SAVED.get(name, set())


@pytest.mark.parity
def test_greedy_text_equals_that_of_transformers(runs: dict[str, Path], tmp_path: Path) -> None:
    model, tokenizer = package.load(runs["gpt2"])
    chance = torch.Generator().manual_seed(0)
    for weight in model.parameters():  # large weights, so that every token decides about the text
        if weight.dim() > 1:
            weight.data.normal_(0, 0.5, generator=chance)
    package.save(model, tokenizer, tmp_path / "model")
    peer = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    words = AutoTokenizer.from_pretrained(tmp_path / "model")
    special = tokenizer.special_tokens
    options = {"max_new_tokens": 8, "do_sample": False}

    def theirs(ids: list[int]) -> str:
        never = sorted(special.ids - {special.eos})
        text = peer.generate(torch.tensor([ids]), suppress_tokens=never, pad_token_id=0, **options)
        return str(words.decode(text[0, len(ids) :], skip_special_tokens=True))

    differ = []
    for prompt in ("The cat saw", "A dog", "My sister painted the river"):
        ids = words(prompt)["input_ids"]
        plain = package.generate(model, tokenizer, prompt, **options)
        begun = package.generate(model, tokenizer, prompt, add_bos_token=True, **options)
        assert [plain, begun] == [theirs(ids), theirs([special.bos, *ids])]
        differ.append(plain != begun)
    assert any(differ)


def test_an_imported_model_is_scored_and_writes(
    kinfolk: Kinfolk, runs: dict[str, Path], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The cat saw a ball.", encoding="utf-8")
    kinfolk("export", runs["gpt2"], "-o", tmp_path / "model")
    for asked in (
        ("evaluate", "MODEL", "--text", text, "--json"),
        ("generate", "MODEL", "The", "--json"),
    ):
        said = [
            kinfolk(*(model if word == "MODEL" else word for word in asked))
            for model in (runs["gpt2"], tmp_path / "model")
        ]
        assert said[0].code == 0
        assert said[0] == said[1]


@pytest.mark.parity
@torch.no_grad()
def test_a_transformer_is_exported_as_a_marian_model(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(home.tokenizer)
    torch.manual_seed(0)
    model = TransformerConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=tokenizer.special_tokens.pad,
    ).build()
    package.save(model, tokenizer, tmp_path / "own")
    assert kinfolk("export", tmp_path / "own", "-o", tmp_path / "model").code == 0
    peer = MarianMTModel.from_pretrained(tmp_path / "model").eval()
    row = AutoTokenizer.from_pretrained(tmp_path / "model")(TEXTS[0], return_tensors="pt")
    ids = row["input_ids"]
    ours = package.logits(model, ids[0].tolist())
    torch.testing.assert_close(peer(**row, labels=ids).logits[0], ours, rtol=0, atol=1e-5)
    back, _ = package.load(tmp_path / "model")
    torch.testing.assert_close(package.logits(back, ids[0].tolist()), ours, rtol=0, atol=1e-5)


def test_the_published_encoder_of_cove_is_imported_with_its_word_vectors(
    kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    torch.save(lstm.state_dict(), tmp_path / "wmtlstm.pth")
    (tmp_path / "vectors.txt").write_text("garden 1 2 3\nthe 4 5 6\n", encoding="utf-8")
    options = ("--tokenizer", home.tokenizer, "--vectors", tmp_path / "vectors.txt")
    said = kinfolk("import", tmp_path / "wmtlstm.pth", "-o", tmp_path / "cove", *options)
    assert said.code == 0 and " words\n" in said.out
    model: Any
    model, tokenizer = package.load(tmp_path / "cove")
    ids = [tokenizer.token_to_id("Ġgarden"), tokenizer.token_to_id("Ġthe")]
    found = model.encode(Inputs.from_ids(torch.tensor([ids]), causal=False))
    expected, _ = lstm(torch.tensor([[[1.0, 2, 3], [4, 5, 6]]]))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--vectors {vectors}", "--vectors FILE needs --tokenizer PATH"),
        ("--vectors {vectors} --tokenizer {tok}", "has vectors of 2 numbers, but "),
        ("--tokenizer {tok}", "ids"),
    ],
)
def test_an_encoder_without_its_word_vectors_is_refused(
    words: str, expected: str, kinfolk: Kinfolk, home: Home, tmp_path: Path
) -> None:
    torch.save(torch.nn.LSTM(3, 4, bidirectional=True).state_dict(), tmp_path / "lstm.pth")
    (tmp_path / "vectors.txt").write_text("garden 1 2\n", encoding="utf-8")
    options = words.format(vectors=tmp_path / "vectors.txt", tok=home.tokenizer).split()
    said = kinfolk("import", tmp_path / "lstm.pth", "-o", tmp_path / "new", *options)
    assert expected in one_sentence(said)
