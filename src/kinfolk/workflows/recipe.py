"""The recipe of a pretraining run: made by family and size, or continued from a model folder."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kinfolk.config import (
    apply_overrides,
    as_settings,
    config,
    describe,
    did_you_mean,
    field,
    read_json,
    to_json,
    write_json,
)
from kinfolk.data.corpus import Corpus
from kinfolk.errors import UserError
from kinfolk.families import check_name, family, family_of, index
from kinfolk.text import Tokenizer
from kinfolk.text.vectors import vector_size
from kinfolk.training.config import TrainConfig
from kinfolk.workflows.folders import find_model_folder, model_or_family

if TYPE_CHECKING:
    from kinfolk.families.base import Family
    from kinfolk.nn.language_model import LanguageModel

# Fields that a resume must not change: the steps until then were done with their values.
FIXED_FIELDS = (
    *("model.", "objective.", "formulations.", "finetune.", "prefixes.", "attributes."),
    *("train.seed", "train.batch_size"),
    *("train.gradient_accumulation", "train.optimizer", "layer_lr_decay", "directions"),
)

# Headings of the training settings that a run without gradients does not have.
GRADIENT_PANELS = ("Batches", "Optimizer", "Learning rate schedule")


@config("corpus", kw_only=False)
class CorpusShare:
    """A corpus of a run, and its weight among the others."""

    corpus: str = field(help="folder of the corpus")
    weight: float = field(default=1.0, gt=0, help="share of the rows relative to the other corpora")

    def open(self) -> Corpus:
        """Open the corpus."""
        return Corpus.open(Path(self.corpus))

    def held_out(self) -> Corpus | None:
        """Open the held-out documents, if there are any."""
        folder = Path(self.corpus) / "holdout"
        return Corpus.open(folder) if folder.is_dir() else None


@config("pretrain")
class Recipe:
    """The model, objective, corpora and settings of a pretraining run."""

    name: str = field(help="family and size")
    model: Any = field(group="model", help="network")
    objective: Any = field(group="objective", help="pretraining objective")
    corpus: str | tuple[CorpusShare, ...] = field(
        help="folder of the corpus, or several with weights"
    )
    train: TrainConfig = field(help="training settings")
    init_from: str = field(default="", help="folder of the initial weights; empty for new ones")
    layer_lr_decay: float = field(
        default=1.0, gt=0, le=1, help="learning rate of each layer relative to the one above"
    )
    vectors: str = field(
        default="", help="file of word vectors that token embeddings start from; empty for none"
    )
    directions: tuple[str, ...] = field(
        default=(), help="translation direction of each corpus, such as en-de; empty for one pair"
    )

    def __post_init__(self) -> None:
        if not self.corpora:
            raise UserError("corpus=[]: a run needs at least one corpus")

    @property
    def corpora(self) -> tuple[CorpusShare, ...]:
        """The corpora of the run, one or several."""
        return (CorpusShare(self.corpus),) if isinstance(self.corpus, str) else self.corpus

    def write(self, path: Path) -> None:
        """Write the recipe as JSON."""
        write_json(self, path)

    @classmethod
    def read(cls, path: Path) -> "Recipe":
        """Read a recipe written by `write`."""
        recipe = read_json(path)
        if not isinstance(recipe, Recipe):
            raise UserError(
                f"{path} is not the recipe of a pretraining run: resume a fine-tuning run with "
                "kinfolk finetune --resume"
            )
        return recipe


COUNTED_LENGTH = 8192  # tokens of a row in the evaluation of a model that was counted

# Overrides of a recipe: {"train.lr": 1e-3}, ["train.lr=1e-3"] or one "train.lr=1e-3".
Settings: TypeAlias = Mapping[str, Any] | Sequence[str] | str
# Folders of corpora, with their weights in a dictionary: {"news": 0.7, "law": 0.3}.
CorpusSource: TypeAlias = (
    Path | str | Corpus | Mapping[Any, float] | Sequence[Path | str | Corpus | CorpusShare]
)


def recipe(
    model: Path | str,
    corpus: CorpusSource,
    *,
    objective: str | None = None,
    length: int | None = None,
    tokenizer: Tokenizer | Path | str | None = None,
    vectors: Path | str | None = None,
    fast: bool = False,
    settings: Settings = (),
    **fields: Any,
) -> Recipe:
    """Make the recipe of a pretraining run.

    `recipe("gpt2/tiny", "corpus", steps=500, lr=1e-3, settings={"model.dropout": 0.1})`

    The model is FAMILY/SIZE for new weights, or the folder of a run or a model to continue from.
    The name of a family is never a folder: write `./bert` for a folder of that name. Several
    corpora are a list, or a dictionary with their weights: `{"news": 0.7, "law": 0.3}`.
    `tokenizer` is that of a model folder where it lies elsewhere. `vectors` is a file of word
    vectors (GloVe, word2vec) that the token embeddings of new weights start from. `fast` replaces
    the defaults of optimizer, learning rates, weight decay and schedule by those of the family's
    fast recipe. Keywords are fields of `TrainConfig`; settings are fields of the recipe by their
    paths; both replace what the size or `fast` set. Defaults follow from the size: its settings,
    and rows as long as its context, but shorter for small models.
    """
    if not isinstance(model, str | Path):
        raise UserError(
            f"model is of type {type(model).__name__}: give FAMILY/SIZE, like 'gpt2/tiny', or the "
            "folder of a model"
        )
    overrides = [*keyword_settings(fields, {"train": TrainConfig}), *settings_list(settings)]
    family_name, _, _ = str(model).partition("/")
    if family_name in index():
        check_name(str(model))
        if tokenizer is not None:
            raise UserError(
                f"--tokenizer does not apply to {model}, which takes that of its corpus: remove it"
            )
        return new_recipe(str(model), corpus, objective, length, overrides, vectors, fast=fast)
    model = model_or_family(str(model))
    if vectors is not None:
        raise UserError(
            f"--vectors does not apply to {model}, whose token embeddings are trained: remove it"
        )
    return continue_from(model, corpus, objective, length, overrides, tokenizer, fast=fast)


def settings_list(settings: Settings) -> list[str]:
    """Return overrides in any of their forms as a list of `path=value`."""
    if isinstance(settings, Mapping):
        return as_settings(settings)
    return [settings] if isinstance(settings, str) else [*settings]


def keyword_settings(fields: Mapping[str, Any], groups: Mapping[str, type[Any]]) -> list[str]:
    """Return keyword arguments as overrides of the groups of a recipe that have such fields."""
    groups_of = {f.name: group for group, cls in groups.items() for f in dataclasses.fields(cls)}
    for name in fields:
        if name not in groups_of:
            raise UserError(f"unknown keyword {name!r}: {did_you_mean(name, [*groups_of])}")
    return as_settings({f"{groups_of[name]}.{name}": value for name, value in fields.items()})


def new_recipe(
    name: str,
    corpus: CorpusSource,
    objective: str | None,
    length: int | None,
    settings: Sequence[str],
    vectors: Path | str | None = None,
    *,
    fast: bool = False,
) -> Recipe:
    """Make the recipe of a model with new weights."""
    family_name, _, size = name.partition("/")
    chosen, size = family(family_name), size or "tiny"
    train = fast_train_config(chosen, chosen.train(size)) if fast else chosen.train(size)
    named, corpora = open_corpora(corpus)
    objective_type, config = chosen.objective(objective), chosen.config(size)
    tokenizer = shared_tokenizer(corpora).with_end_token(objective_type.required_tokens)
    length = default_length(config) if length is None else length
    if config.counting_steps is None:  # what is counted is not cut into rows
        check_corpus_size(corpora, length)
    # Position embeddings beyond the row length would never be trained: max_length is that length.
    sizes = {
        "vocab_size": tokenizer.vocab_size,
        "max_length": length,
        "decoder_start_token_id": tokenizer.special_tokens.pad,
        "padding_idx": tokenizer.special_tokens.pad,
    }
    base = Recipe(
        name=f"{family_name}/{size}",
        model=config.with_fields(**sizes),
        objective=objective_type(
            special_tokens=tokenizer.special_tokens,
            vocab_size=tokenizer.vocab_size,
            max_length=length,
        ),
        corpus=named,
        train=train,
        vectors="" if vectors is None else str(Path(vectors).resolve()),
    )
    made = finalize(base, settings, short_warmup=fast)
    if made.model.counting_steps != config.counting_steps:  # model.order=5: ngram/5, not ngram/tiny
        made = dataclasses.replace(made, name=f"{family_name}/{made.model.counting_steps}")
    return made


def open_corpora(
    corpus: CorpusSource,
) -> tuple[str | tuple[CorpusShare, ...], list[Corpus]]:
    """Return the corpora as the recipe names them, and opened."""
    sources = [corpus] if isinstance(corpus, str | Path | Corpus) else corpus
    weights = sources.values() if isinstance(sources, Mapping) else [1.0] * len(sources)
    shares = [corpus_share(*pair) for pair in zip(sources, weights, strict=True)]
    mixture = check_mixture(shares)
    corpora = [share.open() for share in shares]
    return (mixture[0].corpus if len(mixture) == 1 else mixture), corpora


def corpus_share(source: Path | str | Corpus | CorpusShare, weight: float) -> CorpusShare:
    """Return a corpus with its weight, which it may have already."""
    if isinstance(source, CorpusShare):
        return source
    if not isinstance(source, Path | str | Corpus):
        raise UserError(f"corpus is of type {type(source).__name__}: give the folder of a corpus")
    return CorpusShare(str(source.folder if isinstance(source, Corpus) else source), weight)


def check_corpus_size(corpora: Sequence[Corpus], length: int) -> None:
    """Refuse rows that are too short, and a corpus that does not fill one."""
    if not isinstance(length, int):
        raise UserError(f"length={length!r} must be a whole number of tokens")
    if length < 8:
        raise UserError(f"--length must be at least 8 (got {length})")
    for text in corpora:
        if text.tokens < length:
            raise UserError(
                f"corpus {text.folder} has {text.tokens} tokens, fewer than one sequence of "
                f"{length}: use more text or a smaller length"
            )


def finalize(base: Recipe, settings: Sequence[str], *, short_warmup: bool = False) -> Recipe:
    """Apply the given settings to a recipe, and check it.

    A warm-up that is not among them is shortened where the steps are few: to a tenth of them if it
    is longer than the run, with `short_warmup` (the fast recipe) to a twentieth if it is longer.
    """
    recipe = check_recipe(apply_overrides(base, settings))
    if recipe.model.counting_steps is not None:
        return counting_recipe(base, recipe)
    train = with_one_length(recipe.train, settings)
    longest = max(1, train.steps // 20) if short_warmup else train.steps
    if train.minutes is not None:  # its steps are estimated when it starts
        longest = train.warmup
    if train.warmup > longest and not any("warmup" in setting for setting in settings):
        # A short run keeps the shape of a long one.
        warmup = longest if short_warmup else max(1, train.steps // 10)
        train = dataclasses.replace(train, warmup=warmup)
    return dataclasses.replace(recipe, train=train)


def with_one_length(train: TrainConfig, settings: Sequence[str]) -> TrainConfig:
    """Return settings with the length of a run that was given: its steps, or its minutes."""
    given = {setting.partition("=")[0] for setting in settings}
    if train.minutes is None or "train.steps" not in given:
        return train
    if "train.minutes" in given:
        raise UserError(
            f"train.steps={train.steps} and train.minutes={train.minutes:g} are both given: a run "
            "ends by one of them; remove the other"
        )
    return dataclasses.replace(train, minutes=None)  # of the recipe that the steps override


def counting_recipe(base: Recipe, recipe: Recipe) -> Recipe:
    """Return the recipe of a run that counts; refuse settings that only gradients need."""
    if recipe.init_from:
        raise UserError(
            f"{recipe.init_from} cannot be continued: count all corpora together, with several "
            "--corpus"
        )
    for name, field_info in describe(TrainConfig).items():
        given = vars(recipe.train)[name]
        needless = field_info.panel in GRADIENT_PANELS or name == "eval_batches"
        if needless and given != vars(base.train)[name]:
            family_name = recipe.model.family_name
            raise UserError(
                f"train.{name}={given} does not apply to {family_name}, which counts one order a "
                "step: remove it; model.order and model.prune set what is counted"
            )
    return dataclasses.replace(
        recipe, train=dataclasses.replace(recipe.train, steps=recipe.model.counting_steps)
    )


def parse_corpora(texts: Sequence[str]) -> list[CorpusShare]:
    """Parse corpora like `news=0.7`: all with a weight, or none, which are then equal."""
    pairs = [_parse_corpus(text) for text in texts]
    bare = [folder for folder, weight in pairs if weight is None]
    if bare and len(bare) < len(pairs):
        raise UserError(
            f"--corpus {bare[0]} has no weight, but another one has: write --corpus {bare[0]}=0.5, "
            "or remove all weights"
        )
    for folder, weight in pairs:
        if weight is not None and not 0 < weight < math.inf:
            raise UserError(
                f"the weight of --corpus {folder} must be greater than 0 (got {weight:g})"
            )
    return [CorpusShare(folder, 1.0 if weight is None else weight) for folder, weight in pairs]


def _parse_corpus(text: str) -> tuple[str, float | None]:
    """Split at the last = if a number follows it, unless the whole text names a folder."""
    folder, _, weight = text.rpartition("=")
    if folder and not Path(text).is_dir():
        with contextlib.suppress(ValueError):
            return folder, float(weight)
    return text, None


def check_mixture(shares: Sequence[CorpusShare]) -> tuple[CorpusShare, ...]:
    """Return the corpora of a mixture with absolute paths; each may be named once."""
    if not shares:
        raise UserError("no corpus given: pass at least one")
    resolved: dict[str, CorpusShare] = {}
    for share in shares:
        path = str(Path(share.corpus).resolve())
        if path in resolved:
            raise UserError(f"corpus {share.corpus} is given twice: add up its weights")
        resolved[path] = CorpusShare(path, share.weight)
    return tuple(resolved.values())


def shared_tokenizer(corpora: Sequence[Corpus]) -> Tokenizer:
    """Return the tokenizer that all corpora were made with."""
    first = corpora[0]
    for other in corpora[1:]:
        if other.tokenizer_hash != first.tokenizer_hash:
            raise UserError(
                f"corpora {first.folder} and {other.folder} were tokenized with different "
                "tokenizers: prepare both with one"
            )
    return first.tokenizer()


def check_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe, if its network can be built and accepts its rows."""
    model, length = recipe.model, recipe.objective.max_length
    pad = recipe.objective.special_tokens.pad
    for name in ("decoder_start_token_id", "padding_idx"):
        value = vars(model).get(name, pad)
        if value != pad:
            raise UserError(
                f"model.{name} must be the padding id of the tokenizer, {pad} (got {value})"
            )
    if model.vocab_size < recipe.objective.vocab_size:
        raise UserError(
            f"model.vocab_size={model.vocab_size} is less than the {recipe.objective.vocab_size} "
            "ids of the tokenizer: raise it"
        )
    if model.max_length is not None and model.max_length < length:
        raise UserError(
            f"sequences of {length} tokens exceed model.max_length={model.max_length}: "
            "set length, which sets both"
        )
    from kinfolk.nn.meta import meta_network

    network = meta_network(recipe.model)
    check_memory(recipe, sum(p.numel() for p in network.parameters()))
    check_word_vectors(recipe, network)
    return recipe


