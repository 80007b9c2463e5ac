"""Concat pooling: what is read, and texts in segments whose states continue."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.families import family
from kinfolk.nn.task_heads import BatchNorm, ConcatPoolingHead
from kinfolk.tasks.formulations.choose import choose_formulation, with_mean_pooling
from kinfolk.tasks.formulations.concat_head import ConcatHead
from kinfolk.tasks.formulations.sequences import encode_plain
from kinfolk.tasks.rows import LabelledText
from kinfolk.tasks.task import task_class
from support.task_rows import alone, apart, cases, rows, same, solving, task, tokenizer

CASES = [case[:2] for case in cases("concat")]
every = pytest.mark.parametrize(("name", "kind"), CASES, ids=["-".join(c) for c in CASES])


def test_all_tokens_are_read() -> None:
    (example,) = ConcatHead(task=task("pair"), max_length=16).instances(
        LabelledText(("red cat", "dog"), "bad", 1), tokenizer()
    )
    (reading,) = example.examples
    specials = tokenizer().special_tokens
    a, b = encode_plain(tokenizer(), ["red cat", "dog"])
    start = specials.eos if specials.bos is None else specials.bos
    assert reading.input_ids.tolist() == [start, *a, specials.sep, *b]
    assert reading.read_positions.tolist() == list(range(len(reading.input_ids)))


@every
def test_no_answer_depends_on_who_else_is_asked(name: str, kind: str) -> None:
    same(*solving(name, kind, ConcatHead), rows(kind))


@every
def test_neighbours_have_no_gradient(name: str, kind: str) -> None:
    made, model = solving(name, kind, ConcatHead)
    apart(made, model, [e for row in rows(kind) for e in made.instances(row, tokenizer())])


@torch.no_grad()
def test_the_head_reads_the_last_state_the_maximum_and_the_mean() -> None:
    made, model = solving("ulmfit", "classify", ConcatHead)
    instances = [e for row in rows("classify") for e in made.instances(row, tokenizer())]
    found = made.logits(model, made.make_batch(instances))
    for instance, scores in zip(instances, found, strict=True):
        hidden = model(alone(instance.examples[0])).hidden[0]
        pooled = torch.cat([hidden[-1], hidden.amax(0), hidden.mean(0)])
        expected = model.head(pooled[None])[0]
        torch.testing.assert_close(torch.from_numpy(scores).float(), expected, rtol=0, atol=1e-5)


def losses(bptt: int) -> tuple[Tensor, dict[str, Tensor]]:
    made, model = solving("ulmfit", "classify", ConcatHead, bptt=bptt)
    instances = [e for row in rows("classify", 12) for e in made.instances(row, tokenizer())]
    batch = made.make_batch(instances)
    assert batch.inputs.input_ids.shape[1] > 8
    loss = made.loss(model.train(), batch).mean(batch.counts)
    loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_segments_change_no_loss_and_cut_the_gradient() -> None:
    (whole, full), (parts, cut) = losses(0), losses(5)
    torch.testing.assert_close(parts, whole)
    assert cut.keys() == full.keys()
    head = [name for name in full if name.startswith("head")]
    assert head and all(torch.allclose(cut[n], full[n], atol=1e-5) for n in head)
    body = "backbone.layers.0.weight_hh_l0"
    assert not torch.allclose(cut[body], full[body], atol=1e-5)


def test_dropout_before_the_logits_is_not_that_of_the_classifier() -> None:
    made, model = solving("ulmfit", "classify", ConcatHead)
    model.backbone.config = replace(model.backbone.config, output_dropout=0.9)
    batch = made.make_batch([e for r in rows("classify") for e in made.instances(r, tokenizer())])
    with torch.no_grad():
        first, again = (made.loss(model.train(), batch).sums["label"] for _ in range(2))
    assert first == again


def test_batch_norm_is_that_of_torch_but_for_a_single_vector() -> None:
    ours, theirs = BatchNorm(6), torch.nn.BatchNorm1d(6)
    for _ in range(3):
        x = torch.randn(5, 6) * 2 + 1
        torch.testing.assert_close(ours(x), theirs(x))
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    one = torch.randn(1, 6)
    torch.testing.assert_close(ours(one), theirs.eval()(one))


def test_it_is_the_default_of_ulmfit_and_of_no_other() -> None:
    chosen = {"ulmfit": ConcatHead.name, "gpt2": "transformed", "bert": "head"}
    for name, formulation in chosen.items():
        found = choose_formulation(family(name), task_class("classification"))
        assert found.name == formulation
    _, model = solving("ulmfit", "classify", ConcatHead)
    assert isinstance(model.head, ConcatPoolingHead)
    with pytest.raises(UserError, match="does not support the formulation 'concat'"):
        choose_formulation(family("gpt2"), task_class("classification"), "concat")


def test_mean_pooling_is_refused() -> None:
    made: Any = solving("ulmfit", "classify", ConcatHead)[0]
    with pytest.raises(UserError, match="--pooling mean does not apply"):
        with_mean_pooling(made)
