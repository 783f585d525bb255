"""The stages of a question set, from texts to its files, each as `question_stages` names it.

    texts -> passages -> clozes                                      (without public pairs)
                      -> sentences -> questions -> answers           (by a model that has learnt from pairs)

    questions -> likelihoods, judgements, what a reader finds again, values -> what is kept -> files -> a retriever

Ray must be started. Nothing private is read: texts are released or public, and pairs and annotations are public.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rayprivacy.core.console import nobody
from rayprivacy.core.errors import RayPrivacyError
from rayprivacy.core.files import SHARED, Json
from rayprivacy.core.private import digest_file, digest_json
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.questions import bases
from rayprivacy.questions.asker import Writer, ask, kept_asker, known_phrases, left_out
from rayprivacy.questions.asking import Asker, Asking
from rayprivacy.questions.attribution import simulated
from rayprivacy.questions.blocks import ROWS, SPAN, Answerer, Answering, Asked, Judgement, Judging, Likelihood
from rayprivacy.questions.choosing import Choosing, Chosen, Sets, unread
from rayprivacy.questions.clozes import Document, Passage
from rayprivacy.questions.entities import finder
from rayprivacy.questions.evidence import evidence_table
from rayprivacy.questions.judge import trained_judge
from rayprivacy.questions.keep import ATTRIBUTABLE, Mask, may_be_kept
from rayprivacy.questions.overlap import Idf, words
from rayprivacy.questions.phrases import Phrases, divergence
from rayprivacy.questions.public import Pair, annotations, public_pairs
from rayprivacy.questions.retriever import require_passages, train_retriever
from rayprivacy.questions.settings import AskerConfig, QuestionsConfig
from rayprivacy.questions.table import finished, write_formats
from rayprivacy.questions.texts import Texts, write_texts
from rayprivacy.runs.directory import MODEL
from rayprivacy.runs.questions_folder import TABLE, Folder, Material, write_table
from rayprivacy.runs.questions_plan import (
    ANSWERS,
    BY_LIKELIHOOD,
    EVIDENCE,
    JUDGEMENTS,
    LIKELIHOODS,
    PASSAGES,
    QUESTION_SET,
    QUESTIONS,
    RETRIEVER,
    VALUES,
    WRITER,
)

_TEXTS, _ASKED, _ANSWERED, _DRAWN = "texts.parquet", "asked.parquet", "answered.parquet", "drawn"
JUDGE = "judge"


def public_base(asker: AskerConfig) -> Backbone:
    """The public model that learns to ask."""
    assert asker.base is not None, "decided before"
    with bases.named(bases.ASKER):
        return load_backbone(ModelConfig(base=asker.base))


@dataclass(frozen=True)
class Making:
    """The making of one set in its folder."""

    material: Material
    settings: QuestionsConfig
    folder: Folder

    def whole(self) -> Json:
        """Make the set; returns what `stages.json` says of it."""
        with self.folder.stage(PASSAGES):
            write_texts(self.material.texts, self.texts.path, self.material.together)
            if self.settings.retriever is not None:
                require_passages(len(self._passages()), len([*self.documents()]))
        asked, found = self._asked() if self.settings.pairs else (self._only_clozes(), {})
        found |= self._judged(asked) if self.settings.judge else {}
        eligible = may_be_kept(asked["question"].to_pylist(), found.get("attribution"), self.settings.keep)
        if self.settings.pairs:
            with self.folder.stage(VALUES):
                chosen = self._choosing(asked, eligible, found.get("likelihood"))()
        else:
            chosen = unread(eligible, self.settings)
        if not chosen.kept.any():
            raise RayPrivacyError(
                f"no question is kept: of {eligible.sum()} none passes questions.keep.by '{chosen.by}': choose another."
            )
        with self.folder.stage(QUESTION_SET):
            said = self._written(asked, found | chosen.columns | {"kept": chosen.kept}, chosen)
        return said | self._retriever()

    @cached_property
    def texts(self) -> Texts:
        """The file of the texts."""
        return Texts(self.folder.work(_TEXTS), self.settings.passages)

    @cached_property
    def pairs(self) -> list[Pair]:
        """Public pairs."""
        assert self.settings.pairs is not None, "a set with pairs"
        return public_pairs(self.settings.pairs)

    @property
    def known(self) -> Phrases | None:
        """The phrases that questions may begin with, which are those of public pairs."""
        return known_phrases(self.pairs, self.settings.phrases)

    @cached_property
    def annotated(self) -> list[Json]:
        """Public annotations; none where a tenth of the pairs takes their place."""
        source = self.settings.value.annotations
        return annotations(source) if source is not None else []

    @cached_property
    def evidence(self) -> pa.Table:
        """What is asked about by a model."""
        return evidence_table(self.documents(), self.settings.evidence, self.settings.seed)

    def documents(self) -> Iterator[Document]:
        """The documents that are asked about."""
        for group in range(self.texts.groups):
            yield from self.texts.documents(group)

    def _clozes(self) -> pa.Table:
        asking, groups = Asking(self.texts, self.settings, self.material.together), self.texts.groups
        decided = [digest_file(self.texts.path), self._named("passages", "evidence", "entities", "seed")]
        return self.folder.blocks(Asker, asking, groups, [*decided, asking.elsewhere], "asking questions")

    def _only_clozes(self) -> pa.Table:
        with self.folder.stage(QUESTIONS):
            asked = self._clozes()
        if not len(asked):
            other = ", or leave out --document, so that a sentence is asked of its own text" * self.material.together
            raise RayPrivacyError(f"no question came of {self._texts} texts: give longer ones{other}.")
        return asked

    def _asked(self) -> tuple[pa.Table, dict[str, Any]]:
        """Questions of a model with their answers, and their likelihoods, if a selection needs them."""
        settings, folder, asker = self.settings, self.folder, self.settings.asker
        with folder.stage(WRITER):
            told = lambda done: folder.count("steps", done, asker.steps)  # noqa: E731
            base, parent = public_base(asker), folder.work("")
            model = kept_asker(base, self.pairs, asker, settings.phrases, told, parent, "questions")
            del base  # its weights would stay in memory while questions are asked
        with folder.stage(EVIDENCE):
            if not len(self.evidence):
                raise RayPrivacyError(
                    f"{self._texts} texts have no sentence of {' to '.join(map(str, settings.evidence.words))} words in"
                    " a passage: give longer ones, or change questions.evidence.words."
                )
        with folder.stage(QUESTIONS):
            folder.work(_DRAWN).mkdir(exist_ok=True)
            engine = asker.engine
            assert engine != "auto", "decided before"
            writer = Writer(model, folder.work(_DRAWN), folder.actors, engine, settings.seed, nobody)
            asked = ask(writer, self.evidence, asker, settings.phrases, self.known)
            if not len(asked):
                raise RayPrivacyError("the asker wrote nothing but broken questions: raise questions.asker.steps.")
            path = self._file(asked, _ASKED)
        groups, named = pq.read_metadata(path).num_row_groups, digest_file(path)
        with folder.stage(ANSWERS):
            job = Answering(path, settings.entities)
            asked = folder.blocks(Answerer, job, groups, [named, settings.entities], "answering questions")
        if settings.keep.by not in BY_LIKELIHOOD:
            return asked, {}
        with folder.stage(LIKELIHOODS):
            how = Asked(path, model, asker)
            likely = folder.blocks(Likelihood, how, groups, [named, model.name], "scoring questions")
        return asked, {"likelihood": likely["likelihood"].to_numpy()}

    def _judged(self, asked: pa.Table) -> dict[str, Any]:
        with self.folder.stage(JUDGEMENTS):
            judge, path = self._judge(), self._file(asked, _ANSWERED)
            groups = pq.read_metadata(path).num_row_groups
            decided = [digest_file(path), judge.name]
            found = self.folder.blocks(Judgement, Judging(path, judge), groups, decided, "judging answers")
        return {name: found[name].to_pylist() for name in found.column_names}

    def _judge(self) -> Path:
        """The folder of the judge, trained or found; its name is made of all that decides it."""
        rows, settings = self.annotated, self.settings
        assert settings.judge is not None, "a set with a judge"
        encoder = settings.judge.encoder and bases.digests_of(settings.judge.encoder)
        name = digest_json([rows, self._named("judge", "entities", "seed"), encoder])
        folder, scratch = (self.folder.work(f"{start}{JUDGE}-{name[:16]}") for start in ("", "."))
        if not folder.is_dir():
            made = simulated(rows, finder(settings.entities), seed=settings.seed)
            idf = Idf.of(words(text) for text in dict.fromkeys(row["context"] for row in rows))
            claims, labels = [each.claim for each in made], [each.label for each in made]
            shutil.rmtree(scratch, ignore_errors=True)
            trained_judge(claims, labels, idf, settings.judge).save(scratch)
            scratch.rename(folder)
        return folder

    def _choosing(self, asked: pa.Table, eligible: Mask, likelihood: Any) -> Choosing:
        base = public_base(self.settings.asker)
        sets = Sets.about(asked, base, self.pairs, self.annotated, self.settings.seed)
        return Choosing(sets, eligible, self.settings, likelihood, self.folder.actors)

    def _written(self, asked: pa.Table, found: dict[str, Any], chosen: Chosen) -> Json:
        """Write the questions and their formats, which say what they were made of."""
        root, settings, passages = self.folder.root, self.settings, self._passages()
        questions = finished(asked, found, settings.seed, self.material.origin)
        self.folder.clear()
        write_table(questions, root / TABLE, SHARED)
        write_formats(root, questions, passages, settings.write)
        if settings.judge is not None:
            shutil.copytree(self._judge(), root / MODEL / JUDGE)
        measured = {"measured": chosen.figures} if chosen.figures else {}
        counts = self._funnel(questions, passages)
        return {
            "counts": counts,
            **self._left_out(questions),
            "kept_by": chosen.by,
            **measured,
            **self._types(questions),
        }

    def _passages(self) -> list[Passage]:
        return [passage for each in self.documents() for passage in each.passages]

    def _retriever(self) -> Json:
        """Train a retriever from the table that is written, if there is to be one; returns what is known of it."""
        settings, root = self.settings.retriever, self.folder.root
        if settings is None:
            return {}
        with self.folder.stage(RETRIEVER):
            questions, seed = pq.read_table(root / TABLE), self.settings.seed
            clozes = self._clozes_beside(questions) if self.settings.pairs and settings.clozes else None
            said = train_retriever(questions, self._passages(), clozes, settings, seed, root / MODEL / RETRIEVER)
        return {RETRIEVER: said}

    def _clozes_beside(self, questions: pa.Table) -> pa.Table:
        """Clozes of documents that no question of the split `test` is about: passages of one document may overlap."""
        tested = {*questions.filter(pc.equal(questions["split"], "test"))["passage"].to_pylist()}
        held = [each.number for each in self.documents() if tested & {passage.id for passage in each.passages}]
        clozes = self._clozes()
        return clozes.filter(pc.invert(pc.is_in(clozes["document"], pa.array(held, pa.int64()))))

    def _funnel(self, questions: pa.Table, passages: list[Passage]) -> Json:
        """How many there are at each step: of what is `found_again` and `attributable`, kept or not."""
        counts = {"documents": len([*self.documents()]), "texts": self._texts, "passages": len(passages)}
        if self.settings.pairs:
            counts["evidence"] = len(self.evidence)
        counts["questions"] = len(questions)
        if self.settings.pairs:
            counts["answered_by_a_span"] = pc.sum(pc.equal(questions["answer_kind"], SPAN)).as_py()
            counts["found_again"] = pc.sum(questions["roundtrip"]).as_py()
        if self.settings.judge:
            counts[ATTRIBUTABLE] = pc.sum(pc.equal(questions["attribution"], ATTRIBUTABLE)).as_py()
        return counts | {"kept": pc.sum(questions["kept"]).as_py()}

    def _left_out(self, questions: pa.Table) -> Json:
        """How many texts of the asker became no question, and why."""
        return {"left_out": left_out(self.folder.work(_DRAWN), len(questions))} if self.settings.pairs else {}

    @property
    def _texts(self) -> int:
        return int(pq.read_metadata(self.texts.path).num_rows)

    def _types(self, questions: pa.Table) -> Json:
        """How far types of questions are from those of the public pairs, in nats x 100: of all, and of what is kept."""
        if self.settings.pairs is None:
            return {}
        public = [question for _, question in self.pairs]
        kept = questions.filter(questions["kept"])
        both = {"asked": questions, "kept": kept}
        return {"kl": {name: round(divergence(t["question"].to_pylist(), public), 2) for name, t in both.items()}}

    def _file(self, table: pa.Table, name: str) -> Path:
        path = self.folder.work(name)
        write_table(table, path, rows=ROWS)
        return path

    def _named(self, *names: str) -> Json:
        return self.settings.model_dump(mode="json", include={*names})
