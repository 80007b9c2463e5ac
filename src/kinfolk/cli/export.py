"""The commands `export` and `import`: model folders in Hugging Face's layout."""

import json
from pathlib import Path

import typer

from kinfolk.cli.app import MODEL, MODELS, NEW_FOLDER, TOKENIZER, command, option
from kinfolk.cli.options import UsageError
from kinfolk.cli.output import print_line
from kinfolk.workflows.folders import (
    check_model_folder,
    check_new_file,
    check_new_folder,
    check_parent_folder,
)


@command("kinfolk export runs/bert -o my-bert", panel=MODELS)
def export_command(
    model: Path = MODEL, out: Path = NEW_FOLDER, tokenizer: Path | None = TOKENIZER
) -> None:
    """Write a model folder for Hugging Face: weights, config and tokenizer, and nothing else.

    The checkpoints of a run are such folders already; an export leaves out the training state.
    An n-gram model is written as an ARPA file: -o NAME.arpa.
    """
    check_model_folder(model)
    is_arpa = out.suffix == ".arpa"
    if is_arpa:
        check_new_file(out)
        check_parent_folder(out)
    else:
        check_new_folder(out)
    from kinfolk.workflows.load import export_arpa, exportable, load, save

    network, loaded = load(model, tokenizer)
    if is_arpa:
        export_arpa(network, loaded, out)
        # The file has tokens and no tokenizer.
        source = model if tokenizer is None else tokenizer
        use = f"kinfolk evaluate {out} --tokenizer {source} --text FILE"
        print_line(f"exported to {out}; evaluate with {use}")
        return
    save(exportable(network), loaded, out)
    print_line(f"exported to {out}; {how_to_load(out, has_head=network.pretrained is not network)}")


def how_to_load(folder: Path, *, has_head: bool) -> str:
    """Return what opens a model folder: with a task head its class of transformers, if any."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    classes = config.get("architectures")
    if not classes:
        return f'transformers has no class for it: load with kinfolk.load("{folder}")'
    return f'load with {classes[0] if has_head else "AutoModel"}.from_pretrained("{folder}")'


@command("kinfolk import bert-base-uncased -o models/bert", panel=MODELS)
def import_command(
    folder: Path = typer.Argument(
        ..., metavar="FOLDER", help="Hugging Face model folder on this machine, or an ARPA file."
    ),
    out: Path = NEW_FOLDER,
    tokenizer: Path | None = TOKENIZER,
    vectors: Path | None = option("FILE", "Word vectors of an encoder without its own (CoVe)."),
) -> None:
    """Read a Hugging Face folder, check every weight, and write it as kinfolk does.

    The published encoder of CoVe has no vocabulary: pass its word vectors and a tokenizer of words.
    """
    check_model_folder(folder)
    check_new_folder(out)
    from kinfolk.workflows.load import load, load_with_vectors, save

    if vectors is None:
        network, loaded = load(folder, tokenizer)
    elif tokenizer is None:
        raise UsageError("--vectors FILE needs --tokenizer PATH, whose words have vectors")
    else:
        network, loaded, message = load_with_vectors(folder, tokenizer, vectors)
        print_line(message)
    save(network, loaded, out)
    print_line(f'imported to {out}; load with kinfolk.load("{out}")')
