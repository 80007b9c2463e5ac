"""The commands `generate` and `fill`, and what all commands that generate text share."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kinfolk.cli.app import DEVICE, JSON, MODEL, TOKENIZER, USE, command, option, piped, readable
from kinfolk.cli.options import UsageError, field_options, option_name
from kinfolk.cli.output import console, print_json, row_progress, saved_on_interrupt, visible
from kinfolk.config import did_you_mean
from kinfolk.errors import UserError
from kinfolk.generation.config import DECODING, METHOD_FIELDS, GenerationConfig
from kinfolk.workflows.folders import check_model_folder
from kinfolk.workflows.model_use import check_ability

if TYPE_CHECKING:
    from kinfolk.generation.generate import GeneratedText
    from kinfolk.nn.language_model import LanguageModel
    from kinfolk.nn.prefixes import KeyValuePrefix
    from kinfolk.text.tokenizer import Tokenizer

# The default settings of each method.
METHODS: dict[str, dict[str, Any]] = {
    "sample": {},
    "greedy": {"do_sample": False},
    "beam": {"num_beams": 4},
    "diverse-beam": {"num_beams": 4},
    "contrastive": {"penalty_alpha": 0.6},
}
# Options that select a method by themselves, the first that is given.
SELECTORS = {
    "penalty_alpha": "contrastive",
    "num_beam_groups": "diverse-beam",
    "diversity_penalty": "diverse-beam",
    "num_beams": "beam",
}

METHOD = typer.Option(
    None, help=f"Decoding method: {', '.join(METHODS)}.", rich_help_panel=DECODING
)
PRECISION = typer.Option("auto", help="auto (bf16 on CUDA, fp32 on CPU), fp32, bf16 or int8 (CPU).")


def generation_config(
    method: str | None, settings: dict[str, Any], *, default: str = "sample"
) -> GenerationConfig:
    """Build the config of a method from the options that were given."""
    if method is None:
        selected = (name for field, name in SELECTORS.items() if field in settings)
        method = next(selected, default)
    if method not in METHODS:
        raise UsageError(f"unknown method {method!r}: {did_you_mean(method, list(METHODS))}")
    for field in settings:
        owners = [name for name, fields in METHOD_FIELDS.items() if field in fields]
        if owners and method not in owners:
            raise UsageError(
                f"{option_name(field)} requires --method {' or '.join(owners)} (got {method})"
            )
    values = METHODS[method] | settings
    if method == "diverse-beam":  # Vijayakumar et al. 2016: most diverse with one beam per group
        values = {"num_beam_groups": values["num_beams"]} | values
    if method == "beam" and values["num_beams"] == 1:
        values["do_sample"] = False
    return GenerationConfig.from_options(values)


@command('kinfolk generate runs/gpt2 "Once upon" --max-new-tokens 50 --top-p 0.9', panel=USE)
@field_options("settings", GenerationConfig, without=("do_sample",))
def generate_command(
    model: Path = typer.Argument(
        ..., help="Run, checkpoint or model folder. A corpus folder uses its 3-gram model."
    ),
    prompt: str | None = typer.Argument(None, help="Prompt text, or - for stdin."),
    prompts: Path | None = typer.Option(
        None, help="JSONL file with one prompt per line, instead of PROMPT."
    ),
    prompt_field: str = typer.Option("prompt", help="Field of --prompts that holds the prompt."),
    batch: int = typer.Option(16, max=2**16, help="Prompts per batch."),
    truncate: str | None = typer.Option(None, hidden=True),
    method: str | None = METHOD,
    prefix_from: list[Path] | None = option(
        "RUN", "Start with a prefix of this run of kinfolk prefixes. Repeat for several."
    ),
    attribute: list[str] | None = option("NAME", "Attribute of --prefix-from, one for each."),
    tokenizer: Path | None = TOKENIZER,
    precision: str = PRECISION,
    device: str = DEVICE,
    logprobs: bool = typer.Option(False, "--logprobs", help="Show each token's log-probability."),
    json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Generate text from a prompt.

    Decoder models continue it; encoder-decoder models produce an output for it. Without options
    the whole distribution is sampled; --top-p 0.9 removes its unlikely tail. The same seed gives
    the same text, except for rounding in batches of another size.
    """
    if (prompt is None) == (prompts is None):
        raise UsageError("pass either PROMPT or --prompts FILE.jsonl")
    if truncate is not None:  # --truncate left, of earlier versions
        if truncate != "left":
            raise UsageError(f"--truncate {truncate}: it must be left")
        settings["truncate_left"] = True
    config = generation_config(method, settings)
    check_model_folder(model, or_corpus=True)
    check_ability(model, "generate")
    if prompts is not None:
        check_prompts_file(prompts)
    text = piped("prompt") if prompt == "-" else prompt
    if text is not None:
        readable(text, "prompt")

    from kinfolk.workflows.generate import load_with_prefix

    network, loaded, prefix = load_with_prefix(
        model,
        prefix_from or (),
        attribute or (),
        device=device,
        precision=precision,
        tokenizer=tokenizer,
    )
    printer = Printer(network, loaded, config, json, logprobs, prefix)
    if prompts is not None:
        total = count_prompts(prompts)
        with row_progress("generate", total, hidden=sys.stdout.isatty()) as progress:
            rest = "the outputs of {:,} prompts are printed; pass the other prompts to continue"
            with saved_on_interrupt(lambda: rest.format(progress.done)):
                printer.many(read_prompts(prompts, prompt_field), batch, progress)
    elif config.num_return_sequences == 1 and not (json or logprobs):
        printer.stream(text or "")
    else:
        printer.one(text or "")


