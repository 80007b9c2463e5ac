"""The page of an inspection: what it gathers, what it leaves out, and how long it takes."""

import math
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kinfolk import UserError, families
from kinfolk.reports.charts import significant
from kinfolk.reports.inspect_page import CHANGES, render
from kinfolk.reports.inspect_view import AttentionView, InspectPage, ModelView, ObjectiveView
from kinfolk.text import train_tokenizer
from kinfolk.workflows.folders import load_tokenizer
from kinfolk.workflows.inspection.inspect import inspect
from kinfolk.workflows.inspection.masks import dense_views
from kinfolk.workflows.inspection.model_view import model_view
from kinfolk.workflows.inspection.page import inspect_page, inspected_families, model_names
from kinfolk.workflows.pretrain import pretrain
from kinfolk.workflows.recipe import recipe
from support.runs import Home

TEXT = "The cat sat on the mat. It was old.\n\nA dog came. It barked twice."


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home.make(tmp_path_factory.mktemp("inspect"))


def test_64_tokens_pass_every_family_and_objective_in_less_than_20_seconds() -> None:
    words = " ".join(f"word{i} is here." for i in range(16))  # four tokens each
    before = time.process_time()
    page = inspect_page(words)
    html = render(page)
    assert time.process_time() - before < 20
    assert len(page.tokens) == 64 and not page.notes
    every = families.families()
    found = [(view.family, view.objective) for view in page.objectives]
    pretrained = [one for one in found if one != ("cvt/tiny", "cross_view")]
    assert pretrained == [(f"{f.name}/tiny", o) for f in every.values() for o in f.objectives]
    assert len(found) == len(pretrained) + 1  # CVT is on the page, too
    assert {view.name for view in page.costs} == {f"{name}/tiny" for name in (*every, "cvt")}
    assert html.count('<figure class="mask">') == sum(len(v.masks) for v in page.objectives)


def test_the_legend_says_what_happened_to_a_token_once() -> None:
    legend = render(inspect_page(TEXT, ["bert/nano"])).partition('class="keys"')[2]
    found = re.findall(r'<span class="tok (\w+)">\w+</span> <span class="words">([^<]*)', legend)
    assert dict(found).keys() == {*CHANGES, "predicts"}
    assert not [words for change, words in found if words.startswith(change)]


def test_tokens_know_their_characters() -> None:
    page = inspect_page(TEXT, ["gpt2/nano"])
    for token, (start, end) in page.tokens:
        assert page.text[start:end] == token
    assert page.objectives[0].spans == [span for _, span in page.tokens]


def test_documents_are_packed_and_do_not_attend_to_each_other() -> None:
    view = inspect_page(TEXT, ["bert/nano"]).objectives[1]
    assert view.objective == "mlm"
    mask, documents = view.masks[0].mask, np.array(view.streams[0].integers["document"])
    assert set(documents.tolist()) == {0, 1}
    assert np.array_equal(mask, documents[:, None] == documents)


def test_what_cannot_be_shown_is_a_note_beside_what_can() -> None:
    page = inspect_page("word", ["gpt2/nano", "t5/nano"])
    assert {view.objective for view in page.objectives} == {"clm", "prefix", "spans"}
    assert page.notes == [
        "t5/nano, pairs: the text has 1 token, and a pair has two sides: use a longer text, or "
        "--target"
    ]


def test_a_target_is_the_second_text_of_a_pair() -> None:
    page = inspect_page("the cat sat", ["transformer/nano"], target="die Katze lag")
    pair = page.objectives[0]
    assert list(pair.streams[1].labels) == ["die", "Katze", "lag", "<|endoftext|>"]
    assert not [note for note in pair.notes if "half" in note]


def test_the_views_of_cross_view_training_read_parts_of_the_text() -> None:
    (view,) = inspect_page(TEXT, ["cvt/nano"]).objectives
    assert [mask.name for mask in view.masks] == [
        f"{name} view" for name in ("full", "forward", "backward", "future", "past")
    ]
    masks = dense_views(("forward", "future", "past", "backward"), [4])
    assert masks["forward"][1].tolist() == [True, True, False, False]
    assert masks["future"][1].tolist() == [True, False, False, False]
    assert masks["past"][1].tolist() == [False, False, True, True]
    assert masks["backward"][1].tolist() == [False, True, True, True]


LONG = " ".join(["The old cat sat on the mat near the big red door of the house."] * 3)


def one_card(text: str, name: str, objective: str, seed: int = 0) -> ObjectiveView:
    cards = inspect_page(text, [name], seed=seed).objectives
    return next(card for card in cards if card.objective == objective)


