"""Policies hide whole words, all of them and no others, by the row alone, and leave one mark for a run."""

import pickle
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.errors import ConfigError
from rayprivacy.policies import settings
from rayprivacy.policies.classifier import ClassifierPolicy, train_scores
from rayprivacy.policies.policy import MARK
from rayprivacy.policies.settings import PolicyConfig, make_policy
from rayprivacy.policies.words import KeywordPolicy, PatternPolicy, SlotPolicy
from rayprivacy.sanitize.settings import KINDS

KEPT = ("USR:",)
PUBLIC = [
    ("please book a seat on the flight", "air"),
    ("my boarding pass for the flight", "air"),
    ("the internet plan is slow", "media"),
    ("a new data plan for the internet", "media"),
    ("hello there", "air"),
    ("hello there", "media"),
]
KEYWORDS = KeywordPolicy(["seat", "zip code", "plan", "code red"], KEPT)
PATTERNS = PatternPolicy(KINDS, KEPT)
CLASSIFIER = ClassifierPolicy(train_scores(PUBLIC, 3), window=3, threshold=0.8, kept=KEPT)
WORDS = (
    f"a Seat, disseat zip code ZIP-code. red plan USR: 12345 flight jan 5 555 1234 4567 x@y.org internet {MARK}".split()
)
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join), min_size=1, max_size=4).map(
    "\n".join
)


def _redacted(policy, text, **more):
    return policy.redact({"text": text, **more})


def test_keywords_are_whole_words_in_any_case_and_punctuation():
    text = "USR: Seat, disseat, (zip -- CODE) seats\nUSR: the zip red-plan"
    assert _redacted(KEYWORDS, text) == f"USR: {MARK} disseat, {MARK} seats\nUSR: the zip {MARK}"
    assert _redacted(KEYWORDS, "my zip code red now") == f"my {MARK} now", "phrases may overlap"


def test_a_run_is_one_mark_however_long_and_lines_stay():
    for many in (1, 2, 7):
        assert _redacted(KEYWORDS, "a " + "seat " * many + "b\nplan\nplan plan") == f"a {MARK} b\n{MARK}\n{MARK}"


def test_patterns_hide_values_and_not_names():
    text = "USR: i am raja, mail raja@x.org or call +44 20 7946 0958 on 12 May 2015"
    assert _redacted(PATTERNS, text) == f"USR: i am raja, mail {MARK} or call {MARK} on {MARK}"


def test_slots_hide_what_the_row_says_and_whatever_has_no_label():
    policy = SlotPolicy("slots", KEPT)
    text = "USR: i am raja kumar ok"
    assert _redacted(policy, text, slots="O O O name name O") == f"USR: i am {MARK} ok"
    assert _redacted(policy, text, slots="O O O") == f"USR: i am {MARK}"
    assert _redacted(policy, text, slots=None) == f"USR: {MARK}"
    assert _redacted(policy, "a b", slots="? ?") == MARK


def test_all_windows_of_a_line_are_hidden_and_short_lines_are_judged_whole():
    text = "USR: hello\nUSR: flight seat boarding then boarding flight seat\nUSR: the internet plan"
    assert _redacted(CLASSIFIER, text) == f"USR: hello\nUSR: {MARK}\nUSR: {MARK}"


@pytest.mark.parametrize("policy", [KEYWORDS, PATTERNS, CLASSIFIER], ids=["keywords", "patterns", "classifier"])
@given(text=TEXTS, seed=st.integers(0, 9))
def test_redaction_is_idempotent_keeps_the_rest_and_reads_the_row_alone(policy, text, seed):
    row = {"text": text}
    hidden, spans, flags = policy.redact(row), policy.spans(row), policy.flags(row)
    assert _redacted(policy, hidden) == hidden
    assert hidden.count(MARK) == len(spans)
    rebuilt, end = "", 0
    for start, stop in spans:
        rebuilt, end = rebuilt + text[end:start] + MARK, stop
    assert rebuilt + text[end:] == hidden
    words = text.split()
    left = [word for word in hidden.split() if word != MARK]
    assert left == [word for word, flag in zip(words, flags, strict=True) if not flag]
    assert not any(flag for word, flag in zip(words, flags, strict=True) if word in KEPT)
    other = {"text": " ".join(random.Random(seed).sample(WORDS, 5))}
    policy.redact(other)
    assert policy.redact(row) == hidden


