"""The plan of a run agrees with real steps: parameters, memory and FLOPs; and what would fit."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import kinfolk
from kinfolk.data.datasets import ContiguousDataset, PackedDataset
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.training.config import TrainConfig
from kinfolk.training.device_specs import DEVICES
from kinfolk.training.flops import FlopCounter
from kinfolk.training.meters import peak_memory
from kinfolk.training.optimizer import build_optimizer
from kinfolk.workflows.planning.check import check_plan
from kinfolk.workflows.planning.memory import MemoryPlanner, device_memory
from kinfolk.workflows.planning.plan import planned_step
from kinfolk.workflows.planning.speed import MEASURED
from kinfolk.workflows.planning.step import PlannedStep
from kinfolk.workflows.planning.strategy import Strategy
from support.contracts import documents

DOCS = Path(__file__).parents[2] / "docs"
# Families with static shapes, whose step is traced without weights; the others have real ones.
STATIC = [
    *("albert", "bert", "electra", "glm", "gpt", "gpt2", "gpt3", "roberta", "t5"),
    *("transformer_xl", "xlnet"),
]
slow = pytest.mark.slow
RECURRENT = ["cove", "elmo", "ulmfit"]
MIXED = "tensor 2, pipeline 2"


def real_step(step: PlannedStep, batch: Any) -> dict[str, int]:
    """Run a real step and count what it takes, with no code of the plan."""
    torch.manual_seed(0)
    model, saved = step.build(), dict[int, int]()
    if step.objective.recurrent:
        init_memory: Any = model.init_memory
        batch = batch.with_memory(init_memory(len(batch.inputs.input_ids)))
    model.train()
    own = {p.untyped_storage().data_ptr() for p in (*model.parameters(), *model.buffers())}
    held = []  # so that no address is used twice

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage.nbytes()
            held.append(storage)
        return tensor

    with FlopCounter() as counter:
        with (
            saved_tensors_hooks(keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=step.bfloat16),
        ):
            loss = step.objective.loss(model, batch).mean(batch.counts)
        torch.autograd.backward(loss)
    optimizer = build_optimizer(model, TrainConfig(optimizer=step.optimizer))
    optimizer.step()
    moments = [t for state in optimizer.state.values() for t in state.values()]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {
        "flops": counter.total,
        "weights": size([*model.parameters(), *model.buffers()]),
        "gradients": size(gradients),
        "moments": size(moments),
        "activations": sum(saved.values()),
    }


def size(tensors: Any) -> int:
    """Return the bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def cpu_step(model: str, **settings: Any) -> PlannedStep:
    """Return a planned step on a CPU in float32, with rows of 32 and a small vocabulary."""
    given = {"length": 32, "vocab_size": 500, "cuda": False, "bfloat16": False} | settings
    return planned_step(model, **given)


def test_every_family_is_in_one_of_the_lists() -> None:
    known = {*STATIC, *RECURRENT, "transformer"}
    assert known == {name for name, f in families().items() if f.model.gradient_free is None}


@pytest.mark.parametrize("family", STATIC)
def test_a_traced_step_equals_a_real_one_in_every_byte_and_flop(family: str) -> None:
    step = cpu_step(f"{family}/nano")
    trace, found = step.trace(4), real_step(step, step.batch(4))
    assert trace.flops == found["flops"] > 0
    assert trace.weights == found["weights"]
    assert trace.gradients == found["gradients"]
    assert trace.moments == found["moments"]
    assert trace.activations == found["activations"]


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "mini"])
@pytest.mark.parametrize("family", [*STATIC, *RECURRENT, "transformer"])
def test_larger_steps_are_estimated_from_small_ones(family: str, size: str) -> None:
    # ELMo reads a word of a batch once: with few words, large batches take less than estimated.
    step = cpu_step(f"{family}/{size}", length=64, vocab_size=8192 if family == "elmo" else 500)
    estimate, found = step.estimate(16), real_step(step, with_texts(step, 16))
    for name in ("weights", "gradients", "moments"):
        assert vars(estimate)[name] == found[name]
    assert estimate.activations == pytest.approx(found["activations"], rel=0.15)
    # The lengths of rows are drawn for ULMFiT, and sentence pairs fill rows of CoVe by chance.
    assert estimate.flops == pytest.approx(found["flops"], rel=0.1 if family in RECURRENT else 0.05)


