"""Writing token by token: the same together, alone, and without a cache."""

import math
from collections.abc import Sequence
from itertools import product

import pytest
import torch

from kinfolk.batch import Inputs
from kinfolk.errors import UserError
from kinfolk.families.bert import Bert
from kinfolk.families.gpt2 import GPT2
from kinfolk.families.t5 import T5
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.decode import GeneratedSequence
from support.decoding import asked, constrain, generate, generate_steps, write
from support.loops import every_case

PROMPTS = [[3, 4, 5, 6, 7, 8, 9], [11], [20, 21, 22], [3, 4]]
SOURCES = [[9, 8, 7, 1], [30, 1], [5, 6, 7, 8, 9, 10, 11, 1], [40, 41, 1]]
METHODS: list[GenerationConfig] = [
    GREEDY,
    GenerationConfig(top_p=0.9, typical_p=0.9, min_p=0.01),
    GenerationConfig(num_beams=3),
    GenerationConfig(num_beams=4, num_beam_groups=2),
    GenerationConfig(penalty_alpha=0.6),
]
WAYS = [GREEDY, GenerationConfig(), GenerationConfig(temperature=0.8, top_k=20, top_p=0.9)]


def same(ours: GeneratedSequence, theirs: GeneratedSequence) -> None:
    assert (ours.ids, ours.finished) == (theirs.ids, theirs.finished)
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def recomputed(
    model: GPT2 | T5,
    prompt: Sequence[int],
    written: GeneratedSequence,
    source: Sequence[int] | None,
) -> list[list[float]]:
    """Score every token of a text by whole passes without a state."""
    model.eval()
    ids = [*prompt, *written.ids]
    read = None if source is None else Inputs.from_ids(torch.tensor([source]), causal=False)
    rows = []
    for stop in range(len(prompt), len(ids)):
        inputs = Inputs.from_ids(torch.tensor([ids[:stop]]), causal=True, encoder_inputs=read)
        with torch.no_grad():
            logits = model.lm_logits(model(inputs).hidden[0, -1]).logits()
        rows.append(logits.log_softmax(-1).tolist())
    return rows


@pytest.mark.parametrize("sampling", WAYS)
def test_together_is_one_by_one(gpt2: GPT2, sampling: GenerationConfig) -> None:
    together = write(gpt2, PROMPTS, max_new_tokens=15, eos_ids={2, 9, 17}, method=sampling, seed=4)
    assert len({len(text.ids) for text in together}) > 1  # rows left the batch at different times
    for number, prompt in enumerate(PROMPTS):
        options = {"method": sampling, "seed": 4, "first": number}
        (alone,) = write(gpt2, [prompt], max_new_tokens=15, eos_ids={2, 9, 17}, **options)  # type: ignore[arg-type]
        same(alone, together[number])


@pytest.mark.parametrize("prompts", [[[0]] * 4, PROMPTS])
@pytest.mark.parametrize("sampling", WAYS)
def test_together_is_one_by_one_with_sources(
    t5: T5, sampling: GenerationConfig, prompts: list[list[int]]
) -> None:
    ends = set(range(1, 8))
    together = write(
        t5, prompts, max_new_tokens=15, eos_ids=ends, method=sampling, encoder_ids=SOURCES
    )
    for number, (prompt, source) in enumerate(zip(prompts, SOURCES, strict=True)):
        options = {"method": sampling, "encoder_ids": [source], "first": number}
        (alone,) = write(t5, [prompt], max_new_tokens=15, eos_ids=ends, **options)  # type: ignore[arg-type]
        same(alone, together[number])


def test_the_cache_changes_nothing(gpt2: GPT2, t5: T5) -> None:
    for model, sources in ((gpt2, None), (t5, SOURCES)):
        texts = write(
            model, PROMPTS, max_new_tokens=12, eos_ids=(), method=GREEDY, encoder_ids=sources
        )
        for number, (prompt, text) in enumerate(zip(PROMPTS, texts, strict=True)):
            source = None if sources is None else sources[number]
            scores = recomputed(model, prompt, text, source)
            assert len(scores) == 12
            assert text.ids == [row.index(max(row)) for row in scores]
            assert text.logprobs == pytest.approx([max(row) for row in scores], abs=1e-4)


