"""One training run in one folder, for pretraining and fine-tuning alike.

RUN/recipe.json       what is trained, on which data, with which settings
RUN/log.jsonl         losses and metrics by step; beside it speed.jsonl and tensorboard/
RUN/alarms.jsonl      what is wrong with the run, if anything is
RUN/bad_batches/      batches whose loss or gradient was not finite
RUN/checkpoints/      step-00000500/ ..., and the links last and best
RUN/report.html       the curves, also of a run that was interrupted
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch.utils.data import Dataset

from kinfolk.batch import Batch, ComputesLoss, Loss, SegmentMemory
from kinfolk.errors import Terminated, UserError
from kinfolk.files import new_folder
from kinfolk.nn.language_model import LanguageModel, has_static_shapes, reads_texts
from kinfolk.training import checkpoint, log
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import LostProcessError, Processes
from kinfolk.training.loader import LostWorkerError, WithTexts, data_loader
from kinfolk.training.log import Log, MetricsLog, NoLog
from kinfolk.training.loop import Callback, Evaluation, TrainLoop, raise_on_signals, record_signals
from kinfolk.training.optimizer import build_optimizer, lr_schedule
from kinfolk.training.recovery import (
    ALARM,
    MAX_IN_A_ROW,
    DroppedBatches,
    InitialState,
    NonFiniteError,
    all_finite,
    are_dropped,
    batch_number,
    recorded_batches,
    save_batch,
)
from kinfolk.training.regularize import FGM, GradualUnfreezing
from kinfolk.training.step import Learner, Step, TrainStep
from kinfolk.training.watch import Alarm, LossBaseline, Watch

CUDA_LOG_EVERY = 10  # steps between reads of the device, each of which waits for it

LossFn = Callable[[Batch[Any]], Loss]


class Workload(ABC):
    """The model, the data, and how a run evaluates and saves them."""

    command: ClassVar[str]  # that resumes the run: pretrain or finetune
    results: ClassVar[tuple[str, ...]] = ("report.html",)  # files that a finished run has

    train: TrainConfig
    model: LanguageModel  # on the device that it is trained on
    objective: ComputesLoss  # a pretraining objective, or a formulation of a task
    batches: Dataset[Batch[Any]]  # batch n is a function of the seed and n
    has_eval_data: bool
    fingerprints: Sequence[tuple[str, str]]  # path and hash of each data file or corpus

    processes = Processes()  # that train the model together

    memory: list[SegmentMemory] | None = None  # of each micro-batch, where rows continue
    layer_lr_decay: float = 1.0
    unfreezing: GradualUnfreezing | None = None
    attack: FGM | None = None
    early_stopping_patience: int = 0  # evaluations without improvement; 0 never stops
    save_best: bool = False  # save at every evaluation that is the best so far
    row_length: int | None = None  # of every batch; None where batches differ in shape
    selects_by_loss: bool = True  # the best checkpoint is that of the lowest held-out loss
    dropped: Collection[int] = ()  # numbers of batches that are left out

    @classmethod
    @abstractmethod
    def reopen(
        cls, recipe: Any, folder: Path, newest: Path | None, callbacks: Sequence[Callback]
    ) -> Self:
        """Build the workload of a run folder; the weights follow from its newest checkpoint."""

    @abstractmethod
    def write_recipe(self, folder: Path) -> None:
        """Write recipe.json and the other files that a resume reads."""

    @abstractmethod
    def evaluate(self, loss: LossFn) -> Mapping[str, Any]:
        """Return the metrics on held-out data, "eval_loss" among them."""

    @abstractmethod
    def save_model(self, folder: Path) -> None:
        """Write the model, its tokenizer and the recipe."""

    @abstractmethod
    def load_weights(self, folder: Path) -> None:
        """Load the weights that `save_model` wrote."""

    @abstractmethod
    def write_report(self, folder: Path, *, finished: bool) -> None:
        """Write report.html and, for a finished run, the other files in `results`."""

    def make_step(self, folder: Path, device: torch.device, *, bfloat16: bool) -> Step:
        """Return what the run in this folder repeats: an optimizer step."""
        return optimizer_step(self, device, bfloat16=bfloat16)

    def micro_batches(self, start: int, *, pinned: bool) -> Iterator[Sequence[Batch[Any]]]:
        """Yield the micro-batches of each step from `start` on."""
        batches = WithTexts(self.batches) if reads_texts(self.model) else self.batches
        return data_loader(batches, self.train, start, pinned, self.processes, dropped=self.dropped)

    def batch_parts(self, number: int) -> list[Batch[Any]]:
        """Return the micro-batches of a batch of the data, the shares of all processes."""
        count = self.train.gradient_accumulation * self.processes.count
        return [self.batches[number * count + part] for part in range(count)]

    def decode(self, ids: Sequence[int]) -> str | None:
        """Return the text of tokens, None without a tokenizer."""
        return None

    def loss_baselines(self) -> Sequence[LossBaseline]:
        """Return the losses that the run should fall below, from the highest to the lowest."""
        return ()

    def duplicates(self) -> Mapping[str, float]:
        """Return the fraction of each corpus in documents that equal an earlier one."""
        return {}

    def main_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that select the best checkpoint, besides the loss."""
        return {}

    def score(self, metrics: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the score that selects the best checkpoint; larger is better."""
        return (-metrics["eval_loss"],)


class Run:
    """A workload in training: optimizer, step, checkpoints and log of one folder."""

    def __init__(self, work: Workload, folder: Path, callbacks: Sequence[Callback] = ()) -> None:
        self.work, self.folder, self.processes = work, folder, work.processes
        self.callbacks = callbacks if self.processes.is_first else ()
        if self.processes != Processes.from_environment():
            raise UserError(
                f"this kind of training runs in one process: start kinfolk {work.command} without "
                "torchrun"
            )
        train = work.train
        self.device = select_device(train.device)
        self.bfloat16 = uses_bfloat16(train, self.device)
        self.train_step = work.make_step(folder, self.device, bfloat16=self.bfloat16)
        self.global_step = self.saved_step = 0
        self.dropped: DroppedBatches = {}
        self.initial: InitialState | None = None  # until there is a checkpoint to roll back to
        self.best: tuple[float, ...] | None = None  # score of the best checkpoint
        self.evals_since_best = 0
        self.finished = False

    @classmethod
    def start(cls, work: Workload, folder: Path, callbacks: Sequence[Callback] = ()) -> Self:
        """Start a run; wrong settings are refused before the folder exists."""
        run = cls(work, folder, callbacks)
        run.processes.wait()  # others may still be checking that there is no such folder
        if not run.processes.is_first:
            return run
        try:
            with new_folder(folder) as partial:
                work.write_recipe(partial)
        except (BlockingIOError, FileExistsError) as error:
            raise UserError(
                f"{folder} exists by now: another run was started in it; choose another folder"
            ) from error
        return run

    @classmethod
    def resume(
        cls, kind: type[Workload], recipe: Any, folder: Path, callbacks: Sequence[Callback] = ()
    ) -> Self:
        """Continue from the newest valid checkpoint, or from the start where there is none."""
        newest = checkpoint.latest_valid(folder)
        state = {} if newest is None else checkpoint.load_training_state(newest)
        if state.get("finished") and all((folder / name).is_file() for name in kind.results):
            raise UserError(
                f"run {folder} is complete ({state['step']} steps): start a new run with more "
                "--steps or --epochs to train longer"
            )
        run = cls(kind.reopen(recipe, folder, newest, callbacks), folder, callbacks)
        if newest is not None:
            run.restore(newest, state)
            if run.processes.is_first:
                keep, best = run.work.train.keep_checkpoints, bool(state.get("is_best"))
                checkpoint.finish_save(newest, keep=keep, best=best)
        run.dropped |= recorded_batches(folder)
        return run

    def restore(self, folder: Path, state: Mapping[str, Any] | None = None) -> None:
        """Load the weights and the training state of a checkpoint; the data must be the same."""
        state = checkpoint.load_training_state(folder) if state is None else state
        self.work.load_weights(folder)
        fault = self._state_fault(state, checkpoint.checkpoint_step(folder))
        if fault is None and not self.train_step.load_state_dict(state.get("optimizer")):
            fault = "optimizer"
        if fault is not None:
            raise checkpoint.wrong_state(folder, f"wrong {fault}")
        check_fingerprints(self.work.fingerprints, state["fingerprints"])
        self.global_step, self.finished = state["step"], state["finished"]
        self.saved_step, self.dropped = self.global_step, state.get("dropped", {}) | self.dropped
        self.best = None if state["best"] is None else tuple(state["best"])
        self.evals_since_best = state["evals_since_best"]
        if self.work.memory is not None:
            self.work.memory[:] = [
                self.processes.memory_share(parts).to(self.device) for parts in state["memory"]
            ]

    def _state_fault(self, state: Mapping[str, Any], step: int) -> str | None:
        """Return a part of a state that is not as `save` writes it, None if all are."""
        memory = [] if self.work.memory is None else self.work.memory
        saved, evals = state.get("memory", []), state.get("evals_since_best")
        right = {
            "step": state.get("step") == step,
            "best": state.get("best") is None or all_of(state["best"], int, float),
            "evals_since_best": all_of([evals], int) and evals in range(step + 1),
            "fingerprints": all_of(state.get("fingerprints"), str),
            "finished": all_of([state.get("finished")], bool),
            "dropped": are_dropped(state.get("dropped", {})),
            "memory": all_of(saved, dict)
            and len(saved) == len(memory)
            and all(map(self.fits_memory, saved, memory)),
        }
        return next((name for name, good in right.items() if not good), None)

    def fits_memory(self, saved: Mapping[str, Any], memory: SegmentMemory) -> bool:
        """Return whether a memory from a file has all rows of one, in the shapes of its parts."""
        own = vars(memory)
        return (
            saved.keys() == own.keys()
            and all(isinstance(part, torch.Tensor) for part in saved.values())
            and all(
                saved[name].shape == self.processes.memory_shape(name, own[name]) for name in own
            )
        )

    def fit(self) -> Path:
        """Train to the end, or to early stopping, and write the report; return the folder.

        SIGINT, SIGTERM and SIGHUP save a checkpoint and raise KeyboardInterrupt or Terminated. The
        end of another process saves one, too, where it can, and raises LostProcessError.
        """
        # Several processes stop before the same step, and no further signal disturbs the saving.
        signals = record_signals if self.processes.several else raise_on_signals
        with signals() as self.received:
            try:
                if not self.finished:
                    self._train()
            except (KeyboardInterrupt, Terminated):
                self._end(interrupted=True)
                self._write_report(finished=False)
                raise
            except (LostProcessError, LostWorkerError) as error:
                self._end(interrupted=True)
                self._write_report(finished=False)
                lost, advice = "another process of this run", ""
                if isinstance(error, LostWorkerError):
                    lost = "a data loader process"
                    advice = ", with a lower train.workers in recipe.json if memory is short"
                raise type(error)(
                    f"{lost} ended after step {self.global_step}; resume with: "
                    f"{self.resume_command()}{advice}"
                ) from error
            self._write_report(finished=True)
            self.processes.wait()  # for the report, which a caller may read
        self._end(interrupted=False)
        return self.folder

    def _write_report(self, *, finished: bool) -> None:
        if self.processes.is_first:
            self.work.write_report(self.folder, finished=finished)

    def _train(self) -> None:
        work = self.work
        self.processes.broadcast_weights(work.model)
        if work.train.on_nan == "rollback" and not self.global_step:
            self.initial = InitialState.of(work.model, work.memory)
        while True:
            try:
                return self._train_to_end()
            except NonFiniteError as error:
                with record_signals() as received:
                    self._drop_batch(error)
                self.received += received

    def _train_to_end(self) -> None:
        train, cuda = self.work.train, self.device.type == "cuda"
        self.work.dropped = self.dropped
        self.work.model.train()
        with self._open_log() as self.log:
            loop = TrainLoop(
                train=train,
                step=self.train_step,
                log=self.log,
                log_every=log_interval(self.device),
                evaluate=self.evaluate if self.work.has_eval_data else None,
                save=self.save,
                save_best=self.work.save_best,
                should_stop=self.should_stop,
                callbacks=self.callbacks,
                remedy=self.remedy,
                watch=self._watch(),
                processes=self.processes,
                received=self.received,
            )
            try:
                batches = self.work.micro_batches(self.global_step, pinned=cuda)
                loop.run(self.global_step, batches, self.saved_step)
            finally:
                self.global_step = loop.global_step

    def _drop_batch(self, error: NonFiniteError) -> None:
        """Leave out the batch of a step that is not finite, or end the run; save the batch."""
        work, train = self.work, self.work.train
        number = batch_number(error.step - 1, self.dropped)
        place = self.processes.from_first(lambda: self._save_batch(number, error))
        if train.on_nan == "stop" or not place:
            sentence = f". The batch {place}; with train.on_nan=skip the run leaves it out"
            raise UserError(f"{error}{sentence if place else ''}") from error
        newest, start = None, error.step - 1
        if train.on_nan == "rollback":
            newest = self.processes.from_first(lambda: checkpoint.latest_valid(self.folder))
            start = 0 if newest is None else checkpoint.checkpoint_step(newest)
            if newest is None and self.initial is None:
                raise error
        count = sum(step == start for step in self.dropped.values())
        if count >= MAX_IN_A_ROW:
            raise UserError(
                f"{error.what} at step {error.step}, after {count} batches that were left out "
                f"since step {start}: the cause is not in one batch. {self.remedy()}"
            ) from error
        action = "its update was dropped"
        if train.on_nan == "rollback":
            action = f"the run went back to step {start}"
        message = (
            f"{error.what} at step {error.step}: {action}, and batch {number:,} of the data is "
            f"left out (train.on_nan={train.on_nan}); it {place}"
        )
        # Written before anything else: a run that is killed from now on leaves the batch out, too.
        self.log.write_alarm(error.step, ALARM, message, batch=number, from_step=start)
        self._on_message(f"alarm: {message}")
        self.dropped[number] = start
        if newest is not None:
            self.restore(newest)
        elif self.initial is not None and isinstance(self.train_step, TrainStep):
            self.initial.restore(work.model, work.memory)
            self.train_step.reset()
            self.global_step, self.best, self.evals_since_best = 0, None, 0

    def _save_batch(self, number: int, error: NonFiniteError) -> str:
        """Save a batch; return where it is, nothing of a run without batches."""
        if not isinstance(self.train_step, TrainStep):
            return ""
        facts = {"step": str(error.step), "fault": error.what}
        parts = self.work.batch_parts(number)
        return save_batch(self.folder, number, parts, facts, self.work.decode)

    def _watch(self) -> Watch | None:
        """Return the watch of the run, which continues after the steps in its log."""
        if not self.processes.is_first:
            return None
        watch = Watch(
            self.work.train,
            baselines=self.work.loss_baselines(),
            has_eval_data=self.work.has_eval_data,
            selects_by_loss=self.work.selects_by_loss,
            on_alarm=self._on_alarm,
            on_message=self._on_message,
        )
        raised = {entry["alarm"] for entry in log.alarms(self.folder)}
        watch.restore(log.read(self.folder), raised)
        if not self.global_step and "duplicates" not in raised:
            watch.start(self.work.duplicates())
        return watch

    def _on_alarm(self, alarm: Alarm) -> None:
        self.log.write_alarm(alarm.step, alarm.cause, alarm.message)
        self._on_message(f"alarm: {alarm.message}")

    def _on_message(self, message: str) -> None:
        for callback in self.callbacks:
            callback.on_message(message)

    def _open_log(self) -> AbstractContextManager[Log]:
        if not self.processes.is_first:
            return nullcontext(NoLog())
        for name in self.work.results:  # those of an interrupted run
            (self.folder / name).unlink(missing_ok=True)
        return MetricsLog.open(self.folder, self.global_step)

    def _end(self, *, interrupted: bool) -> None:
        for callback in self.callbacks:
            callback.on_end(self.global_step, interrupted=interrupted)

    def loss(self, batch: Batch[Any]) -> Loss:
        """Return the loss of a batch, computed as in training, without a gradient or an update."""
        return self.train_step.forward(batch.to(self.device))

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the metrics on held-out data, in the precision of training."""
        metrics = self.processes.from_first(self._metrics)
        score = self.work.score(metrics)
        # Nothing is greater than NaN: as the best it would never be replaced.
        comparable = not any(map(math.isnan, score))
        is_best = comparable and (self.best is None or score > self.best)
        self.evals_since_best = 0 if is_best else self.evals_since_best + 1
        return Evaluation(metrics, score, is_best, self.work.main_metrics(metrics))

    def _metrics(self) -> Mapping[str, Any]:
        self.work.model.eval()
        # Without a cache of casted weights, which a CUDA graph of generation might outlive.
        with torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.bfloat16, cache_enabled=False
        ):
            metrics = self.work.evaluate(self.loss)
        self.work.model.train()
        return metrics

    def should_stop(self) -> bool:
        """Return whether the patience is exhausted: too many evaluations without improvement."""
        return 0 < self.work.early_stopping_patience <= self.evals_since_best

    def save(self, step: int, evaluation: Evaluation | None) -> None:
        """Write a checkpoint: a model folder, and the state that a resume needs.

        A model that has diverged is refused, so that the checkpoint before stays the newest.
        """
        weights = [p.detach() for p in self.work.model.parameters() if p.requires_grad]
        if not all_finite(weights):
            raise UserError(f"weights are not finite after step {step}. {self.remedy()}")
        last = evaluation if step == self.work.train.steps else None  # before, it may recover
        if last is not None and math.isnan(last.metrics["eval_loss"]):
            raise UserError(f"eval_loss is NaN at step {step}. {self.remedy()}")
        if evaluation is not None and evaluation.is_best:
            self.best = evaluation.score
        # Without a comparable score, the newest checkpoint is the best.
        is_best = self.best is None or (evaluation is not None and evaluation.is_best)
        train = self.work.train
        state = {
            "step": step,
            "optimizer": self.train_step.state_dict(),
            "best": None if self.best is None else list(self.best),
            "is_best": is_best,
            "evals_since_best": self.evals_since_best,
            "fingerprints": [fingerprint for _, fingerprint in self.work.fingerprints],
            "finished": step == train.steps or self.should_stop(),
            # Those before the batch of this step: others were found by a later step, before a kill.
            "dropped": {
                number: self.dropped[number]
                for number in sorted(self.dropped)
                if number < batch_number(step - 1, self.dropped)
            },
        }
        if self.work.memory is not None:
            state["memory"] = self.processes.gather_memory(self.work.memory)
        self.saved_step, self.initial = step, None
        if not self.processes.is_first:
            return

        def write(folder: Path) -> None:
            self.work.save_model(folder)
            checkpoint.save_training_state(folder, state)

        self.log.sync()
        saved = checkpoint.save(self.folder, step, write, keep=train.keep_checkpoints, best=is_best)
        for callback in self.callbacks:
            callback.on_save(saved)

    def remedy(self) -> str:
        """Return how to resume a run whose loss, gradient or weights are not finite."""
        train, newest = self.work.train, checkpoint.latest_valid(self.folder)
        step = 0 if newest is None else checkpoint.checkpoint_step(newest)
        return (
            f"Lower train.lr (now {train.lr:g}) or raise train.warmup (now {train.warmup}) in "
            f"{self.folder / 'recipe.json'}, then resume from step {step}: "
            f"{self.resume_command()}"
        )

    def resume_command(self) -> str:
        """Return the command that resumes the run, with as many processes."""
        return self.processes.command(f"{self.work.command} --resume {self.folder}")


