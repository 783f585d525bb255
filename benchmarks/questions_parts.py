"""What benchmarks/questions.py measures in its own process: asking, judging, BM25, values, and actors beside one."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import questions_qve as qve
import torch
from cpu_time import timed
from squad import passages, sentence_windows, source_and_target, splits

from rayprivacy.core.console import nobody
from rayprivacy.generation.fast import convert
from rayprivacy.generation.settings import BATCH, ONNX, SamplingConfig
from rayprivacy.generation.text_writers import WritingTask, load_saved, writer_of
from rayprivacy.generation.writing import Prompts
from rayprivacy.models.asked import asked
from rayprivacy.models.backbone import fast_format, load_backbone
from rayprivacy.models.settings import ModelConfig
from rayprivacy.questions.asker import ASK, QUESTIONS, Writer, kept_asker, known_phrases
from rayprivacy.questions.attribution import LABELS, Claim, simulated
from rayprivacy.questions.blocks import ROWS, Answerer, Answering, Asked, Judgement, Judging, Likelihood
from rayprivacy.questions.entities import finder
from rayprivacy.questions.evidence_reader import beginning
from rayprivacy.questions.judge import TOLD, Judge
from rayprivacy.questions.judge_encoder import ClaimEncoder
from rayprivacy.questions.lexical import Bm25, stems
from rayprivacy.questions.overlap import Idf, words
from rayprivacy.questions.passages import windows
from rayprivacy.questions.settings import AskerConfig, JudgeConfig, PhrasesConfig, ValueConfig
from rayprivacy.questions.value import Feedback, Learning, values
from rayprivacy.runs.decide import best_engine_for
from rayprivacy.runs.questions_folder import Folder, write_table
from rayprivacy.runs.recipe import LOCAL
from rayprivacy.runs.session import ray_session

STEPS = 12  # of an asker that is trained here
REST_S = 20  # in which nothing is asked
GREEDY = SamplingConfig(max_tokens=32, top_k=1, top_p=1.0)
Goal = dict[str, Any]


def goal(what: str, figure: float, at_most: float | None = None, at_least: float | None = None) -> Goal:
    """A figure beside what it should be."""
    said = f"at most {at_most}" if at_most is not None else f"at least {at_least}"
    met = figure <= at_most if at_most is not None else figure >= (at_least or 0.0)
    return {"what": what, "figure": round(figure, 3), "goal": said, "met": bool(met)}


@dataclass(frozen=True)
class Bench:
    """Where the data are, where things are kept, and whether this is a first try."""

    data: Path
    work: Path
    quick: bool
    saved: Path | None = None  # an asker

    def size(self, whole: int, quick: int) -> int:
        """How much is measured."""
        return quick if self.quick else whole

    @cached_property
    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Sentences with questions: public ones, and those of other articles, which are asked about."""
        return source_and_target(self.data)

    @cached_property
    def asker(self) -> Path:
        """The folder of an asker."""
        if self.saved is not None:
            return self.saved
        pairs = [(row["sentence"], row["question"]) for row in self.rows[0]]
        settings = AskerConfig(steps=STEPS)
        return kept_asker(
            load_backbone(ModelConfig()), pairs, settings, PhrasesConfig(), nobody, self.work, "benchmark"
        )

    @cached_property
    def questions(self) -> pa.Table:
        """People's questions, as an asker's about the windows of their sentences."""
        place = {text: window for window in sentence_windows(self.rows[1]) for text in window}
        phrases = known_phrases([(row["sentence"], row["question"]) for row in self.rows[0]], PhrasesConfig())
        assert phrases is not None
        found = []
        for number, row in enumerate(self.rows[1]):
            context, evidence = " ".join(place[row["sentence"]]), row["sentence"]
            about = {"document": number, "passage": f"p{number}", "title": "", "context": context}
            told = {"phrase": phrases(row["question"]) or "", "question": row["question"]}
            found.append(about | {"evidence": evidence, "evidence_start": context.index(evidence)} | told)
        return pa.Table.from_pylist(found, QUESTIONS)

    def prompts(self, writer: Writer, most: int) -> Prompts:
        """What an asker is asked with: sentences, and the phrases that people began with."""
        rows = self.questions.slice(0, most).to_pylist()
        return [
            (number, asked(ASK, row["evidence"], writer.documents, AskerConfig().max_tokens, row["phrase"]))
            for number, row in enumerate(rows)
        ]

    @cached_property
    def claims(self) -> list[Claim]:
        """Simulated claims about XQuAD, about four thousand and eight hundred."""
        parts = splits(self.data)
        made = simulated([*parts.annotations, *parts.heldout], finder("rules"))
        return [each.claim for each in made]


@contextmanager
def scratch(bench: Bench) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=bench.work))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def cpu(call: Callable[[], Any]) -> float:
    """CPU seconds of this process."""
    began = time.process_time()
    call()
    return time.process_time() - began


