"""Transforms of text vectors: whitening against scikit-learn, the flow, and their files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from torch import Tensor

from kinfolk.errors import UserError
from kinfolk.nn.flow import Flow, train_couplings
from kinfolk.nn.vector_transforms import ComponentRemoval, Standardization, Whitening
from kinfolk.workflows.vectors.transforms import TransformSpec, VectorTransforms


def draw(rows: int, size: int, seed: int = 0) -> Tensor:
    """Draw vectors with correlated dimensions and a mean."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(size, size, generator=torch.Generator().manual_seed(99)).double()
    return torch.randn(rows, size, generator=generator).double() @ mixing + 3.0


def curved(rows: int, seed: int) -> Tensor:
    """Draw vectors on a curve with noise, which no Gaussian describes."""
    generator = torch.Generator().manual_seed(seed)
    t = torch.randn(rows, 1, generator=generator).double()
    noise = torch.randn(rows, 3, generator=generator).double()
    return torch.cat([t, t**2, -(t**2)], dim=1) + 0.2 * noise


def test_whitening_equals_scikit_learn_up_to_rotation() -> None:
    x, new = draw(300, 12), draw(50, 12, seed=1)
    ours = Whitening.fit(x)
    theirs = PCA(whiten=True).fit(x.numpy())
    found, expected = ours(new), torch.from_numpy(theirs.transform(new.numpy()))
    # A rotation changes no inner product.
    assert torch.allclose(found @ found.T, expected @ expected.T, atol=1e-8)
    assert torch.allclose(torch.cov(ours(x).T), torch.eye(12).double(), atol=1e-8)
    assert torch.allclose(ours(x).mean(0), torch.zeros(12).double(), atol=1e-8)
    assert torch.allclose(ours.inverse(found), new, atol=1e-8)


def test_whitening_leaves_out_directions_without_variance() -> None:
    """The output of a layer norm without bias sums to zero: one direction is constant."""
    x = torch.nn.functional.layer_norm(draw(300, 8), (8,)).float()
    found = Whitening.fit(x)
    assert found.output_size == 7 and "7 of 8 dimensions" in found.summary
    assert torch.allclose(torch.cov(found(x).T), torch.eye(7).double(), atol=1e-6)
    assert torch.allclose(found.inverse(found(x)), x.double(), atol=1e-5)


def test_removed_components_are_gone_and_the_others_stay() -> None:
    x = draw(300, 10)
    found = ComponentRemoval.fit(x, 3)
    left = found(x)
    assert torch.allclose(left @ found.components, torch.zeros(300, 3).double(), atol=1e-9)
    _, kept, _ = np.linalg.svd((x - x.mean(0)).numpy())
    _, after, _ = np.linalg.svd(left.numpy())
    assert np.allclose(after[:7], kept[3:], atol=1e-8) and np.allclose(after[7:], 0, atol=1e-6)


def test_standardized_dimensions_have_variance_one_and_constant_ones_are_zero() -> None:
    x = torch.cat([draw(100, 4), torch.full((100, 1), 7.0).double()], dim=1)
    found = Standardization.fit(x)(x)
    assert torch.allclose(found[:, :4].std(0), torch.ones(4).double())
    assert torch.equal(found[:, 4], torch.zeros(100).double())


def test_the_flow_inverts_and_raises_the_held_out_likelihood() -> None:
    flow = Flow.fit(curved(800, 0), max_epochs=15)
    new = curved(500, 1)
    assert float((flow.inverse(flow(new)) - new).abs().max()) < 1e-4
    gaussian = torch.distributions.MultivariateNormal(new.mean(0), torch.cov(new.T))
    gain = float(flow.log_likelihood(new).mean() - gaussian.log_prob(new).mean())
    assert gain > 0.5  # against the Gaussian that knows the held-out vectors
    assert flow.heldout[1] > flow.heldout[0]


