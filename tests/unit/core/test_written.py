"""What people write: text in any encoding, YAML that looks like something else, and paths from home."""

import json
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rayprivacy.core.config import PathKind, path_keys
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.written import dump_yaml, line_of, load_yaml, read_text
from rayprivacy.methods.registry import load_recipe, method_named, method_names, parse_recipe
from rayprivacy.runs.files import dump_recipe

ODD = ["5e10", "1e5", "12e4", "no", "yes", "on", "012", "12:30", "2026-01-01", "1_000", "0x1f", "~", "null", "=", "<<"]
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
STRINGS = st.sampled_from(ODD) | st.from_regex(r"[-+]?[0-9.]{1,4}([eE][-+]?[0-9]{1,2})?", fullmatch=True) | TEXT


def _recipe(account, label):
    return {
        "method": "generator",
        "corpus": {"labels": [label]},
        "codes": {"values": {label: [account, "another"]}},
        "privacy": {"account": account},
    }


@given(STRINGS, STRINGS)
def test_a_quoted_string_of_a_recipe_is_that_string(tmp_path_factory, account, label):
    path = tmp_path_factory.mktemp("quoted") / "recipe.yaml"
    path.write_text(json.dumps(_recipe(account, label), ensure_ascii=False), encoding="utf-8")
    try:
        expected = parse_recipe(_recipe(account, label))
    except ConfigError:
        return  # not for how it looks: blanks alone, say
    assert load_recipe(path) == expected
    assert load_recipe(path, [f"privacy.account={json.dumps(account, ensure_ascii=False)}"]) == expected
    path.write_text(dump_recipe(expected))
    assert load_recipe(path) == expected, "a run's own recipe says the same"
    assert (
        load_yaml(dump_yaml([account, label]), "this")
        == [account, label]
        == yaml.safe_load(dump_yaml([account, label]))
    )


@pytest.mark.parametrize("word", [*ODD[:11], "3", "-7", "1.50", ".5", "1e-5"])
def test_an_unquoted_word_is_text_where_text_belongs_and_a_number_where_numbers_do(tmp_path, word):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"method: generator\ncorpus: {{labels: [sku]}}\ncodes: {{values: {{sku: [{word}, b]}}}}\n")
    assert load_recipe(path).codes.values == {"sku": (word, "b")}
    assert load_recipe(path, [f"privacy.account={word}"]).privacy.account == word
    assert load_recipe(path, ["privacy.delta=1e-5"]).privacy.delta == 1e-5
    assert load_yaml("[1e-5, 2, true]", "this") == [1e-5, 2, True]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("method: generator\nprivacy:\n  account: true\n", 3),
        ("method: generator\nprivacy:\n  epsilon: 1\n\n  epsilon: 8\n", 5),
        ("method: generator\nprivacy:\n  epsilon: much\n", 3),
        ("method: generator\n\ncorpus:\n  labels:\n  - a\n  - [b]\n", 6),
        ("method: generator\nprivacy: {epsilno: 3}\n", 2),
        ("method: generator\nseed: \x07\n", 2),
        ("method: generator\nseed: 1: 2\n", 2),
        ("method: generator\n? [a]\n: 2\n", 2),
    ],
)
def test_what_is_refused_has_its_line(tmp_path, text, line):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=rf"line {line}\b") as caught:
        load_recipe(path)
    assert "\n" not in str(caught.value)


def test_a_key_that_an_option_gives_has_no_line(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("method: generator\nprivacy: {epsilon: 3}\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, ["privacy.epsilon=much"])
    assert "line" not in str(caught.value)
    assert line_of("a:\n  b:\n  - 1\n  - 2\n", ("a", "b", 1)) == 4


@given(TEXT, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252", "shift-jis", "koi8-r"]))
def test_text_in_utf8_is_read_and_in_other_encodings_is_it_or_refused(tmp_path_factory, text, encoding):
    path = tmp_path_factory.mktemp("encoded") / "file"
    try:
        path.write_bytes(f"{text}\r\nx\r".encode(encoding))
    except UnicodeEncodeError:
        return  # not of this encoding
    try:
        found = read_text(path, "this", "give UTF-8")
    except ConfigError as error:
        found, said = None, str(error)
    if found is None:
        assert "utf-8" not in encoding
        assert said.startswith(f"this is {str(path)!r}, which cannot be read (line ")
    elif encoding.startswith("utf-8"):
        assert found == f"{text.removeprefix(chr(0xFEFF)) if encoding == 'utf-8' else text}\nx\n"
    else:
        assert "\0" not in found


def test_what_is_no_file_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "none", tmp_path / "file/under", "a\0b", "x" * 5000):
        with pytest.raises(ConfigError, match=r"this is .*, which (cannot be read \(|is no path)"):
            read_text(place, "this", "give UTF-8")


@pytest.mark.parametrize("name", method_names())
def test_home_is_written_out_in_every_path_that_is_opened_here(name, monkeypatch, tmp_path):
    kind = method_named(name).recipe
    monkeypatch.setenv("HOME", str(tmp_path))
    keys = list(path_keys(kind, PathKind.PRIVATE, PathKind.PUBLIC))
    assert {"privacy.key", "privacy.ledger_key"} <= set(keys)
    for key in keys:
        *blocks, field = key.split(".")
        config = kind
        for block in blocks:
            annotation = config.model_fields[block].annotation
            config = next(each for each in (annotation, *getattr(annotation, "__args__", ())) if hasattr(each, "parse"))
        said = SimpleNamespace(field_name=field)
        assert config._from_home("~/a/file", said) == f"{tmp_path}/a/file", key
        assert config._from_home("./a/file", said) == "./a/file", "what is no path from home stays as it is"