def asking(bench: Bench) -> dict[str, Any]:
    """Questions by one actor, some and then all, beside the same prompts in this process.

    Ray's own processes take CPU in every second that passes, of which a busy machine needs more: it is told apart.
    """
    few, most = 64, bench.size(256, 128)
    engine = best_engine_for(ModelConfig().base)
    with scratch(bench) as work, ray_session(LOCAL):
        torch.set_num_threads(1)
        writer = Writer(bench.asker, work, 1, engine, 0)
        prompts, ready = bench.prompts(writer, most), bench.asker
        if engine == ONNX:
            backbone = load_saved(bench.asker)
            ready = convert(backbone.model, backbone, work)
            del backbone
        task = WritingTask(bench.asker, GREEDY, engine, 1, ready)
        write = writer_of(task)
        texts: list[Any] = []

        def here() -> None:
            for block, own in enumerate(windows(prompts, BATCH)):
                texts.extend(write([text for _, text in own], task.at(block)))

        write([text for _, text in prompts[:8]], GREEDY)  # so that nothing is loaded meanwhile
        alone = cpu(here)
        written: list[Any] = []
        some = timed(lambda: writer("some", prompts[:few], GREEDY))
        every = timed(lambda: written.extend(writer("every", prompts, GREEDY)))
        rest = timed(lambda: time.sleep(REST_S))
    assert [text for _, text in written] == [text for text, reason in texts if not reason], "the same questions"
    each = (every[1] - some[1]) / (most - few)
    resting = rest[1] / rest[0]
    working = each - resting * (every[0] - some[0]) / (most - few)
    ratios = {name: (alone / most) / seconds for name, seconds in {"of all": each, "at work": working}.items()}
    return {
        "engine": engine,
        "questions": most,
        "a_cpu_second_here": round(most / alone, 2),
        "a_cpu_second_in_an_actor": round(1 / each, 2),
        "an_actor_costs_once_cpu_s": round(some[1] - few * each, 1),
        "cpu_s_of_ray_at_rest_in_a_second": round(resting, 3),
        "ratio_of_5000_with_start": round((5000 * alone / most) / (some[1] + (5000 - few) * each), 3),
        "goals": [
            goal(f"asking: questions a CPU second {name} in an actor, of those here", ratio, at_least=0.9)
            for name, ratio in ratios.items()
        ],
    }


class Seen:
    """An encoder that keeps what it is given."""

    def __init__(self, model: Any) -> None:
        self._model, self.batches = model, list[dict[str, torch.Tensor]]()

    def __call__(self, **read: torch.Tensor) -> Any:
        self.batches.append(read)
        return self._model(**read)


def judging(bench: Bench) -> dict[str, Any]:
    """Judges of words alone and with an encoder, in blocks, beside the encoder alone; none is trained."""
    most = bench.size(5000, 320)
    claims = (bench.claims * 2)[:most]
    idf = Idf.of(map(words, dict.fromkeys(claim.reference for claim in claims)))
    encoder = ClaimEncoder.load("minilm-l6", JudgeConfig().max_tokens)
    encoder.model.eval()
    labels = len(LABELS)
    alone = Judge(idf, np.zeros((TOLD + 2, labels)))
    both = Judge(idf, np.zeros((TOLD + 2 + labels, labels)), 0.0, encoder)
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {"words": [], "with_encoder": [], "encoder": []}
    for block in windows(claims, ROWS):
        seen = Seen(encoder.model)
        watched = replace(both, encoder=replace(encoder, model=seen))
        seconds["words"].append(cpu(lambda own=block: alone.probabilities(own)))
        seconds["with_encoder"].append(cpu(lambda own=block, judge=watched: judge.probabilities(own)))
        seconds["encoder"].append(cpu(lambda given=seen: _forward(encoder.model, given.batches)))
    whole = {name: sum(each) for name, each in seconds.items()}
    ratios = [one / other for one, other in zip(seconds["with_encoder"], seconds["encoder"], strict=True)]
    return {
        "claims": len(claims),
        "cpu_s_of_5000": {name: round(each * 5000 / len(claims), 2) for name, each in whole.items()},
        "median_of_blocks": round(median(ratios), 3),
        "goals": [
            goal("judge with an encoder, of its encoder alone", whole["with_encoder"] / whole["encoder"], at_most=1.15),
            goal(
                "judge of words alone (the default of the job), of that encoder",
                whole["words"] / whole["encoder"],
                1.15,
            ),
        ],
    }


@torch.no_grad()
def _forward(model: Any, batches: Sequence[dict[str, torch.Tensor]]) -> None:
    for batch in batches:
        with torch.autocast("cpu", getattr(torch, fast_format()), enabled=fast_format() == "bfloat16"):
            model(**batch)