def check_word_vectors(recipe: Recipe, network: "LanguageModel") -> None:
    """Refuse word vectors that are not as wide as the token embeddings of the network."""
    if not recipe.vectors:
        return
    from kinfolk.nn.embeddings import TokenEmbedding

    size, table = vector_size(recipe.vectors), network.token_embeddings
    if not isinstance(table, TokenEmbedding):
        raise UserError(f"--vectors: {recipe.name} has no token embeddings to fill: remove it")
    if size != table.embedding_dim:
        name = "embedding_size" if "embedding_size" in vars(recipe.model) else "hidden_size"
        raise UserError(
            f"{recipe.vectors} has vectors of {size} numbers, but the token embeddings of "
            f"{recipe.name} have {table.embedding_dim}: set model.{name}={size}, or use other "
            "vectors"
        )


def check_memory(recipe: Recipe, parameters: int) -> None:
    """Refuse a network or a batch that cannot fit into the memory of any device of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if 4 * parameters > memory:
        raise UserError(
            f"the network has {parameters:,} parameters, which take {4 * parameters / 2**30:,.0f} "
            f"GiB, and this machine has {memory / 2**30:,.0f} GiB: lower model.hidden_size, "
            "model.num_layers or model.vocab_size"
        )
    train, hidden = recipe.train, recipe.model.hidden_size
    layers = vars(recipe.model).get("num_layers", 1)
    rows = train.batch_size // train.gradient_accumulation
    # At least one vector per token and layer is kept for the gradient; an accelerator may have
    # more memory than its host.
    size = 4 * rows * recipe.objective.max_length * hidden * layers
    if size > 8 * memory:
        raise UserError(
            f"a step of {rows:,} rows of {recipe.objective.max_length:,} tokens takes over "
            f"{size / 2**30:,.0f} GiB: lower train.batch_size, or raise train.gradient_accumulation"
        )


def default_length(config: Any) -> int:
    """Return the row length of a network: 128 for a small one, its context for a base one."""
    if config.counting_steps is not None:  # rows are scored only, and long ones cut few contexts
        return COUNTED_LENGTH
    context = 512 if config.max_length is None else config.max_length
    return min(
        context, 128 if config.hidden_size <= 256 else 512 if config.hidden_size <= 512 else context
    )


def check_resumed_recipe(run: Path, recipe: Any, checkpoint: Path) -> None:
    """Refuse a recipe.json that was changed, since a checkpoint, in a field that must stay.

    Weights of corpora must stay too; their folders may have moved.
    """
    saved = read_json(checkpoint / "kinfolk.json")
    now, before = dict(leaves(to_json(recipe))), dict(leaves(to_json(saved)))
    for path in dict.fromkeys((*before, *now)):
        weight = path.endswith(".weight") and path in now and path in before
        must_stay = path.startswith(FIXED_FIELDS) or weight
        if must_stay and now.get(path) != before.get(path):
            raise UserError(
                f"{run / 'recipe.json'}: {path} is {now.get(path)}, but the run was started with "
                f"{before.get(path)}: restore it, or start a new run"
            )


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a JSON tree by their paths: train.seed, corpus.0.weight."""
    if not isinstance(tree, dict | list):
        yield path, tree
        return
    for name, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield from leaves(child, f"{path}.{name}" if path else str(name))


