"""Budgets: what a step costs, and the steps that make runs equal."""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.data.prepare import prepare
from kinfolk.errors import UserError
from kinfolk.families import index
from kinfolk.text import Tokenizer
from kinfolk.training.flops import FORMULAS, FlopCounter
from kinfolk.training.step import input_tokens
from kinfolk.workflows.comparison import budget, step_timing
from kinfolk.workflows.comparison.budget import (
    BUDGET_TOLERANCE,
    Budget,
    Cost,
    budget_spread,
    budget_steps,
    count_step,
    describe_budget,
    measure_costs,
    run_steps,
    smallest_budget,
)
from kinfolk.workflows.pretrain import PretrainWorkload, pretrain
from kinfolk.workflows.recipe import Recipe, recipe
from support.runs import LENGTH, Home, text

ROWS, VOCAB, HIDDEN, LAYERS = 4, 448, 64, 2  # VOCAB: 420 tokens, up to a multiple of 64
PRETRAINED = sorted(
    name
    for name, entry in index().items()
    if "pretrain" in entry.capabilities and name not in ("ngram", "cove")
)
SIX = ("gpt2", "bert", "electra", "t5", "glm", "ulmfit")
KINDS: tuple[budget.Kind, ...] = ("minutes", "flops", "tokens")


@pytest.fixture(scope="module")
def plain(home: Home) -> Path:
    """Return a corpus of the home's ids without held-out documents."""
    source, out = home.folder / "plain.md", home.folder / "plain"
    source.write_text(text(60, seed=3), encoding="utf-8")
    prepare([source], tokenizer=Tokenizer.load(home.tokenizer), out=out)
    return out


def entrant(corpus: Path, family: str, *settings: str, objective: str | None = None) -> Recipe:
    """Return the recipe of a small run on the CPU."""
    if family == "transformer":
        objective = "spans"
    train = [f"train.batch_size={ROWS}", "train.device=cpu"]
    return recipe(
        f"{family}/nano", corpus, objective=objective, length=LENGTH, settings=[*train, *settings]
    )


def products(positions: float, *matrices: int) -> float:
    """Return the FLOPs of forward and backward of linear layers, by hand."""
    return 6 * positions * sum(matrices)


def attention(rows: int, queries: int, keys: int, size: int = HIDDEN) -> float:
    """Return the FLOPs of forward and backward of attention, by hand."""
    return 3 * 2 * 2 * rows * queries * keys * size


def layer(positions: float, size: int = HIDDEN) -> float:
    """Return the FLOPs of the matrices of a layer: query, key, value, output, feed-forward."""
    return products(positions, 12 * size * size)


def test_gpt2_agrees_with_6nd_and_attention(home: Home) -> None:
    positions = ROWS * LENGTH
    by_hand = LAYERS * (layer(positions) + attention(ROWS, LENGTH, LENGTH))
    by_hand += products(positions, VOCAB * HIDDEN)
    assert count_step(entrant(home.corpus, "gpt2")).flops == pytest.approx(by_hand, rel=1e-9)


def test_ulmfit_agrees_with_a_count_by_hand(home: Home) -> None:
    chosen = entrant(home.corpus, "ulmfit", objective="clm")
    c, cost = chosen.model, count_step(chosen)
    sizes = [c.hidden_size, *[c.lstm_size] * (c.num_layers - 1), c.hidden_size]
    lstms = [4 * h * (x + h) for x, h in itertools.pairwise(sizes)]
    # Layers read tokens; the output layer has a row of logits for every position.
    by_hand = products(cost.tokens, *lstms) + products(ROWS * LENGTH, VOCAB * c.hidden_size)
    assert cost.flops == pytest.approx(by_hand, rel=0.01)


def test_electra_is_its_generator_and_its_discriminator(home: Home) -> None:
    chosen = entrant(home.corpus, "electra")
    work = PretrainWorkload(chosen)
    c, batch = chosen.model, work.batches[0]
    predictions, positions = len(batch.targets.tokens.labels), ROWS * LENGTH
    small = round(c.generator_size * c.hidden_size)
    encoders = 0.0
    for size in (small, HIDDEN):
        encoders += LAYERS * (layer(positions, size) + attention(ROWS, LENGTH, LENGTH, size))
        if size != c.embedding_size:
            encoders += products(positions, c.embedding_size * size)
    # The last feed-forward sublayer of the generator runs at the masked tokens alone.
    encoders -= products(positions - predictions, 8 * small * small)
    logits = products(predictions, small * c.embedding_size, VOCAB * c.embedding_size)
    sampling = logits / 3  # a forward pass without a gradient
    heads = products(positions, HIDDEN * HIDDEN, HIDDEN)
    by_hand = encoders + logits + sampling + heads
    assert budget.batch_flops(work, batch) == pytest.approx(by_hand, rel=1e-9)
    assert encoders - LAYERS * (layer(positions) + attention(ROWS, LENGTH, LENGTH)) > 0