def bm25(bench: Bench) -> dict[str, Any]:
    """XQuAD's questions among its passages and all others, by both packages if there are both."""
    parts = splits(bench.data)
    annotated = [*parts.annotations, *parts.heldout]
    asked_of = [row["question"] for row in annotated][: bench.size(len(annotated), 100)]
    texts = [*dict.fromkeys(row["context"] for row in annotated), *passages(bench.rows[1])]
    texts += [row["passage"] for row in parts.public]
    ours = min(cpu(lambda: _ours(texts, asked_of)) for _ in range(3))
    found: dict[str, Any] = {"questions": len(asked_of), "passages": len(texts), "cpu_s": round(ours, 2), "goals": []}
    if find_spec("rank_bm25") is None:
        return found | {"rank_bm25": "not installed"}
    theirs = cpu(lambda: _theirs(texts, asked_of))
    found["goals"] = [goal("BM25 with its index, of rank_bm25", ours / theirs, at_most=0.05)]
    return found | {"rank_bm25_cpu_s": round(theirs, 2)}


def _ours(texts: Sequence[str], questions: Sequence[str]) -> None:
    index = Bm25(texts)
    for question in questions:
        index.scores(question)


def _theirs(texts: Sequence[str], questions: Sequence[str]) -> None:
    from rank_bm25 import BM25Okapi  # for this comparison alone

    index = BM25Okapi(stems(texts))
    for question in stems(questions):
        index.get_scores(question)


def worth(bench: Bench) -> dict[str, Any]:
    """Iterations of values."""
    trial = qve.planted(qve.sets(bench.data), 0.4, 0, ValueConfig())
    found = qve.speed(trial, bench.size(5, 2), bench.size(50, 10))
    return found | {"goals": [goal("an iteration of 8 selections at once, of 8 of one", found["ratio"], at_most=0.35)]}


def actors(bench: Bench) -> dict[str, Any]:
    """The seconds of each stage of blocks with one actor and with two, in turns, each with new actors."""
    found = {}
    with scratch(bench) as work, ray_session(LOCAL):
        for name, stage in _stages(bench, work).items():
            seconds = {number: [0.0, 0.0] for number in (1, 2)}
            for number in (1, 2):
                folder = work / f"{name}-{number}"
                (folder / ".work").mkdir(parents=True)
                seconds[number] = [*timed(lambda stage=stage, folder=folder, number=number: stage(folder, number))]
            ratio = seconds[2][0] / seconds[1][0]
            found[name] = {f"{number}_wall_and_cpu_s": [round(s, 1) for s in own] for number, own in seconds.items()}
            found[name]["ratio"] = round(ratio, 3)
    goals = [goal(f"two actors, of the time of one: {name}", own["ratio"], at_most=0.6) for name, own in found.items()]
    return {"stages": found, "goals": goals}


def _stages(bench: Bench, work: Path) -> dict[str, Callable[[Path, int], Any]]:
    """Each stage by its folder and the number of its actors."""
    engine, model = best_engine_for(ModelConfig().base), bench.asker
    rows = bench.questions.take(np.arange(bench.size(4096, 128)) % len(bench.questions))
    paths = {}
    for name, most in (("all", len(rows)), ("scored", bench.size(512, 64)), ("judged", bench.size(1536, 128))):
        paths[name] = work / f"{name}.parquet"
        write_table(rows.slice(0, most), paths[name], rows=ROWS)
    answered = pa.concat_tables(
        [Answerer(Answering(paths["judged"], "rules"))(0, group) for group in range(_groups(paths["judged"]))]
    )
    write_table(answered, paths["judged"], rows=ROWS)
    encoder = ClaimEncoder.load("minilm-l6", JudgeConfig().max_tokens)
    Judge(Idf({}, 1.0), np.zeros((TOLD + 2 + len(LABELS), len(LABELS))), 0.0, encoder).save(work / "judge")
    Judge(Idf({}, 1.0), np.zeros((TOLD + 2, len(LABELS)))).save(work / "judge-of-words")
    trial = qve.planted(qve.sets(bench.data), 0.4, 0, ValueConfig(iterations=bench.size(600, 20)))
    feedback = Feedback(trial.start(), trial.written, trial.sets.annotated, trial.settings)
    learning = Learning.of(feedback, beginning())
    prompts = bench.prompts(Writer(model, work, 1, engine, 0), bench.size(384, 64))

    def blocks(kind: Any, job: Any, path: Path) -> Callable[[Path, int], Any]:
        return lambda root, number: Folder(root, number, lambda stage: nullcontext(), lambda *counted: None).blocks(
            kind, job, _groups(path), [], "a stage"
        )

    return {
        "questions": lambda root, number: Writer(model, root, number, engine, 0)("questions", prompts, GREEDY),
        "answers": blocks(Answerer, Answering(paths["all"], "spacy"), paths["all"]),
        "likelihoods": blocks(Likelihood, Asked(paths["scored"], model, AskerConfig()), paths["scored"]),
        "judgements, with an encoder": blocks(Judgement, Judging(paths["judged"], work / "judge"), paths["judged"]),
        "judgements, of words": blocks(Judgement, Judging(paths["judged"], work / "judge-of-words"), paths["judged"]),
        "values": lambda root, number: values(learning, 0, number),
    }


def _groups(path: Path) -> int:
    return int(pq.read_metadata(path).num_row_groups)