def recipe_of(folder: Path) -> Recipe | None:
    """Return the recipe of a pretrained model folder; None for an external or fine-tuned one."""
    path = folder / "kinfolk.json"
    recipe = read_json(path) if path.is_file() else None
    return recipe if isinstance(recipe, Recipe) else None


def continue_from(
    folder: Path | str,
    corpus: CorpusSource,
    objective: str | None,
    length: int | None,
    settings: Sequence[str],
    tokenizer: Tokenizer | Path | str | None = None,
    *,
    fast: bool = False,
) -> Recipe:
    """Make the recipe of continued pretraining from a run, a checkpoint or a model folder.

    The corpus must have the model's tokenizer. Objective and row length default to those of the
    model's run, else of its family; the settings are those of its size, and for an external model
    the family's at the learning rate of the paper.
    """
    from kinfolk.workflows.load import load

    path = find_model_folder(folder)
    model, tokenizer = load(path, tokenizer)
    if model.pretrained is not model:
        raise UserError(
            f"{folder} is fine-tuned and has no LM head: continue from the pretrained model"
        )
    named, corpora = open_corpora(corpus)
    if shared_tokenizer(corpora).fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{corpora[0].folder} was made with another tokenizer than {folder}: prepare the text "
            f"with the tokenizer of {folder}"
        )
    known, before = family_of(model), recipe_of(path)
    objective_type = known.objective(objective)
    if before is not None and objective is None:
        objective_type = type(before.objective)
    tokenizer = tokenizer.with_end_token(objective_type.required_tokens)
    if length is None:
        length = before.objective.max_length if before is not None else default_length(model.config)
    if model.config.counting_steps is None:
        check_corpus_size(corpora, length)
    ids = {
        "special_tokens": tokenizer.special_tokens,
        "vocab_size": tokenizer.vocab_size,
        "max_length": length,
    }
    base = Recipe(
        name=before.name if before is not None else foreign_name(known, path.name),
        model=model.config,
        objective=dataclasses.replace(before.objective, **ids)
        if before is not None and objective is None
        else objective_type(**ids),
        corpus=named,
        train=default_train_config(known, before, fast=fast),
        init_from=str(path.resolve()),
    )
    return finalize(base, settings, short_warmup=fast)