def test_t5_has_both_streams_and_cross_attention(home: Home) -> None:
    work = PretrainWorkload(entrant(home.corpus, "t5"))
    batch, c = work.batches[0], work.model.config
    source, target = (
        part.input_ids.shape[1] for part in (batch.inputs.encoder_inputs, batch.inputs)
    )
    inner = (3 if c.gated else 2) * HIDDEN * (c.intermediate_size or 4 * HIDDEN)
    encoder = products(ROWS * source, 4 * HIDDEN**2, inner) + attention(ROWS, source, source)
    decoder = products(ROWS * target, 6 * HIDDEN**2, inner) + attention(ROWS, target, target)
    cross = products(ROWS * source, 2 * HIDDEN**2) + attention(ROWS, target, source)
    logits = products(len(batch.targets.labels), VOCAB * HIDDEN)
    by_hand = LAYERS * (encoder + decoder + cross) + logits
    assert budget.batch_flops(work, batch) == pytest.approx(by_hand, rel=1e-9)


def test_the_memory_of_transformer_xl_costs_its_keys_and_distances(home: Home) -> None:
    short, long = (
        count_step(entrant(home.corpus, "transformer_xl", f"model.mem_len={length}")).flops
        for length in (8, 24)
    )
    # Keys and values of the memory, whose gradient is that of the weights alone in the first layer,
    # scores by content and by distance, and the projection of distances.
    more = 24 - 8
    scores = attention(ROWS, LENGTH, more) * 1.5
    assert long - short > LAYERS * scores
    without = count_step(entrant(home.corpus, "transformer_xl", objective="clm")).flops
    assert without < short


def test_the_query_stream_of_xlnet_costs_a_layer_for_each_prediction(home: Home) -> None:
    counts, predictions = [], []
    for k in (6, 2):
        work = PretrainWorkload(
            entrant(home.corpus, "xlnet", f"objective.partial_prediction_k={k}")
        )
        batch = work.batches[0]
        counts.append(budget.batch_flops(work, batch))
        assert batch.inputs.target_positions is not None
        predictions.append(batch.inputs.target_positions.numel())
    more = predictions[1] - predictions[0]
    query_stream = LAYERS * products(more, 10 * HIDDEN**2) + products(more, VOCAB * HIDDEN)
    # Scores by content take two products of queries and keys, those by distance one of twice the
    # keys; the first layer has no gradient of the distances.
    scores = LAYERS * attention(1, more, LENGTH)
    assert query_stream + scores < counts[1] - counts[0] < query_stream + 2.2 * scores


MATRIX_WORDS = ("mm", "bmm", "conv", "attention", "rnn", "lstm", "gru", "dot", "matmul", "linear")


