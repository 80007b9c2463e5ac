"""Both directions: the picture, what each may learn of, and states that never cross a document."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kinfolk.batch import IGNORE_INDEX
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import ContiguousDataset, PackedDataset, evaluation_dataset
from kinfolk.families.elmo import FAMILY, ELMo
from kinfolk.objectives.bilm import BiLM


def bilm(special_tokens: Any, length: int = 8) -> BiLM:
    return BiLM(special_tokens=special_tokens, vocab_size=100, max_length=length)


def network(**changes: Any) -> ELMo:
    torch.manual_seed(0)
    config: Any = replace(FAMILY.sizes["nano"], vocab_size=100, max_characters=8, **changes)
    return config.build().double()


def documents(sizes: tuple[int, ...] = (9, 3, 21, 1, 6)) -> InMemoryDocuments:
    draws = np.random.default_rng(0)
    return InMemoryDocuments.from_lists(
        [[draws.integers(20, 100, size).tolist()] for size in sizes]
    )


def test_the_picture_holds(special_tokens: Any, ids: Any) -> None:
    text = InMemoryDocuments.from_lists([[ids("the cat sat")]])
    batch = PackedDataset(bilm(special_tokens, 4), text, batch_size=1)[0]
    targets = batch.targets
    assert batch.inputs.input_ids[0].tolist() == ids("<s> the cat sat")
    assert targets.tokens.labels.tolist() == ids("the cat sat </s>")
    assert targets.backward_inputs.input_ids[0].tolist() == ids("</s> sat cat the")
    assert targets.backward_tokens.labels.tolist() == ids("sat cat the <s>")
    assert batch.counts == {"bilm": 4, "bilm_backward": 4}


def test_rows_continue_from_both_ends(special_tokens: Any, ids: Any) -> None:
    text = InMemoryDocuments.from_lists([[ids("the cat sat down")]])
    feed = ContiguousDataset(bilm(special_tokens, 2), text, batch_size=1)
    rows = [feed[number] for number in range(len(feed))]
    backward = [row.targets.backward_inputs for row in rows]
    assert [r.input_ids[0].tolist() for r in backward] == [
        ids("</s> down"),
        ids("sat cat"),
        ids("the <p>"),
    ]
    labels = [row.targets.backward_tokens.labels.tolist() for row in rows]
    assert labels == [ids("down sat"), ids("cat the"), [ids("<s>")[0], IGNORE_INDEX]]
    for row, inputs in zip(rows, backward, strict=True):
        mask, other = row.inputs.attention_mask, inputs.attention_mask
        assert torch.equal(mask.document_ids, other.document_ids)


def test_sight_ends_at_the_prediction_and_at_the_document(special_tokens: Any) -> None:
    """The gradient of a prediction by every token that either direction has read."""
    way, model = bilm(special_tokens, 10), network().train()
    feed = PackedDataset(way, documents((4, 3, 6)), batch_size=2)
    batch = feed[0]
    read: list[Tensor] = []
    hook = model.token_embeddings.register_forward_hook(lambda _, ids, out: read.append(out))
    forward, backward, _ = model.forward_bilm(batch.inputs, batch.targets.backward_inputs)
    hook.remove()
    assert len(read) == 2
    for hidden, own, other in ((forward, *read), (backward, *reversed(read))):
        seen = batch.inputs.attention_mask.dense()  # the same rows in both directions
        for row, slot in (batch.inputs.attention_mask.document_ids >= 0).nonzero().tolist():
            score = hidden[row, slot].square().sum()
            found = torch.autograd.grad(score, [own, other], retain_graph=True, allow_unused=True)
            assert found[1] is None, "one direction learns nothing of what the other reads"
            reached = found[0].abs().amax(-1) > 0
            assert torch.equal(reached[row], seen[row, slot])
            assert not reached[1 - row].any()


@torch.no_grad()
@pytest.mark.parametrize("length", [2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_of_any_length_cost_what_whole_documents_do(
    rows: int, length: int, special_tokens: Any
) -> None:
    """Both states are carried through every document, and never to the next one."""
    model, text = network().eval(), documents()
    feed = evaluation_dataset(bilm(special_tokens, length), text, rows=rows)
    totals, memory = {"bilm": 0.0, "bilm_backward": 0.0}, None
    for number in range(len(feed)):
        loss = bilm(special_tokens).loss(model, feed[number].with_memory(memory))
        memory = loss.memory
        totals = {name: total + float(loss.sums[name]) for name, total in totals.items()}
    wanted = dict.fromkeys(totals, 0.0)
    for start, stop in zip(text.starts, text.starts[1:], strict=False):
        alone = InMemoryDocuments.from_lists([[text.ids(int(start), int(stop)).tolist()]])
        whole = PackedDataset(bilm(special_tokens, 24), alone, batch_size=1)[0]
        found = bilm(special_tokens).loss(model, whole).sums
        wanted = {name: total + float(found[name]) for name, total in wanted.items()}
    assert totals == pytest.approx(wanted, rel=1e-9)


def test_every_token_is_predicted_once_in_each_direction(special_tokens: Any) -> None:
    text = documents()
    for feed in (
        evaluation_dataset(bilm(special_tokens, 4), text, rows=3),
        PackedDataset(bilm(special_tokens, 4), text, batch_size=3, shuffled=False),
    ):
        batches = [feed[number] for number in range(len(feed))]
        for part, end in (("tokens", special_tokens.eos), ("backward_tokens", special_tokens.bos)):
            labels = torch.cat([vars(b.targets)[part].labels for b in batches])
            asked = sorted(labels[labels != IGNORE_INDEX].tolist())
            assert asked == sorted([*text.token_ids.tolist(), *[end] * 5])


def test_the_loss_is_the_mean_of_both_directions(special_tokens: Any) -> None:
    way, model = bilm(special_tokens), network()
    batch = PackedDataset(way, documents(), batch_size=4)[0]
    loss = way.loss(model, batch)
    parts = [loss.sums[name] / batch.counts[name] for name in ("bilm", "bilm_backward")]
    torch.testing.assert_close(loss.mean(batch.counts), (parts[0] + parts[1]) / 2)
