"""Public prompts that text generation starts from.

Prompts must be PUBLIC: written by hand or taken from public text, never prefixes of the private corpus. A prefix copied
from a user's message is published without noise as soon as a synthetic text starts with it. The packaged openers were
written for this project: small talk, and beginnings of answers to the public questions that `chitchat` put to people.
"""

from importlib.resources import files
from pathlib import Path

from rayprivacy.core.errors import ConfigError


def load_prompts(path: str | None = None) -> list[str]:
    """Read prompts, one a line in UTF-8; empty lines are skipped. Without a path: the packaged openers.

    >>> load_prompts()[0]
    'Oh I see'
    """
    if path is None:
        return _lines(files("rayprivacy.corpus").joinpath("openers.txt").read_text("utf-8"))
    try:
        prompts = _lines(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the prompts file {path} cannot be read ({type(error).__name__}): give UTF-8 text."
        ) from None
    if not prompts:
        raise ConfigError(f"the prompts file {path} has no prompt: write one a line.")
    return prompts


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n") if line.strip()]