class Operations(TorchDispatchMode):
    """Collect the operations that run in the block."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func._overloadpacket)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", PRETRAINED)
def test_no_product_of_matrices_is_missed(home: Home, family: str) -> None:
    work = PretrainWorkload(entrant(home.corpus, family))
    with Operations() as operations:
        counted = budget.batch_flops(work, work.batches[0])
    known = {*FlopCounter().mode.flop_registry, *FORMULAS}
    named = {
        operation
        for operation in operations.seen
        if any(word in operation.__name__.replace("_", " ").split() for word in MATRIX_WORDS)
        or any(word in operation.__name__ for word in MATRIX_WORDS[2:7])
    }
    assert counted > 0 and named
    assert named <= known


def test_tokens_are_those_that_the_steps_report(home: Home) -> None:
    chosen = entrant(home.corpus, "t5")
    work = PretrainWorkload(chosen)
    step = work.make_step(home.folder, torch.device("cpu"), bfloat16=False)
    steps = len(work.batches)
    read = [int(step(n, [work.batches[n]]).tokens) for n in range(steps)]
    assert count_step(chosen).tokens == pytest.approx(sum(read) / steps)


@pytest.mark.parametrize("family", ["gpt2", "transformer_xl"])
def test_micro_batches_cost_as_much_as_a_whole_batch(home: Home, family: str) -> None:
    whole = count_step(entrant(home.corpus, family))
    split = count_step(entrant(home.corpus, family, "train.gradient_accumulation=2"))
    assert split.tokens == pytest.approx(whole.tokens, rel=0.1)  # the last rows are read twice
    # Distances are projected once for each micro-batch.
    assert whole.flops <= split.flops < 1.1 * whole.flops


@pytest.mark.parametrize(
    "family",
    [
        "bert",
        *(pytest.param(name, marks=pytest.mark.slow) for name in PRETRAINED if name != "bert"),
    ],
)
def test_a_run_spends_the_flops_that_were_planned(plain: Path, family: str, tmp_path: Path) -> None:
    chosen = entrant(plain, family)
    cost = measure_costs({family: chosen}, timing=None)
    planned = Budget("flops", 60 * cost[family].flops)
    steps = budget_steps(planned, cost)[family]
    train = dataclasses.replace(chosen.train, steps=steps, warmup=1)
    with FlopCounter() as counter:
        pretrain(dataclasses.replace(chosen, train=train), tmp_path / "run")
    assert counter.total == pytest.approx(planned.amount, rel=BUDGET_TOLERANCE)


def test_models_that_count_have_no_cost(home: Home) -> None:
    counted = recipe("ngram/3", home.corpus)
    costs = measure_costs({"n": counted, "g": entrant(home.corpus, "gpt2")}, timing=None)
    assert list(costs) == ["g"]
    assert costs["g"].seconds == 0


def test_the_budgets_of_six_runs_are_equal(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timing, "ROUND_SECONDS", 0.01)
    monkeypatch.setattr(step_timing, "MIN_ROUNDS", 3)
    costs = measure_costs({name: entrant(home.corpus, name) for name in SIX}, timing=0.0)
    for kind in KINDS:
        # Not a multiple of any cost, and the least that is allowed.
        for amount in (1.37 * smallest_budget(kind, costs).amount, 0.0):
            planned = Budget(kind, amount) if amount else smallest_budget(kind, costs)
            steps = budget_steps(planned, costs)
            assert all(count >= 50 for count in steps.values())
            assert budget_spread(planned, costs, steps) <= BUDGET_TOLERANCE


@hypothesis.given(
    st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=8),
    st.sampled_from(KINDS),
    st.floats(1.0, 100.0),
)
def test_accepted_budgets_are_equal_within_two_percent(
    amounts: list[float], kind: budget.Kind, factor: float
) -> None:
    costs = {str(n): Cost(amount, amount, amount) for n, amount in enumerate(amounts)}
    planned = Budget(kind, factor * smallest_budget(kind, costs).amount)
    assert budget_spread(planned, costs, budget_steps(planned, costs)) <= BUDGET_TOLERANCE * (
        1 + 1e-9
    )


@pytest.mark.parametrize("kind", ["tokens", "flops"])
@pytest.mark.parametrize("search", [0, 3])
def test_runs_whose_batches_differ_in_size_have_the_steps_that_reach_the_budget(
    plain: Path, kind: budget.Kind, search: int
) -> None:
    """Counted on every batch. With the mean of 256 steps three seeds were 3 % apart."""
    chosen = entrant(plain, "ulmfit", "train.gradient_accumulation=2")
    ((_, cost),) = costs = measure_costs({"u": chosen}, timing=None).items()
    planned = Budget(kind, 96.4 * cost.of(kind))
    steps = budget_steps(planned, dict(costs), search=search)["u"]
    found = run_steps(planned, chosen, cost, steps, search=search, seeds=4)
    per_token = cost.of(kind) / cost.tokens
    read = [read_tokens(chosen, seed, steps) for seed, steps in enumerate(found.seeds)]
    searched = search * read_tokens(chosen, 0, found.search)
    assert found.spent == pytest.approx([per_token * (searched + tokens) for tokens in read])
    largest = per_token * ROWS * 1.5 * LENGTH  # of a step; rows are longer than LENGTH by chance
    assert all(abs(spent - planned.amount) <= largest / 2 for spent in found.spent)
    assert len({*found.seeds}) > 1


def read_tokens(chosen: Recipe, seed: int, steps: int) -> int:
    """Count the tokens of a run, batch by batch."""
    train = dataclasses.replace(chosen.train, seed=seed)
    work = PretrainWorkload(dataclasses.replace(chosen, train=train))
    parts = range(steps * train.gradient_accumulation)
    return sum(int(input_tokens(work.batches[n].inputs)) for n in parts)


def test_a_small_budget_is_refused_with_the_smallest_that_works() -> None:
    costs = {"a": Cost(1000, 2e9, 0.5), "b": Cost(4000, 1e9, 1.234)}
    with pytest.raises(UserError) as error:
        budget_steps(Budget("tokens", 100_000), costs)
    assert str(error.value) == (
        "--tokens 100000 is enough for 25 steps of b, and budgets that are equal within 2% need "
        "50: use --tokens 200000 or more"
    )
    with pytest.raises(UserError, match=r"--minutes 1 is .* 49 steps of b, .* --minutes 1\.03 or"):
        budget_steps(Budget("minutes", 1), costs)
    assert budget_steps(Budget("minutes", 1.03), costs) == {"a": 124, "b": 50}
    assert budget_steps(Budget("flops", 1e11), costs) == {"a": 50, "b": 100}


@pytest.mark.parametrize("amount", [0, -1, math.nan, math.inf, 1e31])
def test_a_budget_must_be_a_positive_number(amount: float) -> None:
    with pytest.raises(UserError, match=r"--flops must be greater than 0 and at most 1e\+30"):
        Budget("flops", amount)


def test_a_budget_of_more_steps_than_a_run_can_have_is_refused() -> None:
    costs = {"a": Cost(1000, 2e9, 0.5), "b": Cost(4000, 1e9, 1.2)}
    sentence = r"--flops 1e\+25 is enough for 1e\+16 steps of b, and a run has 1\.1e\+12 at most"
    with pytest.raises(UserError, match=sentence):
        budget_steps(Budget("flops", 1e25), costs)


def test_budgets_have_words() -> None:
    assert Budget("minutes", 1).words == "1 minute each"
    assert Budget("minutes", 2.5).words == "2.5 minutes each"
    assert Budget("flops", 1e15).words == "1e+15 FLOPs each"
    assert Budget("tokens", 200_000).words == "200,000 tokens each"
    assert "generator" in describe_budget(Budget("flops", 1))
    assert "without padding" in describe_budget(Budget("tokens", 1))


@dataclasses.dataclass
class FakeRuns:
    """Runs whose steps become slower, with one outlier; memory holds some of them."""

    memory: int
    calls: list[str] = dataclasses.field(default_factory=list)
    alive: int = 0

    def make(self, recipe: Any, folder: Path, log: contextlib.ExitStack) -> Any:
        seconds = iter((1.0, 1.1, 1.2, 99.0, 1.3, 1.4, 1.5))
        self.alive += 1
        log.callback(self.end)

        def warm_up() -> None:
            self.calls.append("warm up")
            if self.alive > self.memory:
                raise torch.OutOfMemoryError

        def seconds_per_step(steps: int) -> float:
            self.calls.append(recipe.name)
            return next(seconds)

        return SimpleNamespace(
            warm_up=warm_up, seconds_per_step=seconds_per_step, steps_per_round=5
        )

    def end(self) -> None:
        self.alive -= 1


@pytest.mark.parametrize(
    ("memory", "calls"),
    [
        (2, ["warm up", "warm up", *"ab" * 7]),
        (1, ["warm up", "warm up", "warm up", *"a" * 7, "warm up", *"b" * 7]),
    ],
)
def test_runs_are_timed_in_turn_and_the_median_counts(
    memory: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRuns(memory)
    monkeypatch.setattr(step_timing, "TimedRun", fake.make)
    recipes: Any = {name: SimpleNamespace(name=name) for name in "ab"}
    assert step_timing.time_steps(recipes) == {"a": 1.3, "b": 1.3}
    assert fake.calls == calls


def test_a_device_without_the_memory_for_one_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timing, "TimedRun", FakeRuns(0).make)
    recipes: Any = {"a": SimpleNamespace(name="a")}
    with pytest.raises(torch.OutOfMemoryError):
        step_timing.time_steps(recipes)


def test_flops_are_counted_on_the_cpu_where_the_device_has_too_little_memory(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, count, calls = entrant(home.corpus, "gpt2"), budget.flops_per_position, []
    expected = count_step(chosen)

    def fails_once(work: Any, read: Any) -> float:
        calls.append(work)
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return count(work, read)

    monkeypatch.setattr(budget, "flops_per_position", fails_once)
    assert count_step(chosen) == expected
    assert len(calls) == 2


def test_a_few_steps_are_timed_for_an_estimate(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([9.0, 0.5, 0.2, 0.3, 9.0, 0.5, 0.7, 9.0])
    monkeypatch.setattr(step_timing.TimedRun, "seconds_per_step", lambda run, steps: next(seconds))
    chosen = entrant(home.corpus, "gpt2")
    assert step_timing.quick_seconds(chosen, 0.9) == 0.3  # three after the first
    assert step_timing.quick_seconds(chosen, 0.0) == 0.6  # two at least

    def full(run: step_timing.TimedRun, steps: int) -> float:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(step_timing.TimedRun, "seconds_per_step", full)
    assert step_timing.quick_seconds(chosen, 1.0) is None


def test_more_than_eight_runs_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import config

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    before = config.recompile_limit
    with step_timing.many_compiled():
        assert config.recompile_limit > 100
    assert config.recompile_limit == before


def test_a_timed_run_reads_its_batches_in_order_and_updates(home: Home, tmp_path: Path) -> None:
    chosen = entrant(home.corpus, "gpt2")
    with contextlib.ExitStack() as log:
        run = step_timing.TimedRun(chosen, tmp_path, log)
        before = [p.detach().clone() for p in run.work.model.parameters()]
        run.warm_up()
        done = run.loop.global_step
        assert done == step_timing.WARMUP_STEPS
        assert run.seconds_per_step(2) > 0
        assert run.loop.global_step == done + 2
        assert any((p != q).any() for p, q in zip(run.work.model.parameters(), before, strict=True))
        assert len((tmp_path / "log.jsonl").read_text().splitlines()) == done + 2


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_other_processes_train_while_steps_are_timed(
    processes: int, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writes logs of both recipes while a block runs, and ends with it."""
    monkeypatch.setattr(step_timing.tempfile, "TemporaryDirectory", lambda: kept(tmp_path))
    recipes = [entrant(home.corpus, name) for name in ("gpt2", "bert")]

    def steps() -> list[int]:
        numbers = range(1, processes + 1)
        logs = [tmp_path / f"{n}-{run}" / "log.jsonl" for n in numbers for run in (0, 1)]
        return [len(path.read_bytes().splitlines()) for path in logs]

    with step_timing.background_training(recipes, processes):
        before, ends = steps(), time.monotonic() + 60
        while not all(now > then for now, then in zip(steps(), before, strict=True)):
            assert time.monotonic() < ends
            time.sleep(0.02)
    after = steps()
    time.sleep(0.1)
    assert steps() == after


