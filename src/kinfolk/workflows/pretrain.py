"""Pretraining: the workload of a recipe, and resuming a run of either kind."""

import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from kinfolk import hub
from kinfolk.batch import Batch, Loss, SegmentMemory
from kinfolk.config import read_json, type_name
from kinfolk.data.corpus import Corpus, corpus_fingerprint
from kinfolk.data.datasets import (
    ContiguousDataset,
    MixtureDataset,
    PackedDataset,
    evaluation_dataset,
)
from kinfolk.data.dedup import duplicate_fraction
from kinfolk.errors import UserError
from kinfolk.nn.language_model import LanguageModel
from kinfolk.objectives.seq2seq import Seq2Seq
from kinfolk.reports.page import plural
from kinfolk.rng import corpus_seed
from kinfolk.text.tokenizer import Tokenizer
from kinfolk.text.vectors import read_vectors, vectors_fingerprint
from kinfolk.training.config import MAX_STEPS
from kinfolk.training.distributed import Processes, load_whole_weights
from kinfolk.training.first_estimate import MIN_BUDGET_STEPS, seconds_per_step
from kinfolk.training.log import RunSample
from kinfolk.training.loop import Callback, check_callbacks
from kinfolk.training.run import Run
from kinfolk.training.time_budget import Decision
from kinfolk.training.watch import LossBaseline
from kinfolk.training.workload import LossFn, Workload, select_device
from kinfolk.workflows.baselines import Baselines, score_mixture
from kinfolk.workflows.counting import CountingStep
from kinfolk.workflows.finetuning.recipe import FineTuneRecipe
from kinfolk.workflows.folders import check_model_folder, check_new_folder, exclusive_run
from kinfolk.workflows.load import untrained_modules_of
from kinfolk.workflows.prefix_tuning.recipe import PrefixRecipe
from kinfolk.workflows.recipe import Recipe, check_resumed_recipe, shared_tokenizer
from kinfolk.workflows.report import recipe_baselines, write_report
from kinfolk.workflows.run_samples import text_samples

COUNTS_FOLDER = "counts"  # folder in a run that counts, until it is finished
MAX_COUNTED_TOKENS = 3_000_000  # whose 3-grams are counted during a run: some seconds

Batches = PackedDataset | MixtureDataset | ContiguousDataset

if TYPE_CHECKING:
    from kinfolk.workflows.planning.preflight import Preflight


def pretrain(
    recipe: Recipe | Path | str,
    out: Path | str,
    *,
    callbacks: Sequence[Callback] = (),
    decisions: Sequence[Decision] | None = None,
) -> Path:
    """Train a model by a recipe, or by a recipe file, into a new run folder; return the folder.

    `pretrain(kinfolk.recipe("gpt2/tiny", "corpus", steps=500), "runs/gpt2")`

    With `train.minutes` a first estimate of the steps is measured, unless `decisions` are given:
    none, where the recipe has an estimate, or those of a run whose numbers of steps are repeated.
    """
    check_callbacks(callbacks)
    if not isinstance(recipe, Recipe):
        recipe = read_recipe_file(recipe)
    out = Path(out)
    check_new_folder(out, "choose another folder, or continue that run with resume")
    processes = process_grid(recipe)
    if decisions is None:
        recipe = with_estimated_steps(recipe, out, processes, callbacks)
    estimate = estimated(recipe, out, callbacks, processes)
    work = workload_of(recipe)(recipe, callbacks=callbacks, processes=processes)
    work.decisions = decisions or ()
    announce_estimate(estimate, callbacks, processes)
    run = Run.start(work, out, callbacks)
    with exclusive_run(out) if processes.is_first else nullcontext():
        return run.fit()


