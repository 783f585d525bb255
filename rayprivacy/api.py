"""The functions behind `import rayprivacy as rp`: what the command line does, from Python.

Imports that take seconds (torch, Ray, transformers) stand inside the functions that need them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from rayprivacy.auditing.settings import check_shadows
from rayprivacy.core.console import cores
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json, at_home, made_folder, private_directory
from rayprivacy.core.storage import mirror_of, pull_run
from rayprivacy.core.uris import is_uri, shown
from rayprivacy.methods import registry
from rayprivacy.methods.registry import method_names, method_of
from rayprivacy.result import Result
from rayprivacy.runs.recipe import Recipe, require_public

if TYPE_CHECKING:
    from ray.data import Dataset

    from rayprivacy.runs.clean import Cleaned
    from rayprivacy.runs.outline import Outline
    from rayprivacy.tuning.outcome import Outcome

__all__ = [
    "Result",
    "ask_questions",
    "audit",
    "clean",
    "evaluate",
    "evidence",
    "load_recipe",
    "method_names",
    "plan",
    "profile",
    "report",
    "run",
    "tune",
]


def load_recipe(recipe: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | Sequence[str] = ()) -> Recipe:
    """Read a recipe and change single keys of it.

    Args:
        recipe: a YAML file, or the keys themselves.
        overrides: a mapping of dotted keys to values, or `key.path=value` strings with YAML values.

    Raises:
        ConfigError: the file, a key or a value is wrong; the message names it and the remedy.
    """
    if isinstance(recipe, Mapping):
        from rayprivacy.runs.files import overridden

        return registry.parse_recipe(overridden(recipe, overrides))
    return registry.load_recipe(at_home(recipe), overrides)


def plan(
    recipe: Recipe,
    *,
    timed: bool = False,
    nodes: int = 1,
    users: int | None = None,
    minutes: float | None = None,
    profile: str | Path | None = None,
) -> "Outline":
    """The stages of a recipe, what each reads and charges, and epsilon by stage. Touches no data; prints as a table.

    Args:
        recipe: the resolved recipe.
        timed: estimate how long each stage takes, and say which method and settings the measured frontier suggests,
            where it has rows of this method.
        nodes: machines like this one that share the work, for estimates.
        users: a public guess at the users of the corpus, for estimates, advice and remarks; the method's own when left
            out.
        minutes: what a run may take on two cores, for advice; no bound when left out.
        profile: `profile.json` of a profile of the corpus. Its noisy users stand for the guess, and its bounds for
            those that the recipe leaves to their defaults: the outline has that recipe, and both numbers.

    Raises:
        ConfigError: the recipe cannot be run, there are no nodes, users or minutes, or the profile is none.
    """
    from rayprivacy.blocks.steps_plan import remark
    from rayprivacy.runs import advice, checks, estimate, outline, profiled

    for name, value in (("nodes", nodes), ("users", users), ("minutes", minutes)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value:g}: give a number of at least 1.")
    if recipe.evaluation.compare:
        checks.check_comparison(recipe)
    rows: list[profiled.Row] = []
    if profile is not None:
        recipe, users, rows = profiled.profiled(recipe, profiled.read_profile(profile), users)
    planned = method_of(recipe).planned(recipe)
    noted = remark(planned, users)
    if not timed:
        return outline.Outline(recipe, planned, remark=noted, profiled=rows)
    times = estimate.estimated(recipe, planned, estimate.this_machine(), nodes=nodes, users=users)
    guess = planned.users if users is None else users
    tokens = getattr(getattr(recipe, "generation", None), "max_tokens", None)
    said = advice.advice_for(recipe.method, guess, recipe.privacy.epsilon, minutes, tokens)
    return outline.Outline(recipe, planned, estimate=times, advice=said, remark=noted, profiled=rows)


def run(
    recipe: Recipe,
    out: str | Path = "runs/latest",
    *,
    dataset: "Dataset | None" = None,
    resume: bool = True,
    work: Path | None = None,
    mirror_private: bool = False,
    console: Console | None = None,
) -> Result:
    """Run a recipe, or finish it: private text in; released text, model, certificate and report out.

    Args:
        recipe: the resolved recipe.
        out: the run directory: a path, or a URI such as `s3://bucket/run`.
        dataset: the private corpus as a Ray Dataset, for a recipe with `corpus.source: dataset`; its columns are named
            by corpus.user, corpus.text and corpus.labels. It is written once to the private side of the run.
        resume: finish a run that is there already; otherwise that is an error.
        work: local folder in which a run at a URI is worked on.
        mirror_private: copy private files to the URI too.
        console: where progress is shown; standard error when left out.

    Raises:
        BudgetRefusedError: the account has less left than the run asks for.
        RayPrivacyError: whatever else stopped the run, in one sentence without private text.
    """
    from rayprivacy.runs.checks import check_files

    check_files(recipe)  # `drive` checks it too, and takes seconds to import
    from rayprivacy.reporting.page import write_report
    from rayprivacy.runs.audit import audit_finished
    from rayprivacy.runs.drive import drive

    method, mirror = method_of(recipe), mirror_of(str(out), work, private=mirror_private)
    root = mirror.root if mirror else at_home(out)
    done, _ = drive(method, recipe, root, resume=resume, dataset=dataset, console=console, mirror=mirror)
    if recipe.audit:
        users, shadows = recipe.audit.users, recipe.audit.shadows
        with done.stage("audit"):
            audit_finished(method, done.recipe, done.root, users=users, shadows=shadows, console=done.console)
    with done.stage("report"):
        write_report(done.root)
    return Result(done.root, mirror.uri if mirror else None)


def profile(
    source: str,
    *,
    ledger: str,
    account: str,
    user: str = "user",
    text: str = "text",
    labels: Sequence[str] = (),
    epsilon: float | None = None,
    share: float | None = None,
    out: str | Path = "runs/profile",
    overrides: Mapping[str, Any] | Sequence[str] = (),
    console: Console | None = None,
) -> Result:
    """Say in noisy numbers what is in a private corpus, for a share of its account; see `Result.profile`.

    Args:
        source: the corpus, as `corpus.source` of a recipe names it.
        ledger: URL of the ledger.
        account: the account that pays, which is there already.
        user: the column that names the author.
        text: the column of the text.
        labels: columns whose values are counted.
        epsilon: what the profile may cost, in place of a share.
        share: its part of the account's budget; 0.02 when left out.
        out: the run directory: a path or a URI. The same call finds the same release there.
        overrides: further keys of a recipe of method `profile`, as `load_recipe` takes them.
        console: where progress is shown.

    Raises:
        BudgetRefusedError: the account has less left than the profile asks for.
        ConfigError: there is no such account, or something else is wrong that nothing was charged for.
    """
    from rayprivacy.methods.profile.asking import recipe_of
    from rayprivacy.runs.files import overridden

    blocks = {
        "corpus": {"source": source, "user": user, "text": text, "labels": [*labels]},
        "privacy": {"ledger": ledger, "account": account},
    }
    done = run(recipe_of(overridden(blocks, overrides), epsilon, share), out, console=console)
    report(done.uri or done.path, public=True)
    return done


def tune(
    space: str | Path,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    out: str | Path = "runs/search",
    resume: bool = True,
    console: Console | None = None,
) -> "Outcome | Result | None":
    """Search the keys of a recipe, under one account that pays for the search, or go on with a search.

    A space of charging `free` searches among the questions about a release instead, and nothing pays for that.

    Args:
        space: a space file, such as those in `tune_spaces/`.
        overrides: a mapping of dotted keys to values, or `key.path=value` strings with YAML values.
        out: folder of the search.
        resume: go on with a search that is there already; otherwise that is an error.
        console: told how each trial ended.

    Returns:
        What was found; for charging `select` the winner, or None when the number of trials came out as 0.

    Raises:
        RayPrivacyError: a key is wrong, the account cannot pay, or every trial failed.
    """
    from rayprivacy.reporting.page import write_report
    from rayprivacy.tuning.search import start_search

    found = start_search(
        at_home(space), overrides, at_home(out), resume=resume, console=console or Console(stderr=True)
    )
    if not isinstance(found, Path):
        return found
    write_report(found)
    return Result(found)


def evaluate(
    real: str,
    synthetic: str,
    *,
    holdout: str | None = None,
    out: str | Path | None = None,
    console: Console | None = None,
    **settings: Any,
) -> Json:
    """Compare synthetic with private text; the figures are internal.

    Args:
        real: the private texts: a Parquet, JSONL or CSV file, or a folder of them.
        synthetic: the synthetic texts.
        holdout: real texts of users that no model has seen: the control of memorisation.
        out: folder for `evaluation.json` and `evaluation.md`.
        console: where progress is shown.
        settings: as in `rayprivacy.evaluation.settings.EvaluationConfig`: text, user, label, tree,
            embeddings, max_texts, max_words, seed.

    Raises:
        ConfigError: a setting is wrong, or the extra `eval` is not installed.
        CorpusError: a file cannot be read.
    """
    from rayprivacy.evaluation.figures import write_evaluation
    from rayprivacy.evaluation.settings import EvaluationConfig, require_extra
    from rayprivacy.evaluation.texts import files_left_out, read_texts, text_blocks

    require_extra("evaluate")
    folder = None if out is None else made_folder(at_home(out), "--out")  # before the work: none is done for nothing
    config = EvaluationConfig.parse(settings)
    sides = {"--real": real, "--synthetic": synthetic, "--holdout": holdout}
    require_public(config, [(name, str(sides[name])) for name in ("--real", "--holdout") if sides[name] is not None])
    given = {name: source for name, source in sides.items() if source is not None}
    texts = {name: read_texts(source, name, config) for name, source in given.items()}
    untold = [said for name, source in given.items() if (said := files_left_out(source, name))]
    from rayprivacy.evaluation.evaluate import evaluate as measure

    searched = text_blocks(real, "--real", config)
    compared = texts["--real"], texts["--synthetic"], texts.get("--holdout")
    with (console or Console(stderr=True)).status("reading") as status:
        found = measure(*compared, config, progress=status.update, searched=searched)
    found["notes"] += untold
    if folder is not None:
        write_evaluation(folder, found)
    return found


def ask_questions(
    run: "str | Path | Result | None" = None,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    recipe: str | Path | None = None,
    public: str | None = None,
    out: str | Path | None = None,
    text: str | None = None,
    document: str | None = None,
    actors: int | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> Json:
    """Ask questions about what a finished run released, or about public text; returns the content of `stages.json`.

    Args:
        run: a finished run, or its directory; the questions are written into its folder `questions`.
        overrides: keys of `questions`, as a mapping of dotted keys to values, or `key.path=value` strings. Others are
            those of the set that is in the folder, if there is one: it is made anew of what they leave as it was.
        recipe: a YAML file with the block `questions`; what it leaves out has its default, whatever is in the folder.
        public: in place of a run, a Parquet, JSONL or CSV file, or a folder of them; nothing of a run directory.
        out: folder for the questions about public text.
        text: the column of public text; `text` when left out.
        document: a column of the document of each public text: a sentence is asked of the rest of its document then.
        actors: processes that ask; one a core when left out. They change nothing in what is written.
        resume: finish what a killed process has begun there.
        console: where progress is shown.

    Raises:
        ConfigError: a setting is wrong, a package is missing, the run is not finished or has no text, or the public
            text is not public or cannot be read.
    """
    from rayprivacy.runs.directory import QUESTIONS
    from rayprivacy.runs.questions_plan import settings_of

    run = run.path if isinstance(run, Result) else run
    folder = at_home(str(out or "")) if public is not None else at_home(str(run or "")) / QUESTIONS
    settings = settings_of(folder, at_home(recipe) if recipe else None, overrides)  # what follows imports for seconds
    from rayprivacy.reporting.questions import about, ask

    asked = about(run, public, out, text, document)
    return ask(asked, settings, actors=actors or cores(), resume=resume, console=console or Console(stderr=True))


def audit(directory: str | Path, *, users: int = 400, shadows: int = 0, console: Console | None = None) -> Json:
    """Attack a finished run: membership, verbatim overlap, canaries. Writes `audit.json`; the figures are internal.

    Args:
        directory: of a finished run, not yet cleaned.
        users: training users that are attacked, at most, and held-out ones.
        shadows: shadow models to train first, an even number; each takes as long as the run did.
        console: where progress is shown.

    Raises:
        ConfigError: the run is not finished, was cleaned, has no held-out users, or released no model.
    """
    from rayprivacy.runs.audit import audit_finished

    if is_uri(str(directory)):
        raise ConfigError(f"{directory} is a URI: audit the run in its local folder, where its private shards are.")
    root = at_home(directory)
    if not (root / "recipe.yaml").is_file():
        raise ConfigError(f"{root} is no run directory: give one that `rayprivacy run --out` made.")
    try:
        check_shadows(shadows)
    except ValueError as error:
        raise ConfigError(f"shadows is {shadows}: {error}.") from None
    recipe = registry.load_recipe(root / "recipe.yaml")
    with redirect_stdout(sys.stderr):  # libraries print to it, and what a caller prints must stand alone there
        return audit_finished(
            method_of(recipe), recipe, root, users=users, shadows=shadows, console=console or Console(stderr=True)
        )


def report(
    *directories: str | Path, public: bool = False, out: str | Path = "comparison.html", work: Path | None = None
) -> str:
    """Write report.html of a run again, for inside or to share; or compare several runs on one page.

    Args:
        directories: a run directory, or the URI of one; or several to compare.
        public: leave out everything measured on private text.
        out: the page of a comparison.
        work: local folder in which a run at a URI is worked on.

    Returns:
        Where the page is.

    Raises:
        ConfigError: a file of a run is missing; the message names it.
    """
    from rayprivacy.reporting.page import write_comparison, write_report

    if len(directories) > 1:
        remote = [str(directory) for directory in directories if is_uri(str(directory))]
        if remote:
            raise ConfigError(
                f"{shown(remote[0])} is a URI, and a comparison reads local runs: copy the run here first."
            )
        return str(write_comparison([at_home(each) for each in directories], at_home(out), internal=not public))
    return _in_run(directories[0], work, lambda root: write_report(root, internal=not public))


def evidence(directory: str | Path, *, work: Path | None = None) -> str:
    """Write evidence of a finished run in the forms that reviewers use, from files that may be shared.

    Args:
        directory: a run directory, or the URI of one.
        work: local folder in which a run at a URI is worked on.

    Returns:
        The folder of the forms.

    Raises:
        ConfigError: this is no finished run, or a file of it is damaged; the message names it.
        LedgerError: the export of the ledger in it is damaged, or of another ledger.
    """
    from rayprivacy.reporting.evidence import write_evidence

    return _in_run(directory, work, write_evidence)


def _in_run(directory: str | Path, work: Path | None, write: Callable[[Path], Path]) -> str:
    """Write something into a run directory, which may be at a URI, and say where it is."""
    mirror = mirror_of(str(directory), work)
    if mirror is None:
        return str(write(at_home(directory)))
    pull_run(mirror)
    written = write(mirror.root)
    mirror.push()
    return f"{mirror.uri}/{written.name}"


def clean(directory: str | Path, *, work: Path | None = None) -> "Cleaned":
    """Delete what a run computed from private text; released text, certificate, report and ledger stay.

    Args:
        directory: a run directory, or the URI of one.
        work: local folder in which a run at a URI is worked on.

    Raises:
        ConfigError: this is no run directory, or a folder in it is a link.
    """
    from rayprivacy.runs.clean import clean_run

    mirror = mirror_of(str(directory), work)
    if mirror is None:
        return clean_run(at_home(directory))
    pull_run(mirror)
    private_directory(mirror.root / "private")  # a folder that was pulled without has none
    return replace(clean_run(mirror.root), at_uri=mirror.forget_private())
