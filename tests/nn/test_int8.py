"""Networks in int8: near float32, the same for a token in any company, and only for inference."""

import copy
import dataclasses
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinfolk import hub
from kinfolk.batch import IGNORE_INDEX, Inputs, KVCache
from kinfolk.errors import UserError
from kinfolk.families import families
from kinfolk.families.base import Family
from kinfolk.families.gpt2 import GPT2, GPT2Config
from kinfolk.families.transformer_xl import TransformerXLConfig
from kinfolk.nn import int8, int8_matmul
from kinfolk.nn.embeddings import AdaptiveEmbedding, TokenEmbedding
from kinfolk.nn.int8 import Int8Linear, Int8TokenEmbedding, quantize_int8
from kinfolk.nn.int8_matmul import Int8Matrix, NativeInt8Matrix, TorchInt8Matrix
from kinfolk.nn.layers import SlicedLinear
from support.loops import every_case
from support.runs import text

VOCAB = 300  # not a multiple of 32: the last panel is padded
# An n-gram model has no matrix to quantize.
TRAINED = {name: one for name, one in families().items() if one.model.gradient_free is None}
MEMBERS = pytest.mark.parametrize("member", TRAINED.values(), ids=list(TRAINED))
SHAPES = pytest.mark.parametrize(
    ("inputs", "outputs"), [(64, 96), (70, 33), (1, 1), (5, 100), (768, 31), (127, 64), (24, 600)]
)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile the kernel into a cache of the test's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        int8_matmul.load_kernel.cache_clear()
        yield


