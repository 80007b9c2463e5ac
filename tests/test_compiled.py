"""A compiled learner learns the same; on CUDA also through the block-sparse kernel."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from kinfolk.batch import Batch
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.families import families
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.step import Learner

# torch's tracer instantiates autograd functions, and torch warns of it.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

STATIC = [m for m in families().values() if m.model.static_shapes and m.name != "ngram"]  # counted
PAIRS = [(m.name, way) for m in STATIC for way in m.objectives]
# Tracing takes seconds: every member by its own way, and every way by some member.
OWN = {next(iter(m.objectives)): m.name for m in STATIC}
LENT = {way: name for name, way in PAIRS if way not in OWN}
TRACED = [(n, w) for n, w in PAIRS if w == next(iter(families()[n].objectives)) or LENT.get(w) == n]
# Of kinds of attention that tests/training/test_compilation.py leaves; the others are slow.
QUICK = [("t5", "spans"), ("xlnet", "permutation")]
VOCAB = 300
SPECIALS = SpecialTokens(
    pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5, sentinels=tuple(range(6, 106))
)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Forget the graphs of other tests: past eight of one function, torch runs it untraced."""
    torch._dynamo.reset()


def batch(objective: Any) -> Batch[Any]:
    """Make a batch of ragged texts."""
    numbers = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 150, (30,), generator=numbers).tolist()
    texts = [torch.randint(110, VOCAB, (n,), generator=numbers).tolist() for n in sizes]
    documents = InMemoryDocuments.from_lists([[t[: len(t) // 2], t[len(t) // 2 :]] for t in texts])
    return PackedDataset(objective, documents, batch_size=4, seed=0)[0]


def learned(
    learner: Any, data: Batch[Any], resolved: bool
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the loss and every gradient."""
    loss = learner(data.inputs.with_block_masks() if resolved else data.inputs, data.targets)
    mean = loss.mean(data.counts)
    mean.backward()
    grads = {n: p.grad.float() for n, p in learner.named_parameters() if p.grad is not None}
    return mean.item(), grads


def setting(member: str, way: str) -> tuple[Any, Any]:
    """Return a nano network and its objective."""
    who = families()[member]
    objective = who.objective(way)(special_tokens=SPECIALS, vocab_size=VOCAB, max_length=256)
    config = replace(who.config("nano"), vocab_size=VOCAB)
    torch.manual_seed(0)
    return config.build().train(), objective


@pytest.mark.parametrize(
    ("member", "way"),
    [pytest.param(*pair, marks=[] if pair in QUICK else pytest.mark.slow) for pair in TRACED],
)
def test_a_traced_learner_has_the_same_loss_and_gradients(member: str, way: str) -> None:
    model, objective = setting(member, way)
    data = batch(objective)
    loss, grads = learned(Learner(copy.deepcopy(model), objective), data, False)
    traced = Learner(model, objective)
    traced.compile(backend="aot_eager", dynamic=False, fullgraph=True)
    again, others = learned(traced, data, False)
    assert again == pytest.approx(loss, rel=1e-5)
    assert grads.keys() == others.keys()
    for name, grad in grads.items():
        torch.testing.assert_close(others[name], grad, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # which the tracer reads
def test_a_network_of_varying_shapes_runs_untraced_inside_a_traced_learner() -> None:
    model, objective = setting("ulmfit", "bptt")
    data = batch(objective)
    loss, _ = learned(Learner(copy.deepcopy(model), objective), data, False)
    traced = Learner(model, objective)
    traced.compile(backend="eager")
    assert learned(traced, data, False)[0] == pytest.approx(loss, rel=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # float32 is meant to be exact here
@pytest.mark.filterwarnings(r"ignore:\s*Online softmax")  # what the compiler does without
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("member", "way"), PAIRS)
def test_block_sparse_attention_learns_what_the_dense_mask_does(member: str, way: str) -> None:
    model, objective = setting(member, way)
    model, data = model.cuda(), batch(objective).to("cuda")
    loss, grads = learned(Learner(copy.deepcopy(model), objective), data, False)
    fast = Learner(model, objective)
    fast.compile(dynamic=False)
    again, others = learned(fast, data, True)
    assert again == pytest.approx(loss, rel=1e-4)
    norm, other = (torch.stack([g.norm() for g in gs.values()]).norm() for gs in (grads, others))
    assert other.item() == pytest.approx(norm.item(), rel=1e-2)
    for name, grad in grads.items():
        if grad.norm() > 1e-2 * norm:
            cosine = torch.nn.functional.cosine_similarity(
                grad.flatten(), others[name].flatten(), dim=0
            )
            assert cosine > 0.999, name
