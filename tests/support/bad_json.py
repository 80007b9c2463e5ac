"""Wrong fields of the JSON files of a model folder, a run or a corpus, and what is said."""

import json
from collections.abc import Iterator
from pathlib import Path

# How a file is opened; @ stands for a copy of its folder with one field changed, or for the file.
COMMANDS = {
    "config.json": "evaluate @ --text {text}",
    "kinfolk.json": "evaluate @ --text {text}",
    "tokenizer_config.json": "evaluate @ --text {text}",
    "recipe.json": "pretrain --recipe @ -o {new}",
    "corpus.json": "pretrain gpt2/nano --corpus @ -o {new}",
}
COMMANDS_OF_A_CLASSIFIER = dict.fromkeys(COMMANDS, "predict @ {labels}")

# The width of a network, by the name of its family, with every kind of wrong value.
WIDTHS = {"gpt2": "n_embd", "bert": "hidden_size", "t5": "d_model"}
WRONG_WIDTHS = {
    "null": "None: it must be a whole number",
    "-1": "-1: it must be at least 1",
    "0": "0: it must be at least 1",
    '"x"': "'x': it must be a whole number",
    "1e308": "1e+308: it must be a whole number",
    "[]": "[]: it must be a whole number",
    "1000000000000": "1000000000000: it must be from 1 to ",
}

FIELDS = {
    "gpt2/config.json": {
        "vocab_size=7": "the weights in ",
        "vocab_size=true": "config.json: vocab_size=True: it must be a whole number",
        "n_layer=1000000000000": "config.json: n_layer=1000000000000: it must be from 1 to ",
        "n_layer=3": "missing weights in ",
        "n_head=3": "model.num_heads=3 does not divide model.hidden_size=64",
        'activation_function="x"': "activation 'x' is not supported (supported: relu, gelu",
        "activation_function=1": "config.json: activation_function=1: it must be text",
        "resid_pdrop=1": "config.json: resid_pdrop=1: it must be from 0 to less than 1",
        'embd_pdrop="x"': "config.json: embd_pdrop='x': it must be a number",
        "layer_norm_epsilon=NaN": "config.json: layer_norm_epsilon=nan: it must be a number",
        "architectures=1": "config.json: architectures=1: it must be a list of names",
        'architectures="GPT2"': "config.json: architectures='GPT2': it must be a list",
        "model_type=[]": "model_type='[]' is not supported",
        'model_type="gtp2"': "model_type='gtp2' is not supported",
        "scale_attn_weights=false": "scale_attn_weights=False is not supported",
        "architectures=[1]": "config.json: architectures=[1]: it must be a list of names",
    },
    "bert/config.json": {
        "initializer_range=-1": "config.json: initializer_range=-1: it must be at least 0",
        "type_vocab_size=0": "config.json: type_vocab_size=0: it must be at least 1",
        "max_position_embeddings=1000000000000": "config.json: max_position_embeddings=10000000000",
        'intermediate_size="x"': "config.json: intermediate_size='x': it must be a whole",
    },
    "t5/config.json": {
        "d_kv=null": "config.json: d_kv=None: it must be a whole number",
        "feed_forward_proj=1": "config.json: feed_forward_proj=1: it must be text",
        'pad_token_id="x"': "config.json: pad_token_id='x': it must be a whole number or null",
        "relative_attention_num_buckets=0": "relative_attention_num_buckets=0: it must be at least",
    },
    "gpt2/kinfolk.json": {
        'type="os.system"': "unknown type 'os.system'",
        'objective.type="subprocess"': "unknown type 'subprocess'",
        "objective=1": "objective=1: it must be an object with a type",
        "train.steps=-1": "train.steps=-1: it must be at least 1",
        'model.dropout="x"': "model.dropout='x': it must be a number",
        "objective.special_tokens.pad=-1": "objective.special_tokens.pad=-1: it must be at least 0",
        "surprise=1": "no field 'surprise'",
        'name="\\ud800"': "it must be text",
    },
    "gpt2/recipe.json": {
        "train=1": "train=1: it must be an object",
        "train.steps=100000000000000000000": "train.steps=100000000000000000000: it must be from 1",
        "train.betas=[1]": "train.betas=[1]: it must be a list of 2 values",
        'train.compile="maybe"': "it must be auto, yes, layers or no",
        "model=null": "model=None: it must be an object with a type",
        'model.type="json"': "unknown type 'json'",
        "model.num_heads=3": "model.num_heads=3 does not divide",
        "model.hidden_size=262144": "the network has",
        "objective.max_length=0": "objective.max_length=0: it must be at least 1",
        "corpus=[]": "corpus=[]: a run needs at least one corpus",
        'corpus="none"': "none",
    },
    "bert/tokenizer_config.json": {
        "mask_token=7": "tokenizer_config.json: mask_token=7: it must be text",
        'pad_token="\\ud800"': "ud800': it must be text",
        'model_max_length="x"': "model_max_length='x': it must be a number",
        "tokenizer_class=[]": "tokenizer_class=[]: it must be text",
    },
    "tuned/kinfolk.json": {
        "datasets=[]": "1 formulations and 0 datasets: a run has one of each for every labelled",
        "formulations=[]": "0 formulations and 1 datasets: a run has one of each for every lab",
        "formulations.0.pad_id=-1": "formulations.0.pad_id=-1: it must be at least 0",
        "formulations.0.pad_id=1000000": "pad_id=1000000: it must be an id of the network, less th",
        'formulations.0.frame="x"': "formulations.0.frame='x': it must be ",
        "formulations.0.max_length=0": "max_length=0: it must be at least 1",
        "formulations.0.temperature=0": "temperature=0: it must be above 0",
        'formulations.0.task.labels=["\\ud800","b"]': "it must be ",
    },
    "tuned/config.json": {
        "architectures=[]": "has no `architectures`, and the weights contain score.weight, a task",
    },
    "corpus/corpus.json": {
        "vocab=0": "corpus.json is corrupt: its vocab is 0",
        "vocab=null": "its vocab is None",
        "tokens=-1": "its tokens is -1",
        "documents=1000000000000": "it counts other documents than corpus.json",
        "sha256=7": "its sha256 is 7",
        "version=3": "it has format 3, and only 2 is supported",
    },
}