def test_a_short_text_has_one_span_and_the_card_says_since_when_it_has_several() -> None:
    words = LONG.replace(".", "").split()
    for count in (30, 31):
        cards = [one_card(" ".join(words[:count]), "t5/nano", "spans", s) for s in range(3)]
        (length,) = {len(card.spans) for card in cards}
        assert length == count
        spans = {card.streams[0].changes.count("cut") for card in cards}
        rows = {tuple(card.streams[0].tokens) for card in cards}
        notes = [note for card in cards for note in card.notes if "has one span" in note]
        if count == 30:
            assert spans == {1} and len(rows) == 1 and len(notes) == len(cards)
            assert notes[0].startswith("A text of fewer than 31 tokens has one span")
        else:
            assert spans == {2} and len(rows) > 1 and not notes


def test_cards_name_their_sources_and_what_they_leave_out() -> None:
    text = "The cat sat. It slept."
    assert "Chen and Goodman, 1998" in one_card(text, "ngram/3", "clm").description
    hints = [mask.hint for mask in one_card(text, "cove/nano", "pairs").masks]
    assert hints[0].startswith("Encoder and decoder have no self-attention") and not hints[2]
    assert any("n-grams of 1 to 3" in note for note in one_card(text, "albert/nano", "sop").notes)
    assert not any("n-grams" in note for note in one_card(text, "bert/nano", "nsp").notes)


def test_a_pair_that_does_not_follow_is_said_to_leave_out_what_does() -> None:
    facts = [
        fact
        for seed in range(6)
        for name, fact in one_card(LONG, "bert/nano", "nsp", seed).facts
        if name.startswith("sequence_label")
    ]
    assert {fact[0] for fact in facts} == {"0", "1"}
    assert all(("in place of what follows" in fact) is (fact[0] == "1") for fact in facts)


def test_a_text_that_is_shorter_than_the_band_is_said_to_be() -> None:
    same = "so that both grids are the same"
    for text, short in (("The cat sat.", True), (LONG, False)):
        full, banded = one_card(text, "gpt3/nano", "clm").masks
        assert np.array_equal(full.mask, banded.mask) is short
        assert (same in banded.hint) is short


def test_positions_behind_the_padding_are_said_to_be() -> None:
    said = "position 0 is embedded as 2"
    for name, expected in (("roberta/nano", True), ("bert/nano", False)):
        card = one_card("The cat sat.", name, "mlm")
        assert "position_ids" in card.streams[0].integers
        assert any(said in note for note in card.notes) is expected


def test_the_other_document_of_bert_has_no_unknown_words() -> None:
    for seed in range(4):
        for view in inspect_page(TEXT.partition("\n\n")[0], ["bert/nano"], seed=seed).objectives:
            assert not [token for one in view.streams for token in one.tokens if "UNK" in token]


def test_no_view_of_cross_view_training_reads_another_document() -> None:
    (view,) = inspect_page("the cat sat\n\nit slept", ["cvt/nano"]).objectives
    (stream,) = view.streams
    assert stream.starts == [3] and not stream.integers
    for mask in view.masks:
        assert not mask.mask[:3, 3:].any() and not mask.mask[3:, :3].any()
    assert view.masks[0].mask.sum() == 9 + 4


def shown_text(view: AttentionView, text: str) -> list[tuple[str, str]]:
    """Return the tokens of the queries, and the text that each of them stands for."""
    pairs = zip(view.queries, view.query_spans, strict=True)
    return [(token, text[span[0] : span[1]]) for token, span in pairs if span is not None]


@pytest.mark.parametrize("name", ["gpt2", "bert", "glm", "elmo", "t5", "transformer"])
def test_tokens_inside_a_model_know_their_characters(name: str) -> None:
    tokenizer = train_tokenizer([TEXT], kind="word", vocab_size=1000, fewer=True)
    config = families.family(name).config("nano")
    model = config.with_fields(vocab_size=tokenizer.vocab_size, decoder_start_token_id=0).build()
    found = inspect(model.eval(), TEXT, tokenizer)
    ids, _ = tokenizer.offsets(TEXT)
    both = [*zip(found.input_ids, found.sources, strict=True)]
    both += zip(found.encoder_ids, found.encoder_sources, strict=True)
    known = [(id, source) for id, source in both if source is not None]
    assert all(ids[source] == id for id, source in known)
    # Each token of the text is read once, also those that are cut out for a decoder.
    assert sorted(source for _, source in known) == list(range(len(ids)))
    for view in model_view(name, model, tokenizer, TEXT).attention:
        assert all(token == text for token, text in shown_text(view, TEXT))


