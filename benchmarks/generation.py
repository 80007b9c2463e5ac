"""How fast kinfolk writes, beside `transformers.generate`, with the same weights and prompts.

    python benchmarks/generation.py --json                    every work of this machine's device
    python benchmarks/generation.py --json --only gpt2-1      one work

A *work* is a network, a number of texts written together, and a method:

    gpt2-1, gpt2-8, gpt2-64    GPT-2 124M, so many prompts, the likeliest token each time
    t5-beam                    T5 (base), one source, beam search with 4 beams

Both sides have the same random weights. Counted are **new tokens a second of whole calls**: the
prompt is read, tokens are chosen, ids come back to the host. No text ends early. On the CPU works
run in float32, and kinfolk a second time in int8 (`--precision int8`), both also compiled
(`--compile`); on CUDA in bfloat16, the peer with its default cache and with its static, compiled
one, kinfolk by captured graph and by captured and compiled graph. Where CTranslate2 and llama.cpp
are installed, they write in 8 bits beside them on the CPU: see engines.py.

Before anything is timed both sides write the same text in float32: greedy or beam, token for token.

Sides take turns, at least three rounds; a ratio is the median over the rounds of kinfolk's speed
over the peer's in that round. In the JSON of each work:

    sides      of each: tokens_per_second (median), first_seconds (the first call: compiling)
    ratios     kinfolk's way over the peer's: {"int8/transformers": ...}, with quartiles in `spread`

`--model FOLDER --text FILE` measures what int8 costs instead: a saved model scores a text token by
token in float32 and in int8; `perplexity`, its `change`, and `agreement`, the share of tokens at
which both find the same token likeliest.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import engines
import torch
import transformers

from kinfolk import hub
from kinfolk.data.documents import read_documents
from kinfolk.errors import UserError
from kinfolk.families.gpt2 import GPT2Config
from kinfolk.families.t5 import T5Config
from kinfolk.generation.config import GREEDY, GenerationConfig
from kinfolk.generation.decode import GenerationRequest
from kinfolk.generation.generate import generate_sequences
from kinfolk.nn.int8 import quantize_int8
from kinfolk.objectives.evaluation import score_documents
from kinfolk.training.workload import select_device
from kinfolk.workflows.evaluate import encode_documents, scoring_objective, training_objective
from kinfolk.workflows.folders import find_model_folder
from kinfolk.workflows.load import load, logits

END = 1  # of the peer's beams; never said here


@dataclass(frozen=True)
class Work:
    """A network, how many texts it writes together, and how."""

    config: Any
    prompts: int
    method: GenerationConfig
    device: str = "cpu"


WORKS = {
    "gpt2-1": Work(GPT2Config(), 1, GREEDY),
    "gpt2-8": Work(GPT2Config(), 8, GREEDY),
    "t5-beam": Work(
        T5Config(hidden_size=768, num_layers=12, num_heads=12), 1, GenerationConfig(num_beams=4)
    ),
}
CUDA = {
    "gpt2-1": Work(GPT2Config(), 1, GREEDY, device="cuda"),
    "gpt2-64": Work(GPT2Config(), 64, GREEDY, device="cuda"),
}


@dataclass
class Side:
    """One way to write: a name, and a call that gives new ids, a row a text."""

    name: str
    write: Callable[[], list[list[int]]]
    first: float = 0.0

    def timed(self) -> float:
        """Return the seconds of one call."""
        begin = time.perf_counter()
        self.write()
        return time.perf_counter() - begin


def drawn(config: Any, rows: int, length: int) -> list[list[int]]:
    """Return random prompts, without special tokens."""
    draws = torch.Generator().manual_seed(0)
    return torch.randint(5, config.vocab_size - 200, (rows, length), generator=draws).tolist()  # type: ignore[no-any-return]


def ours(
    model: Any, work: Work, prompts: list[list[int]], tokens: int, *, compiled: bool = False
) -> Callable[[], list[list[int]]]:
    """Let kinfolk write."""
    reads = model.decoding == "encoder-decoder"
    request = GenerationRequest(
        prompts=[[model.config.decoder_start_token_id]] * len(prompts) if reads else prompts,
        config=replace(work.method, max_new_tokens=tokens, compile=compiled),
        encoder_ids=prompts if reads else None,
        return_logprobs=False,  # as the peers: none of them gives log-probabilities here
    )
    return lambda: [text.ids for text in generate_sequences(model, request)]


def theirs(
    model: Any, work: Work, prompts: list[list[int]], tokens: int, **options: Any
) -> Callable[[], list[list[int]]]:
    """Let transformers write."""
    ids = torch.tensor(prompts, device=model.device)
    begin = 1 if model.config.is_encoder_decoder else ids.shape[1]

    def write() -> list[list[int]]:
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            num_beams=work.method.num_beams,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
            eos_token_id=None if work.method.num_beams == 1 else END,
            **options,
        )
        return out[:, begin:].tolist()  # type: ignore[no-any-return]

    return write


def networks(work: Work, dtype: torch.dtype) -> tuple[Any, Any]:
    """Make one network twice, for kinfolk and for transformers."""
    torch.manual_seed(0)
    model: Any = work.config.build().eval()
    with torch.no_grad():  # larger weights: then the best token is best by far, in any precision
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.mul_(2.0)
    reads = model.decoding == "encoder-decoder"
    kind = transformers.T5ForConditionalGeneration if reads else transformers.GPT2LMHeadModel
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        hub.save(Path(folder), model, None)
        peer = kind.from_pretrained(folder).eval()
    peer.generation_config = transformers.GenerationConfig(decoder_start_token_id=0)
    return model.to(work.device, dtype), peer.to(work.device, dtype)


def sides(work: Work, prompts: list[list[int]], tokens: int) -> list[Side]:
    """Return all ways that are compared; the peer's come first."""
    if work.device == "cuda":
        model, peer = networks(work, torch.bfloat16)
        static = {"cache_implementation": "static"}
        return [
            Side("transformers", theirs(peer, work, prompts, tokens)),
            Side("transformers static", theirs(peer, work, prompts, tokens, **static)),
            Side("kinfolk", ours(model, work, prompts, tokens)),
            Side("kinfolk compiled", ours(copied(model), work, prompts, tokens, compiled=True)),
        ]
    model, peer = networks(work, torch.float32)
    small, other = (quantize_int8(networks(work, torch.float32)[0]) for _ in range(2))
    ways = [
        Side("transformers", theirs(peer, work, prompts, tokens)),
        Side("kinfolk", ours(model, work, prompts, tokens)),
        Side("kinfolk int8", ours(small, work, prompts, tokens)),
    ]
    if work.method.num_beams == 1:  # beams are not compiled, and other engines have their own
        ways[1:1] = [Side(n, engines.start(n, peer, prompts, tokens)) for n in engines.installed()]
        twin = copied(model)
        ways.append(Side("kinfolk compiled", ours(twin, work, prompts, tokens, compiled=True)))
        ways.append(
            Side("kinfolk int8 compiled", ours(other, work, prompts, tokens, compiled=True))
        )
    return ways


