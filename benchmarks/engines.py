"""CTranslate2 and llama.cpp, where they are installed: the same GPT-2, the same prompts.

    pip install ctranslate2 llama-cpp-python gguf

Both get the weights of a `transformers` GPT-2 and write greedily, in 8 bits, on as many threads as
torch has: CTranslate2 with its int8 matrices, llama.cpp with its q8_0. Each lives in a process of
its own: in one process their threads, which wait by spinning, would slow all others by a third.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

Write = Callable[[], list[list[int]]]


def installed() -> list[str]:
    """Return the names of the engines there are."""
    found = []
    if find_spec("ctranslate2"):
        found.append("ctranslate2 int8")
    if find_spec("llama_cpp") and find_spec("gguf"):
        found.append("llama.cpp q8_0")
    return found


def start(name: str, peer: Any, prompts: list[list[int]], tokens: int) -> Write:
    """Let an engine write, in a process of its own."""
    folder = tempfile.mkdtemp()
    peer.save_pretrained(folder)
    order = json.dumps([name, folder, prompts, tokens, torch.get_num_threads()])
    asleep = {"KMP_BLOCKTIME": "0", "OMP_WAIT_POLICY": "passive"}
    child = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **asleep},
    )
    atexit.register(child.kill)

    def write(said: str = "") -> list[list[int]]:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(said + "\n")
        child.stdin.flush()
        texts: list[list[int]] = json.loads(child.stdout.readline())
        return texts

    write(order)
    return write


def serve() -> None:
    """Open the engine that the first line asks for, and write once for every other line."""
    name, folder, prompts, tokens, threads = json.loads(sys.stdin.readline())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    from transformers import GPT2LMHeadModel

    torch.set_num_threads(threads)
    peer = GPT2LMHeadModel.from_pretrained(folder)
    engine = {"ctranslate2 int8": ctranslate2, "llama.cpp q8_0": llama}[name]
    write = engine(peer, prompts, tokens)
    print("[]", file=out, flush=True)
    for _ in sys.stdin:
        print(json.dumps(write()), file=out, flush=True)


def ctranslate2(peer: Any, prompts: list[list[int]], tokens: int) -> Write:
    """Let CTranslate2 write."""
    import ctranslate2
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        peer.save_pretrained(folder / "hf")
        words = {f"t{i}": i for i in range(peer.config.vocab_size)}
        backend = Tokenizer(models.WordLevel(words, unk_token="t0"))
        names = {"bos_token": "t0", "eos_token": "t0", "unk_token": "t0"}
        PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder / "hf")
        converter = ctranslate2.converters.TransformersConverter(str(folder / "hf"))
        converter.convert(str(folder / "ct2"), quantization="int8")
        generator = ctranslate2.Generator(
            str(folder / "ct2"),
            device="cpu",
            compute_type="int8",
            intra_threads=torch.get_num_threads(),
        )
    spelled = [[f"t{i}" for i in prompt] for prompt in prompts]

    def write() -> list[list[int]]:
        found = generator.generate_batch(
            spelled,
            max_length=tokens,
            min_length=tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return [list(one.sequences_ids[0]) for one in found]

    return write


def gguf_file(peer: Any, path: Path) -> None:
    """Write a GPT-2 as llama.cpp reads it, its matrices in q8_0."""
    import gguf

    c = peer.config
    writer = gguf.GGUFWriter(str(path), "gpt2")
    writer.add_block_count(c.n_layer)
    writer.add_context_length(c.n_positions)
    writer.add_embedding_length(c.n_embd)
    writer.add_feed_forward_length(4 * c.n_embd)
    writer.add_head_count(c.n_head)
    writer.add_layer_norm_eps(c.layer_norm_epsilon)
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(c.vocab_size)
    names = {
        "wte.weight": "token_embd.weight",
        "wpe.weight": "position_embd.weight",
        "ln_f.weight": "output_norm.weight",
        "ln_f.bias": "output_norm.bias",
    }
    parts = {
        "ln_1": "attn_norm",
        "attn.c_attn": "attn_qkv",
        "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm",
        "mlp.c_fc": "ffn_up",
        "mlp.c_proj": "ffn_down",
    }
    for layer in range(c.n_layer):
        for theirs, ours in parts.items():
            for kind in ("weight", "bias"):
                names[f"h.{layer}.{theirs}.{kind}"] = f"blk.{layer}.{ours}.{kind}"
    for name, tensor in peer.transformer.state_dict().items():
        array = tensor.float().numpy()
        if ".c_" in name and name.endswith("weight"):
            array = np.ascontiguousarray(array.T)
        if array.ndim == 2 and "wpe" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(names[name], gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(names[name], array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama(peer: Any, prompts: list[list[int]], tokens: int) -> Write:
    """Let llama.cpp write."""
    import llama_cpp as engine

    engine.llama_backend_init()
    silent = engine.llama_log_callback(lambda level, text, data: None)
    engine.llama_log_set(silent, None)
    with tempfile.TemporaryDirectory() as folder:
        gguf_file(peer, Path(folder) / "gpt2.gguf")
        path = str(Path(folder) / "gpt2.gguf").encode()
        wishes = engine.llama_model_default_params()
        wishes.use_mmap = False
        model = engine.llama_model_load_from_file(path, wishes)
    if not model:
        raise SystemExit("llama.cpp did not open the file")
    rows, length, vocab = len(prompts), len(prompts[0]), peer.config.vocab_size
    params = engine.llama_context_default_params()
    params.n_ctx = rows * (-(-(length + tokens) // 256) * 256)
    params.n_batch = params.n_ubatch = max(512, rows * length)
    params.n_seq_max = rows
    params.n_threads = params.n_threads_batch = torch.get_num_threads()
    context = engine.llama_init_from_model(model, params)
    batch = engine.llama_batch_init(rows * length, 0, 1)

    def put(slot: int, token: int, place: int, row: int, wanted: bool) -> None:
        batch.token[slot], batch.pos[slot] = token, place
        batch.n_seq_id[slot], batch.seq_id[slot][0] = 1, row
        batch.logits[slot] = wanted

    def read(slots: list[int]) -> list[int]:
        if engine.llama_decode(context, batch):
            raise SystemExit("llama.cpp could not decode")
        found = []
        for slot in slots:
            scores = engine.llama_get_logits_ith(context, slot)
            found.append(int(np.ctypeslib.as_array(scores, (vocab,)).argmax()))
        return found

    def write() -> list[list[int]]:
        _ = silent  # kept alive as long as the engine may call it
        engine.llama_memory_clear(engine.llama_get_memory(context), True)
        for row, prompt in enumerate(prompts):
            for place, token in enumerate(prompt):
                put(row * length + place, token, place, row, place == length - 1)
        batch.n_tokens = rows * length
        said = read([row * length + length - 1 for row in range(rows)])
        texts = [[token] for token in said]
        for step in range(1, tokens):
            for row, token in enumerate(said):
                put(row, token, length + step - 1, row, True)
            batch.n_tokens = rows
            said = read(list(range(rows)))
            for text, token in zip(texts, said, strict=True):
                text.append(token)
        return texts

    return write


if __name__ == "__main__":
    serve()