def resume(out: Path | str, *, callbacks: Sequence[Callback] = ()) -> Path:
    """Continue a run of any kind from its newest valid checkpoint."""
    check_callbacks(callbacks)
    out = check_model_folder(out)
    recipe = read_json(out / "recipe.json")
    kind: type[Workload]
    if isinstance(recipe, Recipe):
        kind = workload_of(recipe)
    elif isinstance(recipe, PrefixRecipe):
        from kinfolk.workflows.prefix_tuning.prefixes import PrefixWorkload

        kind = PrefixWorkload
    else:
        from kinfolk.workflows.finetuning.finetune import FineTuneWorkload

        if type_name(recipe) == "stages":
            raise UserError(
                f"{out} is a run in stages: use kinfolk finetune --resume {out}, or resume_stages"
            )
        if not isinstance(recipe, FineTuneRecipe):
            raise UserError(f"{out / 'recipe.json'} is not the recipe of a run")
        kind = FineTuneWorkload
    with exclusive_run(out) if Processes.from_environment().is_first else nullcontext():
        return Run.resume(kind, recipe, out, callbacks).fit()


def with_estimated_steps(
    recipe: Recipe, out: Path, processes: Processes, callbacks: Sequence[Callback] = ()
) -> Recipe:
    """Return the recipe of a run that ends by the clock with a first estimate of its steps.

    Some steps are timed; a warm-up that is longer than the run becomes a tenth of it.
    """
    train = recipe.train
    if train.minutes is None or recipe.model.counting_steps is not None:
        return recipe
    estimated(recipe, out, (), processes)  # refuses what does not fit before a step is timed
    minutes, seconds = f"train.minutes={train.minutes:g}", 60 * train.minutes
    for callback in callbacks:
        callback.on_message(f"{minutes}: timing steps, for a first estimate of their number")
    timed = replace(train, steps=max(train.steps, train.warmup))
    each = seconds_per_step(PretrainWorkload(replace(recipe, train=timed)), seconds)
    steps = round(seconds / each)
    if steps < MIN_BUDGET_STEPS:
        least = float(f"{1.05 * MIN_BUDGET_STEPS * each / 60:.2g}")
        raise UserError(
            f"{minutes} is enough for {plural(steps, 'step')} of {recipe.name}, and a schedule "
            f"needs {MIN_BUDGET_STEPS}: use train.minutes={least:g} or more"
        )
    warmup = train.warmup if train.warmup <= steps else max(1, steps // 10)
    for callback in callbacks:
        callback.on_message(f"{minutes}: about {steps:,} steps, estimated anew during the run")
    return replace(recipe, train=replace(train, steps=min(steps, MAX_STEPS), warmup=warmup))


def estimated(
    recipe: Recipe, out: Path, callbacks: Sequence[Callback], processes: Processes
) -> "Preflight | None":
    """Return what a run is about to take; refuse one that cannot fit."""
    if recipe.model.counting_steps is not None:  # counts are on disk, and their size is not known
        return None
    from kinfolk.workflows.planning.preflight import check_pretraining

    described = processes.is_first and bool(callbacks)  # otherwise nobody reads it
    return check_pretraining(recipe, out, processes=processes, described=described)


def announce_estimate(
    estimate: "Preflight | None", callbacks: Sequence[Callback], processes: Processes
) -> None:
    """Report the estimate of a run, in process 0: the run is known to be right by then."""
    if estimate is not None and processes.is_first:
        from kinfolk.workflows.planning.preflight import announce

        announce(estimate, callbacks)


def workload_of(recipe: Recipe) -> "type[PretrainWorkload]":
    """Return how the model of a recipe learns: by gradients, or by counting."""
    return PretrainWorkload if recipe.model.counting_steps is None else CountingWorkload


def read_recipe_file(path: Any) -> Recipe:
    """Read a recipe from a file; what is no file gets a sentence about `kinfolk.recipe`."""
    if isinstance(path, Path | str) and Path(path).is_file():
        return Recipe.read(Path(path))
    given = f"of type {type(path).__name__}"
    if isinstance(path, Path | str):
        given = f"{str(path)!r}, which is not a file"
    raise UserError(
        f"recipe is {given}: give what kinfolk.recipe(model, corpus) returns, or a recipe file"
    )


class PretrainWorkload(Workload):
    """The model, objective and corpora of a recipe."""

    command = "pretrain"
    batches: Batches

    def __init__(
        self,
        recipe: Recipe,
        *,
        fresh: bool = True,
        callbacks: Sequence[Callback] = (),
        processes: Processes = Processes(),
    ) -> None:
        self.recipe, self.train, self.objective = recipe, recipe.train, recipe.objective
        self.processes = processes
        self.row_length, self.layer_lr_decay = recipe.objective.row_length, recipe.layer_lr_decay
        self.usual_lengths = recipe.objective.usual_lengths
        self.open_corpora()
        if recipe.vectors:
            self.fingerprints = [*self.fingerprints, vectors_fingerprint(recipe.vectors)]
        weights = [share.weight for share in recipe.corpora]
        batches = training_batches(recipe, self.corpora, weights, processes=processes)
        device = select_device(self.train.device)
        self.batches = batches
        self.held_out = held_out_batches(recipe)
        self.has_eval_data = self.held_out is not None
        torch.manual_seed(self.train.seed)
        # A checkpoint has all weights; the folder of the initial weights may be gone.
        model = initial_model(recipe) if fresh else recipe.model.build()
        hub.bind_tokenizer(model, self.tokenizer)
        if recipe.vectors and fresh:
            vectors = read_vectors(recipe.vectors, self.tokenizer)
            table: Any = model.token_embeddings  # the others keep their random values
            table.set_rows(vectors.ids, vectors.values)
            for callback in callbacks if processes.is_first else ():
                callback.on_message(f"{recipe.vectors}: {vectors.summary}")
        decay = self.layer_lr_decay
        if processes.splits_model:
            from kinfolk.training.model_shard import ModelShard, check_shards  # takes a second

            check_shards(model, self.train, layer_lr_decay=decay)
            device = processes.connect(device)
            self.shard = ModelShard(model, processes, self.train, layer_lr_decay=decay)
        device = processes.connect(device)
        # Sharded, layer by layer: no device must hold all weights.
        self.model = model if self.train.parallel == "fsdp" else model.to(device)
        if recipe.objective.recurrent:
            init_memory: Any = self.model.init_memory
            parts = range(self.train.gradient_accumulation)
            self.memory = [init_memory(batches.batch_size).to(device) for _ in parts]

    def open_corpora(self) -> None:
        """Open the corpora, which must have the tokenizer of the recipe, and hash their files."""
        recipe = self.recipe
        self.corpora = [share.open() for share in recipe.corpora]
        self.tokenizer = shared_tokenizer(self.corpora).with_end_token(
            recipe.objective.required_tokens
        )
        if (
            self.tokenizer.vocab_size != recipe.objective.vocab_size
            or self.tokenizer.special_tokens != recipe.objective.special_tokens
        ):
            raise other_tokenizer(recipe)
        self.fingerprints = [(str(c.folder), corpus_fingerprint(c.folder)) for c in self.corpora]

    @classmethod
    def reopen(
        cls, recipe: Any, folder: Path, newest: Path | None, callbacks: Sequence[Callback]
    ) -> Self:
        """Build the workload of a run folder."""
        if newest is not None:
            check_resumed_recipe(folder, recipe, newest)
        processes = process_grid(recipe)
        estimate = estimated(recipe, folder, callbacks, processes)
        work = cls(recipe, fresh=newest is None, callbacks=callbacks, processes=processes)
        announce_estimate(estimate, callbacks, processes)
        return work

    def write_recipe(self, folder: Path) -> None:
        """Write recipe.json."""
        self.recipe.write(folder / "recipe.json")

    def evaluate(self, loss: LossFn) -> Mapping[str, Any]:
        """Return the loss on held-out documents, the same batches every time, and its parts."""
        assert self.held_out is not None
        total, counts = Loss({}), Counter[str]()
        memory: SegmentMemory | None = None
        for number in range(min(len(self.held_out), self.train.eval_batches)):
            batch = self.held_out[number].with_memory(memory)
            batch_loss = loss(batch)
            total, memory = total + batch_loss, batch_loss.memory
            counts.update(batch.counts)
        metrics: dict[str, Any] = {"eval_loss": float(total.mean(counts))}
        if len(total.sums) > 1:
            metrics["eval_losses"] = total.means(counts)
        return metrics

    def save_model(self, folder: Path) -> None:
        """Write a model folder, with the recipe as kinfolk.json."""
        length = self.recipe.model.max_length
        hub.save(folder, self.model, self.tokenizer, length=length, weights=self.whole)
        self.recipe.write(folder / "kinfolk.json")

    def load_weights(self, folder: Path) -> None:
        """Load the weights of a checkpoint, which must have the tokenizer of the corpora."""
        if Tokenizer.load(folder).fingerprint != self.tokenizer.fingerprint:
            raise other_tokenizer(self.recipe)
        saved: Any = hub.load_model(folder)
        weights = saved.state_dict()
        if self.shard is not None:
            self.shard.load_weights(weights)
        else:
            load_whole_weights(self.model, weights)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special tokens too."""
        return self.tokenizer.decode(ids, add_special_tokens=True)

    @cached_property
    def baselines(self) -> Baselines:
        """The baselines of the tokens that are predicted, which the report shows too."""
        return recipe_baselines(self.recipe)

    def loss_baselines(self) -> Sequence[LossBaseline]:
        """Return the unigram entropy, and the loss of a 3-gram model of a small corpus.

        The run stands still while 3-grams are counted, and answers no signal.
        """
        found = self.baselines
        unigram = LossBaseline("unigram", lambda: found.unigram)
        if sum(corpus.tokens for corpus in self.corpora) > MAX_COUNTED_TOKENS:
            return (unigram,)
        trigram = LossBaseline(
            "3-gram", lambda: None if found.trigram is None else found.trigram.loss
        )
        return unigram, trigram

    def duplicates(self) -> Mapping[str, float]:
        """Return the fraction of each corpus in documents that equal an earlier one."""
        return {str(corpus.folder): duplicate_fraction(corpus) for corpus in self.corpora}

    def samples(self) -> Sequence[RunSample]:
        """Return a continuation, or a filled mask, of the beginning of a held-out document."""
        untrained = self.recipe.objective.encoder_alone and self.model.decoder_modules
        if isinstance(self.recipe.objective, Seq2Seq) or untrained:  # it learns neither
            return ()
        held_out = [share.held_out() for share in self.recipe.corpora]
        corpora = [corpus for corpus in held_out if corpus is not None]
        return text_samples(self.model, self.tokenizer, [*corpora, *self.corpora])

    def write_report(self, folder: Path, *, finished: bool) -> None:
        """Write report.html."""
        write_report(folder, self.baselines, finished=finished)


class CountingWorkload(PretrainWorkload):
    """The n-gram model of a recipe, the corpora that are counted, their held-out documents."""

    model: Any

    def __init__(
        self,
        recipe: Recipe,
        *,
        fresh: bool = True,
        callbacks: Sequence[Callback] = (),
        processes: Processes = Processes(),
    ) -> None:
        self.recipe, self.train, self.objective = recipe, recipe.train, recipe.objective
        if processes.several:
            raise UserError("an n-gram model is counted in one process: start it without torchrun")
        if len({share.weight for share in recipe.corpora}) > 1:
            raise UserError(
                f"the weight of --corpus {recipe.corpora[0].corpus} does not apply to counts, "
                "where every document counts once: remove the weights"
            )
        self.open_corpora()
        texts = [(share.held_out(), 1.0) for share in recipe.corpora]
        self.held_out_texts = [(text, weight) for text, weight in texts if text is not None]
        self.has_eval_data = bool(self.held_out_texts)
        self.model = recipe.model.build()

    def make_step(self, folder: Path, device: torch.device, *, bfloat16: bool) -> CountingStep:
        """Return the step that counts one order."""

        def set_model(model: LanguageModel) -> None:
            self.model = model

        return CountingStep(
            config=self.recipe.model,
            objective=self.recipe.objective,
            corpora=self.corpora,
            source=[fingerprint for _, fingerprint in self.fingerprints],
            folder=folder / COUNTS_FOLDER,
            model=lambda: self.model,
            on_model=set_model,
        )

    def micro_batches(self, start: int, *, pinned: bool) -> Iterator[Sequence[Batch[Any]]]:
        """Yield nothing for each step: it reads the corpora themselves."""
        yield from [()] * (self.train.steps - start)

    def evaluate(self, loss: LossFn) -> Mapping[str, Any]:
        """Return the loss on whole held-out documents."""
        return {"eval_loss": score_mixture(self.model, self.held_out_texts).loss}

    def load_weights(self, folder: Path) -> None:
        """Load the model of a checkpoint, which must have the tokenizer of the corpora."""
        self.model, tokenizer = hub.load(folder)
        if tokenizer.fingerprint != self.tokenizer.fingerprint:
            raise other_tokenizer(self.recipe)

    def loss_baselines(self) -> Sequence[LossBaseline]:
        """Return none: what is counted is such a baseline itself."""
        return ()

    def write_report(self, folder: Path, *, finished: bool) -> None:
        """Write report.html; a finished run needs its counts no longer."""
        super().write_report(folder, finished=finished)
        if finished:
            shutil.rmtree(folder / COUNTS_FOLDER, ignore_errors=True)


def process_grid(recipe: Recipe) -> Processes:
    """Return this process in the grid that the settings of a recipe ask for."""
    processes = Processes.from_environment().as_grid(recipe.train.tensor, recipe.train.pipeline)
    if processes.several and recipe.train.minutes is not None:
        raise UserError(
            f"train.minutes={recipe.train.minutes:g} is by the clock of one process, and "
            f"{processes.count} train together: give train.steps"
        )
    return processes


def initial_model(recipe: Recipe) -> LanguageModel:
    """Build the model with new weights, or with those that the run continues from."""
    model: LanguageModel = recipe.model.build()
    if recipe.init_from:
        saved: Any = hub.load_model(recipe.init_from)
        if saved.random_modules:
            warnings.warn(
                f"{recipe.init_from} has no weights of {', '.join(saved.random_modules)}: they "
                "start from random values",
                stacklevel=2,
            )
        untrained = untrained_modules_of(Path(recipe.init_from))
        if untrained and not recipe.objective.encoder_alone:
            warnings.warn(
                f"{recipe.init_from} was trained without its {', '.join(untrained)}: it starts "
                "from random values, and the rest from trained ones",
                stacklevel=2,
            )
        try:
            model.load_state_dict(saved.state_dict())
        except RuntimeError:
            raise UserError(
                f"the weights of {recipe.init_from} do not fit the network of this run: remove the "
                "settings that change its size"
            ) from None
    return model


def training_batches(
    recipe: Recipe,
    corpora: Sequence[Corpus],
    weights: Sequence[float],
    *,
    processes: Processes = Processes(),
) -> Batches:
    """Return the batches of a run on its corpora, or on their held-out documents.

    With several processes a batch is the share of one copy of the model in a micro-batch.
    """
    parts, seed = recipe.train.gradient_accumulation, recipe.train.seed
    rows = processes.rows(recipe.train.batch_size, parts)
    parts *= processes.data_count
    if recipe.objective.recurrent:
        if len(corpora) > 1:
            raise UserError(
                f"rows that continue from batch to batch need one corpus, not {len(corpora)}: "
                "prepare the texts as one corpus, or use the objective clm"
            )
        return ContiguousDataset(
            recipe.objective, corpora[0], batch_size=rows, parts=parts, seed=seed
        )
    datasets = [
        PackedDataset(recipe.objective, corpus, batch_size=rows, seed=corpus_seed(seed, number))
        for number, corpus in enumerate(corpora)
    ]
    return datasets[0] if len(datasets) == 1 else MixtureDataset(datasets, weights)


def held_out_batches(recipe: Recipe) -> Batches | None:
    """Return the held-out batches, if any: of a mixture with the weights of training.

    The held-out loss is then comparable with the training loss. Corpora without held-out documents
    are not in it.
    """
    pairs = [(share.held_out(), share.weight) for share in recipe.corpora]
    scored = [(corpus, weight) for corpus, weight in pairs if corpus is not None]
    if scored and recipe.objective.recurrent:
        rows = recipe.train.batch_size // recipe.train.gradient_accumulation
        return evaluation_dataset(recipe.objective, scored[0][0], rows=rows)
    try:
        return training_batches(recipe, *zip(*scored, strict=True)) if scored else None
    except UserError as error:  # too little text to evaluate on, which stops no run
        warnings.warn(f"the held-out documents are not evaluated: {error}", stacklevel=2)
        return None


def other_tokenizer(recipe: Recipe) -> UserError:
    """Return the error about a corpus whose ids are not those of the run."""
    return UserError(
        f"corpus {recipe.corpora[0].corpus} was tokenized with another tokenizer than this run: "
        "prepare it with the tokenizer of the run"
    )
