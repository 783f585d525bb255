"""The command `profile`: what is in a private corpus, in noisy numbers, before anything is trained."""

from typing import Annotated

import typer
from rich.console import Console

from rayprivacy import api
from rayprivacy.cli.options import AccountName, LedgerUrl, Overrides, central_claim, show_claim, show_files
from rayprivacy.core.console import WholeTable

app = typer.Typer()


@app.command()
def profile(
    source: Annotated[str, typer.Argument(help="The corpus: a file, a folder, a table or a URI.")],
    ledger: LedgerUrl,
    account: AccountName,
    user: Annotated[str, typer.Option(help="Column that names the author.")] = "user",
    text: Annotated[str, typer.Option(help="Column of the text.")] = "text",
    label: Annotated[list[str] | None, typer.Option(help="Column whose values are counted; may be repeated.")] = None,
    share: Annotated[
        float | None, typer.Option(help="Part of the account's budget that it may take.", show_default="0.02")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="In place of --share: what it may cost.")] = None,
    keywords: Annotated[int, typer.Option(help="Words that one user counts for, at most; 0 for none.")] = 16,
    base: Annotated[
        str | None, typer.Option(help="Public model whose tokens are counted.", show_default="smollm2-135m")
    ] = None,
    key: Annotated[str, typer.Option(help="Key file, made when it is not there.")] = "rayprivacy.key",
    out: Annotated[str, typer.Option(help="Run directory: a path, or a URI.")] = "runs/profile",
    override: Overrides = None,
) -> None:
    """Count users by how much they wrote, text lengths, scripts, labels and words, with noise that the account pays.

    Example: rayprivacy ledger create --ledger sqlite:///ledger.db --account chat --epsilon 3 --threshold-delta 1e-7

    Example: rayprivacy profile chat.parquet --user author --ledger sqlite:///ledger.db --account chat
    """
    chosen = [f"profile.keywords={keywords}", f"privacy.key={key}", *([f"model.base={base}"] if base else [])]
    done = api.profile(
        source,
        ledger=ledger,
        account=account,
        user=user,
        text=text,
        labels=label or (),
        epsilon=epsilon,
        share=share,
        out=out,
        overrides=[*chosen, *(override or ())],
    )
    from rayprivacy.methods.profile.figures import tables

    first = tables(done.profile())[0]
    shown = WholeTable(*first.columns, title=f"{first.title} (noisy, released)")
    for row in first.rows:
        shown.add_row(*row)
    Console().print(shown)
    show_claim(done.certificate, central_claim(done.certificate))
    files = (("profile", "profile.json"), ("page to share", "report-public.html"), ("certificate", "certificate.md"))
    show_files((name, f"{out.rstrip('/')}/{file}") for name, file in files)
