"""An inspection shows what the batches of every family and objective hold, and what layers see."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kinfolk.attention_mask import EMPTY_SLOT_ID
from kinfolk.batch import IGNORE_INDEX, Inputs
from kinfolk.families import families
from kinfolk.families.base import Family
from kinfolk.nn.language_model import EncoderDecoder
from kinfolk.nn.recording import record_layers_and_attention
from kinfolk.objectives.recurrent_clm import RecurrentCLM
from kinfolk.reports.inspect_page import shown_sources
from kinfolk.reports.inspect_view import ObjectiveView
from kinfolk.rng import Stream, generator
from kinfolk.text import Tokenizer, train_tokenizer
from kinfolk.workflows.inspection.draws import Draw, InspectedText
from kinfolk.workflows.inspection.objectives import inspect_objective
from support.contracts import NAMES, PAIRS, predicted

# A second document begins after the blank line: rows are packed.
DOCUMENTS = (
    "The fox jumps over the lazy dog. It was not amused. Then it slept for an hour or two.",
    "A second text follows here. It is short, and quite unlike the first.",
)
TOKENIZER = train_tokenizer(DOCUMENTS, kind="word", vocab_size=1000, fewer=True)
TEXT = InspectedText(DOCUMENTS, TOKENIZER)
EVERY = pytest.mark.parametrize(("family", "name"), PAIRS, ids=NAMES)


def inspected(family: Family, name: str, seed: int = 3) -> tuple[ObjectiveView, Draw]:
    return inspect_objective(family, name, family.config("nano"), TEXT, seed)


def network(family: Family) -> Any:
    torch.manual_seed(0)
    changes = {"vocab_size": TOKENIZER.vocab_size, "attention_window": 5, "mem_len": 64}
    return family.config("nano").with_fields(**changes).build().eval()


@EVERY
def test_grids_are_the_masks_of_the_batches(family: Family, name: str) -> None:
    view, draw = inspected(family, name)
    masks = {mask.name: mask.mask for mask in view.masks}
    if isinstance(draw.objective, RecurrentCLM):
        check_rows_that_continue(draw, masks)
        return
    (batch,) = draw.batches
    inputs, lengths = batch.inputs, [len(stream.tokens) for stream in view.streams]
    own = inputs.attention_mask.dense()[0, : lengths[-1], : lengths[-1]].numpy()
    if inputs.encoder_inputs is not None:
        whole = inputs.encoder_inputs.attention_mask.dense()[0].numpy()
        queries, keys = inputs.cross_masks()
        cross = queries.dense(keys)[0].numpy()
        assert np.array_equal(masks["encoder"], whole[: lengths[0], : lengths[0]])
        assert np.array_equal(masks["decoder"], own)
        assert np.array_equal(masks["cross-attention"], cross[: lengths[1], : lengths[0]])
    elif inputs.target_positions is not None:
        assert np.array_equal(masks["content stream"], own)
        queries = inputs.attention_mask.for_targets(inputs.target_positions)
        rows = queries.dense(inputs.attention_mask)[0].numpy()
        # Filling repeats the first query of the row.
        known = dict(zip(inputs.target_positions[0].tolist(), rows, strict=True))
        (query,) = (mask for mask in view.masks if mask.name == "query stream")
        assert sorted(known) == list(query.query_positions)
        for position, row in zip(query.query_positions, query.mask, strict=True):
            assert np.array_equal(row, known[position][: lengths[0]])
    else:
        first = view.masks[0]
        order = own if first.name != "context" else own & band(own.shape[0], 1)  # of a 2-gram
        assert np.array_equal(first.mask, order)
        for window in network(family).attention_windows:
            config = family.config("nano").with_fields(attention_window=window)
            banded, _ = inspect_objective(family, name, config, TEXT)
            assert np.array_equal(banded.masks[-1].mask, own & band(len(own), window))


def band(length: int, window: int) -> np.ndarray:
    places = np.arange(length)
    return places[:, None] - places < window


def check_rows_that_continue(draw: Draw, masks: dict[str, np.ndarray]) -> None:
    """All rows together attend as one row of the whole documents would."""
    batches = [batch.inputs.attention_mask for batch in draw.batches]
    ids, orders = (
        torch.cat([vars(mask)[name][0] for mask in batches])
        for name in ("document_ids", "key_order")
    )
    whole = (ids[:, None] == ids) & (orders <= orders[:, None])
    assert len(draw.batches) > 1 and masks
    for mask in masks.values():
        assert np.array_equal(mask, whole.numpy())


@EVERY
def test_examples_are_those_that_training_makes(family: Family, name: str) -> None:
    view, draw = inspected(family, name)
    if isinstance(draw.objective, RecurrentCLM):
        documents = TEXT.encoded
        ids = np.concatenate([e.labels for row in draw.rows for e in row if e.labels is not None])
        ids = ids[~draw.objective.special_tokens.is_special(ids)]
        assert ids.tolist() == documents.token_ids.tolist()
        return
    documents, _ = TEXT.for_objective(draw.objective)
    chunks = draw.objective.chunks(documents)
    for i, example in enumerate(draw.rows[0]):
        own = draw.objective.example(chunks[i], generator(3, Stream.EXAMPLE, 0, i))
        assert np.array_equal(own.input_ids, example.input_ids)
        assert own.labels is not None and np.array_equal(own.labels, example.labels)
    stream = view.streams[0 if name == "rtd" else -1]  # of a pair, the generator
    shown = [(0, i, label) for i, label in enumerate(stream.label_ids) if label is not None]
    assert shown == sorted(predicted(draw.batches[0]))


@EVERY
def test_sources_lead_back_to_the_text(family: Family, name: str) -> None:
    view, draw = inspected(family, name)
    replaced = 0
    for stream in view.streams:
        for id, source, change in zip(
            stream.input_ids, stream.sources, stream.changes, strict=True
        ):
            if source is not None:
                assert draw.ids[source] == id
            replaced += change in ("masked", "replaced", "cut")
        for id, source in zip(stream.label_ids, stream.label_sources, strict=True):
            if source is not None:
                assert draw.ids[source] == id
    masks = ("mlm", "nsp", "sop", "unilm", "full_sentences", "rtd", "spans", "blanks")
    assert (replaced > 0) == (name in masks)


@pytest.mark.parametrize("trained", [False, True])
def test_the_discriminator_reads_and_labels_what_training_replaces(trained: bool) -> None:
    family, name = next(pair for pair in PAIRS if pair[1] == "rtd")
    model = network(family).train()
    text = InspectedText(DOCUMENTS, TOKENIZER)
    given = (family, name, model.config, text, 3)
    view, draw = inspect_objective(*given, model if trained else None)
    again, _ = inspect_objective(*given, model if trained else None)
    assert view.streams == again.streams and model.training
    generator, discriminator = view.streams
    differ = [
        new != (label if label is not None else old)
        for old, label, new in zip(
            generator.input_ids, generator.label_ids, discriminator.input_ids, strict=True
        )
    ]
    assert discriminator.label_ids == [int(one) for one in differ] and any(differ)
    assert [label == "replaced" for label in discriminator.labels] == differ
    assert [change == "replaced" for change in discriminator.changes] == differ
    # A sample, too, stands for the token of the text that it replaced.
    assert shown_sources(discriminator) == shown_sources(generator)
    assert "[MASK]" in generator.tokens and "[MASK]" not in discriminator.tokens
    assert (len(view.notes) == 2) is trained
    if trained:  # as the objective itself samples and labels them
        (batch,) = draw.batches
        model.eval()
        with torch.no_grad():
            hidden = batch.targets.tokens.gather(model.forward_lm(batch.inputs).hidden)
            _, replaced = draw.objective.replaced_logits(model, batch, hidden)
        assert replaced[0, : len(differ)].tolist() == differ


@EVERY
def test_layers_attend_exactly_where_the_grid_is_filled(family: Family, name: str) -> None:
    model = network(family)
    view, draw = inspect_objective(family, name, model.config, TEXT, 3)
    if any(isinstance(part, nn.LSTM) for part in model.modules()) or family.name == "ngram":
        pytest.skip("no attention")
    masks = {mask.name: mask.mask for mask in view.masks}
    memory = model.init_memory(1) if isinstance(draw.objective, RecurrentCLM) else None
    start = 0
    for batch, row in zip(draw.batches, draw.rows, strict=True):
        inputs = replace(batch.inputs, memory=memory)
        with torch.no_grad(), record_layers_and_attention(model) as recording:
            alone = draw.objective.encoder_alone and model.decoder_modules
            output = model.forward_lm(inputs) if alone else model(inputs)
        for stream, layers in recording.attention.items():
            for number, probabilities in enumerate(layers):
                seen = (probabilities[0] > 0).all(0).numpy()
                assert np.array_equal(seen, (probabilities[0] > 0).any(0).numpy())
                if memory is not None:
                    known = (memory.document_ids[0] != EMPTY_SLOT_ID).sum()
                    length = sum(len(e.input_ids) for e in row)
                    rows = seen[:length, seen.shape[1] - length - int(known) :]
                    stop = start + length
                    want = masks["input and memory"][start:stop, start - int(known) : stop]
                    assert np.array_equal(rows, want)
                    continue
                want = masks[grid_of(stream, number, model, masks)]
                if stream == "query":
                    kept = torch.unique(inputs.target_positions[0], return_inverse=True)[1]
                    want = want[kept.numpy()]
                assert np.array_equal(seen[: want.shape[0], : want.shape[1]], want)
        start += sum(len(e.input_ids) for e in row)
        memory = output.memory


def grid_of(stream: str, layer: int, model: Any, masks: dict[str, np.ndarray]) -> str:
    names = {"encoder": "encoder", "decoder": "decoder", "cross": "cross-attention"}
    if "banded layers" in masks and layer % 2:
        return "banded layers"
    own = "content stream" if model.decoding == "two-stream" else "attention"
    return {"query": "query stream", **names}.get(stream, own)


@pytest.mark.parametrize(("family", "name"), [p for p in PAIRS if p[1] == "unilm"])
def test_seeds_draw_every_mask_of_unilm(family: Family, name: str) -> None:
    """Every grid is the mask of its batch, and its pattern one of the four."""
    found = set()
    for seed in range(16):
        view, draw = inspected(family, name, seed)
        (batch,), (row,) = draw.batches, draw.rows
        length = len(view.streams[0].tokens)
        own = batch.inputs.attention_mask.dense()[0, :length, :length].numpy()
        assert np.array_equal(view.masks[0].mask, own)
        first = len(row[0].input_ids)
        own, types = own[:first, :first], np.asarray(row[0].token_type_ids)
        places = np.arange(first)
        past = places[None, :] <= places[:, None]
        across = (types[None, :] == 0) | ((types[:, None] == 1) & past)
        patterns = {"both": past | True, "right": past, "left": past.T, "across": across}
        found |= {pattern for pattern, mask in patterns.items() if np.array_equal(own, mask)}
    assert found == {"both", "right", "left", "across"}


def test_the_card_of_unilm_names_the_pattern_that_was_drawn() -> None:
    family, name = next(pair for pair in PAIRS if pair[1] == "unilm")
    text = InspectedText(DOCUMENTS[:1], TOKENIZER)
    patterns = {"both": (True, True), "right": (True, False), "left": (False, True)}
    found = set()
    for seed in range(16):
        view, _ = inspect_objective(family, name, family.config("nano"), text, seed)
        (note,) = [note for note in view.notes if "four attention patterns" in note]
        mode = note.split('"')[1]
        mask = view.masks[0].mask
        # The last token attends to the first, and the first to the last.
        assert (bool(mask[-1, 0]), bool(mask[0, -1])) == patterns.get(mode, (True, False))
        assert mask[0, 1] or mode == "right"
        found.add(mode)
    assert found == {"both", "right", "left", "across"}


@pytest.mark.parametrize("sentinels", [True, False])
def test_the_card_of_glm_names_what_is_masked(sentinels: bool) -> None:
    family, name = next(pair for pair in PAIRS if pair[1] == "blanks")
    tokenizer = TOKENIZER if sentinels else bert_words()
    text = InspectedText(DOCUMENTS[:1], tokenizer)
    sentences = {"The fox jumps over the lazy dog .", "It was not amused ."}
    sentences.add("Then it slept for an hour or two .")
    found = set()
    for seed in range(24):
        view, draw = inspect_objective(family, name, family.config("nano"), text, seed)
        (kind,), (stream,), (example,) = draw.blank_kinds, view.streams, draw.rows[0]
        assert example.block_position_ids is not None
        cut = int((example.block_position_ids == 0).sum())  # where the text ends
        blanks = " ".join(stream.tokens[cut:]).split(stream.tokens[cut])
        spans = {blank.strip() for blank in blanks} - {""}
        masks = {token for token in stream.tokens[:cut] if "MASK" in token}
        roles = {"spans": "[MASK]", "sentences": "[sMASK]", "tail": "[gMASK]"}
        assert masks == ({roles[kind]} if sentinels else {"[MASK]"})
        if kind == "sentences":
            assert spans <= sentences
        elif kind == "tail":
            assert len(spans) == 1 and stream.tokens[cut - 1] in masks
            assert 2 * len(spans.pop().split()) >= len(text.ids)
        else:
            assert sum(len(span.split()) for span in spans) == round(0.15 * len(text.ids))
        words = {"spans": "short spans (", "sentences": "whole sentences (", "tail": "the end of"}
        assert any(f"the seed drew {words[kind]}" in note for note in view.notes)
        missing = [note for note in view.notes if "The tokenizer has no" in note]
        assert bool(missing) is (sentinels and kind != "spans")
        found.add(kind)
    assert found == {"spans", "sentences", "tail"}


def bert_words() -> Tokenizer:
    """Return the tokenizer of words without sentinels, as BERT has none."""
    tokenizer = train_tokenizer(DOCUMENTS, kind="word", vocab_size=1000, fewer=True)
    tokenizer.special_tokens = replace(tokenizer.special_tokens, sentinels=())
    return tokenizer


@pytest.mark.parametrize("family", list(families().values()), ids=list(families()))
def test_position_ids_are_shown_where_the_network_reads_them(family: Family) -> None:
    model = network(family)
    ids = torch.arange(12)[None] + 20
    causal = model.architecture != "encoder"
    outputs = []
    for shift in (0, 1):
        rows = [Inputs.from_ids(ids, causal=one) for one in (False, causal)]
        source, inputs = (replace(row, position_ids=row.position_ids + shift) for row in rows)
        if isinstance(model, EncoderDecoder):
            inputs = replace(inputs, encoder_inputs=source)
        with torch.no_grad():
            outputs.append(model(inputs).hidden)
    changes = not torch.equal(outputs[0], outputs[1])
    assert changes is (model.first_position is not None)
    for name in family.objectives:
        view, _ = inspected(family, name)
        assert all(("position_ids" in one.integers) is changes for one in view.streams)


def test_a_seed_changes_what_is_drawn_and_nothing_else() -> None:
    family, name = next(pair for pair in PAIRS if pair[1] == "mlm")
    one, again, other = (inspected(family, name, seed)[0].streams[0] for seed in (1, 1, 2))
    assert one == again
    assert one.input_ids != other.input_ids and len(one.input_ids) == len(other.input_ids)


def test_a_row_that_is_not_padded_has_no_padding() -> None:
    for family, name in PAIRS:
        _, draw = inspected(family, name)
        for batch, row in zip(draw.batches, draw.rows, strict=True):
            labels = sum((e.labels != IGNORE_INDEX).sum() for e in row if e.labels is not None)
            assert batch.counts[draw.objective.loss_name] == labels