def with_texts(step: PlannedStep, rows: int) -> Any:
    """Return a batch with the texts that recurrent layers read."""
    from kinfolk.batch import with_texts
    from kinfolk.nn.language_model import reads_texts

    return with_texts(step.batch(rows)) if reads_texts(step.model) else step.batch(rows)


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "transformer_xl"])
def test_the_estimate_holds_for_packed_documents_of_many_lengths(family: str) -> None:
    step = cpu_step(f"{family}/nano", vocab_size=300)
    dataset = ContiguousDataset if step.objective.recurrent else PackedDataset
    real = dataset(step.objective, documents(count=40), batch_size=8)[0]
    found = real_step(step, real)
    assert step.estimate(8).activations == pytest.approx(found["activations"], rel=0.15)
    assert step.estimate(8).flops == pytest.approx(found["flops"], rel=0.15)


@pytest.mark.parametrize("family", ["gpt2", *(pytest.param(n, marks=slow) for n in ("bert", "t5"))])
def test_the_trace_of_bfloat16_keeps_what_autocast_keeps(family: str) -> None:
    step = cpu_step(f"{family}/tiny", bfloat16=True)
    trace, found = step.trace(8), real_step(step, step.batch(8))
    assert trace.activations + trace.casts == pytest.approx(found["activations"], rel=0.15)
    assert trace.activations < 0.85 * cpu_step(f"{family}/tiny").trace(8).activations


@pytest.mark.parametrize("optimizer", ["adamw", "adafactor", "adamw_rms"])
def test_moments_are_those_of_the_optimizer(optimizer: str) -> None:
    step = cpu_step("gpt2/nano", optimizer=optimizer)
    assert step.trace(2).moments == real_step(step, step.batch(2))["moments"]


def test_dropout_of_attention_is_counted_where_a_device_keeps_probabilities() -> None:
    config = cpu_step("bert/nano").config.with_fields(dropout=0.1, attention_dropout=0.1)
    objective = cpu_step("bert/nano").objective
    cpu = PlannedStep(config, objective, cuda=False, bfloat16=False)
    assert cpu.trace(4).activations == real_step(cpu, cpu.batch(4))["activations"]
    cuda = PlannedStep(config, objective, cuda=True, bfloat16=False)
    assert cuda.trace(4).activations < cpu.trace(4).activations


def test_a_wide_network_takes_no_memory() -> None:
    published = families()["gpt3"].config("gpt3-175b")
    before, two = peak_memory("cpu"), published.with_fields(num_layers=2, max_length=32)
    step = PlannedStep(two, cpu_step("gpt3/nano").objective, cuda=True, bfloat16=True)
    assert step.trace(1).weights > 14e9
    assert peak_memory("cpu") - before < 500e6


@pytest.mark.slow
def test_gpt3_175b_is_planned_in_seconds_without_memory() -> None:
    before, start = peak_memory("cpu"), time.perf_counter()
    plan = kinfolk.plan(
        *("gpt3/gpt3-175b", 300e9),
        devices=1024,
        batch_size=2048,
        gpu="h100",
        parallel="fsdp",
        checkpoint_activations=True,
    )
    assert plan.parameters == pytest.approx(175e9, rel=0.01)
    # Brown et al. 2020, table D.1: 3.14e23 FLOPs, without attention.
    assert plan.flops == pytest.approx(3.14e23, rel=0.04)
    assert plan.fits
    assert time.perf_counter() - start < 120
    assert peak_memory("cpu") - before < 1e9


