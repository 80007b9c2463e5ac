"""Model folders in Hugging Face's layout: config.json, generation_config.json, safetensors."""

import json
import shutil
import warnings
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.extensions import HINT
from kinfolk.families import family, family_of, index
from kinfolk.families.base import HuggingFace
from kinfolk.families.mapping import ParameterMap
from kinfolk.files import CHECKSUMS, TRAINING_STATE, checksum_fault
from kinfolk.hub.arpa import is_arpa, read_arpa
from kinfolk.hub.detect import detect_family
from kinfolk.hub.formats import (
    MODEL_TYPE_PREFIX,
    Native,
    WithHead,
    head_for_config,
    head_from_architectures,
    refuse_unnamed_head,
)
from kinfolk.hub.importers import FOLDERS, convert_folder, find_checkpoint, read_checkpoint
from kinfolk.hub.weights import SAFETENSORS, read_object, read_weights
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import NORMS, LanguageModel, ModelConfig
from kinfolk.nn.meta import meta_network
from kinfolk.nn.task_heads import ModelWithHeadConfig, TaskModelConfig
from kinfolk.text.characters import character_table
from kinfolk.text.tokenizer import Tokenizer

BAD_WORDS = "bad_words_ids"  # of generation_config.json alone
FolderFormat = HuggingFace | WithHead | Native  # how config.json and the parameters are named


def save(
    folder: Path,
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    *,
    length: int | None = None,
    frame: str | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a model folder, which transformers can load if it has the family.

    `length` is the longest text in tokens; None is the network's `max_length`. `frame` is the
    template of special tokens around a text; None is that of the family. Modules that the folder
    of the network lacked are left out: another folder must not have random weights. `weights` are
    those of the whole network where `model` is a part of it.
    """
    c = model.config
    family, format = family_of(c), format_of(c)
    _check_vocab(tokenizer, c.vocab_size, folder)
    special_tokens = tokenizer.special_tokens if tokenizer is not None else None
    state: Mapping[str, Tensor] = model.state_dict() if weights is None else weights
    parameters = format.parameters(c)
    names = [name for rule in parameters.rules for name in rule.hf_names]
    left_out = _random_weights(model, parameters)
    tensors = {n: t for n, t in parameters.to_hf(state).items() if n not in left_out}
    if model.weights_file is None:
        # Copies: parts of one tensor share memory, which safetensors does not allow.
        tensors = {n: tensor.to("cpu", copy=True).contiguous() for n, tensor in tensors.items()}
    dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    config = format.to_config(c, special_tokens)
    configs = {"": config} | {name: make(c, config) for name, make in format.subfolders.items()}
    for subfolder, data in configs.items():
        weights = {
            n.rpartition("/")[2]: t for n, t in tensors.items() if n.rpartition("/")[0] == subfolder
        }
        own = [n for n in names if n.startswith(f"{subfolder}/")]
        if own and left_out.issuperset(own):  # the rest are copies of shared weights
            continue
        _write_folder(
            folder / subfolder,
            {"model_type": format.model_type, "dtype": dtype} | data,
            model.weights_file or weights,
            generates=c.network.decoding is not None,
        )
        if tokenizer is not None:
            tokenizer.save(
                folder / subfolder, template=frame or family.template, length=length or c.max_length
            )


def _random_weights(model: LanguageModel, parameters: ParameterMap) -> set[str]:
    """Return the names of weights that a folder lacked, and warn that they are left out."""
    if not model.random_modules:
        return set()
    modules = ", ".join(model.random_modules)
    warnings.warn(
        f"the model has no trained weights of {modules}: they are not written (after training "
        "them yourself, set model.random_modules = () before saving)",
        stacklevel=3,
    )
    return {
        name
        for rule in parameters.rules
        if rule.name.partition(".")[0] in model.random_modules
        for name in rule.hf_names
    }


def format_of(c: ModelConfig) -> FolderFormat:
    """Return the format of a network: that of transformers, or our own where it has none."""
    family = family_of(c)
    hf = family.hf
    if hf is None or not hf.supports(c.pretrained):
        return Native(family)
    if isinstance(c, ModelWithHeadConfig):
        return head_for_config(hf, c) or Native(family)
    if isinstance(c, TaskModelConfig):
        return Native(family)
    return hf


def _write_folder(
    folder: Path, config: Mapping[str, Any], weights: dict[str, Tensor] | Path, *, generates: bool
) -> None:
    """Write the config and the weights of a network, which may be a file."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", {k: v for k, v in config.items() if k != BAD_WORDS})
    if generates:
        roles = ("bos", "eos", "pad", "decoder_start", "forced_eos")
        fields = [*(f"{role}_token_id" for role in roles), BAD_WORDS]
        _write(
            folder / "generation_config.json",
            {name: config[name] for name in fields if config.get(name) is not None},
        )
    if isinstance(weights, Path):
        shutil.copyfile(weights, folder / SAFETENSORS)
    else:
        save_file(weights, folder / SAFETENSORS, metadata={"format": "pt"})
    # safetensors creates files that only the owner may read.
    (folder / SAFETENSORS).chmod((folder / "config.json").stat().st_mode)


def load(folder: Path | str, tokenizer: Tokenizer | None = None) -> tuple[LanguageModel, Tokenizer]:
    """Load the network and the tokenizer of a folder that kinfolk or transformers saved.

    The tokenizer is the one of the folder where none is given. An ARPA file of an n-gram model has
    its own, unless one is given.
    """
    if is_arpa(Path(folder)):
        return read_arpa(Path(folder), tokenizer)
    model = load_model(folder)
    if tokenizer is None:
        path = Path(folder)
        tokenizer = Tokenizer.load(path.parent if path.is_file() else path)
    bind_tokenizer(model, tokenizer)
    _check_vocab(tokenizer, model.config.vocab_size, folder)
    return model, tokenizer


