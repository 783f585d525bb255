"""Question sets with their cards: about text that is declared public, or about what a finished run released.

Of a run its recipe, certificate and text are read, and nothing private: no charge is made, and no ledger is opened.
"""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json, at_home
from rayprivacy.core.uris import is_uri, shown
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.models.settings import ModelConfig
from rayprivacy.questions.settings import QuestionsConfig
from rayprivacy.reporting import claim
from rayprivacy.reporting.inputs import read_facts, read_model
from rayprivacy.reporting.questions_card import write_questions_card
from rayprivacy.runs.directory import CERTIFICATE, QUESTIONS, RECIPE, alone
from rayprivacy.runs.questions import (
    make_set,
    public_material,
    public_source,
    released_material,
    require_finished,
    settled,
)
from rayprivacy.runs.questions_plan import check_questions


@dataclass(frozen=True)
class Public:
    """Public text, and where the questions about it go."""

    source: str
    out: Path
    text: str
    document: str | None


def about(
    run: str | Path | None, public: str | None, out: str | Path | None, text: str | None, document: str | None
) -> Path | Public:
    """What is asked about: the directory of a run, or public text; ConfigError for both, neither, or half of one."""
    if public is None and run is None:
        raise ConfigError("there is nothing to ask about: give the directory of a finished run, or --public.")
    if public is None:
        given = {"--out": out, "--text": text, "--document": document}
        if mine := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"{mine[0]} is for --public, and questions about a run lie in its folder: leave it out.")
        if is_uri(str(run)):
            raise ConfigError(f"{shown(str(run))} is a URI: give the local folder in which the run was worked on.")
        return at_home(str(run))
    if run is not None:
        raise ConfigError(f"both {shown(str(run))} and --public are given: leave one of them out.")
    if out is None:
        raise ConfigError("--out is missing: name a folder for the questions about --public.")
    return Public(public, at_home(out), "text" if text is None else text, document)


def ask(asked: Path | Public, settings: QuestionsConfig, *, actors: int, resume: bool, console: Console) -> Json:
    """Ask about public text, or about that of a finished run, in its folder; returns the content of `stages.json`."""
    if isinstance(asked, Path):
        return _ask_run(asked, settings, actors=actors, resume=resume, console=console)
    base = ModelConfig().base
    source, settings = public_source(asked.source, asked.text, asked.document), settled(asked.out, settings, base)
    check_questions(settings)
    material = public_material(source)
    found = make_set(material, settings, asked.out, base=base, actors=actors, resume=resume, console=console)
    write_questions_card(asked.out)
    return found


def _ask_run(root: Path, settings: QuestionsConfig, *, actors: int, resume: bool, console: Console) -> Json:
    require_finished(root)
    facts, out = read_facts(root / RECIPE), root / QUESTIONS
    if not facts.card.texts:
        raise ConfigError(f"{root} holds no text to ask about: its method, {facts.method}, releases none.")
    base = facts.model.base
    settings = settled(out, settings, base)
    check_questions(settings, CorpusConfig(source=facts.corpus.source) if facts.corpus.source else None)
    with alone(root):  # a run that is resumed may write another text
        certificate = read_model(root / CERTIFICATE, Certificate)
        said = claim.statement(certificate).headline
        material = released_material(root, facts.card.texts, facts.corpus.labels, certificate.release_id, said)
        found = make_set(material, settings, out, base=base, actors=actors, resume=resume, console=console)
        write_questions_card(out, certificate)
    return found