def for_terminal(text: str) -> str:
    """Return a text for stdout: unchanged in a pipe, without control sequences on a terminal."""
    return visible(text) if sys.stdout.isatty() else text


@dataclass(frozen=True)
class Printer:
    """Print outputs as they are generated, when they are complete, or as JSON."""

    model: "LanguageModel"
    tokenizer: "Tokenizer"
    config: GenerationConfig
    json: bool
    logprobs: bool
    prefix: "KeyValuePrefix | None" = None

    def stream(self, prompt: str) -> None:
        """Print an output as it is generated."""
        from kinfolk.generation.generate import stream_text

        chunks = stream_text(self.model, self.tokenizer, prompt, self.config, prefix=self.prefix)
        first = next(chunks, "")  # errors are raised here, before anything is printed
        try:
            for chunk in chain((self.shown(prompt), first), chunks):
                sys.stdout.write(for_terminal(chunk))
                sys.stdout.flush()
        finally:  # also when interrupted
            sys.stdout.write("\n")

    def one(self, prompt: str) -> None:
        """Print all outputs of one prompt."""
        from kinfolk.generation.generate import generate_many

        (outputs,) = generate_many(
            self.model, self.tokenizer, prompt, self.config, prefix=self.prefix
        )
        if not self.json:
            print(for_terminal("\n\n".join(self.plain(prompt, output) for output in outputs)))
            return
        print_json(
            [
                {"text": o.text, "ids": o.ids, "logprobs": o.logprobs} | self.details(o)
                for o in outputs
            ]
        )

    def many(
        self, prompts: Iterator[str], batch_size: int, progress: Callable[[int], None]
    ) -> None:
        """Print the outputs of each prompt as soon as those before are complete.

        `progress` receives the number of prompts whose outputs are printed.
        """
        from kinfolk.generation.generate import generate_many

        waiting: list[str] = []  # prompts without outputs so far

        def read() -> Iterator[str]:
            for prompt in prompts:
                waiting.append(prompt)
                yield prompt

        results = generate_many(
            self.model,
            self.tokenizer,
            read(),
            self.config,
            batch_size=batch_size,
            prefix=self.prefix,
        )
        for index, outputs in enumerate(results):
            prompt = waiting.pop(0)
            if not self.json:
                between = "" if index == 0 else "\n"
                text = "\n\n".join(self.plain(prompt, o) for o in outputs)
                print(between + for_terminal(text), flush=True)
                progress(index + 1)
                continue
            for number, output in enumerate(outputs):
                row: dict[str, Any] = {"index": index, "prompt": prompt}
                if len(outputs) > 1:
                    row["number"] = number
                print_json({**row, "text": output.text, **self.details(output)})
            progress(index + 1)

    def details(self, output: "GeneratedText") -> dict[str, Any]:
        """Return the other JSON fields of an output."""
        details: dict[str, Any] = {"ended": output.finished}
        if self.logprobs:
            tokens = output.tokens(self.tokenizer)
            details["tokens"] = [{"text": chunk, "logprob": logprob} for chunk, logprob in tokens]
        return details

    def plain(self, prompt: str, output: "GeneratedText") -> str:
        """Return an output after its prompt, with its tokens below if requested."""
        lines = [self.shown(prompt) + output.text]
        if self.logprobs:
            tokens = output.tokens(self.tokenizer)
            lines += [f"{logprob:10.4f}  {chunk!r}" for chunk, logprob in tokens]
        return "\n".join(lines)

    def shown(self, prompt: str) -> str:
        """Return the prompt where the output continues it."""
        return "" if self.model.decoding == "encoder-decoder" else prompt