def test_without_names_every_family_but_the_baseline_is_on_the_page() -> None:
    assert sorted(inspected_families()) == sorted([*families.families(), "cvt"])


@pytest.mark.parametrize("name", ["bert/nano", "albert/nano"])
def test_a_single_sentence_has_two_parts_and_no_label(name: str) -> None:
    single, pair = (
        next(v for v in inspect_page(text, [name]).objectives if v.objective in ("nsp", "sop"))
        for text in ("The cat sat on the mat.", "The cat sat. It slept.")
    )
    assert set(single.streams[0].integers["token_type_ids"]) == {0, 1}
    ((_, words),) = single.facts
    assert words.startswith("none, both texts are parts of a single sentence")
    assert not [note for note in single.notes if "another document" in note]
    ((_, words),) = pair.facts
    assert words[:2] in ("0,", "1,")


def test_models_have_the_shortest_names_that_differ() -> None:
    paths = ["runs/gpt2", "other/gpt2", "runs/bert", "runs/gpt2/checkpoints/last"]
    assert model_names(paths) == {
        "runs/gpt2": "runs/gpt2",
        "other/gpt2": "other/gpt2",
        "runs/bert": "bert",
        "runs/gpt2/checkpoints/last": "gpt2/checkpoints/last",
    }
    deeper = ["a/x/gpt2", "b/x/gpt2", "b/x/gpt2/"]
    assert model_names(deeper[:2]) == {path: path for path in deeper[:2]}
    assert model_names(["runs/gpt2"]) == {"runs/gpt2": "gpt2"}


def test_counts_of_ngrams_are_those_of_the_text() -> None:
    (view,) = inspect_page("a b a b c\n\na b", ["ngram/2"]).objectives
    single, pairs = view.tables
    assert single.rows[:2] == [("a", "3"), ("b", "3")]
    assert pairs.rows[0] == ("a b", "3") and "3 different n-grams of order 2" in pairs.title


