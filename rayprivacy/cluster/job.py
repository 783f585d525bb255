"""What is submitted to a Ray cluster: a command line of ours, and the one small file it reads.

The submission id is the release id. Ray refuses a second job of the same id, so that a release is run once however
often it is submitted; two submissions are the same job when their fingerprints agree as well, because one release can
be computed into two directories, or charged to two accounts.

Everything here is shown by Ray's dashboard and by `ray list jobs`: it holds names and digests, never a secret.
"""

import shlex
from dataclasses import dataclass

from rayprivacy import __version__
from rayprivacy.core.private import digest_json
from rayprivacy.core.uris import is_uri
from rayprivacy.runs.files import dump_recipe
from rayprivacy.runs.recipe import Recipe

RECIPE_FILE = "rayprivacy-recipe.yaml"
PYTHON = ("python", "-m", "rayprivacy.cli")


@dataclass(frozen=True)
class Job:
    """One command of `rayprivacy` to run on a cluster.

    Attributes:
        id: the submission id.
        command: verb and arguments; relative paths in it name `files`.
        files: small public files that travel, by name.
        metadata: what the dashboard shows of the job.
        out: where the job writes: a directory, or a URI.
    """

    id: str
    command: tuple[str, ...]
    files: dict[str, str]
    metadata: dict[str, str]
    out: str

    @property
    def entrypoint(self) -> str:
        """The command line, as a shell reads it."""
        return shlex.join([*PYTHON, *self.command])

    @property
    def fingerprint(self) -> str:
        """Equal for submissions that are the same piece of work."""
        return self.metadata["fingerprint"]


def run_job(recipe: Recipe, out: str, work: str) -> Job:
    """`rayprivacy run` of a recipe, on the cluster that gets the job; paths are absolute, as all nodes see them."""
    joined = joining(recipe)
    metadata = {
        "method": joined.method,
        "account": joined.privacy.account,
        "release": joined.release_id,
        "version": __version__,
        "out": out,
        "fingerprint": digest_json([out, joined.model_dump(mode="json", exclude={"resources"})]),
    }
    place = ("--out", out, "--work", work) if is_uri(out) else ("--out", out)
    command = ("run", RECIPE_FILE, *place, "--resume", "--public")
    return Job(joined.release_id, command, {RECIPE_FILE: dump_recipe(joined)}, metadata, out)


def joining(recipe: Recipe) -> Recipe:
    """The same recipe, told to join the cluster that its job runs on; `resources` is no part of the release."""
    return recipe.model_copy(update={"resources": recipe.resources.model_copy(update={"address": "auto"})})
