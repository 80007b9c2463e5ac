"""Muon (Jordan et al. 2024): orthogonalized momentum for matrices of layers, AdamW for the rest.

The momentum of a matrix is replaced by the nearest matrix whose singular values are all about 1, so
that an update changes every direction by the same amount. Embeddings, output layers, norms and
biases are updated by AdamW.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from kinfolk.training.eager_optimizers import EagerOptimizer

MOMENTUM = 0.95
NEWTON_SCHULZ_STEPS = 5
# A quintic polynomial whose iteration moves singular values from 0 to 1 to about 0.7 to 1.2 in few
# steps (Jordan et al. 2024).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
# Numbers in the matrices of one shape: above it kernels take longer than their launches.
MAX_GRAPH_SIZE = 2**24


class Muon(EagerOptimizer):
    """Muon for the groups with `sizes`, the rows of each matrix in a parameter; AdamW for others.

    The query, key and value projections of a layer are one parameter and three matrices.
    """

    def __init__(
        self,
        params: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "sizes": None,
            "fused": True,  # without it, load_state_dict leaves `step` on the CPU
        }
        super().__init__(params, defaults)
        self.graphs: dict[torch.Size, OrthogonalizeGraph] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params and group["sizes"] is None:
                self._adamw(params, group)
            elif params:
                self._muon(params, group)
        return loss

    def _adamw(self, params: list[Tensor], group: dict[str, Any]) -> None:
        states = [self._state(p, ("exp_avg", "exp_avg_sq")) for p in params]
        beta1, beta2 = group["betas"]
        adamw(
            params,
            [p.grad for p in params if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _muon(self, params: list[Tensor], group: dict[str, Any]) -> None:
        grads = [p.grad for p in params if p.grad is not None]
        states = [self._state(p, ("momentum_buffer",)) for p in params]
        buffers = [state["momentum_buffer"] for state in states]
        torch._foreach_add_([state["step"] for state in states], 1)
        torch._foreach_lerp_(buffers, grads, 1 - MOMENTUM)
        updates = list(torch._foreach_lerp(grads, buffers, MOMENTUM))  # Nesterov
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        matrices = [part for update in updates for part in torch.split(update, group["sizes"])]
        targets = [part for p in params for part in torch.split(p, group["sizes"])]
        for same in by_shape(matrices):
            rows, columns = matrices[same[0]].shape
            orthogonal = self._orthogonalize(torch.stack([matrices[index] for index in same]))
            scale = math.sqrt(max(1.0, rows / columns))
            torch._foreach_add_(
                [targets[index] for index in same],
                list(orthogonal.to(targets[same[0]].dtype).unbind()),
                alpha=-group["lr"] * scale,
            )

    def _orthogonalize(self, matrices: Tensor) -> Tensor:
        if not matrices.is_cuda or matrices.numel() > MAX_GRAPH_SIZE:
            return orthogonalize(matrices)
        if matrices.shape not in self.graphs:
            self.graphs[matrices.shape] = OrthogonalizeGraph(matrices)
        return self.graphs[matrices.shape](matrices)

    def _state(self, parameter: Tensor, moments: Sequence[str]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            # Where the fused AdamW reads it, without waiting for the device.
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state |= {name: torch.zeros_like(parameter) for name in moments}
        return state


def by_shape(matrices: Sequence[Tensor]) -> list[list[int]]:
    """Group matrices of one shape, by their indices."""
    groups: defaultdict[torch.Size, list[int]] = defaultdict(list)
    for index, matrix in enumerate(matrices):
        groups[matrix.shape].append(index)
    return list(groups.values())


def orthogonalize(matrices: Tensor, steps: int = NEWTON_SCHULZ_STEPS) -> Tensor:
    """Return matrices with the same singular vectors and singular values of about 1.

    Newton-Schulz iterations on (number, rows, columns): in bfloat16 on CUDA, where they are exact
    enough and twice as fast, and in float32 elsewhere.
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


class OrthogonalizeGraph:
    """`orthogonalize` as a CUDA graph: small matrices are limited by the host's 20 launches."""

    def __init__(self, matrices: Tensor) -> None:
        self.matrices = matrices.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            orthogonalize(self.matrices)  # to warm up
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        # Only the calls of this thread are checked: another one may pin memory meanwhile.
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.orthogonal = orthogonalize(self.matrices)

    def __call__(self, matrices: Tensor) -> Tensor:
        """Return the result, which is valid until the next call."""
        self.matrices.copy_(matrices)
        self.graph.replay()
        return self.orthogonal
