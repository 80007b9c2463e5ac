"""The command `chat`."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from kinfolk.cli.app import DEVICE, MODEL, TOKENIZER, USE, command, readable
from kinfolk.cli.generate import PRECISION, for_terminal, generation_config
from kinfolk.cli.options import field_options
from kinfolk.cli.output import errors, visible
from kinfolk.config import did_you_mean, parse_field
from kinfolk.errors import UserError
from kinfolk.generation.config import GenerationConfig
from kinfolk.workflows.folders import check_model_folder
from kinfolk.workflows.model_use import check_ability

if TYPE_CHECKING:
    from kinfolk.generation.generate import ChatSession

CHAT_HELP = """\
Type a line, and the model continues the conversation; an empty line continues its reply.
  /temperature X      sampling temperature
  /top-k N            sample from the N most likely tokens
  /top-p X            sample from the most likely tokens with this total probability
  /seed N             random seed
  /max-new-tokens N   maximum tokens per reply
  /reset              clear the conversation
  /quit               end, as Ctrl-D does
Ctrl-C stops the present reply."""
CHAT_FIELDS = ("temperature", "top_k", "top_p", "seed", "max_new_tokens")
CHAT_SETTINGS = {name.replace("_", "-"): name for name in CHAT_FIELDS}
SETTING_ALIASES = {"tokens": "max-new-tokens"}  # of earlier versions
COMMANDS = (*CHAT_SETTINGS, "reset", "help", "quit")


@command("kinfolk chat runs/gpt2 --temperature 0.8", panel=USE)
@field_options(
    "settings",
    GenerationConfig,
    only=CHAT_FIELDS,
    help={"max_new_tokens": "Maximum number of tokens per reply"},
)
def chat_command(
    model: Path = MODEL,
    tokenizer: Path | None = TOKENIZER,
    precision: str = PRECISION,
    device: str = DEVICE,
    *,
    settings: dict[str, Any],
) -> None:
    """Chat-style completion: the model continues the whole conversation.

    Base models are not instruction-tuned. Ctrl-C stops a reply, Ctrl-D ends; /help lists commands.
    """
    config = generation_config("sample", settings)
    check_model_folder(model, or_corpus=True)
    check_ability(model, "generate")

    from kinfolk.generation.generate import ChatSession
    from kinfolk.workflows.generate import load_generator

    network, loaded = load_generator(model, device=device, precision=precision, tokenizer=tokenizer)
    session = ChatSession(network, loaded, config)
    if sys.stdin.isatty():
        errors.print("/help lists commands", style="dim", highlight=False)
        with contextlib.suppress(ImportError):  # line editing, where it is available
            import readline  # noqa: F401
    while (line := read_line()) is not None:
        try:
            if not line.startswith("/"):
                reply(session, line)
            elif not run_command(session, *line[1:].split(maxsplit=1)):
                return
        except UserError as error:
            message = f"[bold red]error:[/] {escape(visible(str(error)))}"
            errors.print(message, highlight=False, soft_wrap=True)


def read_line() -> str | None:
    """Read a line, or None at the end of the input; Ctrl-C drops the line being typed."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return None
        except KeyboardInterrupt:
            print()
        except UnicodeDecodeError as error:
            raise UserError(f"standard input is not UTF-8 at byte {error.start:,}") from None


def reply(session: "ChatSession", line: str) -> None:
    """Print the reply to a line until it is complete or interrupted."""
    truncated = session.truncated
    try:
        chunks = session.answer(readable(line, "line"))
        if session.truncated and not truncated:
            errors.print(
                f"the context of {session.context:,} tokens is full: "
                "the beginning of the conversation is dropped",
                style="dim",
                highlight=False,
                soft_wrap=True,
            )
        for chunk in chunks:
            sys.stdout.write(for_terminal(chunk))
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    print(flush=True)


def run_command(session: "ChatSession", name: str = "", value: str = "") -> bool:
    """Run a command of the conversation; return whether the conversation continues."""
    name = SETTING_ALIASES.get(name, name)
    match name:
        case "quit":
            return False
        case "help":
            errors.print(CHAT_HELP, highlight=False, markup=False, soft_wrap=True)
        case "reset":
            session.reset()
        case _ if name in CHAT_SETTINGS:
            field = CHAT_SETTINGS[name]
            session.set(**{field: parse_field(GenerationConfig, field, value, f"/{name}")})
        case _:
            raise UserError(f"unknown command /{name}: {did_you_mean(name, COMMANDS)}")
    return True