def count_prompts(path: Path) -> int | None:
    """Count the lines of a JSONL file with a prompt; None for the standard input."""
    from kinfolk.data.files import STDIN, decoded_lines, open_input

    if path == STDIN or not path.is_file():
        return None
    with open_input(path) as source:
        return sum(bool(line.strip()) for line in decoded_lines(source))


def check_prompts_file(path: Path) -> None:
    """Refuse prompts that are in no file."""
    from kinfolk.data.files import STDIN

    if path != STDIN and not path.is_file():
        problem = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {problem}: pass a file with one JSON object per line")


def read_prompts(path: Path, field: str) -> Iterator[str]:
    """Read the prompts of a JSONL file."""
    from kinfolk.data.documents import read_jsonl
    from kinfolk.data.files import open_input

    check_prompts_file(path)
    empty = True
    with open_input(path) as source:
        for prompt in read_jsonl(source, field):
            yield prompt
            empty = False
    if empty:
        raise UserError(f"{path} has no prompts: pass a file with one JSON object per line")


@command('kinfolk fill runs/bert "The [MASK] sat on the mat."', panel=USE)
@field_options(
    "settings",
    GenerationConfig,
    only=("max_new_tokens", "temperature", "top_k", "top_p", "seed"),
    defaults={"max_new_tokens": "128"},
    help={"max_new_tokens": "Maximum tokens generated for all spans together"},
)
def fill_command(
    model: Path = MODEL,
    text: str = typer.Argument(
        ...,
        help="Text with [MASK] where words are missing; GLM also has [sMASK] for a sentence and "
        "[gMASK] for the rest of the text.",
    ),
    candidates: int = typer.Option(5, max=2**16, help="Candidates shown per mask."),
    method: str | None = METHOD,
    tokenizer: Path | None = TOKENIZER,
    precision: str = PRECISION,
    device: str = DEVICE,
    json: bool = JSON,
    *,
    settings: dict[str, Any],
) -> None:
    """Fill each [MASK].

    Encoders predict one token per mask; T5, Transformer and GLM generate a span (by default the
    most likely token each time).
    """
    config = generation_config(method, {"max_new_tokens": 128} | settings, default="greedy")
    check_model_folder(model)
    check_ability(model, "fill")
    readable(text, "text")

    from kinfolk.generation.fill import fill_text
    from kinfolk.workflows.generate import to_inference
    from kinfolk.workflows.load import load, require_ability

    network, loaded = load(model, tokenizer)
    require_ability(network, "fill")
    spans = network.decoding in ("encoder-decoder", "infilling")
    if not spans and (method is not None or settings):
        raise UserError(
            "options of generation do not apply to encoder models, which predict one token "
            "per mask: use --candidates"
        )
    network = to_inference(network, device=device, precision=precision)
    filled = fill_text(network, loaded, text, config, candidates=candidates)
    if json:
        masks = [{"text": mask.text, "choices": mask.candidates} for mask in filled.masks]
        print_json({"text": filled.text, "holes": masks})
        return
    console.print(for_terminal(filled.text), highlight=False, markup=False)
    for mask in filled.masks:
        if mask.candidates:
            row = "  ".join(f"{word.strip()} {prob:.1%}" for word, prob in mask.candidates)
            console.print(f"  {for_terminal(row)}", highlight=False, markup=False)
