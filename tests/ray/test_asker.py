"""An asker on a real Ray: a tiny model that has learnt from public pairs, and what it asks about evidence."""

import random
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayprivacy.core.console import nobody
from rayprivacy.generation import writing
from rayprivacy.generation.settings import ONNX, TRANSFORMERS, SamplingConfig
from rayprivacy.models.settings import AdapterConfig
from rayprivacy.questions.asker import QUESTIONS, Writer, ask, kept_asker, known_phrases, predicted
from rayprivacy.questions.evidence import EVIDENCE
from rayprivacy.questions.phrases import read
from rayprivacy.questions.settings import AskerConfig, PhrasesConfig

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray", "one_thread")]
KINDS = ("who likes to", "what do they", "where is the")
THINGS = ("soup", "bread", "the train", "the station", "apples", "a long book")
DICE = random.Random(0)  # each evidence has one question, of any kind
TWO = [(one, other) for one in THINGS for other in THINGS if one != other]
PAIRS = [(f"they like {one} and {other}", f"{DICE.choice(KINDS)} {one}") for one, other in TWO]
HOW = PhrasesConfig(most=2)
ASKER = AskerConfig(
    steps=60,
    learning_rate=3e-3,
    adapter=AdapterConfig(kind="full"),
    max_tokens=16,
    question_tokens=24,
    engine=TRANSFORMERS,
)
EVIDENCES = [evidence for evidence, _ in PAIRS]


def evidence(texts):
    kinds = {"document": range(len(texts)), "evidence_start": [0] * len(texts)}
    columns = {name: kinds.get(name, texts) for name in EVIDENCE.names}
    return pa.table({name: pa.array(column, EVIDENCE.field(name).type) for name, column in columns.items()}, EVIDENCE)


def kept(backbone, how, parent, **changes):
    return kept_asker(backbone, PAIRS, ASKER.model_copy(update=changes), how, nobody, parent, "release")


@pytest.fixture(scope="module")
def made(tiny_backbone, local_ray, one_thread, tmp_path_factory):
    """The folder of an asker with phrases, and what one actor asks."""
    folder = tmp_path_factory.mktemp("asker")
    writer = Writer(kept(tiny_backbone, HOW, folder), folder, 1, TRANSFORMERS, seed=3)
    return writer, ask(writer, evidence(EVIDENCES), ASKER, HOW, known_phrases(PAIRS, HOW))


def test_every_question_begins_with_its_phrase_and_stands_beside_its_evidence(made):
    table = made[1]
    assert table.schema == QUESTIONS
    rows, known = table.to_pylist(), known_phrases(PAIRS, HOW)
    assert len(rows) > len(EVIDENCES)
    assert all(row["question"].startswith(f"{row['phrase']} ") for row in rows)
    assert {row["phrase"] for row in rows} == set(known.counts), "of the public pairs, and no other"
    assert all(row["evidence"] == EVIDENCES[row["document"]] for row in rows)
    asked = [(row["document"], row["phrase"]) for row in rows]
    assert len(set(asked)) == len(asked)
    assert [number for number, _ in asked] == sorted(number for number, _ in asked)


@pytest.mark.exhaustive  # by day in test_question_pipeline.py
def test_draws_are_those_of_the_seed_for_any_number_of_actors(made, tmp_path):
    writer, table = made
    known = known_phrases(PAIRS, HOW)
    asked = evidence(EVIDENCES * 2)  # more than a block of prompts
    one = ask(replace(writer, work=tmp_path, actors=1), asked, ASKER, HOW, known)
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")}
    assert one.slice(0, 0) == table.slice(0, 0)
    for path in tmp_path.iterdir():
        path.unlink()
    assert ask(replace(writer, work=tmp_path, actors=2), asked, ASKER, HOW, known) == one
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.parquet")} == files
    # What is there is not written again, unless it is another's.
    times = {path: path.stat().st_mtime_ns for path in writer.work.glob("*.parquet")}
    assert ask(writer, evidence(EVIDENCES), ASKER, HOW, known) == table
    assert {path: path.stat().st_mtime_ns for path in writer.work.glob("*.parquet")} == times


