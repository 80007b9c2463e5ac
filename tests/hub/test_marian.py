"""Marian's translation models (OPUS): weights, configs, tokenizer and beam search, both ways."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import kinfolk
from kinfolk.data.corpus import Corpus
from kinfolk.data.parallel_text import ParallelText, TargetDocuments, write_parallel_corpus
from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.families.transformer import Transformer, TransformerConfig, marian_equivalent
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.logits_process import Constraints
from kinfolk.hub import load_model, save
from kinfolk.tasks.formulations.text_to_text import TextToText
from kinfolk.tasks.rows import SourceTarget
from kinfolk.tasks.task import Task
from kinfolk.text import Tokenizer
from support.decoding import constrain, write
from support.marian import (
    END,
    ENGLISH,
    GERMAN,
    PAD,
    SIZES,
    VOCAB,
    both_logits,
    marian,
    marian_files,
)
from support.peers import near, open_without_a_word, shake


@pytest.mark.parity
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"activation_function": "relu", "scale_embedding": False},
        {"decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "dropout": 0.3},
    ],
)
def test_a_folder_loads_and_is_saved(fields: dict[str, Any], tmp_path: Path) -> None:
    theirs = marian(**fields)
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_model(tmp_path / "theirs")
    near(*both_logits(ours, theirs))
    save(tmp_path / "ours", ours, None)
    again = open_without_a_word(transformers.MarianMTModel, tmp_path / "ours")
    near(*both_logits(ours, again))
    assert again.generation_config.bad_words_ids == [[PAD]]
    assert load_model(tmp_path / "ours").config == ours.config
    assert again.config.activation_function == theirs.config.activation_function


def test_old_folders_have_sinusoids_and_second_names(tmp_path: Path) -> None:
    theirs = marian()
    tensors = dict(theirs.state_dict())
    config = theirs.config.to_dict() | {"bad_words_ids": [[PAD]], "num_beams": 6}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(
        tensors | {"lm_head.weight": tensors["model.shared.weight"]}, tmp_path / "pytorch_model.bin"
    )
    assert "model.encoder.embed_positions.weight" in tensors
    near(*both_logits(load_model(tmp_path), theirs))
    del tensors["final_logits_bias"]
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    without: Any = load_model(tmp_path)
    assert not without.random_modules and not without.lm_bias.any()


@pytest.mark.parametrize(
    "field",
    [
        {"share_encoder_decoder_embeddings": False},
        {"decoder_vocab_size": 9},
        {"decoder_ffn_dim": 9},
        {"decoder_attention_heads": 1},
        {"tie_word_embeddings": False},
    ],
)
def test_what_the_network_lacks_is_refused(field: dict[str, Any]) -> None:
    hf: Any = family("transformer").hf
    with pytest.raises(UserError, match=next(iter(field))):
        hf.from_config(SIZES | field)


@pytest.mark.parity
@pytest.mark.parametrize("beams", [1, 4])
def test_beam_search_gives_the_ids_of_transformers(beams: int, tmp_path: Path) -> None:
    theirs = marian()
    shake(theirs.model.decoder, by=0.4)
    positions = theirs.model.decoder.embed_positions
    positions.weight.data.copy_(positions.create_weight())
    # The padding token would win without the rule of Marian's generation config.
    theirs.final_logits_bias[:, PAD] += 20
    ends = [END, *range(60, 66)]  # enough for the outputs of random weights to end
    theirs.generation_config = transformers.GenerationConfig(
        bad_words_ids=[[PAD]],
        pad_token_id=PAD,
        eos_token_id=ends,
        decoder_start_token_id=PAD,
        num_beams=beams,
        no_repeat_ngram_size=1,
        max_new_tokens=12,
    )
    theirs.save_pretrained(tmp_path)
    texts = [[9, 8, 7, END], [30, END], [5, 6, 7, 8, 9, 10, 11, END], [20, 21, END]]
    outputs = write(
        load_model(tmp_path),
        [[PAD]] * len(texts),
        method=GenerationConfig(
            num_beams=beams,
            do_sample=False if beams == 1 else None,
            no_repeat_ngram_size=1,
        ),
        constraints=constrain(suppress_ids=(PAD,)),
        encoder_ids=texts,
        eos_ids=ends,
        max_new_tokens=12,
    )
    for source, output in zip(texts, outputs, strict=True):
        row = theirs.generate(torch.tensor([source]))[0, 1:].tolist()
        stop = next((place for place, id in enumerate(row) if id in ends), len(row))
        assert list(output.ids) == row[:stop]
    assert len({len(output.ids) for output in outputs}) > 1


@pytest.mark.parametrize("sinusoids", ["interleaved", "halves"])
@pytest.mark.parametrize("attention_bias", [False, True])
def test_our_networks_have_an_equal_in_transformers(
    sinusoids: Any, attention_bias: bool, tmp_path: Path
) -> None:
    config = TransformerConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        sinusoids=sinusoids,
        attention_bias=attention_bias,
    )
    model: Transformer = shake(config.build())
    save(tmp_path / "own", model, None)
    assert json.loads((tmp_path / "own" / "config.json").read_text())["model_type"] == (
        "kinfolk_transformer"
    )
    save(tmp_path / "marian", marian_equivalent(model), None)
    theirs = open_without_a_word(transformers.MarianMTModel, tmp_path / "marian")
    near(*both_logits(model, theirs))
    near(*both_logits(load_model(tmp_path / "marian"), theirs))
    fairseq = replace(config, sinusoids="fairseq", first_position=2).build()
    with pytest.raises(UserError, match="fairseq's positions"):
        marian_equivalent(fairseq)


TEXTS = [
    *ENGLISH[:20],
    *GERMAN[:4],
    "",
    "  Two  spaces, 你好 and ﬁ ligatures\t",
    ">>deu<< The cat saw a ball.",
    "the end</s> of a song",
]


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_the_tokenizer_has_the_ids_of_transformers(kind: str, tmp_path: Path) -> None:
    marian_files(tmp_path, kind)
    ours = Tokenizer.load(tmp_path)
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    for line in TEXTS:
        assert ours.encode(line) == theirs(line)["input_ids"]
    target = Tokenizer.load(tmp_path / "target.spm")
    for line in GERMAN:
        expected = theirs(text_target=line)["input_ids"]
        assert target.encode(line) == expected
        # What a model generates is decoded by the tokenizer of the source.
        assert ours.decode(expected) == theirs.decode(expected, skip_special_tokens=True)
    assert ours.special_tokens.pad == ours.vocab_size - 1 == theirs.pad_token_id
    ours.save(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [again(line)["input_ids"] for line in TEXTS] == ours.encode_batch(TEXTS)


def test_tokens_that_the_vocabulary_lacks_are_split(tmp_path: Path) -> None:
    ours = Tokenizer.load(marian_files(tmp_path, "unigram", missing=20))
    assert max(ours.encode(" ".join(ENGLISH))) < ours.vocab_size
    settings = {"separate_vocabs": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="separate_vocabs"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(UserError, match=r"vocab\.json not found"):
        Tokenizer.load(tmp_path)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_targets_are_trained_with_the_tokenizer_of_the_target(tmp_path: Path) -> None:
    marian_files(tmp_path, "unigram")
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path)
    expected = [theirs(text_target=line)["input_ids"] for line in GERMAN]
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.encode(line) for line in GERMAN] != expected
    tokenizer.save(tmp_path / "saved")
    pairs = ParallelText(tmp_path / "a.en", tmp_path / "a.de")
    pairs.source.write_text("\n".join(ENGLISH[: len(GERMAN)]))
    pairs.target.write_text("\n".join(GERMAN))
    formulation = TextToText(task=Task(kind="write"), layout="encoder-decoder", max_length=64)
    for found in (
        tokenizer,
        Tokenizer.load(tmp_path / "saved"),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        rows = [SourceTarget(ENGLISH[0], line, 1) for line in GERMAN]
        for row, target in zip(rows, expected, strict=True):
            (instance,) = formulation.instances(row, found)
            labels = instance.examples[0].labels
            assert labels is not None and labels.tolist() == target
        corpus = tmp_path / f"corpus-{id(found)}"
        write_parallel_corpus(pairs, found, corpus)
        targets = TargetDocuments(Corpus.open(corpus))
        for i, target in enumerate(expected):
            assert targets.document(i).tolist() == target[:-1]
        assert (
            Corpus.open(corpus).tokenizer().fingerprint
            == found.fingerprint
            == tokenizer.fingerprint
        )
        constraints = Constraints.from_config(GenerationConfig(forced_prefix=GERMAN[0]), found)
        assert list(constraints.forced_prefix) == expected[0][:-1]
    assert Tokenizer.load(tmp_path / "target.spm").fingerprint != tokenizer.fingerprint


@pytest.mark.parity
def test_a_model_with_its_tokenizer_translates(tmp_path: Path) -> None:
    marian_files(tmp_path, "unigram")
    tokenizer = Tokenizer.load(tmp_path)
    pad = tokenizer.special_tokens.pad
    theirs = marian(vocab_size=pad + 1, pad_token_id=pad, decoder_start_token_id=pad)
    theirs.save_pretrained(tmp_path)
    model, loaded = kinfolk.load(tmp_path)
    assert loaded.fingerprint == tokenizer.fingerprint
    beams = {"num_beams": 4, "max_new_tokens": 6}
    output = kinfolk.generate(model, loaded, "The cat saw a ball.", **beams)
    source = torch.tensor([tokenizer.encode("The cat saw a ball.")])
    banned = [[pad], [tokenizer.special_tokens.unk]]
    ids = theirs.generate(source, bad_words_ids=banned, forced_eos_token_id=None, **beams)[0, 1:]
    assert str(output) == tokenizer.decode(ids.tolist())
