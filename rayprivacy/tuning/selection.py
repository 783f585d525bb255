"""Repeat and select: a secret number of independent random trials, of which only the winner leaves.

Source: Papernot & Steinke (2022), "Hyperparameter tuning with Renyi differential privacy"; the charge is
`accounting.selection.select_event`, reserved before the first trial, whatever the number of trials turns out to be.

    reserve and start ONE charge -> draw number, values and seeds -> trial, trial, ... -> commit the winner -> publish

What the proof asks for, and how it is kept:

- the number is random and secret: drawn from the system's entropy, kept encrypted among the private files, never
  printed; neither is any trial's progress. How long a search took tells about it: the ledger is told the day
  alone (`ledger.charges`), and the people who get the winner must see neither the ledger nor the cluster.
- trials are independent: values and seed are drawn anew for each, and each has a ledger of its own for its noise,
  whose service exports nothing.
- all trials cost the same: keys that change a trial's event cannot be searched, and every drawn trial is compared with
  what was charged before the first one runs.
- only the winner leaves: figures of trials live in this process's memory, files of losers are deleted, and no
  metrics.json, report or gauge is written for any of them.
"""

import json
import math
import os
import random
import secrets
import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
from dp_accounting.dp_event import DpEvent, RepeatAndSelectDpEvent
from rich.console import Console

from rayprivacy.accounting.events import to_json
from rayprivacy.accounting.selection import select_event
from rayprivacy.core.console import repeating
from rayprivacy.core.errors import ConfigError, ReleaseError
from rayprivacy.core.files import SHARED, Json, private_directory, read_json, write_atomic
from rayprivacy.core.keys import Key, Vault, load_or_create_key
from rayprivacy.core.private import digest_json
from rayprivacy.core.units import Budget
from rayprivacy.corpus.sources import source_stamp
from rayprivacy.evaluation.language import synthetic_metrics
from rayprivacy.ledger.certificate import build_certificate, to_markdown
from rayprivacy.ledger.charges import Charge, ChargeState
from rayprivacy.ledger.opening import More
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import load_recipe, method_of
from rayprivacy.release.noise import draw_trials
from rayprivacy.runs import account, files, meaning, session
from rayprivacy.runs.directory import METRICS
from rayprivacy.runs.drive import drive
from rayprivacy.runs.recipe import Recipe
from rayprivacy.tuning.space import utility
from rayprivacy.tuning.trials import Trials, Values

PUBLISHED = "winner"
RENEW_SECONDS = 60.0
_TRIED = 64  # draws of the space whose events are compared before anything runs, beside every value of every list
_ASSUMPTION = (
    "the number of trials of the search was random and stays secret, all trials were independent and cost the same, and"
    " nothing of any trial but this one was looked at, kept or published"
)


@dataclass(frozen=True)
class Selection:
    """The charge of a selection; `digest` is a keyed one of the space and of the corpus's state."""

    release_id: str
    event: RepeatAndSelectDpEvent
    digest: str


def publish(trials: Trials, trial: Path, ledger: Ledger, release_id: str, key: Key) -> None:
    """Make the folder `winner`, whole by rename, with a certificate by `ledger` in place of the trial's own."""
    budget = trials.space.budget
    assert budget is not None
    own = read_json(trial / "certificate.json")
    certificate = build_certificate(
        ledger,
        budget.account,
        release_id,
        corpus_digest=own["corpus_digest"],
        run_request=Budget(budget.epsilon, budget.delta),
        assumptions=[*own["assumptions"], _ASSUMPTION],
        test_key=key.is_test_key,
        versions=own["versions"],
        stages=[{"name": "the winner of a secret number of trials"}],
    )
    scratch = trials.root / f".{PUBLISHED}-{digest_json(release_id)[:8]}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    card = method_of(load_recipe(trial / "recipe.yaml")).card
    for name in card.released_files:
        copy = shutil.copytree if (trial / name).is_dir() else shutil.copy2
        copy(trial / name, scratch / name)
    _write(scratch, certificate, trials, trial)
    texts = [str(text) for text in pq.read_table(scratch / card.texts)["text"].to_pylist()]
    # Of the released text alone: nothing that was measured on private text leaves a selection.
    figures = {"releasable": True, **synthetic_metrics(texts)}
    write_atomic(scratch / METRICS, (json.dumps({"schema_version": 1, "synthetic": figures}) + "\n").encode(), SHARED)
    now = time.time()  # of everything: how old the model is would say how many trials came after it
    for path in (*scratch.rglob("*"), scratch):
        os.utime(path, (now, now))
    scratch.rename(trials.root / PUBLISHED)


def _write(folder: Path, certificate: Json, trials: Trials, trial: Path) -> None:
    write_atomic(folder / "certificate.json", (json.dumps(certificate, indent=2) + "\n").encode(), SHARED)
    write_atomic(folder / "certificate.md", to_markdown(certificate).encode(), SHARED)
    recipe = load_recipe(trial / "recipe.yaml")
    privacy = recipe.privacy.model_copy(update={"ledger": trials.recipe({}).privacy.ledger})
    write_atomic(folder / "recipe.yaml", files.dump_recipe(recipe.model_copy(update={"privacy": privacy})).encode())


