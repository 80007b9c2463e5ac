"""A normalizing flow over text vectors (BERT-flow, Li et al. 2020): an invertible network.

    x -> whitening -> (rotation -> affine coupling) x steps -> z, a standard Gaussian

An affine coupling scales and shifts one half of its input by a function of the other half (Dinh et
al. 2017), so that it is inverted without solving anything, and the log-determinant is the sum of
the log-scales. It is trained to make the vectors likely on nine tenths of them. One twentieth
chooses the epoch whose weights are kept, and the likelihood of the other is what is reported.

Deviation: the first layer is a full whitening, not Glow's scale of each dimension, and couplings
start as the identity. Before training, the flow is therefore the Gaussian with the mean and the
covariance of the vectors, and what training adds is what a Gaussian cannot say. Rotations are drawn
once and not trained.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.nn.vector_transforms import TooFewTextsError, VectorTransform, Whitening
from kinfolk.rng import derive_seed

FLOW_STEPS = 4  # couplings
FLOW_HIDDEN_SIZE = 128  # of the network inside a coupling
MAX_LOG_SCALE = 1.0  # a coupling scales a dimension by 1/e to e
HELD_OUT_VECTORS = 0.1  # of the vectors: one half chooses the weights, the other is scored
LR, WEIGHT_DECAY, BATCH_SIZE = 1e-3, 1e-2, 256
MAX_EPOCHS, PATIENCE = 100, 5  # epochs; training ends after as many without an improvement


class AffineCoupling(nn.Module):
    """Scale and shift the second part of a rotated vector by a function of its first part."""

    rotation: Tensor

    def __init__(self, size: int, hidden_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first, self.second = size // 2, size - size // 2
        self.register_buffer(
            "rotation", torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
        )
        up = torch.randn(hidden_size, self.first, generator=generator) * self.first**-0.5
        self.up_proj = nn.Parameter(up)
        self.up_bias = nn.Parameter(torch.zeros(hidden_size))
        # The identity at first: log-scales and shifts are zero.
        self.down_proj = nn.Parameter(torch.zeros(2 * self.second, hidden_size))
        self.down_bias = nn.Parameter(torch.zeros(2 * self.second))

    def scale_and_shift(self, first: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-scale and the shift of the second part."""
        hidden = F.gelu(F.linear(first, self.up_proj, self.up_bias))
        log_scale, shift = F.linear(hidden, self.down_proj, self.down_bias).chunk(2, dim=1)
        return MAX_LOG_SCALE * torch.tanh(log_scale), shift

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the transformed vectors and the log-determinant of each."""
        first, second = torch.split(x @ self.rotation, [self.first, self.second], dim=1)
        log_scale, shift = self.scale_and_shift(first)
        return torch.cat([first, second * log_scale.exp() + shift], dim=1), log_scale.sum(1)

    def inverse(self, z: Tensor) -> Tensor:
        """Return the vectors that `forward` transforms to these."""
        first, second = torch.split(z, [self.first, self.second], dim=1)
        log_scale, shift = self.scale_and_shift(first)
        return torch.cat([first, (second - shift) * (-log_scale).exp()], dim=1) @ self.rotation.T


@dataclass(frozen=True, eq=False)
class Flow(VectorTransform):
    """Vectors as points of a standard Gaussian, through an invertible network."""

    whitening: Whitening
    couplings: tuple[AffineCoupling, ...]
    # Mean log-likelihood in nats of the Gaussian, and of the flow, of vectors that nothing was
    # fitted or chosen on: (2,).
    heldout: Tensor

    kind = "flow"

    @classmethod
    def fit(
        cls,
        vectors: Tensor,
        *,
        seed: int = 0,
        steps: int = FLOW_STEPS,
        max_epochs: int = MAX_EPOCHS,
    ) -> Self:
        """Train the flow on vectors, and keep the weights that are best on some of them."""
        generator = torch.Generator().manual_seed(derive_seed(seed, len(vectors)) >> 1)
        x = vectors.double().cpu()
        x = x[torch.randperm(len(x), generator=generator)]
        held_out = max(2, round(HELD_OUT_VECTORS * len(x)))
        test, dev, train = torch.tensor_split(x, [held_out // 2, held_out])
        texts, size = train.shape
        if texts <= size:
            raise TooFewTextsError(
                "--flow",
                "needs more texts than the vectors have dimensions, and is fitted on nine tenths "
                f"of them ({texts:,} of {len(x):,} texts, {size} dimensions)",
            )
        whitening = Whitening.fit(train, "--flow")
        if whitening.output_size < 2:
            raise UserError("--flow needs vectors that differ in two or more dimensions")
        couplings = tuple(
            AffineCoupling(whitening.output_size, FLOW_HIDDEN_SIZE, generator) for _ in range(steps)
        )
        flow = cls(whitening.mean, whitening, couplings, torch.zeros(2))
        scored = whitening(test)
        gaussian = mean_likelihood(flow, scored)  # couplings start as the identity
        train_couplings(flow, whitening(train), whitening(dev), generator, max_epochs)
        heldout = torch.tensor([gaussian, mean_likelihood(flow, scored)], dtype=torch.float64)
        return cls(whitening.mean, whitening, couplings, heldout + whitening.log_determinant)

    @property
    def output_size(self) -> int:
        """The number of directions that are not constant."""
        return self.whitening.output_size

    @property
    def summary(self) -> str:
        """The likelihood of held-out vectors."""
        gaussian, flow = self.heldout.tolist()
        return (
            f"flow: {flow:.2f} nats per held-out vector, {flow - gaussian:+.2f} against the "
            "Gaussian of the same covariance"
        )

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the vectors as points of a standard Gaussian."""
        with torch.no_grad():
            return self.forward(self.whitening(vectors))[0]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return whitened vectors through all couplings, and the log-determinant of each."""
        total = x.new_zeros(len(x))
        for coupling in self.couplings:
            x, log_determinant = coupling(x)
            total = total + log_determinant
        return x, total

    def inverse(self, z: Tensor) -> Tensor:
        """Return the vectors of points of the Gaussian."""
        z = z.double()
        with torch.no_grad():
            for coupling in reversed(self.couplings):
                z = coupling.inverse(z)
        return self.whitening.inverse(z)

    def log_likelihood(self, vectors: Tensor) -> Tensor:
        """Return the log-likelihood of each vector, in nats."""
        with torch.no_grad():
            whitened = self.whitened_log_likelihood(self.whitening(vectors))
        return whitened + self.whitening.log_determinant

    def whitened_log_likelihood(self, x: Tensor) -> Tensor:
        """Return the log-likelihood of each whitened vector, in nats."""
        z, total = self.forward(x)
        return total - 0.5 * (z.square().sum(1) + z.shape[1] * math.log(2 * math.pi))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The whitening, the weights of all couplings, and the held-out likelihoods."""
        weights = nn.ModuleList(self.couplings).state_dict(prefix="couplings.")
        return {**self.whitening.tensors, **weights, "heldout": self.heldout}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """Return the flow of saved tensors."""
        whitening = Whitening.from_tensors(tensors)
        steps = 1 + max(int(n.split(".")[1]) for n in tensors if n.startswith("couplings."))
        hidden = len(tensors["couplings.0.up_bias"])
        generator = torch.Generator().manual_seed(0)
        couplings = [
            AffineCoupling(whitening.output_size, hidden, generator).double() for _ in range(steps)
        ]
        for number, coupling in enumerate(couplings):
            prefix = f"couplings.{number}."
            names = (n for n in tensors if n.startswith(prefix))
            coupling.load_state_dict({n.removeprefix(prefix): tensors[n] for n in names})
        return cls(whitening.mean, whitening, tuple(couplings), tensors["heldout"])


