"""Options scored by their likelihood: text to text, cloze patterns and prompts."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.examples import Example
from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.generation.decode import GenerationRequest
from kinfolk.generation.generate import generate_sequences
from kinfolk.tasks.formulations import scoring, sequences
from kinfolk.tasks.formulations.scoring import Cloze, OptionScoring, Prompt
from kinfolk.tasks.formulations.text_to_text import TextToText
from kinfolk.tasks.instances import predict_rows
from kinfolk.tasks.rows import (
    CompletionRow,
    LabelledText,
    MultipleChoiceRow,
    QuestionRow,
    SourceTarget,
    TaggedSentence,
)
from kinfolk.tasks.task import Task
from kinfolk.text.tokenizer import glm_tokens
from support.task_rows import (
    CLASSES,
    alone,
    apart,
    cases,
    rows,
    same,
    sampled,
    solving,
    task,
    tokenizer,
)

SAID = list(cases("text", "cloze", "prompt"))
every = pytest.mark.parametrize(("name", "kind", "formulation"), sampled(SAID))
learning = pytest.mark.parametrize(
    ("name", "kind", "formulation"), sampled(case for case in SAID if case[2] is not Prompt)
)


def suited(kind: str, formulation: type[OptionScoring], count: int = 9) -> list[Any]:
    """Return rows that a formulation can solve: a cloze needs options."""
    some = rows(kind, count if kind != "complete" else 2 * count)
    return [
        row for row in some if formulation is not Cloze or getattr(row, "options", ()) is not None
    ]


def ids(text: str) -> list[int]:
    return tokenizer().offsets(text)[0]


def log(model: Any, reading: Example) -> Tensor:
    """Return log p of what a reading says, by itself."""
    logits = model.lm_logits(model(alone(reading)).hidden[0]).logits()
    assert reading.labels is not None
    labels = torch.from_numpy(reading.labels)
    return -F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")


def test_text_reads_each_text_under_its_name() -> None:
    text = TextToText(task=Task(kind="classify", labels=CLASSES, prefix="nli "))
    assert text.prompt(LabelledText(("red", "blue"), "bad", 1))[0] == (
        "nli sentence1: red sentence2: blue"
    )
    assert text.prompt(LabelledText(("red",), "bad", 1))[0] == "nli sentence: red"
    assert replace(text, task=task("classify")).prompt(LabelledText(("red",), "bad", 1))[0] == "red"
    choice = MultipleChoiceRow("red", ("cat", "dog"), 0, 1, question="who")
    assert TextToText(task=task("choose")).prompt(choice)[0] == (
        "context: red question: who options: (1) cat (2) dog"
    )
    span = TextToText(task=task("span"))
    row = QuestionRow("1", "red cat", "who", (("cat", 4),), True, 1)
    assert span.prompt(row)[0] == "question: who context: red cat"
    assert (
        span.target_text(row),
        span.target_text(replace(row, answers=(), answerable=False)),
    ) == (
        "cat",
        "unanswerable",
    )
    assert (
        TextToText(task=task("tag")).target_text(TaggedSentence(("red", "cat"), ("O", "B-X"), 1))
        == "O B-X"
    )


def test_numbers_are_texts_rounded_to_a_fifth() -> None:
    text = TextToText(task=task("regress"), default_number=2.5)
    told = [
        text.target_text(LabelledText(("a", "b"), label, 1)) for label in (0.0, 2.53, 3.89, 5.0)
    ]
    assert told == ["0.0", "2.6", "3.8", "5.0"]
    row = LabelledText(("a", "b"), None, 1)
    assert [text.parse_output(row, said).value for said in (" 3.8", "five", "nan")] == [
        3.8,
        2.5,
        2.5,
    ]


def test_what_is_written_becomes_an_answer() -> None:
    tag = TextToText(task=task("tag"))
    row = TaggedSentence(("a", "b", "c"), None, 1)
    assert tag.parse_output(row, "B-X odd").value == ("B-X", "O", "O")
    assert tag.parse_output(row, "O O I-X O O").value == ("O", "O", "I-X")
    span = TextToText(task=task("span"))
    asked = QuestionRow("1", "a", "b", (), True, 1)
    assert (
        span.parse_output(asked, " unanswerable ").value == ""
        and span.parse_output(asked, "cat").value == "cat"
    )
    complete = TextToText(task=task("complete"))
    assert complete.parse_output(CompletionRow("a", None, None, 1), " king of").value == "king"
    assert complete.parse_output(CompletionRow("a", None, None, 1), "").value == ""


def test_a_decoder_sees_where_its_answer_begins() -> None:
    text = TextToText(task=task("classify"), max_length=32)
    (example,) = text.instances(LabelledText(("red cat",), "fine", 1), tokenizer())
    (reading,), special_tokens = example.examples, tokenizer().special_tokens
    assert reading.input_ids.tolist() == [
        special_tokens.bos,
        *ids("red cat"),
        special_tokens.sep,
        *ids("fine"),
    ]
    assert reading.labels is not None
    kept = [label for label in reading.labels.tolist() if label != IGNORE_INDEX]
    assert kept == [*ids("fine"), special_tokens.eos]


def test_a_long_text_keeps_its_task_and_where_the_answer_begins() -> None:
    long = LabelledText((" ".join(["red"] * 20 + ["blue"] * 20),), "fine", 1)
    for speaks in ("decoder", "encoder-decoder", "blanks"):
        text = TextToText(
            task=Task(kind="classify", labels=CLASSES, prefix="song "),
            max_length=24,
            layout=speaks,
        )
        (example,) = text.instances(long, tokenizer())
        (reading,) = example.examples
        read = (
            reading.input_ids if reading.encoder_input_ids is None else reading.encoder_input_ids
        ).tolist()
        first = 1 if speaks == "decoder" else 0
        assert read[first] == ids("song")[0]
        assert max(reading.lengths) <= 24
        assert example.truncated_tokens > 0
        lost = len(ids(text.prompt(long)[0])) - example.truncated_tokens
        assert sum(i in ids("red blue sentence : song") for i in read) == lost
        if speaks == "decoder":
            assert tokenizer().special_tokens.sep in read


def test_the_word_asked_for_stands_behind_the_end_of_its_context() -> None:
    text = TextToText(task=task("complete"), max_length=16)
    row = CompletionRow(" ".join(["red"] * 20 + ["blue"]), "cat", None, 1)
    (example,) = text.instances(row, tokenizer())
    (reading,) = example.examples
    assert reading.input_ids.tolist() == [tokenizer().special_tokens.bos, *ids(row.context)[-13:]]
    assert example.truncated_tokens == len(ids(row.context)) - 13
    assert reading.labels is not None
    assert [i for i in reading.labels.tolist() if i != IGNORE_INDEX] == ids("cat")


def test_a_target_that_is_too_long_counts_as_cut() -> None:
    text = TextToText(task=task("write"), max_length=16, layout="encoder-decoder")
    (example,) = text.instances(SourceTarget("red", " ".join(["cat"] * 40), 1), tokenizer())
    (reading,) = example.examples
    assert len(reading.input_ids) <= 16 and example.truncated_tokens == 40 - (
        len(reading.input_ids) - 1
    )


@pytest.mark.parametrize("speaks", ["decoder", "encoder-decoder", "blanks"])
def test_a_running_text_is_said_in_stretches_each_token_once(speaks: Any) -> None:
    text = TextToText(task=task("lm"), max_length=16, layout=speaks)
    said = " ".join(["red", "cat", "old", "king"] * 12)
    examples = text.instances(SourceTarget("", said, 1), tokenizer())
    labels = [i for e in examples for r in e.examples for i in r.labels.tolist()]  # type: ignore[union-attr]
    assert [i for i in labels if i != IGNORE_INDEX] == ids(said)
    assert all(max(r.lengths) <= 16 for e in examples for r in e.examples)
    assert all(e.truncated_tokens == 0 for e in examples)


def test_a_blank_is_filled_where_its_pattern_says() -> None:
    cloze = Cloze(
        task=task("classify"), max_length=32, layout="blanks", pattern="{text} It was {answer} ."
    )
    (example,) = cloze.instances(LabelledText(("red cat",), "fine", 1), tokenizer())
    assert example.target == 1 and len(example.examples) == len(CLASSES)
    known = glm_tokens(tokenizer().special_tokens)
    for reading, said in zip(example.examples, CLASSES, strict=True):
        text = [*ids("red cat It was"), known.mask, *ids(".")]
        assert reading.input_ids.tolist() == [*text, known.start, *ids(said)]
        assert reading.labels is not None
        assert [i for i in reading.labels.tolist() if i != IGNORE_INDEX] == ids(said)
    with pytest.raises(UserError, match="--verbalizer has 2 words for 3 classes"):
        Cloze(task=task("classify"), verbalizer=("bad", "good"))
    with pytest.raises(UserError, match="row 7 has no options, which cloze needs"):
        Cloze(task=task("complete")).instances(CompletionRow("a", "b", None, 7), tokenizer())


def test_words_stand_for_classes() -> None:
    cloze = Cloze(task=task("classify"), verbalizer=("old", "red", "blue"))
    row = LabelledText(("cat",), "fine", 1)
    assert cloze.options(row) == ("old", "red", "blue") and cloze.task.option_index(row) == 1


def test_solved_rows_stand_before_the_one_that_is_asked() -> None:
    prompts = Prompt(task=task("classify"), pattern="{text} : {answer} .", examples=("one", "two"))
    row = LabelledText(("red cat",), "fine", 1)
    assert prompts.format_example(row) == "red cat : fine ."
    assert prompts.prompt(row) == ("one\ntwo\nred cat :", " .")
    with pytest.raises(UserError, match="row 1 has no label"):
        prompts.format_example(replace(row, label=None))
    with pytest.raises(UserError, match="the formulation 'prompt' is not trained"):
        prompts.instances(row, tokenizer())
    assert prompts.parse_output(row, " a line\nand another").value == "a line"


@learning
@torch.no_grad()
def test_packing_changes_no_loss(name: str, kind: str, formulation: type[OptionScoring]) -> None:
    made, model = solving(name, kind, formulation)
    some = suited(kind, formulation)
    examples = [example for row in some for example in made.instances(row, tokenizer())]
    batch = made.make_batch(examples)
    each = [torch.stack([log(model, r) for r in e.examples]) for e in examples]
    if formulation is TextToText:
        found, wanted = made.loss(model, batch).sums["tokens"], -sum(part.sum() for part in each)
        count = sum((r.labels != IGNORE_INDEX).sum() for e in examples for r in e.examples)  # type: ignore[union-attr]
        assert batch.counts["tokens"] == count
    else:
        found = made.loss(model, batch).sums["label"]
        pairs = zip(examples, each, strict=True)
        wanted = -sum(logs.log_softmax(0)[example.target] for example, logs in pairs)
        assert batch.counts["label"] == len(some)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@every
def test_no_answer_depends_on_who_else_is_asked(
    name: str, kind: str, formulation: type[OptionScoring], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, model = solving(name, kind, formulation)
    some = suited(kind, formulation, 5)
    if any(made.generates(row) for row in some):
        made = replace(made, max_new_tokens=8)  # type: ignore[call-arg]
        known = [answer.value for answer in predict_rows(made, model, some, tokenizer())]
        monkeypatch.setattr(scoring, "GENERATION_BATCH", 2)
        assert [a.value for a in predict_rows(made, model, some, tokenizer())] == known
    varied = kind != "regress" and (name, kind) != ("transformer", "span")  # fresh, it cannot
    same(made, model, some, varied=varied)


@learning
def test_neighbours_have_no_gradient(
    name: str, kind: str, formulation: type[OptionScoring]
) -> None:
    made, model = solving(name, kind, formulation)
    examples = [e for row in suited(kind, formulation) for e in made.instances(row, tokenizer())]
    apart(made, model, examples)


@pytest.mark.parametrize("name", ["gpt2", "t5", "glm"])
@torch.no_grad()
def test_prompts_score_options_by_the_likelihood_of_a_token(name: str) -> None:
    made, model = solving(name, "classify", Prompt, pattern="{text} : {answer}", examples=("red",))
    for row in rows("classify", 4):
        (example,) = made.instances(row, tokenizer(), labelled=False)
        logs = [log(model, reading) / len(ids(said)) for reading, said in
                zip(example.examples, CLASSES, strict=True)]  # fmt: skip
        (answer,) = predict_rows(made, model, [row], tokenizer())
        assert answer.probabilities == pytest.approx(
            torch.stack(logs).softmax(0).tolist(), abs=1e-5
        )
        assert answer.value == CLASSES[int(torch.stack(logs).argmax())]


@pytest.mark.parametrize("name", ["gpt2", "t5", "glm"])
@torch.no_grad()
def test_what_is_written_is_likeliest_as_lessons_are_read(name: str) -> None:
    made, model = solving(name, "write", TextToText)
    assert isinstance(made, TextToText)
    for row in rows("write"):
        asked = made.generation_prompt(model, row, tokenizer())
        config = GenerationConfig(do_sample=False, max_new_tokens=6)
        request = GenerationRequest.from_prompts([asked], config, tokenizer())
        (text,) = generate_sequences(model, request)
        said = [id for id in text.ids if id not in asked.eos_ids]
        before = made.append_separator(ids(row.source), tokenizer())
        laid = sequences.build_example(
            made.layout, tokenizer().special_tokens, before, said, end=False
        )
        logits = model.lm_logits(model(alone(laid)).hidden[0]).logits()
        logits[:, [*asked.suppress_ids]] = -torch.inf
        assert laid.labels is not None
        found = logits.argmax(-1)[laid.labels != IGNORE_INDEX].tolist()
        assert found == said


@torch.no_grad()
@pytest.mark.parametrize("kind", ["complete", "lm"])
def test_the_right_answer_has_its_likelihood(kind: str) -> None:
    made, model = solving("gpt2", kind, TextToText)
    some = [row for row in rows(kind) if getattr(row, "options", None) is None]
    for row, answer in zip(some, predict_rows(made, model, some, tokenizer()), strict=True):
        scored = made.instances(row, tokenizer(), labelled=False)
        wanted = -sum(log(model, r) for e in scored for r in e.examples)
        assert answer.nll == pytest.approx(float(wanted), abs=1e-4)
        assert answer.tokens == len(ids(row.target)) + (kind == "lm")  # and the end of a text