def all_of(values: Any, *kinds: type) -> bool:
    """Return whether a value is a list of values of these types."""
    return isinstance(values, list) and all(type(value) in kinds for value in values)


def optimizer_step(work: Workload, device: torch.device, *, bfloat16: bool) -> TrainStep:
    """Return the optimizer step of a workload, compiled where its settings say so."""
    train, model, cuda = work.train, work.model, device.type == "cuda"
    schedule = lr_schedule(train)
    learner = Learner(model, work.objective)
    row_length = static_row_length(work)
    compiled = train.compiles(cuda=cuda, row_length=row_length)
    if compiled:
        learner.compile(dynamic=row_length is None)
    parameters = sum(p.numel() for p in model.parameters())
    return TrainStep(
        learner,
        build_optimizer(model, train, layer_lr_decay=work.layer_lr_decay),
        lambda number: train.lr * schedule(number),
        clip=train.grad_clip,
        seed=train.seed,
        device=device,
        bfloat16=bfloat16,
        block_masks=compiled and cuda and row_length is not None,
        cuda_graph=cuda and train.replays(parameters, row_length),
        memory=work.memory,
        unfreezing=work.unfreezing,
        attack=work.attack,
        # Reading loss and gradient norm waits for an accelerator; a step that saves waits
        # anyway. Values that are not finite in between are found when the log is written.
        checks=lambda number: not cuda or train.on_nan == "skip" or train.saves(number + 1),
        processes=work.processes,
    )


