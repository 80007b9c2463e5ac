"""What AllenNLP 2.10.1 computes from a file in the layout of ELMo's release, written beside this.

    pip install --no-deps --target /tmp/allennlp allennlp==2.10.1 h5py
    PYTHONPATH=/tmp/allennlp python tests/families/golden/elmo.py

Only the modules of ELMo are executed: the rest of the package needs libraries of its time. Weights
are random and large, and both limits are low, so that they bind.
"""

import ast
import importlib.util
import json
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

OPTIONS: dict[str, Any] = {
    "lstm": {
        "use_skip_connections": True,
        "projection_dim": 5,
        "cell_clip": 0.6,
        "proj_clip": 0.4,
        "dim": 12,
        "n_layers": 2,
    },
    "char_cnn": {
        "activation": "relu",
        "filters": [[1, 4], [2, 3], [3, 6]],
        "n_highway": 2,
        "embedding": {"dim": 4},
        "n_characters": 262,
        "max_characters_per_token": 9,
    },
}
WORDS = [["The", "cat", "sat", "."], ["Überraschung", "!"]]


def arrays() -> dict[str, np.ndarray]:
    """Draw the weights under the names of the release."""
    draws = np.random.default_rng(0)
    cnn, lstm = OPTIONS["char_cnn"], OPTIONS["lstm"]
    total, size, cell = sum(n for _, n in cnn["filters"]), lstm["projection_dim"], lstm["dim"]
    shapes: dict[str, tuple[int, ...]] = {"char_embed": (261, cnn["embedding"]["dim"])}
    for i, (width, count) in enumerate(cnn["filters"]):
        shapes[f"CNN/W_cnn_{i}"] = (1, width, cnn["embedding"]["dim"], count)
        shapes[f"CNN/b_cnn_{i}"] = (count,)
    for i in range(cnn["n_highway"]):
        for name in ("transform", "carry"):
            shapes[f"CNN_high_{i}/W_{name}"] = (total, total)
            shapes[f"CNN_high_{i}/b_{name}"] = (total,)
    shapes |= {"CNN_proj/W_proj": (total, size), "CNN_proj/b_proj": (size,)}
    for direction in range(2):
        for layer in range(lstm["n_layers"]):
            here = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{here}/W_0": (2 * size, 4 * cell), f"{here}/B": (4 * cell,)}
            shapes[f"{here}/W_P_0"] = (cell, size)
    return {n: draws.normal(0, 0.5, shape).astype(np.float32) for n, shape in shapes.items()}


def module(name: str, **contents: Any) -> types.ModuleType:
    """Register a module with these contents."""
    made = types.ModuleType(name)
    made.__path__ = []
    vars(made).update(contents)
    sys.modules[name] = made
    return made


def some_of(path: Path, names: set[str]) -> str:
    """Return the source of some definitions of a file."""
    source = path.read_text(encoding="utf-8")
    found = [n for n in ast.parse(source).body if vars(n).get("name") in names]
    return "\n\n".join(ast.get_source_segment(source, node) or "" for node in found)


def allennlp_elmo() -> Any:
    """Execute AllenNLP's modules of ELMo, with as little else as they need."""
    spec = importlib.util.find_spec("allennlp")
    assert spec is not None and spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    for name in ("", ".modules", ".nn", ".data", ".data.tokenizers", ".data.token_indexers"):
        module(f"allennlp{name}")
    module("allennlp.common", FromParams=object)
    module("allennlp.common.checks", ConfigurationError=ValueError)
    module("allennlp.common.file_utils", cached_path=lambda path: path)
    module("allennlp.common.util", lazy_groups_of=None)
    module("allennlp.modules.scalar_mix", ScalarMix=object)
    module("allennlp.nn.initializers", block_orthogonal=lambda *_: None)
    for name, what in (
        ("instance", "Instance"),
        ("tokenizers.token_class", "Token"),
        ("vocabulary", "Vocabulary"),
        ("batch", "Batch"),
        ("fields", "TextField"),
    ):
        module(f"allennlp.data.{name}", **{what: object})
    header = "from typing import *\nimport torch\nT = TypeVar('T')\n\n"
    functions = {
        "add_sentence_boundary_token_ids",
        "get_lengths_from_binary_sequence_mask",
        "sort_batch_by_length",
        "get_device_of",
        "remove_sentence_boundaries",
        "get_dropout_mask",
    }
    util = module("allennlp.nn.util")
    exec(header + some_of(root / "nn" / "util.py", functions), vars(util))
    indexer = root / "data" / "token_indexers" / "elmo_indexer.py"
    mapper = module("allennlp.data.token_indexers.elmo_indexer", ELMoTokenCharactersIndexer=object)
    exec(header + some_of(indexer, {"_make_bos_eos", "ELMoCharacterMapper"}), vars(mapper))
    for name in ("highway", "lstm_cell_with_projection", "encoder_base", "elmo_lstm", "elmo"):
        path = root / "modules" / f"{name}.py"
        found = importlib.util.spec_from_file_location(f"allennlp.modules.{name}", path)
        assert found is not None and found.loader is not None
        loaded = importlib.util.module_from_spec(found)
        sys.modules[found.name] = loaded
        found.loader.exec_module(loaded)
    return loaded


def main() -> None:
    """Write weights, characters and the outputs of all layers."""
    import h5py

    elmo, weights = allennlp_elmo(), arrays()
    size = OPTIONS["char_cnn"]["max_characters_per_token"]
    mapper = sys.modules["allennlp.data.token_indexers.elmo_indexer"].ELMoCharacterMapper
    mapper.max_word_length = size
    for name in ("beginning", "end"):  # of words of this length
        marks = getattr(mapper, f"{name}_of_sentence_characters")
        setattr(mapper, f"{name}_of_sentence_characters", marks[:size])
    longest = max(map(len, WORDS))
    characters = torch.zeros(len(WORDS), longest, size, dtype=torch.int64)
    for row, words in enumerate(WORDS):
        for place, word in enumerate(words):
            characters[row, place] = torch.tensor(mapper().convert_word_to_char_ids(word))
    with tempfile.TemporaryDirectory() as folder:
        options, file = Path(folder) / "options.json", Path(folder) / "weights.hdf5"
        options.write_text(json.dumps(OPTIONS), encoding="utf-8")
        with h5py.File(file, "w") as opened:
            for name, array in weights.items():
                opened[name] = array
        model = elmo._ElmoBiLm(str(options), str(file)).eval()
    with torch.no_grad():
        found = model(characters)
    tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
    tensors |= {f"layer.{i}": t.contiguous() for i, t in enumerate(found["activations"])}
    tensors |= {"characters": characters, "mask": found["mask"]}
    out = Path(__file__).with_suffix(".safetensors")
    save_file(tensors, out, metadata={"options": json.dumps(OPTIONS), "words": json.dumps(WORDS)})
    print(f"{out}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
