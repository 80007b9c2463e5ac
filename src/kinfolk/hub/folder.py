"""Model folders in Hugging Face's layout, written and read."""

import json
import pkgutil
from collections.abc import Mapping, Set
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kinfolk.errors import UserError
from kinfolk.hub.mapping import Family, Parted
from kinfolk.hub.native import MODEL_TYPE_PREFIX, Native
from kinfolk.hub.task_heads import head_for_config, head_from_architectures, refuse_unnamed_head
from kinfolk.nn.init import init_weights_
from kinfolk.nn.language_model import LanguageModel, ModelConfig
from kinfolk.nn.task_heads import ModelWithHeadConfig
from kinfolk.text.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLE = "pytorch_model.bin"
NORMS = (nn.LayerNorm, nn.RMSNorm)


def members() -> list[Family]:
    """Find the members by their presence in this package."""
    here = pkgutil.iter_modules([str(Path(__file__).parent)], "kinfolk.hub.")
    modules = [import_module(found.name) for found in here]
    return [cast(Family, module) for module in modules if hasattr(module, "TYPE")]


def save(
    folder: Path,
    model: LanguageModel,
    tokenizer: Tokenizer | None,
    *,
    length: int | None = None,
    frame: str | None = None,
) -> None:
    """Write a folder that transformers opens as it is, where it knows the family.

    `length` is the longest text in tokens, the network's context where it is not given. `frame` is
    what stands around a text, where it is not what the family has.
    """
    c = model.config
    member = family_of(c)
    if member is None:
        raise UserError(f"{type(model).__name__} is in no file of models/: it cannot be saved")
    _check_vocab(tokenizer, c.vocab_size, folder)
    special_tokens = tokenizer.special_tokens if tokenizer is not None else None
    ours: dict[str, Tensor] = model.state_dict()
    # Each a copy of its own: parts of one tensor share memory, which the format does not allow.
    theirs = {
        name: tensor.to("cpu", copy=True).contiguous()
        for name, tensor in member.names(c).to_hf(ours).items()
    }
    dtype = str(next(iter(theirs.values())).dtype).removeprefix("torch.")
    parts = {"": member.to_config(c, special_tokens)}
    if isinstance(member, Parted):
        parts |= member.parts(c, special_tokens)
    for part, config in parts.items():
        config = {"model_type": member.TYPE, "dtype": dtype} | config
        inside = {
            n.rpartition("/")[2]: t for n, t in theirs.items() if n.rpartition("/")[0] == part
        }
        _write_folder(folder / part, config, inside, generates=c.network().decoding is not None)
        if tokenizer is not None:
            longest = length or c.max_length
            tokenizer.save(folder / part, frame=frame or member.FRAME, length=longest)


def template_of(config: ModelConfig) -> str | None:
    """Return what stands around the texts that a network reads: one of the tokenizer's FRAMES."""
    member = family_of(config)
    return None if member is None else member.FRAME


def family_of(c: ModelConfig) -> Family | None:
    """Find what is said of a network: by its own file, else as of any of ours."""
    kind = type(c.pretrained)
    named = next((m for m in members() if m.CONFIG is kind), None)
    if named is not None and isinstance(c, ModelWithHeadConfig):
        named = head_for_config(named, c)
    return named or next((m for m in Native.all() if m.CONFIG is kind), None)


