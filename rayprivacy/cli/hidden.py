"""The command `hidden`: what the policy of a recipe hides in a corpus, shown to those whose text it is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rayprivacy import api
from rayprivacy.cli.options import Overrides, RecipeFile
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import write_atomic

app = typer.Typer()
_SHOWN = 20  # texts on a terminal, unless the command says otherwise
_OFTEN = 10  # runs of words that are named
_STYLE = "bold red"


@app.command()
def hidden(
    recipe: RecipeFile,
    override: Overrides = None,
    texts: Annotated[
        int | None,
        typer.Option(min=0, help="Most texts that are shown; all are counted.", show_default="20, or all with --out"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A new file for the texts, in place of the terminal.")] = None,
) -> None:
    """Show what a recipe's policy hides in its corpus, each run of hidden words as [-words-]. Prints private text.

    Example: rayprivacy hidden recipe.yaml -o corpus.source=chats.csv

    Example: rayprivacy hidden recipe.yaml --out hidden.txt
    """
    settings = api.load_recipe(recipe, override or ())
    config = getattr(settings, "policy", None)
    if config is None:
        raise ConfigError(f"the recipe's method is '{settings.method}', which has no policy: it hides no words.")
    if out is not None and out.exists():
        raise ConfigError(f"--out is '{out}', which is there already: name a new file.")
    from rayprivacy.corpus.sources import left_out
    from rayprivacy.policies.looked import Counts, look
    from rayprivacy.policies.settings import make_policy  # seconds to import

    console, counts, written = Console(), Counts(), list[str]()
    most = texts if texts is not None else _SHOWN if out is None else None
    policy = make_policy(config, getattr(settings, "kept", ()))
    for each in look(settings.sharded_corpus, policy):
        counts.add(each)
        if most is not None and counts.texts > most:
            continue
        marked = _marked(each.parts())
        if out is None:
            console.print(marked, "", sep="\n", soft_wrap=True)
        else:
            written.append(f"{marked.plain}\n\n")
    if out is not None:
        write_atomic(out, "".join(written).encode())
    often = ", ".join(f"'{_printable(run)}' {count:,}" for run, count in counts.runs.most_common(_OFTEN))
    lines = [
        f"texts: {counts.texts:,}, {_of(counts.with_hidden, counts.texts)} with hidden words",
        f"words: {counts.words:,}, {_of(counts.hidden_words, counts.words)} hidden",
        *([f"most often: {often}"] if often else []),
        *([said] if (said := left_out(settings.corpus)) else []),
        *([f"written to {out}"] if out is not None else []),
    ]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _marked(parts: Iterator[tuple[str, bool]]) -> Text:
    text = Text()
    for part, is_hidden in parts:
        shown = _printable(part)
        text.append(f"[-{shown}-]" if is_hidden else shown, _STYLE if is_hidden else None)
    return text


def _printable(text: str) -> str:
    """A text without what a terminal would obey; line ends stay."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def _of(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})"