@pytest.mark.parametrize(
    ("text", "names", "sentence"),
    [
        ("", (), "the text is empty"),
        ("a " * 257, ("gpt2",), "the text has 257 tokens, and a page shows at most 256"),
        ("words", ("bilstm",), "bilstm has no pretraining objective to show"),
        ("words", ("gtp2",), "unknown family 'gtp2'"),
        ("words", ("gpt2/huge",), "gpt2 has no size 'huge'"),
    ],
)
def test_bad_input_is_one_sentence(text: str, names: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        inspect_page(text, names)


def test_a_text_beyond_the_context_is_refused(home: Home, tmp_path: Path) -> None:
    run = home.run("gpt2")
    with pytest.raises(UserError, match="tokens, and the context of the model has 32: use a short"):
        inspect_page("the old man saw a red bird " * 6, [str(run)])


def test_a_run_is_inspected_with_its_own_tokenizer(home: Home) -> None:
    run = home.run("gpt2")
    page = inspect_page("The cat saw the garden.", [str(run)])
    (model,) = page.models
    ((_, predictions),) = model.predictions
    assert len(predictions[0].best) == 5 and predictions[0].label == "The"
    losses = [one.loss for one in predictions if one.loss is not None]
    found = inspect(run, "The cat saw the garden.")
    assert losses == pytest.approx(found["losses"].tolist())
    assert math.exp(-losses[0]) == pytest.approx(predictions[0].probability or 0)
    assert [one.name for one in model.attention] == ["attention"]
    render(page)


def test_the_tokenizer_of_every_model_is_named(home: Home, tmp_path: Path) -> None:
    text, run = "The cat saw the garden.", home.run("gpt2")
    copy = tmp_path / "other" / run.name
    copy.parent.mkdir()
    copy.symlink_to(run)
    own = load_tokenizer(run)
    words = f"{own.kind}, {own.vocab_size:,} ids"
    page = inspect_page(text, [str(run), str(copy), "bert/nano"])
    names = [f"{path.parent.name}/{path.name}" for path in (run, copy)]
    assert [model.name for model in page.models] == names
    facts = dict(page.facts)
    assert [facts[f"tokenizer of {name}"] for name in names] == [words, words]
    assert facts["tokenizer of the others"].startswith("word, ")
    alone = dict(inspect_page(text, [str(run)]).facts)
    assert alone["tokenizer of the text above"].startswith("word, ")
    assert alone[f"tokenizer of {run.name}"] == words
    shared = dict(inspect_page(text, [str(run)], tokenizer=run).facts)
    assert shared["tokenizer"] == words and f"tokenizer of {run.name}" not in shared


def view_of(name: str) -> ModelView:
    tokenizer = train_tokenizer([TEXT], kind="word", vocab_size=1000, fewer=True)
    config = families.family(name).config("nano").with_fields(vocab_size=tokenizer.vocab_size)
    torch.manual_seed(0)
    return model_view(name, config.build().eval(), tokenizer, TEXT)


@pytest.mark.parametrize(("name", "read"), [("bert", "[MASK]"), ("xlnet", None), ("gpt2", "")])
def test_a_prediction_names_what_is_read_in_its_place(name: str, read: str | None) -> None:
    ((_, places),) = view_of(name).predictions
    for place in places:
        if name == "xlnet" or (name == "bert" and place.label is not None):
            assert place.read == read and place.hidden
            assert place.label in (None, place.token)
        else:
            assert place.read == place.token and not place.hidden


def test_small_probabilities_have_two_significant_digits() -> None:
    values = [1, 0.999, 0.5, 0.034, 0.002, 3.14e-5, 0, None, math.nan]
    said = ["1.00", "1.00", "0.50", "0.034", "0.0020", "3.1e-05", "0.00", "–", "–"]
    assert [significant(value, 2) for value in values] == said
    assert [significant(value, 3) for value in (0.5, 0.0126, 0.00126)] == [
        "0.500",
        "0.013",
        "0.0013",
    ]
    tables = render(page_of(view_of("gpt2"))).split('class="predictions"')[1].split("</table>")[0]
    shown = re.findall(r"<small>([^<]*)</small>", tables)  # of 1/100 with random weights
    assert len(shown) == 5 * tables.count("<tr>") - 5
    assert all(re.fullmatch(r"0\.0\d\d?", one) for one in shown), shown


def page_of(view: ModelView) -> InspectPage:
    return replace(inspect_page(TEXT, ["gpt2/nano"]), models=[view])


def test_unknown_tokens_and_another_tokenizer_are_warned_of(home: Home, tmp_path: Path) -> None:
    words = train_tokenizer(["The cat saw the garden."], kind="word", vocab_size=1000, fewer=True)
    words.save(tmp_path / "words")
    run = home.run("gpt2")
    text = "The cat saw zebra zebra."
    page = inspect_page(text, ["gpt2/nano", "bert/nano"], tokenizer=tmp_path / "words")
    assert page.warnings == [f"2 of 6 tokens are unknown to --tokenizer {tmp_path / 'words'}"]
    page = inspect_page(text, [str(run)], tokenizer=tmp_path / "words")
    own, given = (load_tokenizer(path).vocab_size for path in (run, tmp_path / "words"))
    assert own != given and page.warnings[0] == (
        f"{run.name} has another tokenizer of its own, of {own} ids, and --tokenizer has {given}: "
        "the same id may be another token"
    )
    assert page.warnings[0] in render(page)
    assert inspect_page(text, [str(run)], tokenizer=run).warnings == []
    assert inspect_page(text, [str(run), "bert/nano"]).warnings == []


def test_an_ngram_model_shows_how_it_backs_off(home: Home, tmp_path: Path) -> None:
    run = pretrain(recipe("ngram/3", home.corpus), tmp_path / "run")
    page = inspect_page("The cat saw the garden.", [str(run)])
    (model,) = page.models
    (table,) = model.tables
    assert not model.attention and len(table.rows) == len(model.predictions[0][1])
    for _, given, order, own, weights in table.rows:
        product = float(own)
        for weight in weights.split(" · ") if weights != "–" else ():
            product *= float(weight)
        assert product == pytest.approx(float(given), rel=0.02)
        assert 1 <= int(order) <= 3
    assert {row[2] for row in table.rows} > {"3"}
    render(page)


def test_recurrent_models_show_gates_and_states() -> None:
    tokenizer = train_tokenizer([TEXT], kind="word", vocab_size=1000, fewer=True)
    config = families.family("ulmfit").config("nano").with_fields(vocab_size=tokenizer.vocab_size)
    torch.manual_seed(0)
    view = model_view("ulmfit", config.build(), tokenizer, TEXT)
    titles = [curves.title for curves in view.curves]
    assert "Gates of the layer 1" in titles and "States of the layer 3" in titles
    gates = next(curves for curves in view.curves if curves.title == "Gates of the layer 1")
    assert [name for name, _ in gates.curves] == ["input", "forget", "output"]
    assert all(0 < value < 1 for _, values in gates.curves for value in values)