def _write_folder(
    folder: Path, config: Mapping[str, Any], weights: dict[str, Tensor], *, generates: bool
) -> None:
    """Write what describes a network, and its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "config.json", config)
    if generates:
        roles = ("bos", "eos", "pad", "decoder_start")
        ids = {f"{role}_token_id": config.get(f"{role}_token_id") for role in roles}
        _write(folder / "generation_config.json", {k: v for k, v in ids.items() if v is not None})
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    # The library writes for the owner alone; whoever may read the config may read the weights.
    (folder / WEIGHTS).chmod((folder / "config.json").stat().st_mode)


def load(folder: Path | str) -> tuple[LanguageModel, Tokenizer]:
    """Open a folder that kinfolk or transformers wrote: the network and its tokenizer."""
    model = load_model(folder)
    tokenizer = Tokenizer.load(folder)
    _check_vocab(tokenizer, model.config.vocab_size, folder)
    return model, tokenizer


def load_model(folder: Path | str) -> LanguageModel:
    """Open the network alone, in float32, ready to be asked."""
    path = Path(folder)
    data = _config(path)
    member = head_from_architectures(_member(data, path), data, str(path / "config.json"))
    parts = member.PARTS if isinstance(member, Parted) else ()
    parts = tuple(part for part in parts if (path / part).is_dir())
    data |= {part: _config(path / part) for part in parts}
    config = member.from_config(data)
    with torch.device("meta"):  # weights that come from the folder need not be drawn
        model = config.build()
    like: dict[str, Tensor] = model.state_dict()
    theirs = _weights(path)
    if not data.get("architectures"):
        refuse_unnamed_head(member, theirs, str(path / "config.json"))
    for part in parts:
        theirs |= {f"{part}/{name}": tensor for name, tensor in _weights(path / part).items()}
    ours = member.names(config).from_hf(theirs, like, str(path))
    ours |= _fresh(model, like.keys() - ours.keys())
    model.load_state_dict(ours, assign=True)
    assert not any(buffer.is_meta for buffer in model.buffers()), "a buffer is not in the folder"
    return model.eval()


@torch.no_grad()
def _fresh(model: LanguageModel, missing: Set[str]) -> dict[str, Tensor]:
    """Draw the parameters that a folder lacks, and leave the global random state as it was.

    The network is on the meta device: nothing but these takes memory.
    """
    found: dict[str, Tensor] = {}
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
            if isinstance(module, nn.Linear):
                init_weights_(module, std=model.config.init_std)
            assert not isinstance(module, nn.Embedding), "a folder lacks an embedding"
            weights = dict(module.named_parameters(prefix=path, recurse=False))
            found |= {name: weights[name].detach() for name in own if name in missing}
    return found


def _check_vocab(tokenizer: Tokenizer | None, vocab: int, folder: Path | str) -> None:
    if tokenizer is not None and tokenizer.vocab_size > vocab:
        raise UserError(
            f"the tokenizer of {folder} has {tokenizer.vocab_size} ids and the network knows "
            f"{vocab}: give the network a vocabulary at least as large"
        )


def _config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise UserError(f"there is no folder {path}")
    if not (path / "config.json").is_file():
        raise UserError(f"{path} is no model folder: it holds no config.json")
    return _read(path / "config.json")


def _member(data: Mapping[str, Any], path: Path) -> Family:
    known = {member.TYPE: member for member in members()}
    kind = data.get("model_type")
    if str(kind).startswith(MODEL_TYPE_PREFIX):
        known |= {member.TYPE: member for member in Native.all()}
    if kind not in known:
        raise UserError(
            f"{path / 'config.json'} says model_type={kind!r}: "
            f"kinfolk opens {', '.join(sorted(known))}"
        )
    return known[kind]


def _weights(path: Path) -> dict[str, Tensor]:
    """Read all weights of a folder, from one file or from shards."""
    if (path / WEIGHTS).is_file():
        return _tensors(path / WEIGHTS)
    if (path / INDEX).is_file():
        shards = sorted(set(_read(path / INDEX).get("weight_map", {}).values()))
        return {k: v for shard in shards for k, v in _tensors(path / shard).items()}
    if (path / PICKLE).is_file():
        raise UserError(
            f"{path} holds {PICKLE}, a pickle, which could run any code: convert it with "
            "transformers' AutoModelForPreTraining.from_pretrained(folder).save_pretrained(folder)"
        )
    raise UserError(f"{path} holds no {WEIGHTS}")


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read ({error}): copy or save it again") from error


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}): copy or save it again") from error
    if not isinstance(data, dict):
        raise UserError(f"{file} holds no JSON object: copy or save it again")
    return data


def _write(file: Path, data: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