def static_row_length(work: Workload) -> int | None:
    """Return the length of all rows; None where shapes inside the network differ by batch."""
    if has_static_shapes(work.model):
        return work.row_length
    if work.train.cuda_graph == "yes" and not work.model.static_whole_rows:
        raise UserError(
            f"train.cuda_graph=yes: the shapes inside {work.model.family_name} depend on the texts "
            "of a batch, so its step cannot be replayed; leave it at auto"
        )
    return None


def check_fingerprints(current: Sequence[tuple[str, str]], saved: Sequence[str]) -> None:
    """Refuse data that changed since the checkpoint was saved."""
    if [fingerprint for _, fingerprint in current] == list(saved):
        return
    # A recipe edited by hand may name more data than before, or less.
    pairs = zip(current, saved, strict=False)
    changed = [path for (path, now), before in pairs if now != before] or [current[-1][0]]
    raise UserError(
        f"{changed[0]} changed since the run started: restore its content, or start a new run"
    )


def log_interval(device: torch.device) -> int:
    """Return the number of steps between two reads of the device for the log."""
    return CUDA_LOG_EVERY if device.type == "cuda" else 1


def uses_bfloat16(train: TrainConfig, device: torch.device) -> bool:
    """Return whether the forward pass of a run is in bfloat16."""
    return train.precision == "bfloat16" or (train.precision == "auto" and device.type == "cuda")


def select_device(device: torch.device | str) -> torch.device:
    """Return the device to run on; `auto` is CUDA if available."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        selected = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}: use auto, cpu or cuda") from None
    if selected.type not in ("cpu", "cuda"):
        raise UserError(f"device {device!r} is not supported: use auto, cpu or cuda")
    if selected.type == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device on this machine: use --device cpu")
    return selected