def train_couplings(
    flow: Flow, train: Tensor, dev: Tensor, generator: torch.Generator, max_epochs: int
) -> None:
    """Maximize the likelihood of whitened vectors, and keep the weights that are best on dev.

    Training is in float32, the weights are float64 at the end.
    """
    couplings = nn.ModuleList(flow.couplings)
    train, dev = train.float(), dev.float()
    optimizer = torch.optim.AdamW(couplings.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    kept, best, waited = copied(couplings), mean_likelihood(flow, dev), 0
    for _ in range(max_epochs):
        with torch.enable_grad():
            order = torch.randperm(len(train), generator=generator)
            for rows in torch.split(order, BATCH_SIZE):
                optimizer.zero_grad()
                torch.autograd.backward(-flow.whitened_log_likelihood(train[rows]).mean())
                optimizer.step()
        now = mean_likelihood(flow, dev)
        waited += 1
        if now > best:
            kept, best, waited = copied(couplings), now, 0
        if waited >= PATIENCE:
            break
    couplings.load_state_dict(kept)
    couplings.double().requires_grad_(False)


def mean_likelihood(flow: Flow, whitened: Tensor) -> float:
    """Return the mean log-likelihood of whitened vectors."""
    with torch.no_grad():
        vectors = whitened.to(flow.couplings[0].up_proj.dtype)
        return float(flow.whitened_log_likelihood(vectors).double().mean())


def copied(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights."""
    return {name: value.clone() for name, value in module.state_dict().items()}
