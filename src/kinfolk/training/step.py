"""One optimizer step: forward, backward, update."""

from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from kinfolk.attention_mask import SparseKernel
from kinfolk.batch import Batch, ComputesLoss, Inputs, Loss, SegmentMemory
from kinfolk.nn.language_model import attention_windows
from kinfolk.packed_texts import PackedTexts, WholeRows
from kinfolk.rng import derive_seed
from kinfolk.training.capture import GraphedForwardBackward
from kinfolk.training.compilation import CompiledModules, failure_message
from kinfolk.training.distributed import Processes, model_connection
from kinfolk.training.master_weights import MasterWeights
from kinfolk.training.optimizer import load_optimizer_state
from kinfolk.training.regularize import FGM, GradualUnfreezing

if TYPE_CHECKING:  # each takes about a second
    from kinfolk.training.model_shard import ModelShard
    from kinfolk.training.sharding import Shards


class Learner(nn.Module):
    """A model and its objective as one module, which is compiled."""

    def __init__(self, model: nn.Module, objective: ComputesLoss) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, inputs: Inputs, targets: Any) -> Loss:
        # Counts differ between batches and would be compiled as constants, so they are not passed.
        return self.objective.loss(self.model, Batch(inputs, targets, {}))


@dataclass(frozen=True)
class StepOutput:
    """The results of a step, as tensors: only reading them waits for the device."""

    loss: Tensor
    grad_norm: Tensor | None  # of the gradient, before clipping; None without a gradient
    losses: Mapping[str, Tensor]
    counts: Mapping[str, int]
    lr: float | None
    tokens: Tensor | int = 0  # input tokens of all micro-batches
    updated: bool = True  # False if loss or norm were not finite and the update was skipped
    compile_seconds: float = 0.0  # of the step, in which the compiler ran

    def to_numbers(self) -> dict[str, Any]:
        """Read the numbers, waiting for the device."""
        values: dict[str, Any] = {"loss": self.loss.item()}
        if self.grad_norm is not None:
            values |= {"lr": self.lr, "grad_norm": self.grad_norm.item()}
        if len(self.losses) > 1:
            values["losses"] = {name: part.item() for name, part in self.losses.items()}
        return values | {"counts": dict(self.counts)}


class Step(Protocol):
    """What a run repeats: an optimizer step, or another way to fit its model to the data."""

    def __call__(self, number: int, batches: Sequence[Batch[Any]], /) -> StepOutput:
        """Do a step; `number` counts from 0."""
        ...

    def forward(self, batch: Batch[Any], /) -> Loss:
        """Return the loss of a micro-batch."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps beside the model."""
        ...

    def load_state_dict(self, state: Any, /) -> bool:
        """Restore what `state_dict` returned; return False where a file holds something else."""
        ...