def bind_tokenizer(model: LanguageModel, tokenizer: Tokenizer) -> None:
    """Give a network that reads characters those of every token; others read ids alone."""
    network, size = model.pretrained, model.config.pretrained.max_characters
    if size is None or tokenizer.vocab_size > network.max_vocab_size:
        return
    network.set_character_table(torch.from_numpy(character_table(tokenizer, size)))


def load_model(folder: Path | str) -> LanguageModel:
    """Load the network of a folder, in float32 and evaluation mode."""
    path = Path(folder)
    if is_arpa(path):
        return read_arpa(path)[0]
    _check_checksums(path)
    if path.is_file() or (path.is_dir() and not (path / "config.json").is_file()):
        data, tensors = _foreign(path)
        format = _format(data, path)
    elif str((data := _config(path)).get("model_type")) in FOLDERS:
        data, tensors = convert_folder(data, read_weights(path), path)
        format = _format(data, path)
    else:
        known = _format(data, path) if "model_type" in data else None
        # In our own format every buffer has a name, those of integers too.
        tensors = read_weights(path, integers=isinstance(known, Native))
        format = known or head_from_architectures(detect_family(data, tensors, path), data)
    subfolders = [name for name in format.subfolders if (path / name).is_dir()]
    data |= {name: _config(path / name) for name in subfolders}
    config: Any = format.from_config(data)
    model = meta_network(config)  # weights are loaded, not initialized
    like: dict[str, Tensor] = model.state_dict()
    if isinstance(format, HuggingFace):
        if not data.get("architectures"):
            refuse_unnamed_head(format, tensors, str(path / "config.json"))
        tensors = format.adapt(data, tensors)
    for name in subfolders:
        tensors |= {f"{name}/{key}": tensor for key, tensor in read_weights(path / name).items()}
    state = format.parameters(config).from_hf(tensors, like, str(path))
    missing = like.keys() - state.keys()
    model.load_state_dict(state | _initial_weights(model, missing), assign=True)
    model.random_modules = tuple(sorted({name.split(".")[0] for name in missing}))
    assert not any(buffer.is_meta for buffer in model.buffers()), "a buffer is not in the folder"
    return model.eval()


def _check_checksums(path: Path) -> None:
    """Refuse a checkpoint with a damaged file; a folder without checksums is not checked."""
    if not (path / CHECKSUMS).is_file():
        return
    if fault := checksum_fault(path, unread=TRAINING_STATE):
        raise UserError(
            f"{path} is corrupt ({fault}): use another checkpoint, or remove {CHECKSUMS} if the "
            "file was changed on purpose"
        )


def _foreign(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the checkpoint of another program: a file, or the only one of a folder."""
    if (file := find_checkpoint(path)) is None:
        raise UserError(f"{path} is not a model folder: it has no config.json")
    return read_checkpoint(file)


@torch.no_grad()
def _initial_weights(model: LanguageModel, missing: Set[str]) -> dict[str, Tensor]:
    """Initialize the parameters that a folder lacks, without changing the global random state.

    The network is on the meta device, so that only these parameters take memory.
    """
    initial: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        for path, module in model.named_modules():
            own = [name for name, _ in module.named_parameters(prefix=path, recurse=False)]
            if not missing & set(own):
                continue
            module.to_empty(device="cpu", recurse=False)
            for weight in module.parameters(recurse=False):
                weight.zero_()
            if isinstance(module, NORMS):
                module.reset_parameters()
            inner = path.split(".")[0] in model.lm_head_modules
            assert inner or not isinstance(module, nn.Embedding), "a folder lacks an embedding"
            if isinstance(module, nn.Linear | nn.Embedding):
                init_weights_(module, std=model.config.init_std)
            weights = dict(module.named_parameters(prefix=path, recurse=False))
            initial |= {name: weights[name].detach() for name in own if name in missing}
    return initial


def _check_vocab(tokenizer: Tokenizer | None, vocab: int, folder: Path | str) -> None:
    if tokenizer is not None and tokenizer.vocab_size > vocab:
        raise UserError(
            f"the tokenizer of {folder} has {tokenizer.vocab_size} ids, more than the network's "
            f"vocab_size={vocab}: use a network with at least as many"
        )


def _config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise UserError(f"folder {path} not found")
    if not (path / "config.json").is_file():
        raise UserError(f"{path} is not a model folder: it has no config.json")
    return read_object(path / "config.json")


def _format(data: Mapping[str, Any], path: Path) -> FolderFormat:
    """Return the format that `model_type` and `architectures` of config.json name."""
    model_type = str(data["model_type"])
    native = {MODEL_TYPE_PREFIX + name: name for name in index()}
    if model_type in native:
        return Native(family(native[model_type]))
    known = {entry.model_type: name for name, entry in index().items() if entry.model_type}
    hf = family(known[model_type]).hf if model_type in known else None
    if hf is None:
        own = [*native] if model_type.startswith(MODEL_TYPE_PREFIX) else []
        raise UserError(
            f"{path / 'config.json'}: model_type={model_type!r} is not supported "
            f"(supported: {', '.join(sorted([*known, *own]))}); {HINT}"
        )
    return head_from_architectures(hf, data)


def _write(file: Path, data: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