def json_mistakes() -> Iterator[tuple[str, str]]:
    """Yield commands that open a changed file, and what their sentence must say."""
    fields = {name: dict(edits) for name, edits in FIELDS.items()}
    for family, width in WIDTHS.items():
        wrong = {f"{width}={v}": f"config.json: {width}={rule}" for v, rule in WRONG_WIDTHS.items()}
        fields[f"{family}/config.json"] = wrong | fields[f"{family}/config.json"]
    for place, edits in fields.items():
        run, _, file = place.partition("/")
        command = (COMMANDS_OF_A_CLASSIFIER if run == "tuned" else COMMANDS)[file]
        for edit, sentence in edits.items():
            yield command.replace("@", f"@{place}:{edit}"), sentence


def edited(word: str, sources: dict[str, Path], folder: Path) -> Path:
    """Return a copy of a folder of `sources` with one changed field of JSON; of a recipe the file.

    `@gpt2/config.json:n_embd=-1` names the folder, the file, the path of the field and its value.
    """
    place, _, edit = word.removeprefix("@").partition(":")
    name, _, file = place.partition("/")
    source = sources[name]
    if file != "recipe.json" and (source / "checkpoints").is_dir():
        source = source / "checkpoints" / "last"
    for other in source.iterdir():
        if other.name not in ("checksums.json", file):
            (folder / other.name).symlink_to(other.resolve())
    path, _, value = edit.partition("=")
    data = json.loads((source / file).read_text(encoding="utf-8"))
    *groups, field = path.split(".")
    inner = data
    for group in groups:
        inner = inner[int(group) if group.isdecimal() else group]
    inner[field] = json.loads(value)
    (folder / file).write_text(json.dumps(data), encoding="utf-8")
    return folder / file if file == "recipe.json" else folder
