"""The command that writes in turns with its user: `chat`."""

import contextlib
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from kinfolk.cli import methods
from kinfolk.cli.app import Device, app, errors, example, readable
from kinfolk.cli.methods import ModelPath, Precision
from kinfolk.config import did_you_mean
from kinfolk.errors import UserError

if TYPE_CHECKING:
    from kinfolk.workflows.chat import ChatSession

HELP = """\
Type a text, and the model goes on with it; an empty line lets it go on with its own.
  /temperature X   dare less below 1, nothing at 0
  /top-k N         choose among so many tokens
  /top-p X         choose among so much probability
  /seed N          what chance follows from
  /tokens N        at most so many in an answer
  /reset           forget what was said
  /quit            end, as Ctrl-D does
Ctrl-C stops the text that is being written."""
NUMBERS: dict[str, type[int] | type[float]] = {
    "temperature": float,
    "top-k": int,
    "top-p": float,
    "seed": int,
    "tokens": int,
}
COMMANDS = (*NUMBERS, "reset", "help", "quit")


@app.command(epilog=example("kinfolk chat runs/gpt2 --temperature 0.8"))
def chat(
    model: ModelPath,
    max_tokens: Annotated[int, typer.Option(help="Of an answer, at most.")] = 100,
    temperature: methods.Temperature = None,
    top_k: methods.TopK = None,
    top_p: methods.TopP = None,
    seed: methods.Seed = 0,
    precision: Precision = "auto",
    device: Device = "auto",
) -> None:
    """Write a text in turns with a model: it goes on with all that was said so far.

    Ctrl-C stops the present text, Ctrl-D ends; /help says what else can be typed.
    """
    from kinfolk.generation.sampling import Sampling
    from kinfolk.workflows.chat import ChatSession
    from kinfolk.workflows.generate import load_generator

    sampling = methods.method("sample", temperature=temperature, top_k=top_k, top_p=top_p)
    assert isinstance(sampling, Sampling)
    network, tokenizer = load_generator(model, device=device, precision=precision)
    talk = ChatSession(network, tokenizer, sampling=sampling, tokens=max_tokens, seed=seed)
    if sys.stdin.isatty():
        errors.print("/help says what can be typed", style="dim", highlight=False)
        with contextlib.suppress(ImportError):  # not everywhere: it edits the line that is typed
            import readline  # noqa: F401
    while (line := heard()) is not None:
        try:
            if not line.startswith("/"):
                answer(talk, line)
            elif not obeyed(talk, *line[1:].split(maxsplit=1)):
                return
        except UserError as error:
            said = f"[bold red]error:[/] {escape(str(error))}"
            errors.print(said, highlight=False, soft_wrap=True)


def heard() -> str | None:
    """Read a line; nothing where they end. Ctrl-C drops the line that is being typed."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            print()
        except UnicodeDecodeError as error:
            raise UserError(f"what was piped in is not UTF-8 at byte {error.start:,}") from None


def answer(talk: "ChatSession", line: str) -> None:
    """Print what the model says, until it or the user ends it."""
    forgotten = talk.truncated
    try:
        chunks = talk.answer(readable(line, "line"))
        if talk.truncated and not forgotten:
            errors.print(
                f"the context of {talk.context:,} tokens is full: the beginning is forgotten",
                style="dim",
                highlight=False,
                soft_wrap=True,
            )
        for chunk in chunks:
            sys.stdout.write(chunk)
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    print(flush=True)


def obeyed(talk: "ChatSession", name: str = "", value: str | None = None) -> bool:
    """Do what a command says; say whether the conversation goes on."""
    from dataclasses import replace

    if name not in COMMANDS:
        raise UserError(f"no command /{name}: {did_you_mean(name, COMMANDS)}")
    number: Any = _number(name, value) if name in NUMBERS else None
    match name:
        case "quit":
            return False
        case "help":
            errors.print(HELP, highlight=False, markup=False, soft_wrap=True)
        case "reset":
            talk.reset()
        case "seed":
            talk.seed(number)
        case "tokens":
            talk.wishes = replace(talk.wishes, max_new_tokens=number)
        case _:
            talk.sampling = replace(talk.sampling, **{name.replace("-", "_"): number})
    return True


def _number(name: str, value: str | None) -> float:
    """Read the number after a command."""
    try:
        return NUMBERS[name](value or "")
    except ValueError:
        kind = "a whole number" if NUMBERS[name] is int else "a number"
        raise UserError(f"/{name} needs {kind} behind it, not {value or 'nothing'}") from None