def test_the_figures_of_a_plan_follow_from_one_another() -> None:
    plan = kinfolk.plan(
        *("gpt2/nano", 1e9),
        devices=4,
        gpu="a100-40",
        mfu=0.25,
        vocab_size=1000,
        corpus_tokens=5e8,
        keep_checkpoints=3,
        price_per_hour=2.0,
    )
    assert plan.flops == pytest.approx(1e9 * plan.flops_per_token)
    assert plan.gpu_hours == pytest.approx(plan.flops / (312e12 * 0.25) / 3600)
    assert plan.days == pytest.approx(plan.gpu_hours / 4 / 24)
    assert plan.cost == pytest.approx(2 * plan.gpu_hours)
    assert plan.steps == -(-(10**9) // (32 * 128))
    assert plan.epochs == 2
    assert plan.mfu_source == "as given"
    assert plan.disk.checkpoints == 5  # three, the best, and one being written
    assert plan.disk.checkpoint == plan.memory.weights + plan.memory.moments
    assert plan.disk.corpus == pytest.approx(5e8 * 2.5)
    assert plan.tokens_per_parameter == 1e9 / plan.parameters
    assert plan.non_embedding_parameters == plan.parameters - (1000 + 128) * 64
    assert plan.fits


def test_strategies_divide_what_they_say() -> None:
    step = cpu_step("gpt2/mini", cuda=True, bfloat16=True)
    trace = step.trace(4)

    def memory(**ways: Any) -> Any:
        return device_memory(Strategy(8, **ways), trace, 4, 8, bfloat16=True)

    copies, shards = memory(), memory(parallel="fsdp")
    assert (copies.weights, copies.gathered) == (trace.weights, 0)
    assert copies.activations == trace.activations + trace.casts
    for part in ("weights", "gradients", "moments"):
        assert vars(shards)[part] == pytest.approx(vars(copies)[part] / 8, abs=1)
    assert 0 < shards.gathered < copies.weights
    tensor, stages = memory(tensor=4), memory(pipeline=4)
    in_layers = sum(trace.layer_weights)
    assert tensor.weights == pytest.approx(trace.weights - 0.75 * trace.layer_matrices, rel=0.01)
    assert stages.weights == pytest.approx(trace.weights - 0.75 * in_layers, rel=0.01)
    assert tensor.activations < copies.activations
    lighter = memory(checkpoint_activations=True)
    assert lighter.activations - trace.casts < 0.6 * trace.activations
    assert lighter.weights == copies.weights


def test_what_does_not_fit_gets_a_strategy_that_does() -> None:
    given: dict[str, Any] = {"devices": 4, "memory": 1.06, "vocab_size": 8192}
    plan = kinfolk.plan("gpt2/mini", 1e9, **given)
    assert not plan.fits
    assert plan.memory.rows == 1
    other = plan.alternative
    assert other is not None
    assert other.total <= plan.capacity < plan.memory.total
    assert (other.strategy.parallel, other.strategy.devices) == ("fsdp", 4)
    assert plan.sentences[1].startswith("ddp does not fit: ")
    assert f": {other.strategy.options}" in plan.sentences[2]
    ways = ("parallel", "tensor", "checkpoint_activations")
    again = kinfolk.plan(
        "gpt2/mini", 1e9, **given, **{way: vars(other.strategy)[way] for way in ways}
    )
    assert again.fits
    assert again.memory == other


@pytest.mark.parametrize(
    ("model", "asked", "sentence"),
    [
        ("t5/nano", {"pipeline": 2}, r"^--pipeline 2 does not apply to t5: .*; leave --pipeline"),
        ("xlnet/nano", {"tensor": 2}, "^--tensor 2 does not apply to xlnet, because its attention"),
        ("gpt2/nano", {"tensor": 2, "optimizer": "muon"}, "^--tensor 2 does not apply to --optim"),
        ("gpt2/nano", {"parallel": "fsdp", "optimizer": "muon"}, "^--optimizer muon reads whole"),
        ("gpt2/nano", {"parallel": "fsdp", "optimizer": "adafactor"}, "or --parallel ddp$"),
        ("gpt2/nano", {"parallel": "fsdp", "tensor": 2}, "^--parallel fsdp divides the weights"),
        ("gpt2/nano", {"parallel": "fsdp", "pipeline": 2}, "--pipeline 2 give processes parts"),
        ("elmo/nano", {"parallel": "fsdp"}, "^--parallel fsdp: recurrent layers keep their"),
        ("ulmfit/nano", {"checkpoint_activations": True}, "^--checkpoint-activations: the layers"),
    ],
)
def test_what_a_run_refuses_is_refused(model: str, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        kinfolk.plan(model, 1e6, devices=2, vocab_size=500, length=16, **asked)


@pytest.mark.parametrize(
    ("model", "optimizer", "ways"),
    [
        ("gpt2/nano", "adamw", {"ddp", "fsdp", "ddp, tensor 2", "ddp, pipeline 2", MIXED}),
        ("gpt2/nano", "muon", {"ddp", "ddp, pipeline 2"}),
        ("xlnet/nano", "adamw", {"ddp", "fsdp"}),
        ("t5/nano", "adamw", {"ddp", "fsdp", "ddp, tensor 2"}),
        ("ulmfit/nano", "adamw", {"ddp"}),
    ],
)
def test_only_strategies_that_a_run_accepts_are_shown(
    model: str, optimizer: str, ways: set[str]
) -> None:
    plan = kinfolk.plan(
        model, 1e6, devices=4, vocab_size=500, length=16, batch_size=8, optimizer=optimizer
    )
    assert {memory.strategy.words for memory in plan.strategies} == ways
    network = cpu_step(model).model
    named: Any = optimizer
    assert all(memory.strategy.runs(network, named) for memory in plan.strategies)
    recomputed = [memory.strategy.checkpoint_activations for memory in plan.strategies]
    assert recomputed == ([False] if model == "ulmfit/nano" else [False, True] * len(ways))


@pytest.mark.parametrize(
    ("model", "optimizer"), [("gpt2/mini", "muon"), ("gpt2/mini", "adamw"), ("t5/mini", "adamw")]
)
def test_what_would_fit_is_what_a_run_accepts(model: str, optimizer: str) -> None:
    step = cpu_step(model, optimizer=optimizer)
    planner = MemoryPlanner(step, 64, None, 10**12)
    found = [memory.strategy for memory in planner.alternatives(Strategy(4))]
    assert found
    assert all(strategy.runs(step.model, step.optimizer) for strategy in found)
    assert any(strategy.parallel == "fsdp" for strategy in found) == (optimizer == "adamw")
    assert any(strategy.pipeline > 1 for strategy in found) == (model == "gpt2/mini")


def test_the_deepest_stage_is_that_of_the_estimate() -> None:
    trace = cpu_step("gpt2/mini").trace(2)
    layers = len(trace.layer_weights)
    assert layers == 4
    three, two = (
        device_memory(Strategy(n, pipeline=n), trace, 2, 8, bfloat16=False) for n in (3, 2)
    )
    assert three.weights == two.weights  # two of four layers


def test_where_no_strategy_fits_a_smaller_size_does() -> None:
    plan = kinfolk.plan("xlnet/mini", 1e9, batch_size=1, memory=1.06, vocab_size=500, length=32)
    assert not plan.fits
    assert plan.alternative is None
    assert plan.smaller_size == "xlnet/tiny"


@pytest.mark.parametrize(
    ("tokens", "meaning"),
    [
        (1e5, "a smaller network on more tokens would have a lower loss"),
        (1.9e6, "network and tokens match"),
        (1e9, "more than that"),
    ],
)
def test_tokens_per_parameter_are_put_into_a_sentence(tokens: float, meaning: str) -> None:
    plan = kinfolk.plan("gpt2/nano", tokens, vocab_size=200)
    assert "about 20 give the least loss for the FLOPs (Hoffmann et al. 2022)" in plan.sentences[0]
    assert meaning in plan.sentences[0]


def test_a_pipeline_waits_and_recomputing_costs_a_forward_pass() -> None:
    def hours(**ways: Any) -> float:
        plan = kinfolk.plan(
            "gpt2/nano", 1e9, devices=2, gradient_accumulation=4, vocab_size=200, **ways
        )
        return plan.gpu_hours

    assert hours(pipeline=2) == pytest.approx(hours() * (1 + 1 / 4))
    assert 1.2 < hours(checkpoint_activations=True) / hours() < 4 / 3


@pytest.mark.parametrize(
    "measured",
    [pytest.param(m, marks=[pytest.mark.slow] * (m.parameters > 10**7)) for m in MEASURED],
    ids=lambda measured: measured.title,
)
def test_measured_shares_are_those_of_the_benchmarks(measured: Any) -> None:
    text = (DOCS / "benchmarks.md").read_text("utf-8")
    family, _, size = measured.title.lower().replace("gpt-2", "gpt2").partition(" ")
    whole = {"GPT-2 124M": (50257, "clm", 32, 1024), "BERT base": (30522, "mlm", 64, 512)}
    if measured.title in whole:  # in tokens a second
        vocab, objective, rows, length = whole[measured.title]
        found = re.search(
            rf"^\| {measured.title},[^|]* rows .*?^\| \| kinfolk \| ([\d,]+) \|", text, re.M | re.S
        )
        assert found is not None
        per_step = float(found[1].replace(",", "")) / (rows * length)
        size = "base"
    else:
        vocab, objective, rows = 8192, {"gpt2": "clm", "bert": "nsp"}[family], 32
        name = measured.title.split()[0]
        found = re.search(rf"^\| {name} `{size}` \|.*$", text, re.M)
        assert found is not None
        cells = [cell.strip() for cell in found[0].strip("|").split("|")]
        length, per_step = int(cells[2].replace(",", "")), float(cells[6])
    step = planned_step(
        f"{family}/{size}",
        objective=objective,
        length=length,
        vocab_size=vocab,
        cuda=True,
        bfloat16=True,
    )
    assert step.parameters == measured.parameters
    share = step.trace(rows).flops * per_step / DEVICES["h200"].peak("bfloat16")
    assert share == pytest.approx(measured.share, abs=0.001)


@pytest.mark.slow
def test_the_estimates_are_close_to_the_memory_measured_on_an_h200() -> None:
    # docs/benchmarks.md: compiled, bfloat16.
    for model, rows, settings, measured in (
        ("gpt2/base", 32, {"vocab_size": 50257}, 16.1e9),
        ("bert/base", 64, {"vocab_size": 30522, "objective": "mlm"}, 14.2e9),
    ):
        step = planned_step(model, cuda=True, bfloat16=True, **settings)
        memory = device_memory(Strategy(), step.trace(rows), rows, 1, bfloat16=True)
        assert memory.total == pytest.approx(measured, rel=0.15)


def test_a_check_measures_what_was_estimated() -> None:
    step = cpu_step("bert/nano")
    check = check_plan(step, 4, device="cpu")
    assert check.flops == check.estimated.flops
    assert check.activations == check.estimated.activations
    assert (check.weights, check.moments) == (check.estimated.weights, check.estimated.moments)
    assert check.seconds > 0
    assert check.peak is None


def test_float32_networks_need_no_matrix_units_for_bfloat16() -> None:
    assert kinfolk.plan("gpt2/nano", 1e6, gpu="v100-32").precision == "float32"
    with pytest.raises(UserError, match="no matrix units for bfloat16"):
        kinfolk.plan("gpt2/nano", 1e6, gpu="v100-32", precision="bfloat16")


def test_published_figures_of_devices_are_in_a_plausible_order() -> None:
    for device in DEVICES.values():
        assert device.bandwidth is not None
        assert 8e12 < device.float32 < 200e12
        assert 16e9 <= device.memory <= 200e9
        assert 1 < (device.bfloat16 or 2 * device.float32) / device.float32 < 40
        assert 0.2e12 < device.bandwidth < 1e13
    assert DEVICES["h200"].bfloat16 == DEVICES["h100"].bfloat16
    assert replace(DEVICES["h100"], name="h200").memory < DEVICES["h200"].memory
