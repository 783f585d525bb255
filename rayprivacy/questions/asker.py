"""A language model that asks questions, and what it asks about a table of evidence.

    public pairs -> phrases EVIDENCE: the phrases of its questions          \\ learnt by one model
                 -> ask EVIDENCE, PHRASE: the rest of the question          /

    evidence -> its phrases, drawn from what the model predicts until there are enough -> a question behind each

So an evidence is asked different kinds of question, as people ask: the likeliest question begins with "what", whatever
it is about, and the likeliest set of phrases is one phrase. A phrase ends the prompt in training as it does when the
model asks. Texts are written by the engines, in the actors and with the resume of `generation.writing`; what is drawn
depends on the model, the evidence and the public seed. Private text is neither learnt from nor asked about.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rayprivacy.core import console, private
from rayprivacy.generation.settings import EngineName, SamplingConfig
from rayprivacy.generation.writing import Prompts, Ready, made_ready, read_written, write_samples
from rayprivacy.models.asked import Fitted, Learning, Pair, asked, fitted, kept
from rayprivacy.models.backbone import Backbone, Documents, load_documents
from rayprivacy.questions import phrases
from rayprivacy.questions.answers import holds
from rayprivacy.questions.evidence import EVIDENCE
from rayprivacy.questions.phrases import Phrases
from rayprivacy.questions.settings import AskerConfig, PhrasesConfig

ROUNDS = 4  # of draws of phrases, at most; an evidence that has too few even then has as many as it has
DRAWS = 2  # of a set, for each phrase that is wanted, in a round: a round loads the model anew
ASK, PREDICT = "ask", "phrases"
ASKED = "questions"  # the name under which questions are written
HOW = "It asks questions, and was trained on public pairs alone, without privacy."
REPEATS = "repeats its sentence"  # beside the reasons of `text_writers`
QUESTIONS = pa.schema([*EVIDENCE, ("phrase", pa.string()), ("question", pa.string())])


def kept_asker(
    backbone: Backbone,
    pairs: Sequence[Pair],
    asker: AskerConfig,
    how: PhrasesConfig,
    progress: console.Told,
    parent: Path,
    release: str,
) -> Path:
    """The folder of an asker, as `asked.kept` has it, in this folder."""
    known = known_phrases(pairs, how)
    lessons = lessons_of(pairs, known, backbone, asker.max_tokens)
    learning = Learning(
        "questions.asker", asker.steps, asker.batch, asker.learning_rate, asker.adapter, asker.question_tokens
    )
    settings = asker.model_dump(mode="json", exclude={"engine", "top_k"})
    name = private.digest_json([backbone.digest, settings, lessons])

    def fit() -> Fitted:
        return fitted(backbone, lessons, learning, progress)

    return kept(parent / f"asker-{name[:16]}", backbone.tokenizer, fit, release, HOW)


def known_phrases(pairs: Sequence[Pair], how: PhrasesConfig) -> Phrases | None:
    """The phrases of public pairs, or None where the asker begins its questions itself."""
    return None if how.how == "none" else Phrases.of((question for _, question in pairs), how)


def lessons_of(pairs: Sequence[Pair], known: Phrases | None, documents: Documents, most: int) -> list[Pair]:
    """What an asker learns: the rest of each question behind its phrase, and the phrases of each evidence."""
    found = []
    for evidence, question in pairs:
        phrase = (known(question) if known else None) or ""
        rest = " ".join(question.split()).removeprefix(phrase)
        found.append((asked(ASK, evidence, documents, most, phrase), rest))
    sets = known.sets(pairs) if known else {}
    return found + [(asked(PREDICT, evidence, documents, most), phrases.written(own)) for evidence, own in sets.items()]


class _Cells:
    """Texts are known again by the numbers of their prompts."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The one column."""
        return ("cell",)

    def labels(self, cell: int) -> dict[str, str]:
        """The number itself."""
        return {"cell": str(cell)}


@dataclass(frozen=True)
class Writer:
    """An asker that is saved, and where and by what its texts are written; Ray must be started.

    All nodes see both folders. What a killed run has written in `work` is taken over.
    """

    model: Path  # as `kept_asker` names it: the name stands for the weights
    work: Path
    actors: int
    engine: EngineName
    seed: int
    progress: console.Told = console.nobody
    ready: Ready | None = None  # by default the model is made ready for each name anew

    @cached_property
    def documents(self) -> Documents:
        """The asker's tokenizer."""
        return load_documents(self.model)

    def __call__(self, name: str, prompts: Prompts, sampling: SamplingConfig) -> list[tuple[int, str]]:
        """The texts behind prompts, each with its prompt's number, without degenerate ones.

        Each name has draws of its own.
        """
        config = sampling.model_copy(update={"seed": int(private.digest_json([self.seed, name])[:8], 16)})
        path = self.work / f"{name}.parquet"
        source = private.digest_json([self.model.name, self.engine, config.model_dump(mode="json"), prompts])
        if not path.exists() or read_written(path).source != source:
            write_samples(
                self.model,
                prompts,
                config,
                _Cells(),
                path,
                self.actors,
                engine=self.engine,
                source=source,
                ready=self.ready,
                progress=self.progress,
            )
        rows = pq.read_table(path)
        return [*zip(map(int, rows["cell"].to_pylist()), rows["text"].to_pylist(), strict=True)]


