"""Pipeline parallel: processes compute the layers of a network one after the other.

Huang et al. 2019 (GPipe), Narayanan et al. 2019 (1F1B). The network is cut into stages; hidden
states go from stage to stage, and their gradients back, for one micro-batch after the other.
`torch.distributed.pipelining` schedules them. All stages read the same batch, so that masks and
positions need not be sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from kinfolk.batch import Batch, Loss
from kinfolk.rng import derive_seed
from kinfolk.training.distributed import connection, model_connection
from kinfolk.training.step import TrainStep


@dataclass(frozen=True, eq=False)
class MicroBatches:
    """What a stage knows of the step that it computes, or of a batch that is evaluated."""

    batches: Sequence[Batch[Any]]  # on the device
    counts: Mapping[str, int]
    seeds: Sequence[int] = ()  # of dropout; none in an evaluation
    losses: list[Loss] = field(default_factory=list)  # of the last stage

    @property
    def shape(self) -> tuple[int, ...]:
        """The rows and the length of each micro-batch, the same of all."""
        return tuple(self.batches[0].inputs.input_ids.shape)


class Stage(nn.Module):
    """A stage of the pipeline: hidden states to hidden states; the last one returns the loss."""

    current: MicroBatches  # set before a schedule runs

    def __init__(self, step: "PipelineStep") -> None:
        super().__init__()
        self.step = step

    def forward(self, received: Tensor, *, part: Tensor) -> Tensor:
        """Compute micro-batch number `part`, from the input ids or from the stage before."""
        now, processes, number = self.current, self.step.processes, int(part)
        batch = now.batches[number]
        if now.seeds:
            torch.manual_seed(now.seeds[number])
        if processes.stage:
            batch = replace(batch, inputs=replace(batch.inputs, hidden=received))
        if processes.is_last_stage:
            loss = TrainStep.forward(self.step, batch)
            now.losses.append(loss)
            return loss.mean(now.counts)
        return self.step.hidden_states(batch).float()  # what is sent has one type


class PipelineStep(TrainStep):
    """One update of a stage, which computes its layers for all micro-batches of a step."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        assert self.shard is not None
        self.model = self.shard.model
        self.module = Stage(self)
        self.schedules: dict[tuple[int, tuple[int, ...], bool], PipelineScheduleSingle] = {}

    def forward(self, batch: Batch[Any]) -> Loss:
        """Return the loss of a batch, in every stage."""
        now = MicroBatches([batch], batch.counts)
        self._run(now, training=False)
        with connection():
            loss = now.losses[0] if now.losses else Loss({})
            values: list[Any] = [{name: v.cpu() for name, v in loss.sums.items()}, loss.weights]
            last, group = self.processes.pipeline - 1, self.processes.group("pipeline")
            dist.broadcast_object_list(values, group=group, group_src=last)
        sums, weights = values
        return Loss({name: total.to(self.device) for name, total in sums.items()}, weights)

    def hidden_states(self, batch: Batch[Any]) -> Tensor:
        """Return the output of the layers of this stage."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
            output: Tensor = self.model(self._inputs(batch)).hidden
        return output

    def _compute_gradients(
        self, number: int, batches: Sequence[Batch[Any]], counts: Mapping[str, int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the schedule; the last stage returns the losses."""
        seeds = [self._dropout_seed(number, part) for part in range(len(batches))]
        # Stages draw different numbers.
        seeds = [derive_seed(s, self.processes.stage) if self.processes.stage else s for s in seeds]
        now = MicroBatches([batch.to(self.device) for batch in batches], counts, seeds)
        self._run(now, training=True)
        loss, sums = torch.zeros((), device=self.device), dict[str, Tensor]()
        for batch_loss in now.losses:
            loss += batch_loss.mean(counts).detach()
            for name, total in batch_loss.sums.items():
                sums[name] = sums.get(name, 0.0) + total.detach()
        return loss, sums

    def _run(self, now: MicroBatches, *, training: bool) -> None:
        """Compute all micro-batches, and their gradients in training."""
        key = len(now.batches), now.shape, training
        if key not in self.schedules:
            self.schedules[key] = self._schedule(*key)
        self.module.current = now
        parts = torch.arange(len(now.batches))
        received = (parts,) if self.processes.stage == 0 else ()
        target = parts if self.processes.is_last_stage and training else None
        with model_connection():
            self.schedules[key].step(*received, target=target, return_outputs=False, part=parts)

    def _schedule(
        self, count: int, shape: tuple[int, ...], training: bool
    ) -> PipelineScheduleSingle:
        """Return the schedule of so many micro-batches of one shape."""
        at, stages, width = self.processes.stage, self.processes.pipeline, self.model.feature_size
        hidden = torch.empty(*shape, width, device="meta", requires_grad=training)
        loss = torch.empty((), device="meta", requires_grad=training)
        stage = PipelineStage(
            self.module,
            at,
            stages,
            self.device,
            input_args=hidden if at else torch.empty(1, dtype=torch.long, device="meta"),
            output_args=loss if self.processes.is_last_stage else hidden,
            group=self.processes.group("pipeline"),
        )
        # 1F1B keeps the activations of as many micro-batches as there are stages, not of all.
        kind = Schedule1F1B if count >= stages else ScheduleGPipe
        loss_fn = (lambda mean, _: mean) if training else None  # the last stage returns the mean
        return kind(stage, count, loss_fn, scale_grads=False)