def test_the_likelihood_that_is_reported_is_of_vectors_that_chose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, read = curved(400, 0), []

    def watched(flow: Flow, train: torch.Tensor, dev: torch.Tensor, *settings: Any) -> None:
        read.extend([flow.whitening.inverse(train), flow.whitening.inverse(dev)])
        train_couplings(flow, train, dev, *settings)

    monkeypatch.setattr("kinfolk.nn.flow.train_couplings", watched)
    flow = Flow.fit(x, max_epochs=3)
    used = torch.cat(read).double()
    apart = x[torch.cdist(x, used).min(1).values > 1e-4]
    assert [len(read[0]), len(read[1]), len(apart)] == [360, 20, 20]
    assert float(flow.log_likelihood(apart).mean()) == pytest.approx(float(flow.heldout[1]))
    assert flow.heldout[1] > flow.heldout[0]


def test_the_likelihood_of_an_untrained_flow_is_that_of_a_gaussian() -> None:
    x, new = draw(400, 5), draw(60, 5, seed=1)
    flow = Flow.fit(x, max_epochs=0)
    gaussian = torch.distributions.MultivariateNormal(
        flow.mean, torch.linalg.inv(flow.whitening.matrix @ flow.whitening.matrix.T)
    )
    assert torch.allclose(flow.log_likelihood(new), gaussian.log_prob(new), atol=1e-4)
    # The log-determinant is that of the Jacobian, also of couplings that are not the identity.
    for coupling in flow.couplings:
        torch.nn.init.normal_(coupling.down_proj, generator=torch.Generator().manual_seed(3))
    point = new[:1]
    jacobian = torch.autograd.functional.jacobian(
        lambda v: flow.forward(flow.whitening(v))[0].sum(0), point
    )[:, 0]
    z = flow(point)
    density = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum()
    expected = density + torch.linalg.slogdet(jacobian)[1]
    assert torch.allclose(flow.log_likelihood(point), expected, atol=1e-6)


def test_fitting_twice_gives_the_same_flow() -> None:
    first, second = (Flow.fit(curved(200, 0), max_epochs=2) for _ in range(2))
    new = curved(20, 1)
    assert torch.equal(first(new), second(new))


SPECS = [
    TransformSpec(standardize=True),
    TransformSpec(remove_components=2),
    TransformSpec(whiten=True),
    TransformSpec(flow=True),
    TransformSpec(standardize=True, remove_components=1, whiten=True),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: "+".join(spec.names))
def test_a_saved_transform_gives_the_same_vectors(spec: TransformSpec, tmp_path: Path) -> None:
    x = curved(200, 0).float().numpy()
    fitted = VectorTransforms.fit(spec, x, "mean", (1, 2))
    fitted.save(tmp_path / "saved")
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "transform.json",
        "transform.safetensors",
    ]
    loaded = VectorTransforms.load(tmp_path / "saved")
    assert np.array_equal(loaded(x), fitted(x))
    assert (loaded.pooling, loaded.layers, loaded.texts) == ("mean", (1, 2), 200)
    assert loaded(x).shape[1] == loaded.output_size


def test_bad_transforms_are_refused(tmp_path: Path) -> None:
    x = curved(200, 0).float().numpy()
    with pytest.raises(UserError, match="more texts than the vectors have dimensions"):
        VectorTransforms.fit(TransformSpec(whiten=True), x[:3])
    with pytest.raises(UserError, match="--flow needs more texts"):
        VectorTransforms.fit(TransformSpec(flow=True), x[:3])
    with pytest.raises(UserError, match="--remove-components 3 must be from 1 to 2"):
        VectorTransforms.fit(TransformSpec(remove_components=3), x)
    with pytest.raises(UserError, match="all vectors are equal"):
        VectorTransforms.fit(TransformSpec(whiten=True), np.ones((9, 3), np.float32))
    with pytest.raises(UserError, match="not finite"):
        VectorTransforms.fit(TransformSpec(whiten=True), np.full((9, 3), np.nan, np.float32))
    fitted = VectorTransforms.fit(TransformSpec(whiten=True), x)
    with pytest.raises(UserError, match="vectors of 3 numbers, and these have 4"):
        fitted(np.zeros((2, 4), np.float32))
    with pytest.raises(UserError, match="is no saved transform"):
        VectorTransforms.load(tmp_path)
    fitted.save(tmp_path / "saved")
    settings = tmp_path / "saved" / "transform.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"transforms": ["pickle"]}))
    with pytest.raises(UserError, match="is damaged"):
        VectorTransforms.load(tmp_path / "saved")