@contextlib.contextmanager
def kept(folder: Path) -> Iterator[str]:
    """Return a folder that stays."""
    yield str(folder)


@pytest.mark.slow
def test_a_process_that_cannot_train_is_an_error_with_its_reason(home: Home) -> None:
    broken = entrant(home.corpus, "gpt2")
    broken = dataclasses.replace(broken, train=dataclasses.replace(broken.train, device="cuda:99"))
    with (
        pytest.raises(UserError, match=r"ended with code 1 .*CUDA.*: use fewer --jobs"),
        step_timing.background_training([broken], 1),
    ):
        pass


@pytest.mark.parametrize(("processes", "others"), [(1, 0), (3, 2)])
def test_steps_are_timed_beside_as_many_processes_as_run_at_a_time(
    processes: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    @contextlib.contextmanager
    def background(recipes: Any, count: int) -> Iterator[None]:
        seen.append(count)
        yield
        seen.append(-1)

    def timed(recipes: Any, rounds: int) -> dict[str, float]:
        assert seen == [others]  # within the block
        return {}

    monkeypatch.setattr(step_timing, "background_training", background)
    monkeypatch.setattr(step_timing, "time_in_rounds", timed)
    assert step_timing.time_steps({}, processes=processes) == {}
    assert seen == [others, -1]


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 7), (9.0, 36), (1e6, 80)])
def test_steps_are_timed_for_as_long_as_asked(
    seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(step_timing, "time_in_rounds", lambda recipes, rounds: asked.append(rounds))
    step_timing.time_steps({}, seconds=seconds)
    assert asked == [rounds]


@pytest.mark.slow
def test_seconds_are_those_of_a_run(plain: Path, tmp_path: Path) -> None:
    chosen = entrant(plain, "gpt2", "train.steps=400", "train.warmup=1")
    planned = 400 * measure_costs({"a": chosen}, timing=0.0)["a"].seconds
    start = time.perf_counter()
    pretrain(chosen, tmp_path / "run")
    # A run has its start and its checkpoint besides, and other programs disturb it.
    assert 0.5 < (time.perf_counter() - start) / planned < 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("family", PRETRAINED)
def test_cuda_counts_as_the_cpu(home: Home, family: str) -> None:
    chosen = entrant(home.corpus, family)
    train = dataclasses.replace(chosen.train, device="cuda")
    on_cuda = count_step(dataclasses.replace(chosen, train=train))
    assert on_cuda.flops == pytest.approx(count_step(chosen).flops, rel=0.01)
