"""GPT-3: the sizes of its paper, and layers that see only a band."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kinfolk.attention_mask import AttentionBackend, AttentionMask
from kinfolk.batch import Inputs, KVCache
from kinfolk.data.chunks import InMemoryDocuments
from kinfolk.data.datasets import PackedDataset
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.gpt3 import FAMILY, GPT3, GPT3Config
from kinfolk.hub import load_model, save
from kinfolk.nn.attention import FlexBlockSparse, select_backend
from kinfolk.nn.language_model import attention_windows
from kinfolk.objectives.clm import CLM
from kinfolk.text.tokenizer import SpecialTokens
from kinfolk.training.step import Learner
from support.networks import hollow
from support.peers import ids, inputs, near, parameters, ragged, shake

# What table 2.1 prints, in millions, and what these networks hold.
PUBLISHED = {
    "gpt3-125m": (125, 125_226_240),
    "gpt3-350m": (350, 355_871_744),
    "gpt3-760m": (760, 760_300_032),
    "gpt3-1.3b": (1300, 1_315_723_264),
    "gpt3-2.7b": (2700, 2_651_553_280),
    "gpt3-6.7b": (6700, 6_658_404_352),
    "gpt3-13b": (13_000, 12_853_386_240),
    "gpt3-175b": (175_000, 174_604_259_328),
}
SMALL = GPT3Config(
    vocab_size=70, hidden_size=16, num_layers=4, num_heads=2, max_length=32, attention_window=3
)


@pytest.mark.parametrize("name", [name for name in FAMILY.sizes if name.startswith("gpt3")])
def test_published_sizes_have_their_published_count(name: str) -> None:
    with hollow():
        model = FAMILY.sizes[name].build()
    printed, exact = PUBLISHED[name]
    assert parameters(model) == exact
    assert exact == pytest.approx(printed * 1e6, rel=0.02)


@torch.no_grad()
def test_a_band_as_wide_as_the_text_is_gpt2() -> None:
    model = shake(replace(SMALL, attention_window=9).build(), by=0.2)
    fields = {k: v for k, v in vars(SMALL).items() if k != "attention_window"}
    gpt2 = GPT2Config(**fields).build().eval()
    gpt2.load_state_dict(model.state_dict())
    tokens = ids(70)
    expected = gpt2(Inputs.from_ids(tokens, causal=True)).hidden
    near(model(Inputs.from_ids(tokens, causal=True)).hidden, expected)
    narrow = replace(SMALL, attention_window=8).build().eval()
    narrow.load_state_dict(model.state_dict())
    difference = (narrow(Inputs.from_ids(tokens, causal=True)).hidden - expected).abs().amax((0, 2))
    assert not difference[:8].any() and difference[8] > 1e-4  # the first that would see nine


def test_dense_and_banded_layers_take_turns() -> None:
    model = shake(SMALL.build(), by=0.2)
    seen: list[Tensor] = []
    for block in model.layers:
        block.register_forward_pre_hook(lambda _, given: seen.append(table_of(given[1])))
    model(inputs(ids(70), AttentionMask.causal(ragged())))
    past = torch.ones(9, 9).tril() > 0
    band = past & ~past.tril(-3)
    for layer, found in enumerate(seen):
        assert torch.equal(found, band if layer % 2 else past), layer


def table_of(visible: AttentionBackend) -> Tensor:
    """Ask who sees whom in the first row, which has no padding."""
    keys = torch.eye(9).expand(3, 1, -1, -1)
    found = visible(torch.zeros(3, 1, 9, 9), keys, keys, scale=None, dropout=0.0)
    return found[0, 0] > 0


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_what_lies_beyond_the_bands_is_never_seen(layers: int) -> None:
    """Banded layers alone, one behind the other: each reaches two tokens further back."""
    model = shake(SMALL.build(), by=0.2)
    banded = [block for layer, block in enumerate(model.layers) if layer % 2] * 2
    x = torch.randn(1, 9, 16, requires_grad=True)
    visible, hidden = (
        select_backend(AttentionMask.causal(torch.zeros(1, 9, dtype=torch.long)), window=3),
        x,
    )
    for block in banded[:layers]:
        hidden = block(hidden, visible, None, 0)
    (gradient,) = torch.autograd.grad(hidden[0, 8].sum(), x)
    reached = gradient[0].abs().amax(-1) > 0
    assert reached.tolist() == [place >= 8 - 2 * layers for place in range(9)]


@torch.no_grad()
def test_cached_steps_honour_the_band() -> None:
    model = shake(SMALL.build(), by=0.2)
    tokens, document = ids(70), ragged((9, 5, 7)).flip(1)  # padding in front
    places = ((document + 1).cumsum(1) - 1).clamp(min=0)
    real = document == 0
    state, steps = KVCache(max_length=9), []
    for start, stop in [(0, 4), (4, 5), (5, 7), (7, 8), (8, 9)]:
        cut = [t[:, start:stop] for t in (tokens, document, places)]
        attention_mask = AttentionMask(cut[1], cut[2], cut[2])
        step = Inputs(
            input_ids=cut[0], attention_mask=attention_mask, position_ids=cut[2], cache=state
        )
        steps.append(model(step.append_to_cache()).hidden)
    found = torch.cat(steps, dim=1)
    for row, length in enumerate((9, 5, 7)):
        text = tokens[row, 9 - length :][None]
        near(found[row][real[row]], model(Inputs.from_ids(text, causal=True)).hidden[0])
    wide = replace(SMALL, attention_window=32).build().eval()
    wide.load_state_dict(model.state_dict())
    assert (wide(Inputs.from_ids(tokens, causal=True)).hidden[0] - found[0]).abs().max() > 1e-3


def test_a_folder_keeps_our_names_and_the_band(tmp_path: Path) -> None:
    model = shake(SMALL.build())
    save(tmp_path, model, None)
    again = load_model(tmp_path)
    assert isinstance(again, GPT3) and again.config == SMALL
    assert attention_windows(again) == (3,)


SPECIALS = SpecialTokens(pad=0, unk=1, bos=2, eos=2, cls=3, sep=4, mask=5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, while it compiles
@pytest.mark.filterwarnings("ignore:TensorFloat32")  # float32 is meant to be exact here
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_block_sparse_bands_learn_what_the_dense_mask_does() -> None:
    numbers = torch.Generator().manual_seed(0)
    sizes = torch.randint(3, 1500, (20,), generator=numbers).tolist()
    texts = [torch.randint(10, 300, (n,), generator=numbers).tolist() for n in sizes]
    way = CLM(special_tokens=SPECIALS, vocab_size=300, max_length=1024)
    batch = PackedDataset(
        way, InMemoryDocuments.from_lists([[text] for text in texts]), batch_size=4
    )[0].to("cuda")
    config = replace(FAMILY.sizes["nano"], vocab_size=300, max_length=1024, attention_window=200)
    model = shake(config.build()).cuda().train()
    dense = Learner(copy.deepcopy(model), way)
    sparse = Learner(model, way)
    resolved = batch.inputs.with_block_masks(attention_windows(sparse))
    assert isinstance(select_backend(resolved.attention_mask, window=200), FlexBlockSparse)
    sparse.compile(dynamic=False)
    found = []
    for learner, read in ((dense, batch.inputs), (sparse, resolved)):
        mean = learner(read, batch.targets).mean(batch.counts)
        mean.backward()
        found.append((mean.item(), {n: p.grad for n, p in learner.named_parameters()}))
    (loss, expected), (other, gradients) = found
    assert other == pytest.approx(loss, rel=1e-4)
    for name, gradient in expected.items():
        assert gradient is not None and gradients[name] is not None
        scale = gradient.abs().max().clamp(min=1e-3)
        assert (gradients[name] - gradient).abs().max() / scale < 1e-2, name
