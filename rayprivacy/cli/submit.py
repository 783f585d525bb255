"""The command that sends a recipe to a Ray cluster."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rayprivacy import api
from rayprivacy.cli.options import Overrides, RecipeFile

app = typer.Typer()
MOUNT = "/mnt/rayprivacy"  # of cluster.yaml and deploy/kuberay


@app.command()
def submit(
    recipe: RecipeFile,
    address: Annotated[str, typer.Option(help="URL of the cluster's dashboard, e.g. http://127.0.0.1:8265")],
    override: Overrides = None,
    out: Annotated[
        str | None,
        typer.Option(help=f"Run directory as all nodes see it, or a URI; {MOUNT}/runs/RELEASE by default."),
    ] = None,
    work: Annotated[
        str | None,
        typer.Option(help=f"Where all nodes work on a run at a URI; {MOUNT}/runs/RELEASE by default."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show the job's log, and exit with its exit code.")] = False,
    token_file: Annotated[Path | None, typer.Option(help="File (mode 0600) with the cluster's token.")] = None,
    working_dir: Annotated[
        Path | None, typer.Option(help="Directory to ship, less what its .rayignore names: code the image lacks.")
    ] = None,
) -> None:
    """Run a recipe on a Ray cluster; submitting it again is the same release.

    Example: rayprivacy submit recipe.yaml --address http://127.0.0.1:8265 --wait
    """
    from rayprivacy.cluster.client import connect  # ray takes seconds to import
    from rayprivacy.cluster.job import run_job
    from rayprivacy.cluster.paths import check_out, check_recipe_paths, warnings_of
    from rayprivacy.cluster.submit import JobOutcome, failure_of, follow
    from rayprivacy.cluster.submit import submit as send

    settings = api.load_recipe(recipe, override or ())
    check_recipe_paths(settings, working_dir)
    default = f"{MOUNT}/runs/{settings.release_id}"
    place, work = out or default, work or default
    check_out(place, work)
    for warning in warnings_of(settings):
        _say(f"WARNING: {warning}")
    client = connect(address, token_file)
    job = run_job(settings, place, work)
    found = send(client, job, working_dir)
    _say(_SAID[found.outcome].format(id=job.id, out=job.out, address=address))
    if found.outcome == JobOutcome.DONE:
        return
    if not wait:
        _say(_FOLLOW.format(id=job.id, address=address))
        return
    code = follow(client, found, lambda text: typer.echo(text, nl=False))
    if code:
        failure_of(client, job.id)
        raise typer.Exit(code)


_SAID = {
    "submitted": "submitted {id}, which writes {out}",
    "resubmitted": "submitted {id} again: it goes on in {out}, and what was charged is not charged twice",
    "attached": "{id} is on this cluster already, and writes {out}: nothing was submitted",
    "done": "{id} has succeeded: see {out}. To run it anew, which its account pays once only, delete the record with "
    "`ray job delete {id} --address {address}`, and submit it with another --out",
}
_FOLLOW = """follow it:  rayprivacy submit ... --wait   (the same command attaches)
            ray job logs {id} --follow --address {address}
stop it:    ray job stop {id} --address {address}"""


def _say(text: str) -> None:
    Console(stderr=text.startswith("WARNING")).print(text, markup=False, highlight=False, soft_wrap=True)
