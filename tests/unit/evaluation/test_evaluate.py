"""The evaluation tells good, bad and copied text apart; bad input is one sentence that quotes no text."""

import json
import random
import re
import stat
import sys
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv
from typer.testing import CliRunner

from rayprivacy import api
from rayprivacy.cli import app
from rayprivacy.core.errors import ConfigError, CorpusError, RayPrivacyError
from rayprivacy.corpus import sources
from rayprivacy.evaluation import language
from rayprivacy.evaluation import texts as reading
from rayprivacy.evaluation.evaluate import FEW_USERS, NO_HALVES, NO_HOLDOUT, NO_USERS, evaluate
from rayprivacy.evaluation.figures import markdown
from rayprivacy.evaluation.settings import EvaluationConfig
from rayprivacy.evaluation.texts import Texts, draw, halves, plain, read_texts, sample, text_blocks

pytestmark = pytest.mark.usefixtures("one_thread")
WHO = ["my friend", "the doctor", "a neighbour", "our teacher", "the old man", "her sister", "the driver", "a student"]
DOES = ["walks to", "looks at", "talks about", "comes from", "dreams of", "waits near", "lives behind", "runs around"]
WHERE = ["the station", "a green park", "the small shop", "our school", "the harbour", "the market", "the bridge"]
WHEN = ["every morning", "on sundays", "after work", "in the rain", "at night", "all summer", "now and then"]
LSA_ONLY = EvaluationConfig(embeddings=("tfidf",), base=None)