def run_selection(trials: Trials, console: Console) -> Path | None:
    """Run a search that publishes its winner alone, or finish it; the winner's folder, None if no trial was drawn."""
    recipe = trials.recipe(_drawn(trials, random.Random(0))).absolute()
    trial = same_event(trials)
    key = load_or_create_key(Path(recipe.privacy.key))
    selection = _selection(trials, recipe, trial, key)
    with closing(recipe.privacy.open_ledger()) as ledger:
        charge = _charged(trials, recipe, selection, ledger)
        if ledger.news:
            console.print(ledger.news, highlight=False, markup=False, soft_wrap=True)
        if charge.state is not ChargeState.COMMITTED:
            # Trials take longer than the term of a lease. If another process takes it over, committing says so.
            with console.status("searching"), repeating(RENEW_SECONDS, partial(ledger.renew, charge)):
                winner = _winner(trials, recipe, selection.event, key)
            ledger.commit_output(charge, winner.encode())
        winner = (ledger.output(charge) or b"").decode()
        if winner and not (trials.root / PUBLISHED).exists():
            publish(trials, _kept(trials, winner), ledger, selection.release_id, key)
        shutil.rmtree(_folder(trials), ignore_errors=True)
    return trials.root / PUBLISHED if winner else None


def _kept(trials: Trials, winner: str) -> Path:
    folder = _folder(trials) / winner
    if not folder.is_dir():
        raise ReleaseError(
            "this search was made before, and its winner was published elsewhere: use that one, or change the seed of"
            " the space, which is another search and another charge."
        )
    return folder


def same_event(trials: Trials) -> DpEvent:
    """The event of one trial, which must be that of every trial; ConfigError where it depends on searched values."""
    dice = random.Random(0)
    values = _drawn(trials, dice)
    first = trials.whole(values)
    listed = [values | {key: one} for key, domain in trials.space.search.items() for one in domain.choice or ()]
    drawn = (_drawn(trials, dice) for _ in range(_TRIED - 1))
    if not all(_costs(trials, other, first) for other in (*listed, *drawn)):
        raise ConfigError(
            "search holds keys that change what a trial costs, and charging is 'select', where all trials must cost the"
            " same: search keys such as the clipping norm or the learning rate, and fix sampling rate, steps and noise."
        )
    return first


def _costs(trials: Trials, values: Values, event: DpEvent) -> bool:
    return bool(to_json(trials.whole(values)) == to_json(event))


def _selection(trials: Trials, recipe: Recipe, trial: DpEvent, key: Key) -> Selection:
    select = trials.space.select
    event = select_event(trial, select.mean, select.distribution, select.shape)
    shape = trials.space.shape("budget", "trials", "concurrent")
    name = f"select-{digest_json([shape, recipe.release_id])[:16]}"
    return Selection(name, event, key.digest("select", name, source_stamp(recipe.corpus)))


def _charged(trials: Trials, recipe: Recipe, selection: Selection, ledger: Ledger) -> Charge:
    budget = trials.space.budget
    assert budget is not None
    protection, cap = trials.protection({}), Budget(budget.epsilon, budget.delta)
    of = meaning.meaning_of(recipe, trials.plan({}))
    terms = More(corpus=recipe.privacy.corpus, of=of, plan=[selection.event])
    account.settle_account(ledger, budget.account, selection.release_id, "rdp", cap, protection, terms)
    charge = ledger.reserve(
        budget.account, selection.release_id, selection.digest, selection.event, protection=protection
    )
    return ledger.start(charge)  # no waiting for a process that holds it: its term is a day


def _winner(trials: Trials, recipe: Recipe, event: RepeatAndSelectDpEvent, key: Key) -> str:
    """Run every trial and keep the best one's files; its folder's name, empty when no trial was drawn."""
    best, winner, folder = -math.inf, "", private_directory(_folder(trials))
    with session.ray_session(recipe.resources.address):
        for name, values in _plan(trials, event, key).items():
            score = _score(trials, folder / name, values)
            score = score if math.isfinite(score) else -math.inf  # of a model that has diverged
            loser = name
            if not winner or score > best:
                best, winner, loser = score, name, winner
            if loser:
                shutil.rmtree(folder / loser, ignore_errors=True)
    return winner


def _score(trials: Trials, folder: Path, values: Values) -> float:
    """Run one trial, printing nothing, and measure it; large is good."""
    recipe = trials.recipe(values).absolute()
    own = {"ledger": f"sqlite:///{folder.parent}/{folder.name}.db", "ledger_key": None}
    recipe = recipe.model_copy(update={"privacy": recipe.privacy.model_copy(update=own)})
    method = method_of(recipe)
    drive(method, recipe, folder, console=Console(quiet=True), measured=False)
    figure = utility(folder, recipe, trials.space.metric, method.card.texts)
    return figure if trials.space.metric.mode == "max" else -figure


def _plan(trials: Trials, event: RepeatAndSelectDpEvent, key: Key) -> dict[str, Json]:
    """The trials by folder name, drawn once; kept encrypted, because their number is secret."""
    path, vault = _folder(trials) / "plan.sealed", Vault(key, "selection")
    if not path.exists():
        dice, drawn = random.SystemRandom(), {}
        for _ in range(draw_trials(event)):
            seed = {"seed": secrets.randbelow(2**31)}
            drawn[secrets.token_hex(8)] = seed | _drawn(trials, dice)
        write_atomic(path, vault.encrypt(json.dumps(drawn).encode(), path.name))
    found: dict[str, Json] = json.loads(vault.decrypt(path.read_bytes(), path.name))
    # After the plan is kept: a second try must not draw another one.
    if not all(_costs(trials, values, event.event) for values in found.values()):
        raise ReleaseError(
            "a drawn trial costs another amount than the search was charged for, and nothing ran: fix the searched keys"
            " that change the cost, which is another search and another charge."
        )
    return found


def _drawn(trials: Trials, dice: random.Random) -> Json:
    return {key: domain.draw(dice) for key, domain in sorted(trials.space.search.items())}


def _folder(trials: Trials) -> Path:
    return trials.root / "private"