def foreign_name(family: "Family", folder: str) -> str:
    """Return the recipe name of an external model; never a size, whose settings it would get."""
    return f"{family.name}/{folder}{'-continued' if folder in family.sizes else ''}"


def default_train_config(
    family: "Family", before: Recipe | None, *, fast: bool = False
) -> TrainConfig:
    """Return the training settings of the size, where it is known, else of the family.

    An external model has the paper's learning rate, and its fast rates are lower by as much.
    """
    size = "" if before is None else before.name.partition("/")[2]
    if size in family.sizes:
        train, scale = family.train(size), 1.0
    else:
        paper = next(iter(family.paper_training.values()), family.training)
        train = dataclasses.replace(family.training, lr=paper.lr)
        scale = min(1.0, paper.lr / family.training.lr)
    return fast_train_config(family, train, scale=scale) if fast else train


def fast_train_config(family: "Family", train: TrainConfig, *, scale: float = 1.0) -> TrainConfig:
    """Return training settings with those of the family's fast recipe, if it has one."""
    if family.fast_rates is None:
        known = [name for name, entry in index().items() if "fast" in entry.capabilities]
        raise UserError(
            f"{family.name} has no fast recipe (supported: {', '.join(known)}): remove --fast"
        )
    return family.fast_train(train, scale=scale)