@given(text=TEXTS, seed=st.integers(0, 9))
def test_the_hidden_words_change_nothing(text, seed):
    """Other words of the policy in their place, and more or fewer of them, leave the same redacted copy."""
    row, chance = {"text": text}, random.Random(seed)
    changed, end = "", 0
    for start, stop in KEYWORDS.spans(row):
        put = " ".join(chance.choices(["seat", "plan", "SEAT!", MARK], k=chance.randint(1, 4)))
        changed, end = changed + text[end:start] + put, stop
    assert _redacted(KEYWORDS, changed + text[end:]) == KEYWORDS.redact(row)


def test_policies_go_to_the_workers():
    text = "USR: seat 12345 flight internet zip code"
    for policy in (KEYWORDS, PATTERNS, CLASSIFIER, SlotPolicy("slots")):
        row = {"text": text, "slots": "O name"}
        again = pickle.loads(pickle.dumps(policy))
        assert again.redact(row) == policy.redact(row)
        assert again.digest == policy.digest


def test_digests_name_the_content(tmp_path):
    path = tmp_path / "words.yaml"
    path.write_text("{air: [Seat, zip code], media: [plan]}")
    first = PolicyConfig(kind="keywords", file=str(path))
    path.write_text("- plan\n- ZIP CODE\n- seat\n")
    same = PolicyConfig(kind="keywords", file=str(path))
    assert first.digest == same.digest
    resolved = first.model_dump(mode="json")
    assert set(resolved) == {"kind", "file", "digest"}
    path.write_text("- plan\n")
    assert PolicyConfig.parse(resolved).digest == first.digest, "the file is not read again"
    assert PolicyConfig(kind="keywords", file=str(path)).digest != first.digest
    with pytest.raises(ConfigError, match=r"policy.digest is '.*put its public file back"):
        make_policy(first)
    assert len({PolicyConfig(kinds=kinds).digest for kinds in (KINDS, KINDS[:2])}) == 2


def test_a_classifier_is_trained_on_the_declared_file(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "WINDOW", 3)
    monkeypatch.setattr(settings, "THRESHOLD", 0.8)
    path = tmp_path / "public.parquet"
    table = {"utterance": [text for text, _ in PUBLIC], "domain": [domain for _, domain in PUBLIC]}
    pq.write_table(pa.table(table), path)
    keys = {"kind": "classifier", "train": str(path), "text": "utterance", "label": "domain"}
    config = PolicyConfig.parse(keys)
    made, again = make_policy(config, KEPT), make_policy(config, KEPT)
    assert made.digest == again.digest == CLASSIFIER.digest
    assert _redacted(made, "USR: the internet plan") == f"USR: {MARK}"
    pq.write_table(pa.table({name: column[:4] for name, column in table.items()}), path)
    assert PolicyConfig.parse(keys).digest != config.digest
    with pytest.raises(ConfigError, match=r"policy.label is 'topic', which is not a column"):
        make_policy(PolicyConfig.parse({**keys, "label": "topic"}))
    one = [(text, "air") for text, _ in PUBLIC]
    with pytest.raises(ConfigError, match=r"policy.train has text of fewer than two domains"):
        train_scores(one, 3)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"kind": "keywords"}, "needs policy.file"),
        ({"kind": "slots"}, "needs policy.column"),
        ({"kind": "classifier"}, "needs policy.train"),
        ({"kind": "patterns", "column": "slots"}, "policy.column means nothing where policy.kind is 'patterns'"),
        ({"kind": "keywords", "file": "missing.yaml"}, "policy.file is 'missing.yaml', which cannot be read"),
        ({"kind": "classifier", "train": "missing"}, "policy.train is 'missing', which cannot be read"),
        ({"kinds": ["name"]}, "give some of email"),
    ],
)
def test_wrong_settings_are_refused(keys, said):
    with pytest.raises(ConfigError, match=said):
        PolicyConfig.parse(keys)


@pytest.mark.parametrize("content", ["seat", "[]", "{air: seat}", "- 5\n", "- '!'\n", f"- a {MARK}\n", "{a: ["])
def test_files_without_phrases_are_refused(content, tmp_path):
    path = tmp_path / "words.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"policy.file "):
        PolicyConfig.parse({"kind": "keywords", "file": str(path)})