def test_logprobs_are_the_models_own_whatever_was_filtered(gpt2: GPT2) -> None:
    sampling = GenerationConfig(temperature=2.0, top_k=30)
    (text,) = write(gpt2, [[3]], max_new_tokens=9, eos_ids=(), method=sampling, banned=range(9))
    scores = recomputed(gpt2, [3], text, None)
    expected = [row[id] for row, id in zip(scores, text.ids, strict=True)]
    assert text.logprobs == pytest.approx(expected, abs=1e-4)
    assert not set(text.ids) & set(range(9))


def test_an_end_token_ends_a_text_and_is_no_part_of_it(gpt2: GPT2) -> None:
    (free,) = write(gpt2, [[3]], max_new_tokens=10, eos_ids=(), method=GREEDY)
    assert not free.finished
    end = free.ids[4]
    (ended,) = write(gpt2, [[3]], max_new_tokens=10, eos_ids={end}, method=GREEDY)
    assert ended.finished and ended.ids == free.ids[: free.ids.index(end)]
    (never,) = write(gpt2, [[3]], max_new_tokens=10, eos_ids={end}, method=GREEDY, banned={end})
    assert not never.finished and end not in never.ids


def test_a_stream_gives_a_token_for_each_live_text(gpt2: GPT2) -> None:
    turns = list(generate_steps(gpt2, asked(PROMPTS, max_new_tokens=9, eos_ids={2, 9, 17}, seed=4)))
    live = set(range(4))
    for turn in turns:
        assert {step.sequence for step in turn} == live
        live -= {step.sequence for step in turn if step.is_eos}
    texts = write(gpt2, PROMPTS, max_new_tokens=9, eos_ids={2, 9, 17}, seed=4)
    for number, text in enumerate(texts):
        steps = [step for turn in turns for step in turn if step.sequence == number]
        assert [step.id for step in steps if not step.is_eos] == text.ids


def test_writing_stops_at_the_end_of_the_context(gpt2: GPT2) -> None:
    texts = write(gpt2, PROMPTS, max_new_tokens=100, eos_ids=())
    assert [len(p) + len(t.ids) for p, t in zip(PROMPTS, texts, strict=True)] == [24] * 4


def test_another_seed_writes_another_text(gpt2: GPT2) -> None:
    one, two, again = (
        write(gpt2, PROMPTS, max_new_tokens=12, eos_ids=(), seed=s) for s in (1, 2, 1)
    )
    assert one == again != two
    twins = write(gpt2, [[3], [3]], max_new_tokens=12, eos_ids=())
    assert twins[0].ids != twins[1].ids


def test_training_goes_on_as_it_was(gpt2: GPT2) -> None:
    gpt2.train()
    gpt2.layers[0].eval()
    before = [module.training for module in gpt2.modules()]
    assert write(gpt2, PROMPTS, max_new_tokens=5, eos_ids=()) == write(
        gpt2, PROMPTS, max_new_tokens=5, eos_ids=()
    )
    stream = generate_steps(gpt2, asked(PROMPTS, max_new_tokens=5, eos_ids=()))
    next(stream)
    assert not torch.is_inference_mode_enabled() and not gpt2.dropout.training
    stream.close()  # type: ignore[attr-defined]
    assert [module.training for module in gpt2.modules()] == before


@pytest.mark.parametrize("method", METHODS)
def test_a_stream_that_is_left_or_fails_leaves_training_as_it_was(
    gpt2: GPT2, method: GenerationConfig
) -> None:
    gpt2.train()
    stream = generate_steps(gpt2, asked(PROMPTS, max_new_tokens=5, eos_ids=()), method)
    next(stream)
    assert not gpt2.training
    stream.close()  # type: ignore[attr-defined]
    assert gpt2.training and gpt2.dropout.training
    unsayable = constrain(forced_prefix=(3, 4), suppress_ids={4})
    with pytest.raises(UserError, match="exclude every token"):
        list(generate_steps(gpt2, asked(PROMPTS, max_new_tokens=5, constraints=unsayable), method))
    assert gpt2.training and gpt2.dropout.training


@pytest.mark.parametrize("method", METHODS)
def test_no_prompts_give_no_texts(gpt2: GPT2, method: GenerationConfig) -> None:
    assert write(gpt2, [], max_new_tokens=5, eos_ids=(), method=method) == []
    assert list(generate_steps(gpt2, asked([], max_new_tokens=5), method)) == []