def copied(model: Any) -> Any:
    """Return the same network once more: each has a captured graph of its own."""
    other = model.config.build().to(next(model.parameters()).device, next(model.parameters()).dtype)
    other.load_state_dict(model.state_dict())
    return other.eval()


def check(work: Work, prompts: list[list[int]], tokens: int) -> None:
    """Complain unless both sides write the same in float32."""
    model, peer = networks(work, torch.float32)
    written, expected = (
        write()
        for write in (ours(model, work, prompts, tokens), theirs(peer, work, prompts, tokens))
    )
    if written != expected:
        raise SystemExit("the two sides do not write the same text in float32")


def measure(work: Work, *, length: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Time all ways to do a work, in turns."""
    prompts = drawn(work.config, work.prompts, length)
    check(work, prompts, min(tokens, 32))
    ways = sides(work, prompts, tokens)
    for side in ways:
        side.first = side.timed()
        side.timed()
    seconds = {side.name: list[float]() for side in ways}
    for _ in range(rounds):
        for side in ways:
            seconds[side.name].append(side.timed())
    new = work.prompts * tokens
    return {
        "prompts": work.prompts,
        "prompt_tokens": length,
        "new_tokens": tokens,
        "rounds": rounds,
        "sides": {
            side.name: {
                "tokens_per_second": new / statistics.median(seconds[side.name]),
                "first_seconds": side.first,
            }
            for side in ways
        },
        **ratios(seconds),
    }


def ratios(seconds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Compare each of our ways with each of the peer's, round by round."""
    found: dict[str, dict[str, Any]] = {"ratios": {}, "spread": {}}
    for own in (name for name in seconds if name.startswith("kinfolk")):
        for peer in (name for name in seconds if not name.startswith("kinfolk")):
            each = [p / o for o, p in zip(seconds[own], seconds[peer], strict=True)]
            low, middle, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
            found["ratios"][f"{own}/{peer}"] = middle
            found["spread"][f"{own}/{peer}"] = [low, high]
    return found


def quality(folder: Path, text: Path) -> dict[str, float]:
    """Say what int8 costs a saved model on a real text."""
    model, tokenizer = load(folder)
    small = quantize_int8(load(folder)[0])
    training = training_objective(model, tokenizer, find_model_folder(folder))
    way = scoring_objective(model, training)
    read, size = encode_documents(tokenizer, [d.text for d in read_documents([text])])
    plain, lowered = (
        score_documents(m, way, read, size, rows=8).perplexity for m in (model, small)
    )
    ids = tokenizer.encode(text.read_text(encoding="utf-8"), add_special_tokens=False)
    rows = [ids[start : start + way.max_length] for start in range(0, len(ids), way.max_length)]
    same = [logits(model, row).argmax(-1) == logits(small, row).argmax(-1) for row in rows]
    return {
        "perplexity": plain,
        "perplexity_int8": lowered,
        "change": lowered / plain - 1,
        "agreement": float(torch.cat(same).float().mean()),
        "tokens": len(ids),
    }


def table(name: str, found: dict[str, Any]) -> str:
    """Write the figures of one work for people."""
    lines = [f"{name}: {found['prompts']} texts, {found['new_tokens']} new tokens each"]
    for side, facts in found["sides"].items():
        lines.append(f"  {side:22} {facts['tokens_per_second']:10,.0f} tokens/s")
    for pair, ratio in found["ratios"].items():
        low, high = found["spread"][pair]
        lines.append(f"  {pair:42} {ratio:6.2f}x  ({low:.2f} to {high:.2f})")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Run what was asked for and print it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--json", action="store_true", help="end with a line of JSON")
    parser.add_argument("--only", choices=sorted({*WORKS, *CUDA}))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--length", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, help="new tokens of each text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=Path, help="a saved model: what int8 costs it")
    parser.add_argument("--text", type=Path)
    args = parser.parse_args(arguments)
    select_device(args.device)
    if args.model is not None:
        found: dict[str, Any] = {"quality": quality(args.model, args.text)}
        print(json.dumps(found))
        return found
    works = CUDA if args.device == "cuda" else WORKS
    tokens = args.tokens or (256 if args.device == "cuda" else 64)
    found = {}
    for name, work in works.items():
        if args.only in (None, name):
            found[name] = measure(work, length=args.length, tokens=tokens, rounds=args.rounds)
            print(table(name, found[name]), flush=True)
    if args.json:
        print(json.dumps(found))
    return found


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(str(error))