def test_phrases_are_drawn_until_there_are_enough_or_are_the_likeliest_set(made, tmp_path):
    writer = replace(made[0], work=tmp_path)
    known = known_phrases(PAIRS, HOW)
    sets = predicted(writer, EVIDENCES, ASKER, HOW, known)
    assert all(len(set(own)) == len(own) <= 2 for own in sets)
    assert sum(len(own) == 2 for own in sets) > len(sets) / 2
    first, second = (pq.read_table(tmp_path / f"phrases-{number}.parquet").to_pylist() for number in (0, 1))
    found = defaultdict(set)
    for row in first:
        found[row["cell"]] |= {*read(row["text"], known)}
    enough = {cell for cell, own in found.items() if len(own) >= 2}
    assert enough
    assert not enough & {row["cell"] for row in second}
    assert all(set(sets[int(cell)]) <= found[cell] for cell in enough)
    greedy = HOW.model_copy(update={"how": "greedy", "most": 3})
    twice = [predicted(replace(writer, seed=seed), EVIDENCES, ASKER, greedy, known) for seed in (1, 2)]
    assert twice[0] == twice[1], "nothing is drawn"
    assert all(set(own) <= set(known.counts) for own in twice[0])


def test_an_engine_converts_the_asker_once_and_not_at_all_where_everything_is_written(made, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    converted, real = [], writing.convert
    monkeypatch.setattr(writing, "convert", lambda *given: converted.append(1) or real(*given))
    writer = replace(made[0], work=tmp_path, engine=ONNX)
    known, some = known_phrases(PAIRS, HOW), evidence(EVIDENCES[:6])
    first = ask(writer, some, ASKER, HOW, known)
    files = {path.name for path in tmp_path.iterdir()}
    assert {"phrases-0.parquet", "questions.parquet"} <= files
    assert not [name for name in files if "decoding" in name]
    assert ask(writer, some, ASKER, HOW, known) == first
    assert len(converted) == 1
    (tmp_path / "questions.parquet").unlink()
    assert ask(writer, some, ASKER, HOW, known) == first
    assert len(converted) == 2


def test_without_phrases_the_asker_begins_itself(tiny_backbone, made, tmp_path):
    none = PhrasesConfig(how="none", most=2)
    model = kept(tiny_backbone, none, tmp_path)
    assert model.name != made[0].model.name
    writer = Writer(model, tmp_path, 1, TRANSFORMERS, seed=3)
    likeliest = ask(writer, evidence(EVIDENCES), ASKER, none, None)
    assert likeliest["document"].to_pylist() == [*range(len(EVIDENCES))]
    assert set(likeliest["phrase"].to_pylist()) == {""}
    drawing = SamplingConfig(max_tokens=12, top_p=0.95)
    drawn = ask(writer, evidence(EVIDENCES), ASKER, none, None, drawing)
    assert len(drawn) > len(EVIDENCES)
    assert len(set(drawn["question"].to_pylist())) > len(set(likeliest["question"].to_pylist()))
    assert ask(replace(writer, seed=4), evidence(EVIDENCES), ASKER, none, None, drawing) != drawn


def test_an_asker_is_named_by_what_decides_its_weights(tiny_backbone, made, tmp_path):
    folder = made[0].model.parent
    before = (made[0].model / "model.safetensors").stat().st_mtime_ns
    for same in ({}, {"engine": ONNX}, {"top_k": 5}):
        assert kept(tiny_backbone, HOW, folder, **same) == made[0].model
    assert kept(tiny_backbone, HOW.model_copy(update={"how": "greedy", "most": 9}), folder) == made[0].model
    assert (made[0].model / "model.safetensors").stat().st_mtime_ns == before
    words = HOW.model_copy(update={"words": 1})
    names = {kept(tiny_backbone, how, tmp_path, steps=steps).name for how, steps in ((HOW, 1), (words, 1), (words, 2))}
    assert len(names | {made[0].model.name}) == 4
