"""kinfolk: pretrain, fine-tune, evaluate, generate with and compare families of language models.

    import kinfolk

    tokenizer = kinfolk.train_tokenizer("notes/", kind="bpe", vocab_size=8192)
    kinfolk.prepare("notes/", tokenizer, "corpus", holdout=0.01)
    recipe = kinfolk.recipe("gpt2/tiny", "corpus", steps=500)
    model, tokenizer = kinfolk.load(kinfolk.pretrain(recipe, "runs/gpt2"))
    print(kinfolk.generate(model, tokenizer, "Once upon", max_new_tokens=50, top_p=0.9))

Data
    train_tokenizer   train a tokenizer on text files
    prepare           tokenize text files into a corpus
    prepare_on_ray    the same on a Ray cluster
    merge_shards      join the shards of a corpus
    task_dataset      describe labelled rows: files, lists of dictionaries or DataFrames
Models
    families          families.families(), families.family(name), families.register(FAMILY)
    load, save        a model and its tokenizer from and to a folder
    logits            scores of one sequence of token ids
Training
    recipe            model, objective, corpora and settings of a pretraining run
    plan              FLOPs, hours, memory and disk of a run, before it starts
    lr_find           try rising learning rates, and suggest one
    pretrain          train a model by a recipe
    finetune          train a model on labelled rows
    learn_prefixes    train prefixes of attributes for a frozen model
    resume            continue an interrupted run
    finetune_in_stages, resume_stages   text of the task first, then its labels
    verify_resume     kill a run, resume it, and compare it with an uninterrupted one
Use
    generate, stream  text for a prompt, whole or chunk by chunk
    fill              the text of each [MASK]
    embed             one vector per text
    predict           labels, spans or texts of a fine-tuned model
    load_predictor    a fine-tuned model for many calls of predict
    inspect           what a model computes for a text: attention, hidden states, predictions
    isotropy          how evenly vectors fill their space, by layer and after transforms
    probe             what each frozen layer holds, against control tasks
    neurons           feed-forward neurons on which the answer of a fact depends
    evaluate          likelihood of a text, or scores on labelled rows
    compare           families on a text and its tasks, with equal budgets
    resume_race       continue an interrupted comparison
    repeat_race       do a comparison again, with the same numbers of steps
    run_claims        well-known claims about families, each as a small comparison

Types: Callback, Corpus, FineTuneConfig, GenerationConfig, Prediction, Recipe, TaskDataset,
Tokenizer, TrainConfig, UserError, VectorTransforms. `help(kinfolk.pretrain)` describes one
function.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinfolk.machine import limit_spinning
from kinfolk.version import __version__ as __version__

try:
    import fcntl as _fcntl  # noqa: F401
except ImportError:
    raise ImportError(
        "kinfolk runs on Linux and macOS, and this system has no fcntl, which locks folders: on "
        "Windows install it in WSL 2 (the Windows Subsystem for Linux)"
    ) from None

if TYPE_CHECKING:
    from kinfolk import families
    from kinfolk.data.cluster import prepare_on_ray
    from kinfolk.data.corpus import Corpus
    from kinfolk.data.merge import merge_shards
    from kinfolk.data.prepare import prepare, train_tokenizer
    from kinfolk.errors import UserError
    from kinfolk.generation.config import GenerationConfig
    from kinfolk.tasks.dataset import TaskDataset, task_dataset
    from kinfolk.tasks.task import Prediction
    from kinfolk.text.tokenizer import Tokenizer
    from kinfolk.training.config import FineTuneConfig, TrainConfig
    from kinfolk.training.loop import Callback
    from kinfolk.workflows.claims.run import run_claims
    from kinfolk.workflows.comparison.compare import compare, repeat_race, resume_race
    from kinfolk.workflows.evaluate import evaluate
    from kinfolk.workflows.finetuning.finetune import finetune
    from kinfolk.workflows.finetuning.stages import finetune_in_stages, resume_stages
    from kinfolk.workflows.generate import fill, generate, stream
    from kinfolk.workflows.inspection.inspect import inspect
    from kinfolk.workflows.knowledge_neurons.neurons import neurons
    from kinfolk.workflows.load import load, logits, save
    from kinfolk.workflows.lr_find import lr_find
    from kinfolk.workflows.planning.plan import plan
    from kinfolk.workflows.predict import load_predictor, predict
    from kinfolk.workflows.prefix_tuning.prefixes import learn_prefixes
    from kinfolk.workflows.pretrain import pretrain, resume
    from kinfolk.workflows.probing.curves import probe
    from kinfolk.workflows.recipe import Recipe, recipe
    from kinfolk.workflows.vectors.embed import embed
    from kinfolk.workflows.vectors.isotropy import isotropy
    from kinfolk.workflows.vectors.transforms import VectorTransforms
    from kinfolk.workflows.verify_resume import verify_resume

__all__ = [
    "Callback",
    "Corpus",
    "FineTuneConfig",
    "GenerationConfig",
    "Prediction",
    "Recipe",
    "TaskDataset",
    "Tokenizer",
    "TrainConfig",
    "UserError",
    "VectorTransforms",
    "compare",
    "embed",
    "evaluate",
    "families",
    "fill",
    "finetune",
    "finetune_in_stages",
    "generate",
    "inspect",
    "isotropy",
    "learn_prefixes",
    "load",
    "load_predictor",
    "logits",
    "lr_find",
    "merge_shards",
    "neurons",
    "plan",
    "predict",
    "prepare",
    "prepare_on_ray",
    "pretrain",
    "probe",
    "recipe",
    "repeat_race",
    "resume",
    "resume_race",
    "resume_stages",
    "run_claims",
    "save",
    "stream",
    "task_dataset",
    "train_tokenizer",
    "verify_resume",
]

_MODULES = {
    "data.cluster": ["prepare_on_ray"],
    "data.corpus": ["Corpus"],
    "data.merge": ["merge_shards"],
    "data.prepare": ["prepare", "train_tokenizer"],
    "errors": ["UserError"],
    "generation.config": ["GenerationConfig"],
    "tasks.dataset": ["TaskDataset", "task_dataset"],
    "tasks.task": ["Prediction"],
    "text.tokenizer": ["Tokenizer"],
    "training.config": ["FineTuneConfig", "TrainConfig"],
    "training.loop": ["Callback"],
    "workflows.claims.run": ["run_claims"],
    "workflows.comparison.compare": ["compare", "repeat_race", "resume_race"],
    "workflows.vectors.embed": ["embed"],
    "workflows.evaluate": ["evaluate"],
    "workflows.finetuning.finetune": ["finetune"],
    "workflows.generate": ["fill", "generate", "stream"],
    "workflows.inspection.inspect": ["inspect"],
    "workflows.vectors.isotropy": ["isotropy"],
    "workflows.load": ["load", "logits", "save"],
    "workflows.lr_find": ["lr_find"],
    "workflows.knowledge_neurons.neurons": ["neurons"],
    "workflows.planning.plan": ["plan"],
    "workflows.predict": ["load_predictor", "predict"],
    "workflows.prefix_tuning.prefixes": ["learn_prefixes"],
    "workflows.pretrain": ["pretrain", "resume"],
    "workflows.probing.curves": ["probe"],
    "workflows.recipe": ["Recipe", "recipe"],
    "workflows.finetuning.stages": ["finetune_in_stages", "resume_stages"],
    "workflows.vectors.transforms": ["VectorTransforms"],
    "workflows.verify_resume": ["verify_resume"],
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: `kinfolk --help` need not wait for torch."""
    limit_spinning()  # the import below may be that of torch
    if name == "families":
        return import_module("kinfolk.families")
    if name not in _HOMES:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    return getattr(import_module(f"kinfolk.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