class TrainStep:
    """One update; splitting its batch into micro-batches changes only the rounding."""

    def __init__(
        self,
        learner: nn.Module,
        optimizer: torch.optim.Optimizer,
        lr: Callable[[int], float],
        *,
        clip: float,
        seed: int,
        device: torch.device,
        bfloat16: bool,
        # Whose block masks are computed outside of the learner, which may be compiled.
        sparse_kernel: SparseKernel | None = None,
        cuda_graph: bool = False,  # replay forward and backward as a CUDA graph
        graph_lengths: Collection[int] | None = None,  # of rows that are replayed; None: all
        graph_batches: Container[Batch[Any]] | None = None,  # that are replayed; None: all
        memory: list[SegmentMemory] | None = None,  # of each micro-batch, carried from step to step
        unfreezing: GradualUnfreezing | None = None,
        attack: FGM | None = None,
        # Whether loss and norm are checked before an update, by the number of the step.
        checks: Callable[[int], bool] | None = None,
        processes: Processes = Processes(),  # that the rows of every micro-batch are shared by
        shards: "Shards | None" = None,  # of the learner, where each process holds a share of it
        shard: "ModelShard | None" = None,  # of the model, if other processes hold the rest of it
        compiled: CompiledModules | None = None,  # modules of the learner
        master_weights: MasterWeights | None = None,  # of the learner, which is bfloat16 then
    ) -> None:
        self.learner, self.optimizer, self.lr = learner, optimizer, lr
        self.shards = shards
        self.clip, self.seed, self.device = clip, seed, device
        self.bfloat16, self.sparse_kernel, self.memory = bfloat16, sparse_kernel, memory
        self.unfreezing, self.attack, self.processes = unfreezing, attack, processes
        self.shard, self.compiled, self.master_weights = shard, compiled, master_weights
        self.on_message: Callable[[str], None] = lambda message: None
        # Reading costs nothing on a CPU; elsewhere it waits for the device.
        self.checks = checks or (lambda number: device.type == "cpu")
        self.windows = attention_windows(learner)
        self.parameters = [p for p in learner.parameters() if p.requires_grad]
        # What the optimizer changes: these parameters, or their master weights.
        self.updated = list[Tensor](self.parameters)
        if master_weights is not None:
            self.updated = master_weights.masters_of(self.parameters)
        self.graphed = None
        if cuda_graph:
            self.graphed = GraphedForwardBackward(
                self.forward, self.parameters, graph_lengths, graph_batches
            )

    def __call__(self, number: int, batches: Sequence[Batch[Any]]) -> StepOutput:
        """Update the weights by the micro-batches of one step; `number` counts from 0."""
        if self.unfreezing is not None:
            self.unfreezing(number)
        lr = self.lr(number)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("scale", 1.0)  # layer-wise decay, see optimizer.py
        counts: Counter[str] = Counter()
        for batch in batches:
            counts.update(batch.counts)
        tokens: Tensor | int = sum(input_tokens(batch.inputs) for batch in batches)
        if self.processes.several:
            counts, tokens = self.processes.sum_counts(counts, int(tokens))
        memory = None if self.memory is None else [*self.memory]
        compiling = self.compile_seconds
        loss, sums = self._compute_or_retry(number, batches, counts)
        if self.processes.several:
            if self.shards is None:  # which sums them in the backward pass
                self.processes.sum_gradients(self.updated)
            if self.shard is not None:
                self.shard.sum_tied_gradients()
            loss, sums = self.processes.sum_losses(loss, sums, sorted(counts))
        norm = self._clip_gradients(self.clip or float("inf"))
        updated = True
        if self.checks(number):
            updated = self.processes.all_true(bool((loss + norm).isfinite()))
        if updated:
            self.optimizer.step()
            if self.master_weights is not None:
                self.master_weights.round()
        elif self.memory is not None and memory is not None:
            self.memory[:] = memory  # the states of such a batch are not finite either
        self.optimizer.zero_grad(set_to_none=True)
        parts = {name: total / max(counts[name], 1) for name, total in sums.items()}
        compiling = self.compile_seconds - compiling
        return StepOutput(loss, norm, parts, counts, lr, tokens, updated, compiling)

    @property
    def compile_seconds(self) -> float:
        """The seconds in which something was compiled."""
        return 0.0 if self.compiled is None else self.compiled.seconds

    def _compute_or_retry(
        self, number: int, batches: Sequence[Batch[Any]], counts: Mapping[str, int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the gradients; where the compiler fails, again from the start without it."""
        if self.compiled is None:
            return self._compute_gradients(number, batches, counts)
        memory = None if self.memory is None else [*self.memory]
        try:
            with self.compiled.timed():
                return self._compute_gradients(number, batches, counts)
        except RuntimeError as error:
            # Processes that hold parts of one model would wait for each other.
            if self.shard is not None or not self.compiled.failed(error):
                raise
            self._run_uncompiled(self.compiled, error)
        for parameter in (*self.parameters, *self.updated):
            parameter.grad = None
        if self.memory is not None and memory is not None:
            self.memory[:] = memory
        return self._compute_gradients(number, batches, counts)

    def _run_uncompiled(self, compiled: CompiledModules, error: BaseException) -> None:
        """Run without the compiler, which failed, from now on."""
        compiled.undo()
        if self.sparse_kernel == "flex":  # which is compiled
            self.sparse_kernel = None
        self.on_message(failure_message(error))

    def _compute_gradients(
        self, number: int, batches: Sequence[Batch[Any]], counts: Mapping[str, int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Add up the gradients of the micro-batches; return their part of the mean and the sums."""
        sums: dict[str, Tensor] = {}
        loss: Tensor | None = None
        for part, batch in enumerate(batches):
            alone = len(batches) == 1
            forward_backward = partial(self._forward_backward, number, part, batch, counts, alone)
            result = forward_backward() if self.attack is None else self.attack(forward_backward)
            batch_loss, mean = result
            if self.master_weights is not None:
                self.master_weights.take_gradients()
            if self.memory is not None:
                assert batch_loss.memory is not None, "the objective returns no memory"
                self.memory[part] = batch_loss.memory
            loss = mean if loss is None else loss + mean
            for name, total in batch_loss.sums.items():
                sums[name] = sums[name] + total.detach() if name in sums else total.detach()
        assert loss is not None, "a step has no micro-batch"
        return loss, sums

    def _forward_backward(
        self, number: int, part: int, batch: Batch[Any], counts: Mapping[str, int], alone: bool
    ) -> tuple[Loss, Tensor]:
        """Run forward and backward on one micro-batch; return its loss and its part of the mean.

        Dropout, too, is a function of the seed and the step; each copy of the model draws its own.
        """
        torch.manual_seed(self._dropout_seed(number, part))
        if self.memory is not None:
            batch = batch.with_memory(self.memory[part])
        if self.graphed is not None and self.graphed.accepts(batch):
            loss = self.graphed(batch, counts, alone=alone)
            return loss, loss.mean(counts)
        with model_connection() if self.shards or self.shard else nullcontext():
            loss = self.forward(batch.to(self.device))
            mean = loss.mean(counts)
            torch.autograd.backward(mean)
        return loss, mean.detach()

    def _dropout_seed(self, number: int, part: int) -> int:
        share = part * self.processes.data_count + self.processes.data_rank
        return derive_seed(self.seed, number, share)

    def _clip_gradients(self, clip: float) -> Tensor:
        """Clip the gradients; return their norm before."""
        if self.shards is not None:
            return self.shards.clip_gradients(self.parameters, clip)
        if self.shard is not None:
            return self.shard.clip_gradients(clip)
        return torch.nn.utils.clip_grad_norm_(self.updated, clip)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer; where several processes hold it, to process 0."""
        if self.shards is not None:
            return self.shards.optimizer_state(self.optimizer)
        if self.shard is not None:
            return self.shard.gather_moments(self.optimizer)
        return self.optimizer.state_dict()

    def load_state_dict(self, state: Any) -> bool:
        """Restore the state of the optimizer; return False where it is not one of it."""
        if self.shard is not None:
            state = self.shard.own_moments(self.optimizer, state)
        return load_optimizer_state(self.optimizer, state)

    def reset(self) -> None:
        """Forget the moments of the optimizer."""
        self.optimizer.state.clear()

    def forward(self, batch: Batch[Any]) -> Loss:
        """Return the loss of a micro-batch."""
        if self.compiled is None:
            return self._forward(batch)
        try:
            with self.compiled.timed():
                return self._forward(batch)
        except RuntimeError as error:
            if self.shard is not None or not self.compiled.failed(error):
                raise
            self._run_uncompiled(self.compiled, error)
        return self._forward(batch)

    def _forward(self, batch: Batch[Any]) -> Loss:
        # A cache would hold all weights in bfloat16, of which each process has a share.
        with torch.autocast(
            self.device.type, torch.bfloat16, self.bfloat16, cache_enabled=self.shards is None
        ):
            loss: Loss = self.learner(self._inputs(batch), batch.targets)
        return loss

    def _inputs(self, batch: Batch[Any]) -> Inputs:
        if self.sparse_kernel is None:
            return batch.inputs
        return batch.inputs.with_block_masks(self.windows, self.sparse_kernel)


def input_tokens(inputs: Inputs) -> Tensor | int:
    """Count the input tokens, those of the encoder too, without padding."""
    texts = inputs.attention_mask.texts
    if isinstance(texts, WholeRows):
        return inputs.input_ids.numel()
    if isinstance(texts, PackedTexts):
        return texts.num_tokens
    tokens = (inputs.attention_mask.document_ids >= 0).sum()
    if inputs.encoder_inputs is None:
        return tokens
    return tokens + input_tokens(inputs.encoder_inputs)
