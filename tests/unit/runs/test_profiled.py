"""A plan takes from a profile what its recipe does not say, shows both, and refuses what is no profile."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_jobs import write_profile

import rayprivacy as rp
from rayprivacy.cli import main
from rayprivacy.runs.profiled import overrides_of

NUMBERS = {"users": [812, [790, 834]], "max_records_per_user": [20, [12, 20]], "max_tokens": [38, [32, None]]}
SAID = {
    "method": "seqpate",
    "corpus": {"source": "talk.parquet", "max_records_per_user": 3},
    "teachers": {"count": 50},
    "generation": {"texts": 40},
}


@pytest.fixture
def profile(tmp_path):
    def written(tokens_of="smollm2-135m", words=(), **numbers):
        return Path(write_profile(tmp_path / "profile.json", *words, tokens_of=tokens_of, **NUMBERS | numbers))

    return written


def test_what_the_recipe_says_stays_and_what_it_leaves_is_taken(profile):
    outline = rp.plan(rp.load_recipe(SAID), profile=profile(), timed=True)
    assert outline.recipe.corpus.max_records_per_user == 3
    assert (outline.recipe.teachers.max_tokens, outline.recipe.generation.max_tokens) == (38, 38)
    assert outline.estimate.users == 812
    assert [row[0] for row in outline.profiled][1:] == [
        "corpus.max_records_per_user",
        "teachers.max_tokens",
        "generation.max_tokens",
    ]
    assert ("corpus.max_records_per_user", "3", "20 (12 to 20)", "3") in outline.profiled
    assert ("teachers.max_tokens", "40 by default", "38 (32 or more)", "38") in outline.profiled
    assert overrides_of(outline.profiled) == "-o teachers.max_tokens=38 -o generation.max_tokens=38"
    given = rp.load_recipe(SAID, overrides_of(outline.profiled).replace("-o ", "").split())
    assert given.release_id == outline.recipe.release_id


def test_a_recipe_that_matches_text_is_told_of_released_words(profile):
    matching = SAID | {"match": {}}
    path = str(profile(words=("soup", "bread")))
    outline = rp.plan(rp.load_recipe(matching), profile=path)
    assert outline.profiled[-1] == ("match.words", "none by default", "2 released words", path)
    assert overrides_of(outline.profiled).endswith(f"-o match.words={path}")
    assert outline.recipe.match.words == path
    said = rp.plan(rp.load_recipe(SAID | {"match": {"words": "other.json"}}), profile=path)
    assert said.profiled[-1] == ("match.words", "other.json", "2 released words", "other.json")
    for recipe, words in ((SAID, ("soup",)), (matching, ())):
        assert "match.words" not in [
            row[0] for row in rp.plan(rp.load_recipe(recipe), profile=profile(words=words)).profiled
        ]


def test_the_terminal_shows_both_and_the_options_of_a_run(profile, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "recipe.yaml").write_text(json.dumps(SAID))
    assert main(["plan", str(tmp_path / "recipe.yaml"), "--profile", str(profile("ours"))]) == 0
    said = capsys.readouterr().out
    assert "812 (790 to 834)" in said
    assert "38 (32 or more), tokens of ours" in said
    assert "also for a run: -o teachers.max_tokens=38 -o generation.max_tokens=38" in said


def test_a_number_that_does_not_go_with_the_recipe_stays_out(profile):
    outline = rp.plan(rp.load_recipe(SAID), profile=profile(max_tokens=[1024, [1024, None]]), users=60)
    assert outline.recipe.teachers.max_tokens == 40, "a row of a teacher is shorter"
    assert outline.profiled[0][-1] == "60"
    assert "teachers" not in overrides_of(outline.profiled)


@pytest.mark.parametrize(
    "content", ["{}", "no JSON", None, '{"tokens_of": "a", "suggested": {"users": {"value": -1}}}']
)
def test_what_is_no_profile_is_refused_in_a_sentence(tmp_path, content):
    path = tmp_path / "profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(rp.ConfigError, match=r"^--profile is .*profile\.json, which is no profile: give profile\.json"):
        rp.plan(rp.load_recipe(SAID), profile=path)


QUICK = """
import json, sys, rayprivacy as rp
print(rp.plan(rp.load_recipe(json.loads(sys.argv[1])), profile=sys.argv[2], timed=True))
print(rp.plan(rp.load_recipe({"method": "profile"})))
assert not {"torch", "transformers", "ray", "sklearn"} & {*sys.modules}
"""


def test_neither_a_plan_with_a_profile_nor_that_of_one_needs_torch_or_ray(profile):
    command = [sys.executable, "-c", QUICK, json.dumps(SAID), str(profile())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "counts of users: 61 cells" in " ".join(done.stdout.split())