@pytest.fixture(scope="module", autouse=True)
def _fewer_texts_for_bleu():
    """It compares every text with every other, and takes nine tenths of an evaluation so small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "BLEU_TEXTS", 40)
        yield


def sentence(draw):
    parts = (" ".join(map(draw.choice, (WHO, DOES, WHERE, WHEN))) for _ in range(draw.randint(1, 3)))
    return f"{draw.randint(0, 999)} {', and '.join(parts)}"


def people(seed, users=40, each=5):
    draw = random.Random(seed)
    names = [f"{seed}-{user}" for user in range(users) for _ in range(each)]
    texts = [sentence(draw) for _ in names]
    return plain(texts, names, ["rain" if "rain" in text else "dry" for text in texts])


def anonymous(texts):
    return plain(texts.texts, labels=texts.labels)


def by_name(found):
    return {row["name"]: row for row in found["rows"]}


def compared(real, synthetic, held, config=LSA_ONLY):
    return by_name(evaluate(real, synthetic, held, config))


@pytest.fixture(scope="module")
def good(tiny_base):
    """Synthetic text of the same distribution, with everything that can be measured."""
    config = EvaluationConfig(embeddings=(str(tiny_base), "tfidf"), base=str(tiny_base), label="label", max_words=20)
    return evaluate(people(1), anonymous(people(2)), people(3), config)


def test_it_is_json_without_a_text_user_or_label_and_not_releasable(good, tiny_base):
    assert good["releasable"] is False
    assert json.loads(json.dumps(good, allow_nan=False)) == good
    written = (json.dumps(good) + markdown(good)).replace(str(tiny_base), "")
    for piece in (*WHO, *WHERE, *WHEN, "1-0", "dry"):
        assert piece not in written


def test_text_of_the_same_distribution_scores_like_the_reference(good, tiny_base):
    rows = by_name(good)
    for name in ("precision", "recall", "coverage", "topic_total_variation", "distinct_2", "nearest_distance_p50"):
        assert rows[name]["synthetic"] == pytest.approx(rows[name]["reference"], abs=0.2), name
    for name in ("perplexity", "words_mean", "longest_run_mean", "self_bleu_4"):
        assert rows[name]["synthetic"] == pytest.approx(rows[name]["reference"], rel=0.25), name
    assert 0.35 < rows["nearer_to_real"]["synthetic"] < 0.65
    assert rows["accuracy"]["synthetic"] == pytest.approx(rows["accuracy"]["reference"], abs=0.15)
    # Fidelity is the mean over embeddings.
    for name in ("precision", "recall", "f1", "density", "coverage", "frechet", "mauve"):
        row = rows[name]
        assert set(row["by_embedding"]) == {str(tiny_base), "tfidf"}
        for side in ("synthetic", "reference"):
            mean = sum(each[side] for each in row["by_embedding"].values()) / 2
            assert row[side] == pytest.approx(mean), name
    # Means over texts carry intervals, and distances of distributions none.
    for name in ("precision", "recall", "density", "coverage", "words_mean", "longest_run_mean", "accuracy"):
        low, high = rows[name]["synthetic_interval"]
        assert low <= rows[name]["synthetic"] <= high
        assert "reference_interval" in rows[name]
    for name in ("f1", "frechet", "mauve", "topic_total_variation", "distinct_1", "word_type_overlap", "macro_f1"):
        assert "synthetic_interval" not in rows[name]


def test_copies_of_private_text_are_found_and_the_same_evaluation_gives_the_same_figures():
    real, copies = people(1), anonymous(people(1))
    rows = compared(real, copies, people(3))
    assert compared(real, copies, people(3)) == rows
    assert rows["copied_texts"]["synthetic"] == 1
    assert rows["copied_texts"]["reference"] < 0.1
    assert rows["shared_8gram_texts"]["synthetic"] == 1
    assert rows["nearest_distance_p50"]["synthetic"] == 0
    assert rows["nearest_distance_p50_ratio"]["synthetic"] == 0
    assert rows["nearer_to_real"]["synthetic"] > 0.95


def test_one_copied_text_of_two_hundred_is_found_whatever_the_sample():
    real = people(1, users=100)
    mixed = plain([*people(2).texts[:-1], max(real.texts, key=len)])
    config = EvaluationConfig(embeddings=("tfidf",), base=None, max_texts=200)
    rows = compared(real, mixed, people(3), config)
    most = max(len(text.split()) for text in real.texts)
    assert rows["longest_run_max"]["synthetic"] >= most - 5 > rows["longest_run_max"]["reference"]


def test_one_sentence_and_text_of_another_kind_fail_where_they_should():
    real = people(1)
    rows = compared(real, plain([real.texts[0]] * 200), None)
    assert rows["duplicate_share"]["synthetic"] > 0.9
    assert rows["self_bleu_4"]["synthetic"] == pytest.approx(100)
    assert rows["coverage"]["synthetic"] < 0.2 < rows["coverage"]["reference"]
    assert rows["recall"]["synthetic"] < 0.2
    assert rows["mauve"]["synthetic"] < rows["mauve"]["reference"]
    assert rows["frechet"]["synthetic"] > 2 * rows["frechet"]["reference"]
    assert rows["topic_total_variation"]["synthetic"] > 0.5
    other = plain([f"error {row}: disk {row % 7} failed with code {row % 11}" for row in range(200)])
    rows = compared(people(1), other, None)
    assert rows["precision"]["synthetic"] < 0.2 < rows["precision"]["reference"]
    assert rows["word_type_overlap"]["synthetic"] < rows["word_type_overlap"]["reference"]
    assert rows["new_word_share"]["synthetic"] > 0.5


def test_what_is_missing_is_said():
    few, others = people(1, users=8), anonymous(people(2, users=8))
    one = plain(few.texts, ["ann"] * 40)
    assert evaluate(one, others, None, LSA_ONLY)["notes"] == [NO_HALVES, NO_HOLDOUT, FEW_USERS]
    alone = evaluate(anonymous(few), others, None, LSA_ONLY)
    assert alone["notes"] == [NO_HOLDOUT, NO_USERS]
    assert {"perplexity", "accuracy", "nearer_to_real"}.isdisjoint(by_name(alone))
    # Without held-out text classifiers are tested on the other half.
    config = EvaluationConfig(embeddings=("tfidf",), base=None, label="label")
    found = evaluate(people(1), anonymous(people(2)), None, config)
    asked = ("real_target", "synthetic", "reference", "tested_on_texts", "trained_on_texts")
    assert [found["compared"][name] for name in asked] == [100] * 5, "both sides are compared in equal numbers"
    assert by_name(found)["accuracy"]["reference"] > 0.7


def test_the_halves_of_a_drawing_share_no_user():
    drawn: Any = draw(people(1), anonymous(people(2, users=10)), None, LSA_ONLY)
    assert not set(drawn.real.users[drawn.target]) & set(drawn.real.users[drawn.reference])
    assert len(drawn.compared) == len(drawn.reference) == 50
    # Texts that are all the same can be compared.
    same = plain(["ok"] * 60, [f"u{row % 40}" for row in range(60)])
    rows = compared(same, anonymous(same), same)
    assert rows["precision"]["synthetic"] == rows["coverage"]["synthetic"] == rows["mauve"]["synthetic"] == 1
    assert rows["frechet"]["synthetic"] == pytest.approx(0, abs=1e-9)


def test_errors_carry_no_text():
    secret = plain(["swordfish"] * 5)
    with pytest.raises(ConfigError, match="neighbours is 5, and one side has 5 texts") as caught:
        evaluate(secret, secret, None, LSA_ONLY)
    assert "swordfish" not in str(caught.value)
    config = EvaluationConfig(embeddings=("tfidf",), base=None, label="topic")
    with pytest.raises(CorpusError, match="fewer than two labels"):
        evaluate(people(1), plain(people(2).texts, labels=["x"] * 200), None, config)


TREES = [f"(Find (F{row % 9} :n {row}))" for row in range(120)]
ROWS = [f"number {row % 97} asks number {row * 7 % 89} about line {row * 13 % 83}" for row in range(120)]


@pytest.fixture
def files(tmp_path):
    users, topics = [f"u{row // 3}" for row in range(120)], ["odd", "even"] * 60
    columns = {"text": ROWS, "user": users, "topic": topics, "lispress": TREES}
    pq.write_table(pa.table(columns), tmp_path / "real.parquet")
    synthetic = {"text": ROWS[::-1], "topic": topics[::-1], "parse": ["(Find (F1))", "no tree", None] * 40}
    pq.write_table(pa.table(synthetic), tmp_path / "synthetic.parquet")
    held = [json.dumps({"text": f"{text} today", "user": "h", "topic": "odd"}) + "\n" for text in ROWS]
    (tmp_path / "holdout.jsonl").write_text("".join(held))
    return {name.stem: str(name) for name in tmp_path.iterdir()}


def test_it_prints_tables_and_writes_both_files(files, tmp_path, tiny_base, monkeypatch):
    out = tmp_path / "deep" / "out"
    options = {"label": "topic", "tree": "lispress", "embedding": "tfidf", "base": str(tiny_base), "out": str(out)}
    words = ["evaluate", *(word for name, value in (options | files).items() for word in (f"--{name}", value))]
    done = CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "not releasable" in done.output
    measured = json.loads((out / "evaluation.json").read_text())
    monkeypatch.setattr(api, "evaluate", lambda *_, **__: measured)  # it is printed again and not measured again
    for width in (80, 60):
        narrow = CliRunner().invoke(app, words, catch_exceptions=False, env={"COLUMNS": str(width)}).output
        assert "…" not in narrow
        for row in measured["rows"]:
            assert row["name"] in re.findall(r"[^\s│┃]+", narrow), "the name of a figure is whole"
    assert [stat.S_IMODE((out / f"evaluation.{kind}").stat().st_mode) for kind in ("json", "md")] == [0o600, 0o600]
    assert {row["group"] for row in measured["rows"]} == {"fidelity", "words", "trees", "memorisation", "downstream"}
    trees = {row["name"]: (row["synthetic"], row["reference"]) for row in measured["rows"] if row["group"] == "trees"}
    assert trees["function_recall"] == (pytest.approx(2 / 10), 1.0)
    assert trees["function_distance"][0] > trees["function_distance"][1]
    assert 0.2 < trees["tree_share"][0] < 0.5
    assert trees["tree_share"][1] == 1.0
    page = (out / "evaluation.md").read_text()
    assert all(f"| {row['name']} |" in page for row in measured["rows"])
    assert "asks number" not in done.output + page + json.dumps(measured)


def test_a_run_s_own_file_is_read_by_its_own_name_of_the_text_and_no_other_file_is(tmp_path):
    rows = [f"hello {row}" for row in range(30)]
    own, other = write(tmp_path / "own.parquet", {"text": rows}), write(tmp_path / "real.parquet", {"said": rows})
    config = EvaluationConfig(text="said")
    assert read_texts(own, "--synthetic", config).texts == read_texts(other, "--real", config).texts == rows
    for option in ("--real", "--holdout"):
        with pytest.raises(CorpusError, match=f"--text is 'said', which is not a column of {option}"):
            read_texts(own, option, config)


def test_trees_are_named_in_real_text_and_may_be_called_parse_in_synthetic_text(files):
    config = EvaluationConfig(tree="lispress")
    texts = read_texts(files["synthetic"], "--synthetic", config)
    assert texts.trees is not None
    assert texts.take(np.array([5, 3])).trees == [texts.trees[5], texts.trees[3]] == [None, "(Find (F1))"]
    assert read_texts(files["real"], "--real", config).trees == TREES
    assert read_texts(files["real"], "--real", EvaluationConfig()).trees is None
    for option in ("--real", "--synthetic"):
        with pytest.raises(CorpusError, match=f"--tree is 'logic', which is not a column of {option}"):
            read_texts(files["real"], option, EvaluationConfig(tree="logic"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-texts", "3"], "'max_texts' is 3"),
        (["--seed", "-1"], "'seed' is -1"),
        (["--embedding", "./none"], "--embedding is './none': there is no such directory"),
        (["--label", "none"], "--label is 'none', which is not a column of --real"),
        (["--text", "message"], "--text is 'message', which is not a column of --real"),
    ],
)
def test_wrong_options_are_named(files, options, sentence):
    words = ["evaluate", "--real", files["real"], "--synthetic", files["synthetic"], *options]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, RayPrivacyError)
    assert error.exit_code == 2
    assert sentence in str(error)
    assert "asks number" not in str(error)


@pytest.mark.parametrize("missing", ["sklearn", "sacrebleu"])
def test_without_the_extra_it_says_what_to_install(files, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    error = CliRunner().invoke(app, ["evaluate", "--real", files["real"], "--synthetic", files["synthetic"]]).exception
    assert isinstance(error, ConfigError)
    assert str(error) == f"evaluate needs {missing}: pip install 'rayprivacy[eval]'."


SECRET = "the launch code is swordfish"
CONFIG = EvaluationConfig()
COLUMNS = {"text": [f"{SECRET} {row}" for row in range(30)], "user": [f"u{row % 6}" for row in range(30)]}


def write(path, columns):
    match path.suffix:
        case ".parquet":
            pq.write_table(pa.table(columns), path)
        case ".csv":
            csv.write_csv(pa.table(columns), path)
        case ".jsonl":
            rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def refused(source, option="--real", **config):
    with pytest.raises(CorpusError) as caught:
        read_texts(source, option, EvaluationConfig(**config))
    message = str(caught.value)
    assert "swordfish" not in message
    assert "corpus." not in message  # keys of a recipe mean nothing here
    assert message.endswith(".")
    assert message.count(". ") == 0
    return message


def test_a_file_that_breaks_between_two_readings_is_not_quoted(tmp_path):
    source = write(tmp_path / "a.jsonl", COLUMNS)
    read_texts(source, "--real", CONFIG)
    blocks = text_blocks(source, "--real", CONFIG)
    (tmp_path / "a.jsonl").write_text(f'{{"text": "{SECRET}"}}\n{{"text": "{SECRET}", {SECRET}\n' * 20)
    with pytest.raises(CorpusError, match=r"^reading --real stopped with JSONDecodeError ") as caught:
        list(blocks)
    assert "swordfish" not in str(caught.value)
    found: BaseException | None = caught.value
    while found is not None:  # nor in anything that it drags along
        assert isinstance(found, CorpusError)
        found = found.__context__


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_every_format_gives_the_same_texts(tmp_path, kind):
    found = read_texts(write(tmp_path / f"a.{kind}", COLUMNS), "--real", CONFIG)
    assert found.texts == COLUMNS["text"]
    assert found.users.tolist() == [row % 6 for row in range(30)]
    assert found.authored
    assert found.labels is None
    write(tmp_path / f"b.{kind}", COLUMNS)
    assert len(read_texts(str(tmp_path), "--real", CONFIG)) == 60, "a folder is one corpus"


def test_of_many_texts_a_sample_is_kept_and_all_are_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "_PIECE_LINES", 2000)
    rows = 20_000
    columns = {
        "text": ["", *(f"text number {row} " + "x" * 300 for row in range(1, rows))],
        "user": [None, None, *(f"u{row % 700}" for row in range(2, rows))],
    }
    source, config = write(tmp_path / "many.parquet", columns), EvaluationConfig(max_texts=500)
    tracemalloc.start()
    found = read_texts(source, "--real", config)
    blocks = sum(1 for block in text_blocks(source, "--real", config) for _ in block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 500
    assert found.summary()["texts"] == blocks == rows - 1
    assert found.summary()["users"] == 701
    assert found.left_out == 1
    assert peak < 4 * 2**20, "the texts have 6 MB"
    numbers = [int(text.split()[2]) for text in found.texts]
    assert numbers == sorted(numbers)
    assert abs(np.mean(numbers) / rows - 0.5) < 0.06, "from the whole file"
    assert read_texts(source, "--real", config).texts == found.texts
    monkeypatch.setattr(sources, "_PIECE_LINES", 50_000)
    assert read_texts(source, "--real", config).texts == found.texts, "however it is cut into pieces"
    copies = read_texts(source, "--synthetic", config)
    for other in (copies, read_texts(source, "--real", config.model_copy(update={"seed": 1}))):
        assert len({*other.texts} & {*found.texts}) < 40, "500 of 20,000: twelve are expected in both"
    everything = read_texts(source, "--real", config.model_copy(update={"max_texts": rows}))
    assert len(everything) == everything.summary()["texts"] == rows - 1


def test_columns_can_be_named_and_texts_without_a_user_are_users_of_their_own(tmp_path):
    columns = {"message": COLUMNS["text"], "author": COLUMNS["user"], "topic": ["tea", None, "", *["x"] * 27]}
    config = EvaluationConfig(text="message", user="author", label="topic")
    found = read_texts(write(tmp_path / "a.parquet", columns), "--real", config)
    assert len(set(found.users)) == 6
    assert (found.labels or [])[:2] == ["tea", None]
    users = ["ann", None, None, "", "ann", *["bob"] * 25]
    found = read_texts(write(tmp_path / "a.parquet", {"text": COLUMNS["text"], "user": users}), "--real", CONFIG)
    assert len(set(found.users[:5])) == 4
    assert found.users[0] == found.users[4]
    source = write(tmp_path / "b.parquet", {"text": COLUMNS["text"]})
    assert not read_texts(source, "--real", CONFIG).authored
    assert not read_texts(source, "--synthetic", EvaluationConfig(user="author")).authored, "it needs no such column"
    # Empty texts are left out, and long ones cut.
    columns = {"text": [*COLUMNS["text"], "", "  \n", None, "a long one " * 100_000]}
    found = read_texts(write(tmp_path / "a.jsonl", columns), "--synthetic", CONFIG)
    assert (len(found), found.left_out, found.cut) == (31, 3, 1)
    assert max(map(len, found.texts)) == reading.MAX_CHARS
    # Files with different columns are told apart.
    other = refused(write(tmp_path / "b.parquet", {"message": COLUMNS["text"]}), "--synthetic")
    assert other.startswith("--text is 'text', which is not a column of --synthetic")
    assert "message" in other
    same = write(tmp_path / "a.parquet", COLUMNS)
    assert "--label is 'topic', which is not a column of --synthetic" in refused(same, "--synthetic", label="topic")
    assert "--user is 'author', which is not a column of --real" in refused(same, "--real", user="author")


@pytest.mark.parametrize("kind", ["parquet", "csv", "jsonl"])
def test_a_file_of_few_texts_or_none_is_refused(tmp_path, kind):
    few = f"texts that are not empty: give at least {reading.LEAST_TEXTS}."
    path = tmp_path / f"a.{kind}"
    path.touch()
    assert "--real" in refused(str(path))
    none = refused(write(path, {"text": []}))
    assert none == f"--real has 0 {few}" if kind == "parquet" else none.startswith("--real")
    assert refused(write(path, {"text": [SECRET]}), "--holdout") == f"--holdout has 1 {few}"


def test_what_is_not_there_and_what_is_no_corpus_is_refused(tmp_path):
    for name, encoding in (("a.csv", "latin-1"), ("a.csv", "utf-16"), ("a.jsonl", "latin-1"), ("a.jsonl", "utf-16")):
        write(tmp_path / name, {"text": [f"{SECRET} café {row}" for row in range(30)]})
        body = (tmp_path / name).read_text().replace("\\u00e9", "é")
        (tmp_path / name).write_bytes(body.encode(encoding))
        assert "--real" in refused(str(tmp_path / name))
    assert "does not exist" in refused(str(tmp_path / "none.parquet"))
    (tmp_path / "a.txt").write_text(SECRET)
    assert "no known extension" in refused(str(tmp_path / "a.txt"))
    (tmp_path / "a.jsonl").write_text(f'{{"text": "{SECRET}"\n')
    assert "well-formed" in refused(str(tmp_path / "a.jsonl"))
    assert "type" in refused(write(tmp_path / "a.parquet", {"text": list(range(30))}))
    bad = pa.array([SECRET.encode() + b"\xff\xfe"] * 30, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": bad}), tmp_path / "b.parquet")
    assert "UTF-8" in refused(str(tmp_path / "b.parquet"))


def test_halves_share_no_user_and_are_about_equal():
    users = np.repeat(np.arange(100), np.arange(100) % 7 + 1)
    parts: Any = halves(users, 0)
    first, second = parts
    assert not set(users[first]) & set(users[second])
    assert sorted([*first, *second]) == list(range(len(users)))
    assert abs(len(first) - len(second)) <= 7
    again: Any = halves(users, 1)
    assert again[0].tolist() != first.tolist()
    assert halves(np.zeros(100, int), 0) is None, "one user has no halves"
    assert halves(np.array([0] * 100 + [1] * 3), 0) is None
    # A sample is drawn once per seed.
    assert sample(5, 9, 0).tolist() == [0, 1, 2, 3, 4]
    drawn = sample(1000, 50, 3)
    assert len(set(drawn)) == 50
    assert drawn.tolist() == sample(1000, 50, 3).tolist() != sample(1000, 50, 4).tolist()
    # Taking some numbers the users anew, and printing shows none.
    texts: Texts = plain(["a", "b", "c", "d"], ["x", "y", "z", "z"], ["l", None, "m", "n"])
    part = texts.take(np.array([1, 3, 2]))
    assert (part.texts, part.users.tolist(), part.labels) == (["b", "d", "c"], [0, 1, 1], [None, "n", "m"])
    assert "swordfish" not in repr(plain([SECRET] * 3, ["swordfish"] * 3, ["swordfish"] * 3))