@pytest.fixture(params=[NativeInt8Matrix, TorchInt8Matrix])
def kind(request: pytest.FixtureRequest) -> type[Int8Matrix]:
    """Return either way to multiply."""
    if request.param is NativeInt8Matrix and int8_matmul.load_kernel() is None:
        pytest.skip("no compiler")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every compiler away."""
    monkeypatch.setenv("CC", "no-such-compiler")
    found = int8_matmul.load_kernel.__wrapped__()
    assert found is None
    for module in (int8_matmul, int8):
        monkeypatch.setattr(module, "load_kernel", lambda: None)


def apart(found: Tensor, expected: Tensor) -> float:
    """Return how far scores lie apart, against how much they vary."""
    varied = expected - expected.mean(-1, keepdim=True)
    return float((found - expected).norm() / varied.norm())


@SHAPES
def test_a_product_lies_within_half_a_step_of_either_side(
    kind: type[Int8Matrix], inputs: int, outputs: int
) -> None:
    with every_case() as case:
        for rows in (0, 1, 2, 3, 8, 19):
            with case(rows):
                weight, x, bias = (
                    torch.randn(n) for n in ((outputs, inputs), (rows, inputs), (outputs,))
                )
                exact = x.double() @ weight.double().T + bias
                found = kind(weight)(x, bias)
                assert found.shape == (rows, outputs)
                # Each factor is off by half a step at most: |xw - x'w'| <= |x| dw + |w| dx + dx dw.
                steps = weight.abs().amax(1) / 127 / 2
                spread = (x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)) if rows else x[:, 0]
                moves = spread[:, None] / 253 / 2
                bound = x.abs().sum(1)[:, None] * steps + moves * weight.abs().sum(1)
                bound = bound + inputs * moves * steps
                assert ((found - exact).abs() <= 1.001 * bound + 1e-5).all()
                torch.testing.assert_close(kind(weight)(x), found - bias, atol=1e-5, rtol=1e-5)


@SHAPES
def test_both_ways_say_the_same_to_the_bit(inputs: int, outputs: int) -> None:
    if int8_matmul.load_kernel() is None:
        pytest.skip("no compiler")
    weight, x, bias = torch.randn(outputs, inputs), torch.randn(11, inputs), torch.randn(outputs)
    x[3:6] = x[3:6].relu()  # nothing below zero
    x[6] = -x[5]
    one, other = NativeInt8Matrix(weight), TorchInt8Matrix(weight)
    assert torch.equal(one(x, bias), other(x, bias))
    assert torch.equal(one(x), other(x))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are of one family of CPUs")
@pytest.mark.parametrize("without", ["-mno-avx512f", "-mno-avx"])
def test_older_instructions_say_the_same_to_the_bit(
    without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if int8_matmul.load_kernel() is None:
        pytest.skip("no compiler")
    monkeypatch.setattr(int8_matmul, "FLAGS", (*int8_matmul.FLAGS, without))
    older = int8_matmul.load_kernel.__wrapped__()
    assert older is not None
    monkeypatch.setattr(int8_matmul, "load_kernel", lambda: older)
    # The ends of the range: what sums of pairs in 16 bits would cut off.
    weight, x = torch.randn(50, 264).sign(), torch.randn(9, 264).sign()
    weight[10:], x[3:] = torch.randn(40, 264), torch.randn(6, 264)
    assert torch.equal(NativeInt8Matrix(weight)(x), TorchInt8Matrix(weight)(x))


@SHAPES
def test_a_row_is_the_same_to_the_bit_in_any_company(
    kind: type[Int8Matrix], inputs: int, outputs: int
) -> None:
    product, bias = kind(torch.randn(outputs, inputs)), torch.randn(outputs)
    x = torch.randn(21, inputs) * torch.logspace(-3, 3, 21)[:, None]
    alone = torch.cat([product(row[None], bias) for row in x])
    for rows in range(2, 22):
        assert torch.equal(product(x[:rows], bias), alone[:rows])
        assert torch.equal(product(x[-rows:], bias), alone[-rows:])


def test_threads_change_nothing(kind: type[Int8Matrix]) -> None:
    product, x = kind(torch.randn(400, 300)), torch.randn(20, 300)
    alone = product(x)
    torch.set_num_threads(2)
    try:
        assert torch.equal(product(x), alone)
    finally:
        torch.set_num_threads(1)


def test_what_comes_in_may_have_any_shape_and_lie_anyhow(kind: type[Int8Matrix]) -> None:
    product = kind(torch.randn(40, 24))
    x = torch.randn(3, 5, 24)
    flat = product(x.flatten(0, 1))
    assert torch.equal(product(x), flat.view(3, 5, 40))
    assert torch.equal(product(x[0, 0]), flat[0])
    across = x.transpose(0, 1)
    assert not across.is_contiguous()
    assert torch.equal(product(across), flat.view(3, 5, 40).transpose(0, 1))
    assert product(x[:, :0]).shape == (3, 0, 40)


def test_zeros_stay_zero_and_what_is_no_number_spoils_its_own_row(kind: type[Int8Matrix]) -> None:
    weight, x = torch.randn(40, 24), torch.randn(6, 24)
    weight[7] = 0.0
    x[1], x[2] = 0.0, 1e-38
    x[3, 5], x[4, 6] = torch.nan, torch.inf
    found = kind(weight)(x)
    assert not found[0].isnan().any() and found[1].eq(0).all() and found[2].abs().max() < 1e-30
    assert found[3].isnan().all() and found[4].isnan().all()
    assert found[[0, 1, 5], 7].eq(0).all()
    weight[9, 3], weight[11, 2] = torch.nan, -torch.inf
    spoiled = kind(weight)(x[[0, 5]]).isnan()
    assert spoiled.any(0).nonzero().flatten().tolist() == [9, 11] and spoiled[:, [9, 11]].all()


def shaken(model: Any) -> Any:
    """Move norms and biases from the ones and zeros they start at."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.2 * torch.randn_like(weight)
        for part in model.modules():
            if getattr(part, "scale", None) == 1.0:  # T5's 1 / sqrt(d) is in its queries' weights
                matrix = part.q_proj.weight if hasattr(part, "q_proj") else part.qkv_proj.weight
                outputs, width = part.out_proj.in_features, part.out_proj.out_features
                matrix[:outputs].normal_(0.0, (width * outputs // part.num_heads) ** -0.5)
    return model.eval()


def nano(member: Family) -> Any:
    config = dataclasses.replace(member.config("nano"), vocab_size=VOCAB)
    return shaken(config.build())


def inputs(model: Any, rows: int = 3, **more: Any) -> Inputs:
    ids = torch.randint(VOCAB, (rows, 20), generator=torch.Generator().manual_seed(1))
    source = (
        Inputs.from_ids(ids.flip(1), causal=False) if model.decoding == "encoder-decoder" else None
    )
    given = Inputs.from_ids(
        ids, causal=source is not None or model_writes(model), encoder_inputs=source
    )
    return dataclasses.replace(given, **more)


def model_writes(model: Any) -> bool:
    kind = next(
        m.architecture
        for m in families().values()
        if m.config("nano").__class__ is type(model.config)
    )
    return kind == "decoder"


@torch.no_grad()
def logits(model: Any, given: Inputs) -> Tensor:
    run = model.forward_lm
    return model.lm_logits(run(given).hidden).logits()  # type: ignore[no-any-return]


@MEMBERS
def test_every_member_scores_nearly_as_in_float32(member: Family) -> None:
    model = nano(member)
    given = inputs(model)
    expected = logits(model, given)
    small = quantize_int8(copy.deepcopy(model))
    left = [part for part in small.modules() if isinstance(part, nn.Linear)]
    assert all(isinstance(part, SlicedLinear) for part in left)
    found = logits(small, given)
    assert found.shape == expected.shape
    assert apart(found, expected) < 0.03
    alone = logits(small, inputs(model, rows=1))
    torch.testing.assert_close(alone, found[:1], atol=1e-3, rtol=1e-3)


@MEMBERS
def test_without_a_compiler_every_member_scores_the_same(
    member: Family, uncompiled: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nano(member)
    given = inputs(model)
    with pytest.warns(UserWarning, match="no C compiler"):
        plain = quantize_int8(copy.deepcopy(model))
    found = logits(plain, given)
    int8 = [p for p in plain.modules() if isinstance(p, Int8Linear | Int8TokenEmbedding)]
    assert any(isinstance(part.matrix, TorchInt8Matrix) for part in int8)
    monkeypatch.undo()
    torch.testing.assert_close(logits(quantize_int8(model), given), found, atol=1e-4, rtol=1e-4)


def test_a_state_goes_on_in_int8() -> None:
    model = quantize_int8(nano(families()["gpt2"]))
    given = inputs(model)
    state, steps = KVCache(20), []
    with torch.no_grad():
        for at in range(20):
            attention_mask = dataclasses.replace(
                given.attention_mask,
                document_ids=given.attention_mask.document_ids[:, at : at + 1],
                key_order=given.attention_mask.key_order[:, at : at + 1],
                query_order=given.attention_mask.query_order[:, at : at + 1],
                unpacked=None,
            )
            step = Inputs(
                input_ids=given.input_ids[:, at : at + 1],
                attention_mask=attention_mask,
                position_ids=given.position_ids[:, at : at + 1],
                cache=state,
            )
            steps.append(logits(model, step.append_to_cache()))
    # Attention is in float32: its last bits, and so a byte here and there, depend on its shapes.
    assert apart(torch.cat(steps, 1), logits(model, given)) < 0.01


@pytest.mark.parametrize(
    ("cutoffs", "divisor"), [((), 1), ((), 2), ((100, 200), 1), ((90, 110), 2)]
)
def test_tables_in_clusters_score_nearly_as_in_float32(
    cutoffs: tuple[int, ...], divisor: int
) -> None:
    sizes = {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "mem_len": 8}
    model = shaken(
        TransformerXLConfig(vocab_size=VOCAB, cutoffs=cutoffs, div_val=divisor, **sizes).build()
    )
    given = inputs(model)
    expected = logits(model, given).log_softmax(-1)
    small = quantize_int8(copy.deepcopy(model))
    assert isinstance(small.token_embeddings, AdaptiveEmbedding)
    assert apart(logits(small, given).log_softmax(-1), expected) < 0.03
    labels = torch.randint(VOCAB, (12,))
    labels[::5] = IGNORE_INDEX
    hidden = torch.randn(12, 64)
    with torch.no_grad():
        said = small.token_embeddings.lm_logits(hidden)
        scores = said.logits().log_softmax(-1)
        summed = nn.functional.nll_loss(scores, labels, ignore_index=IGNORE_INDEX, reduction="sum")
        torch.testing.assert_close(said.nll(labels), summed)


def test_losses_of_scores_are_those_of_their_logits() -> None:
    table = TokenEmbedding(VOCAB, 32)
    small = quantize_int8(copy.deepcopy(table))
    assert isinstance(small, Int8TokenEmbedding)
    ids = torch.randint(VOCAB, (2, 7))
    assert torch.equal(small(ids), table(ids))
    hidden, labels, bias = torch.randn(9, 32), torch.randint(VOCAB, (9,)), torch.randn(VOCAB)
    labels[4] = IGNORE_INDEX
    said, exact = small.lm_logits(hidden, bias), table.lm_logits(hidden, bias)
    assert said.logits().shape == (9, VOCAB)
    torch.testing.assert_close(said.nll(labels), exact.nll(labels), rtol=0.01, atol=0.0)
    for one, other in zip(
        said.smoothed_nll(labels, 0.1), exact.smoothed_nll(labels, 0.1), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.0)
    assert torch.equal(said.smoothed_nll(labels, 0.1)[1], said.nll(labels))
    assert small.lm_logits(hidden[:0]).nll(labels[:0]) == 0


def test_a_part_in_several_places_stays_one() -> None:
    shared = nn.Linear(8, 8)
    small = quantize_int8(nn.ModuleList([nn.Sequential(shared), shared]))
    assert isinstance(small, nn.ModuleList) and isinstance(small[1], Int8Linear)
    assert small[0][0] is small[1]  # type: ignore[index]


def trained(steps: int = 150) -> tuple[GPT2, Tensor]:
    """Train a small network on the letters of a small text; return what it has not seen as well."""
    said = text(documents=120)
    letters = sorted(set(said))
    ids = torch.tensor([letters.index(letter) for letter in said])
    seen, unseen = ids[:-4096], ids[-4096:].view(-1, 64)
    config = GPT2Config(
        vocab_size=len(letters),
        hidden_size=64,
        num_layers=2,
        num_heads=2,
        max_length=64,
        dropout=0.0,
    )
    model = dataclasses.replace(config, attention_dropout=0.0).build()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        starts = torch.randint(len(seen) - 64, (8, 1))
        rows = seen[starts + torch.arange(64)]
        nll(model, rows).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
    return model.eval(), unseen


def nll(model: Any, rows: Tensor) -> Tensor:
    hidden = model(Inputs.from_ids(rows, causal=True)).hidden[:, :-1].flatten(0, 1)
    return model.lm_logits(hidden).nll(rows[:, 1:].flatten()) / rows[:, 1:].numel()  # type: ignore[no-any-return]


def test_perplexity_stays_within_a_hundredth() -> None:
    model, rows = trained()
    with torch.no_grad():
        before, guesses = nll(model, rows).exp(), logits(model, Inputs.from_ids(rows, causal=True))
        small = quantize_int8(model)
        after, others = nll(small, rows).exp(), logits(small, Inputs.from_ids(rows, causal=True))
    same = (guesses.argmax(-1) == others.argmax(-1)).float().mean()
    print(f"perplexity {before:.4f} in float32, {after:.4f} in int8; top-1 agreement {same:.2%}")
    assert before < 4  # it has learned: letters alone leave it above 10
    assert abs(after / before - 1) < 0.01
    assert same > 0.97


def test_it_refuses_to_learn() -> None:
    model = quantize_int8(nano(families()["gpt2"]))
    with pytest.raises(UserError, match="train the float32 network"):
        model.train()
    model.eval()
    linear = quantize_int8(nn.Linear(8, 8))
    with pytest.raises(UserError, match="no gradient"):
        linear(torch.randn(2, 8, requires_grad=True))


def test_it_refuses_to_be_saved_or_copied(tmp_path: Path) -> None:
    model = quantize_int8(nano(families()["gpt2"]))
    with pytest.raises(UserError, match="save the float32 network"):
        hub.save(tmp_path / "model", model, None)
    assert not (tmp_path / "model").exists()
    with pytest.raises(UserError, match="copy the float32 network"):
        copy.deepcopy(model)


def test_other_numbers_than_float32_are_refused() -> None:
    with pytest.raises(UserError, match=r"weight is torch\.bfloat16 on cpu"):
        quantize_int8(nn.Linear(8, 8).bfloat16())


def test_the_kernel_is_compiled_once_and_a_home_that_is_read_only_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if int8_matmul.load_kernel() is None:
        pytest.skip("no compiler")
    kept = (Path(os.environ["XDG_CACHE_HOME"]) / "kinfolk").iterdir()
    assert {file.suffix for file in kept} == {".so"}
    with monkeypatch.context() as patch:  # found, not compiled
        patch.setattr(subprocess, "run", None)
        assert int8_matmul.load_kernel.__wrapped__() is not None
    (tmp_path / "kinfolk").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert int8_matmul.load_kernel.__wrapped__() is not None


def test_a_cached_kernel_that_others_may_write_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if int8_matmul.load_kernel() is None:
        pytest.skip("no compiler")
    loaded: list[Path] = []
    load = int8_matmul._load
    monkeypatch.setattr(int8_matmul, "_load", lambda path: (loaded.append(path), load(path))[1])
    assert int8_matmul.load_kernel.__wrapped__() is not None
    good = loaded.pop()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = tmp_path / "kinfolk"
    cache.mkdir(mode=0o777)
    cache.chmod(0o777)

    def compiled(compiler: object, folder: Path) -> Path:
        return Path(shutil.copy(good, folder / "int8.so"))

    monkeypatch.setattr(int8_matmul, "_compile", compiled)

    def opened() -> Path:
        assert int8_matmul.load_kernel.__wrapped__() is not None
        assert cache.stat().st_mode & 0o777 == 0o700
        return loaded.pop()

    planted = cache / good.name
    planted.write_bytes(good.read_bytes())
    planted.chmod(0o666)
    assert opened() != planted  # compiled anew
    assert planted.stat().st_mode & 0o777 == 0o700
    assert opened() == planted
    planted.unlink()
    planted.symlink_to(good)
    assert opened() != planted
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 12345)  # of another user
        assert int8_matmul.load_kernel.__wrapped__() is not None
        assert loaded.pop() != planted


def test_nothing_is_compiled_before_somebody_asks_and_threads_are_torch_s_own() -> None:
    code = """if True:
        import kinfolk.nn.int8, kinfolk.nn.int8_matmul as m
        from pathlib import Path
        assert m.load_kernel.cache_info().currsize == 0
        assert m.load_kernel() is not None
        maps = Path("/proc/self/maps").read_text().split()
        pools = {path for path in maps if "/" in path and "omp" in Path(path).name}
        assert len(pools) == 1, pools
    """
    if int8_matmul.load_kernel() is None or not Path("/proc/self/maps").exists():
        pytest.skip("no compiler, or no list of libraries")
    subprocess.run([sys.executable, "-c", code], check=True)