def ask(
    writer: Writer,
    evidence: pa.Table,
    asker: AskerConfig,
    how: PhrasesConfig,
    known: Phrases | None,
    sampling: SamplingConfig | None = None,
) -> pa.Table:
    """Questions about a table of evidence, those of an evidence together; `sampling` is in place of the asker's own.

    Without phrases there is one question for an evidence if the likeliest tokens are taken, and `most` if not.
    """
    sampling = sampling or SamplingConfig(max_tokens=asker.question_tokens, top_k=asker.top_k, top_p=1.0)
    texts = evidence["evidence"].to_pylist()
    with made_ready(writer.engine, writer.model, writer.work) as ready:
        writer = replace(writer, ready=ready)
        if known is None:
            sets = [[""] * (1 if sampling.top_k == 1 else how.most)] * len(texts)
        else:
            sets = predicted(writer, texts, asker, how, known)
        return behind(writer, evidence, sets, asker, sampling)


def behind(
    writer: Writer, evidence: pa.Table, sets: Sequence[Sequence[str]], asker: AskerConfig, sampling: SamplingConfig
) -> pa.Table:
    """A question behind each phrase of each evidence, without repetitions; an empty phrase lets the asker begin."""
    texts = evidence["evidence"].to_pylist()
    begun = [(row, phrase) for row, own in enumerate(sets) for phrase in own]
    prompts = [
        (cell, asked(ASK, texts[row], writer.documents, asker.max_tokens, phrase))
        for cell, (row, phrase) in enumerate(begun)
    ]
    found = []
    for cell, rest in writer(ASKED, prompts, sampling):
        row, phrase = begun[cell]
        question = f"{phrase} {rest}".strip()
        if not repeats(question, texts[row]):
            found.append((row, phrase, question))
    rows, told, questions = ([each[place] for each in found] for place in range(3))
    columns = evidence.select(EVIDENCE.names).take(pa.array(rows, pa.int64())).columns
    return pa.table([*columns, pa.array(told, pa.string()), pa.array(questions, pa.string())], QUESTIONS)


def repeats(question: str, evidence: str) -> bool:
    """Whether the words of one stand in a row in the other: such a question asks for nothing, or has its answer in it.

    Of 22,447 public questions that people asked, 4 are so. What follows their phrases stands in the sentence in 767,
    and says nothing.

    >>> sentence = "The mill was opened in May."
    >>> [repeats(each, sentence) for each in ("the mill was opened ?", "when was the mill opened ?", f"why {sentence}")]
    [True, False, True]
    """
    return holds(evidence, question) or holds(question, evidence)


def left_out(work: Path, questions: int) -> dict[str, int]:
    """How many texts of a writer became no question, by reason; `work` is its folder, and so many questions are."""
    written = read_written(work / f"{ASKED}.parquet")
    return written.degenerate | {REPEATS: written.texts - questions}


def predicted(
    writer: Writer, texts: Sequence[str], asker: AskerConfig, how: PhrasesConfig, known: Phrases
) -> list[list[str]]:
    """The phrases of each evidence: drawn, in rounds, until there are `most` distinct ones, or the likeliest set."""
    prompts = [asked(PREDICT, text, writer.documents, asker.max_tokens) for text in texts]
    found: list[list[str]] = [[] for _ in texts]
    greedy = how.how == "greedy"
    drawing = SamplingConfig(max_tokens=asker.question_tokens, top_p=1.0)
    sampling = drawing.model_copy(update={"top_k": 1}) if greedy else drawing
    for number in range(1 if greedy else ROUNDS):
        short = [row for row, own in enumerate(found) if len(own) < how.most]
        drawn = [(row, prompts[row]) for row in short for _ in range(1 if greedy else DRAWS * how.most)]
        if drawn:
            for row, text in writer(f"phrases-{number}", drawn, sampling):
                found[row] = [*dict.fromkeys([*found[row], *phrases.read(text, known)])][: how.most]
    return found
