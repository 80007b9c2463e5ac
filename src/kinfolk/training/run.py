"""One training run in one folder, for pretraining and fine-tuning alike.

RUN/recipe.json       what is trained, on which data, with which settings
RUN/log.jsonl         losses and metrics by step; beside it speed.jsonl and tensorboard/
RUN/steps.jsonl       how many steps it is to have, of a run with a budget of seconds
RUN/alarms.jsonl      what is wrong with the run, if anything is
RUN/bad_batches/      batches whose loss or gradient was not finite
RUN/samples.jsonl     what the model made of the same text at checkpoints
RUN/command.json      the command that started it, and versions
RUN/loggers/          the ids of the run in other loggers, if there are any
RUN/checkpoints/      step-00000500/ ..., and the links last and best
RUN/report.html       the curves, also of a run that was interrupted
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any, Self

import torch

from kinfolk.batch import Batch, Loss, SegmentMemory
from kinfolk.errors import Terminated, UserError
from kinfolk.files import new_folder
from kinfolk.training import checkpoint, log
from kinfolk.training.config import TrainConfig
from kinfolk.training.distributed import LostProcessError, Processes, local
from kinfolk.training.loader import LostWorkerError
from kinfolk.training.log import Log, MetricsLog, NoLog
from kinfolk.training.loggers import Loggers, check_installed
from kinfolk.training.loop import Callback, Evaluation, TrainLoop, raise_on_signals, record_signals
from kinfolk.training.memory import memory_values
from kinfolk.training.provenance import Provenance
from kinfolk.training.recovery import (
    ALARM,
    MAX_IN_A_ROW,
    DivergedError,
    DroppedBatches,
    InitialState,
    NonFiniteError,
    all_finite,
    are_dropped,
    batch_number,
    recorded_batches,
    save_batch,
)
from kinfolk.training.step import TrainStep
from kinfolk.training.time_budget import DECISIONS, TimeBudget, write_decisions
from kinfolk.training.watch import Alarm, Watch
from kinfolk.training.workload import Workload, select_device, uses_bfloat16

CUDA_LOG_EVERY = 10  # steps between reads of the device, each of which waits for it


class Run:
    """A workload in training: optimizer, step, checkpoints and log of one folder."""

    def __init__(self, work: Workload, folder: Path, callbacks: Sequence[Callback] = ()) -> None:
        self.work, self.folder, self.processes = work, folder, work.processes
        self.callbacks = callbacks if self.processes.is_first else ()
        train = work.train
        if self.processes.count != Processes.from_environment().count:
            raise UserError(
                f"this kind of training runs in one process: start kinfolk {work.command} without "
                "torchrun"
            )
        if train.tensor * train.pipeline > 1 and not self.processes.splits_model:
            raise UserError(
                f"train.tensor={train.tensor} and train.pipeline={train.pipeline} apply to "
                f"pretraining alone: kinfolk {work.command} scores predictions of the whole model, "
                "which each process holds. Leave both at 1; --parallel fsdp divides the weights"
            )
        self.time = None
        if train.minutes is not None:
            if work.command != "pretrain":
                raise UserError(
                    f"train.minutes={train.minutes:g} applies to pretraining alone: kinfolk "
                    f"{work.command} needs the number of steps before it starts; give train.steps"
                )
            self.time = TimeBudget(train, folder)
        self.device = select_device(train.device)
        self.bfloat16 = uses_bfloat16(train, self.device)
        self.train_step = work.make_step(folder, self.device, bfloat16=self.bfloat16)
        step = self.train_step
        self.shards = None
        if isinstance(step, TrainStep):
            self.shards, step.on_message = step.shards, self._on_message
        self.global_step = self.saved_step = 0
        self.dropped: DroppedBatches = {}
        self.initial: InitialState | None = None  # until there is a checkpoint to roll back to
        self.best: tuple[float, ...] | None = None  # score of the best checkpoint
        self.evals_since_best = 0
        self.sampled_tenth = -1  # of the steps, the last with samples
        self.finished = False

    @classmethod
    def start(cls, work: Workload, folder: Path, callbacks: Sequence[Callback] = ()) -> Self:
        """Start a run; wrong settings are refused before the folder exists."""
        run = cls(work, folder, callbacks)
        run.processes.wait()  # others may still be checking that there is no such folder
        if not run.processes.is_first:
            return run
        check_installed(work.train.loggers)
        try:
            with new_folder(folder) as new:
                work.write_recipe(new)
                Provenance.of_this_process(run.processes).write(new)
                if work.decisions:
                    write_decisions(new / DECISIONS, work.decisions)
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
            longer = "more --minutes" if (folder / DECISIONS).is_file() else kind.longer
            raise UserError(
                f"run {folder} is complete ({state['step']} steps): start a new run with "
                f"{longer} to train longer, or one that continues from {folder}"
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
        with self.float32_weights():
            self.work.load_weights(folder)
        fault = self._state_fault(state, checkpoint.checkpoint_step(folder))
        if fault is None and not self.train_step.load_state_dict(state.get("optimizer")):
            fault = "optimizer"
        if fault is not None:
            raise checkpoint.wrong_state(folder, f"wrong {fault}")
        check_fingerprints(self.work.fingerprints, state["fingerprints"])
        self.global_step, self.finished = state["step"], state["finished"]
        if self.time is not None:
            self.set_steps(self.time.restart(self.global_step))
            self.time.check(self.global_step, state.get("decision"))
        self.saved_step, self.dropped = self.global_step, state.get("dropped", {}) | self.dropped
        self.best = None if state["best"] is None else tuple(state["best"])
        self.evals_since_best = state["evals_since_best"]
        self.sampled_tenth = 10 * self.global_step // self.work.train.steps
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
        names = self.work.train.loggers if self.processes.is_first else ()
        with (
            Loggers(names, self.folder, self._on_message) as self.loggers,
            signals() as self.received,
        ):
            try:
                if not self.finished:
                    self._train()
            except (KeyboardInterrupt, Terminated):
                self._end(interrupted=True)
                self._write_report(finished=False)
                raise
            except DivergedError as error:
                with suppress(OSError, UserError):  # of a full disk, which would hide the loss
                    self.log.write_alarm(self.global_step + 1, ALARM, str(error))
                    self._write_report(finished=False)
                self.processes.wait()  # for the report: the end of another would end this one
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
            finally:
                if self.shards is not None:
                    self.shards.close()
                if isinstance(self.train_step, TrainStep) and self.train_step.master_weights:
                    self.train_step.master_weights.restore()
            self._write_report(finished=True)
            self.processes.wait()  # for the report, which a caller may read
        self._end(interrupted=False)
        return self.folder

    def _write_report(self, *, finished: bool) -> None:
        if self.processes.is_first:
            self.work.write_report(self.folder, finished=finished)

    def _train(self) -> None:
        work = self.work
        if self.shards is None:
            with self.float32_weights():
                self.processes.broadcast_weights(work.model)
        if work.shard is not None:
            work.shard.broadcast_tied()
        if work.train.on_nan == "rollback" and not self.global_step:
            with self.float32_weights():
                self.initial = InitialState.of(work.model, work.memory)
        if work.compile_plan.reason is not None:
            self._on_message(f"train.compile=auto: {work.compile_plan.reason}")
        while True:
            try:
                return self._train_to_end()
            except NonFiniteError as error:
                with record_signals() as received:
                    self._drop_batch(error)
                self.received += received

    def _train_to_end(self) -> None:
        work, train, cuda = self.work, self.work.train, self.device.type == "cuda"
        work.dropped = self.dropped
        work.model.train()
        if self.time is not None:  # before the log is cut at this step
            train = self.set_steps(self.time.restart(self.global_step))
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
                memory=partial(memory_values, self.device),
                follow_clock=None if self.time is None else self._follow_clock,
                processes=self.processes,
                saves_alone=self.shards is None and work.shard is None and work.memory is None,
                received=self.received,
            )
            try:
                batches = self.work.micro_batches(self.global_step, pinned=cuda)
                loop.run(self.global_step, batches, self.saved_step)
                if loop.watch is not None:
                    loop.watch.finish()
            finally:
                self.global_step = loop.global_step

    def _follow_clock(self, step: int, each: float) -> TrainConfig:
        assert self.time is not None
        return self.set_steps(self.time.observe(step, each))

    def set_steps(self, steps: int) -> TrainConfig:
        """Set the number of steps of a run that ends by the clock."""
        self.work.train = replace(self.work.train, steps=steps)
        return self.work.train

    def _drop_batch(self, error: NonFiniteError) -> None:
        """Leave out the batch of a step that is not finite, or end the run; save the batch."""
        work, train = self.work, self.work.train
        number = batch_number(error.step - 1, self.dropped)
        place = self.processes.from_first(lambda: self._save_batch(number, error))
        if train.on_nan == "stop" or not place:
            sentence = f". The batch {place}; with train.on_nan=skip the run leaves it out"
            raise DivergedError(f"{error}{sentence if place else ''}") from error
        newest, start = None, error.step - 1
        if train.on_nan == "rollback":
            newest = self.processes.from_first(lambda: checkpoint.latest_valid(self.folder))
            start = 0 if newest is None else checkpoint.checkpoint_step(newest)
            if newest is None and self.initial is None:
                raise error
        count = sum(step == start for step in self.dropped.values())
        if count >= MAX_IN_A_ROW:
            raise DivergedError(
                f"{error.what} at step {error.step}, after {count} batches that were left out "
                f"since step {start}: the cause is not in one batch. {self.remedy()}. To train on "
                f"these batches again, remove {self.folder / log.ALARMS} before"
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
            with self.float32_weights():
                self.initial.restore(work.model, work.memory)
            self.train_step.reset()
            self.global_step, self.best, self.evals_since_best = 0, None, 0

    def _save_batch(self, number: int, error: NonFiniteError) -> str:
        """Save a batch; return where it is, nothing of a run without batches."""
        # Processes that hold a part of the first copy of the model come here, too.
        if not isinstance(self.train_step, TrainStep) or not self.processes.is_first:
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
        return MetricsLog.open(self.folder, self.global_step, self.loggers)

    def _end(self, *, interrupted: bool) -> None:
        for callback in self.callbacks:
            callback.on_end(self.global_step, interrupted=interrupted)

    def loss(self, batch: Batch[Any]) -> Loss:
        """Return the loss of a batch, computed as in training, without a gradient or an update."""
        return self.train_step.forward(batch.to(self.device))

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the metrics on held-out data, in the precision of training."""
        metrics = self._shared_metrics()
        score = self.work.score(metrics)
        # Nothing is greater than NaN: as the best it would never be replaced.
        comparable = not any(map(math.isnan, score))
        is_best = comparable and (self.best is None or score > self.best)
        self.evals_since_best = 0 if is_best else self.evals_since_best + 1
        return Evaluation(metrics, score, is_best, self.work.main_metrics(metrics))

    def _shared_metrics(self) -> Mapping[str, Any]:
        """Return the metrics that process 0 computes.

        Where weights are sharded, every process computes the same losses, in which all take part.
        """
        if self.shards is None:
            return self.processes.from_first(self._metrics)
        if self.work.evaluates_model:
            with self.whole_model(self.device):
                return self.processes.from_first(self._metrics)
        with self.shards.forward_only():
            metrics = self._metrics()
        return self.processes.from_first(lambda: metrics)

    @contextmanager
    def whole_model(self, device: torch.device | str = "cpu") -> Iterator[None]:
        """Give process 0 all weights in the block, where they are sharded; all enter it."""
        step, model = self.train_step, self.work.model
        if not isinstance(step, TrainStep) or step.shards is None:
            yield
            return
        learner = step.learner
        with step.shards.gathered(device) as whole:
            self.work.model, step.learner = whole.model, whole
            try:
                yield
            finally:
                self.work.model, step.learner = model, learner

    @contextmanager
    def float32_weights(self) -> Iterator[None]:
        """Give the model its float32 weights in the block, where it is trained in bfloat16."""
        step = self.train_step
        masters = step.master_weights if isinstance(step, TrainStep) else None
        with nullcontext() if masters is None else masters.in_model():
            yield

    def _metrics(self) -> Mapping[str, Any]:
        with self._evaluation_mode():
            return self.work.evaluate(self.loss)

    @contextmanager
    def _evaluation_mode(self) -> Iterator[None]:
        """Switch dropout off, in the precision of training."""
        self.work.model.eval()
        try:
            # Without a cache of casted weights, which a CUDA graph of generation might outlive.
            with torch.autocast(
                self.device.type, torch.bfloat16, enabled=self.bfloat16, cache_enabled=False
            ):
                yield
        finally:
            self.work.model.train()

    def should_stop(self) -> bool:
        """Return whether the patience is exhausted: too many evaluations without improvement."""
        return 0 < self.work.early_stopping_patience <= self.evals_since_best

    def save(self, step: int, evaluation: Evaluation | None) -> None:
        """Write a checkpoint: a model folder, and the state that a resume needs.

        A model that has diverged is refused, so that the checkpoint before stays the newest.
        """
        if not self._has_finite_weights():
            raise DivergedError(f"weights are not finite after step {step}. {self.remedy()}")
        last = evaluation if step == self.work.train.steps else None  # before, it may recover
        if last is not None and math.isnan(last.metrics["eval_loss"]):
            raise DivergedError(f"eval_loss is NaN at step {step}. {self.remedy()}")
        if evaluation is not None and evaluation.is_best:
            self.best = evaluation.score
        # Without a comparable score, the newest checkpoint is the best.
        is_best = self.best is None or (evaluation is not None and evaluation.is_best)
        train, shard = self.work.train, self.work.shard
        if shard is not None:
            shard.check_step(step)
        state = self._state(step, is_best=is_best)
        if shard is not None:
            self.work.whole = shard.gather_weights()
        self.saved_step, self.initial = step, None

        def write(folder: Path) -> None:
            with self.float32_weights():
                self.work.save_model(folder)
            self.work.whole = None
            checkpoint.save_training_state(folder, state)

        with self.whole_model():
            if not self.processes.is_first:
                return
            self.log.sync()
            keep = train.keep_checkpoints
            saved = checkpoint.save_checkpoint(self.folder, step, write, keep=keep, best=is_best)
        for callback in self.callbacks:
            callback.on_save(saved)
        whole = self.shards is None and shard is None  # process 0 has all of the model
        if whole and (train.saves(step) or evaluation is not None):  # an interrupted run ends soon
            self._write_samples(step)

    def _state(self, step: int, *, is_best: bool) -> dict[str, Any]:
        """Return the state that a resume needs, beside the weights."""
        state = {
            "step": step,
            "optimizer": self.train_step.state_dict(),
            "best": None if self.best is None else list(self.best),
            "is_best": is_best,
            "evals_since_best": self.evals_since_best,
            "fingerprints": [fingerprint for _, fingerprint in self.work.fingerprints],
            "finished": step == self.work.train.steps or self.should_stop(),
            # Those before the batch of this step: others were found by a later step, before a kill.
            "dropped": {
                number: self.dropped[number]
                for number in sorted(self.dropped)
                if number < batch_number(step - 1, self.dropped)
            },
        }
        if self.time is not None:
            state["decision"] = self.time.in_force(step)
        if self.work.memory is not None:
            state["memory"] = self.processes.gather_memory(self.work.memory)
        return state

    @torch.no_grad()
    def _write_samples(self, step: int) -> None:
        """Log what the model makes of the same text as before, at a tenth of the run at most."""
        tenth = 10 * step // self.work.train.steps
        if tenth <= self.sampled_tenth:
            return
        self.sampled_tenth = tenth
        try:
            with self._evaluation_mode():
                samples = self.work.samples()
        except (UserError, RuntimeError) as error:  # also of a device without memory for them
            self.sampled_tenth = 10
            self._on_message(f"no samples from step {step:,} on: {error}")
            return
        if samples:
            self.log.write_samples(step, samples)

    def _has_finite_weights(self) -> bool:
        """Return whether all weights are finite, in every process that has a share of them."""
        with self.float32_weights():
            parameters = self.work.model.parameters()
            finite = all_finite([local(p.detach()) for p in parameters if p.requires_grad])
        if self.shards is not None:
            return self.processes.all_true(finite)
        return self.processes.all_agree(finite)

    def remedy(self) -> str:
        """Return how to resume a run whose loss, gradient or weights are not finite."""
        train, newest = self.work.train, checkpoint.latest_valid(self.folder)
        step = 0 if newest is None else checkpoint.checkpoint_step(newest)
        matrices = ""
        if train.optimizer == "muon":
            matrices = f" and train.matrix_lr (now {train.matrix_lr:g})"
        return (
            f"Lower train.lr (now {train.lr:g}){matrices} or raise train.warmup (now "
            f"{train.warmup}) in "
            f"{self.folder / 'recipe.json'}, then resume from step {step}: "
            f"{self.resume_command()}"
        )

    def resume_command(self) -> str:
        """Return the command that resumes the run, with as many processes."""
        return self.processes.command(f"{self.work.command} --resume {quote(str(self.folder))}")


def all_of(values: Any, *kinds: type) -> bool:
    """Return whether a value is a list of values of these types."""
    return isinstance(values, list) and all(type(value) in kinds for value in values)


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
