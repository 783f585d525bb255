"""What asking questions will do, and what of its settings is refused before anything is computed or charged.

The command looks here, and a method that asks about what it has written, before its account is opened. This file
imports neither torch nor Ray.
"""

from pathlib import Path

from rayprivacy.core.config import PRIVATE_SIDE, path_values
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import Json, read_json
from rayprivacy.corpus.settings import CorpusConfig
from rayprivacy.generation.settings import require_engine
from rayprivacy.questions.bases import check_bases
from rayprivacy.questions.public import annotations, check_selection, learnt_from, public_pairs
from rayprivacy.questions.settings import QuestionsConfig, QuestionsKeys, parse_questions
from rayprivacy.runs.files import OF_QUESTIONS, Overrides, lines_named, overridden, read_mapping
from rayprivacy.runs.plan import Stage
from rayprivacy.runs.recipe import credentials_in, require_public

PASSAGES, WRITER, EVIDENCE, QUESTIONS = "passages", "question writer", "evidence", "questions"
ANSWERS, LIKELIHOODS, JUDGEMENTS, VALUES = "answers", "likelihoods", "judgements", "values"
QUESTION_SET, RETRIEVER = "question set", "retriever"
STAGES = "stages.json"  # of a set: what it is made of, and, when it is whole, what came of it
PUBLIC_PAIRS, RELEASED = "public pairs", "released passages"
ANNOTATED = f"{RELEASED} and public annotations"
BY_LIKELIHOOD = ("likelihood", "measured")
_FREE = ("none", "random")  # selections that need nothing to be learnt


def question_stages(settings: QuestionsConfig) -> tuple[Stage, ...]:
    """The stages of a question set in their order, none of which is charged; each has a name and says what it reads."""
    pairs, judged = settings.pairs is not None, settings.judge is not None
    asker, by = settings.asker, settings.keep.by
    learnt = f"{asker.steps} steps of {asker.batch} public pairs"
    how = f"up to {settings.phrases.most} of a sentence" if pairs else "clozes: there are no pairs to learn asking from"
    listed = [
        (True, Stage(PASSAGES, RELEASED, efforts=())),
        (pairs, Stage(WRITER, PUBLIC_PAIRS, learnt)),
        (pairs, Stage(EVIDENCE, RELEASED, "sentences", efforts=())),
        (True, Stage(QUESTIONS, RELEASED, how)),
        (pairs, Stage(ANSWERS, RELEASED)),
        (pairs and by in BY_LIKELIHOOD, Stage(LIKELIHOODS, RELEASED)),
        (judged, Stage(JUDGEMENTS, ANNOTATED)),
        (pairs, Stage(VALUES, ANNOTATED)),
        (True, Stage(QUESTION_SET, RELEASED, f"kept by {by}", efforts=())),
        (settings.retriever is not None, Stage(RETRIEVER, f"{RELEASED}, questions")),
    ]
    return tuple(stage for there, stage in listed if there)


def begun_with(folder: Path) -> Json:
    """The keys of the set in a folder, which hold for it until others are given; none where there is no set."""
    path = folder / STAGES
    return {"questions": read_json(path)["inputs"]["questions"]} if path.is_file() else {}


def settings_of(folder: Path, recipe: Path | None, overrides: Overrides) -> QuestionsConfig:
    """The settings of a file, or else those of the set in the folder, with single keys changed."""
    if recipe is None:
        return parse_questions(overridden(begun_with(folder), overrides))
    data = read_mapping(recipe, OF_QUESTIONS, overrides)
    with lines_named(recipe, OF_QUESTIONS, overrides):
        return parse_questions(data)


def check_questions(settings: QuestionsConfig, corpus: CorpusConfig | None = None) -> None:
    """Refuse settings that cannot be used, or that take something private for public.

    Args:
        settings: the block.
        corpus: the private corpus of the run, whose released text is asked about; None for public text.

    Raises:
        ConfigError: in one sentence; of public text it quotes nothing but the number of a row.
    """
    private = path_values(corpus, *PRIVATE_SIDE) if corpus is not None else ()
    keys = QuestionsKeys(questions=settings)
    if said := credentials_in(keys):  # `stages.json` has the settings, and is shared
        raise ConfigError(f"{said}.")
    require_public(keys, [(f"corpus.{key}", value) for key, value in private])
    check_bases(keys)
    decided, by, annotated = settings.decided(), settings.keep.by, settings.value.annotations
    require_engine("questions.asker.engine", decided.asker.engine)
    if settings.pairs is None and by not in _FREE:
        raise ConfigError(
            f"questions.keep.by is '{by}' and there are no questions.pairs to learn it from: name public pairs, or set"
            " questions.keep.by to 'none' or 'random'."
        )
    if settings.judge is not None and annotated is None:
        raise ConfigError(
            "questions.judge is set and questions.value.annotations is not, from whose answers a judge learns: name"
            " public annotations, or set questions.judge to null."
        )
    pairs = [] if settings.pairs is None else public_pairs(settings.pairs)
    answered = [] if annotated is None else annotations(annotated)
    if pairs:
        check_selection(by, *learnt_from(pairs, answered, settings.seed))