@pytest.mark.parametrize("method", METHODS)
def test_each_prompt_may_have_a_room_of_its_own(gpt2: GPT2, method: GenerationConfig) -> None:
    texts = write(gpt2, PROMPTS, max_new_tokens=[1, 5, 2, 9], eos_ids=(), method=method)
    assert [len(text.ids) for text in texts] == [1, 5, 2, 9]
    assert not any(text.finished for text in texts)


@pytest.mark.parametrize("method", METHODS)
def test_a_text_ends_once_it_is_enough(gpt2: GPT2, method: GenerationConfig) -> None:
    """By the token that makes it so, which is a part of it."""
    request = asked(PROMPTS, max_new_tokens=8, eos_ids={9}, should_stop=lambda ids: len(ids) == 3)
    for text in generate(gpt2, request, method):
        assert text.finished and len(text.ids) <= 3 and len(text.logprobs) == len(text.ids)


def test_what_cannot_be_written_is_refused_with_the_numbers(gpt2: GPT2, t5: T5, bert: Bert) -> None:
    with pytest.raises(UserError, match=r"24 tokens leaves no room .* context of 24.* 23"):
        write(gpt2, [[3] * 24], max_new_tokens=5, eos_ids=())
    with pytest.raises(UserError, match="prompt is empty"):
        write(gpt2, [[3], []], max_new_tokens=5, eos_ids=())
    with pytest.raises(UserError, match="the id 50, and the model's ids are 0 to 49"):
        write(gpt2, [[50]], max_new_tokens=5, eos_ids=())
    with pytest.raises(UserError, match="the id -1, and"):
        write(gpt2, [[3], [-1]], max_new_tokens=5, eos_ids=())
    with pytest.raises(UserError, match="25 tokens leaves no room"):
        write(gpt2, [[3], [3] * 25], max_new_tokens=5, eos_ids=())
    with pytest.raises(UserError, match="max_new_tokens=0"):
        write(gpt2, [[3]], max_new_tokens=0, eos_ids=())
    with pytest.raises(UserError, match="max_new_tokens=-2"):
        write(gpt2, [[3], [4]], max_new_tokens=[3, -2], eos_ids=())
    with pytest.raises(UserError, match="2 prompts and 3 values of max_new_tokens"):
        write(gpt2, [[3], [4]], max_new_tokens=[3, 2, 1], eos_ids=())
    with pytest.raises(UserError, match="num_return_sequences=0"):
        write(gpt2, [[3]], max_new_tokens=3, num_return_sequences=0)
    with pytest.raises(UserError, match="all 50 tokens"):
        write(gpt2, [[3]], max_new_tokens=5, eos_ids=(), banned=range(60))
    with pytest.raises(UserError, match="sources are only for encoder-decoder"):
        write(gpt2, [[3]], max_new_tokens=5, eos_ids=(), encoder_ids=[[3]])
    with pytest.raises(UserError, match="got 1 prompts and 0 sources"):
        write(t5, [[0]], max_new_tokens=5, eos_ids=())
    with pytest.raises(UserError, match="source is empty"):
        write(t5, [[0]], max_new_tokens=5, eos_ids=(), encoder_ids=[[]])
    with pytest.raises(UserError, match="encoder models cannot generate"):
        write(bert, [[3]], max_new_tokens=5, eos_ids=())


@pytest.mark.parametrize("method", METHODS)
def test_a_sick_model_is_named_as_such(gpt2: GPT2, method: GenerationConfig) -> None:
    some = (
        constrain(),
        constrain(no_repeat_ngram_size=2, forced_prefix=(3,)),
        constrain(suppress_ids={3}),
    )
    with every_case() as case:
        for sick, rules in product((math.nan, math.inf), some):
            with case((sick, rules)):
                with torch.no_grad():
                    gpt2.final_norm.weight.fill_(sick)
                with pytest.raises(UserError, match="logits are NaN"):
                    generate(
                        gpt2,
                        asked([[3], [4, 5]], max_new_tokens=5, eos_ids=(), constraints=rules),
                        method,
                    )


@pytest.mark.gpu
def test_an_accelerator_writes_the_same(gpt2: GPT2, t5: T5) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for model, sources in ((gpt2, None), (t5, SOURCES)):
        for sampling in WAYS:
            ours, theirs = (
                write(
                    model.to(device),
                    PROMPTS,
                    max_new_tokens=12,
                    eos_ids={9},
                    method=sampling,
                    encoder_ids=sources,
                )
                for device in ("cpu", "cuda")
            )
            for one, other in zip(ours, theirs, strict=True):
                same(one, other)
