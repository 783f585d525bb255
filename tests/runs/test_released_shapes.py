"""Every method on corpora of a few users: who is there shows in the shape of nothing that is released.

Of two corpora that differ in one user, what is drawn differs, and digests that hold it. How many files, texts, columns,
tensors and charges there are, what the certificate says, and the recipe as it was resolved, must not. SanText compares
documents word for word instead, and says that the number of documents is no secret: `test_santext.py` is its
test.
"""

import re
from itertools import count, islice
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from every_method import DEAR, SENTENCES, USERS, small_corpus, smallest_recipe
from evidence_checks import evidence_of
from safetensors import safe_open
from toy_bench import QUIET

import rayprivacy as rp
from rayprivacy.core.files import read_json
from rayprivacy.core.keys import load_key
from rayprivacy.corpus.layout import Layout
from rayprivacy.corpus.manifest import read_manifest

pytestmark = [pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(600)]

WORD_FOR_WORD = ("santext", "toy_sanitised")
_DIGEST = re.compile(r"\b[0-9a-f]{16,64}\b")
# Figures of private text, logs and what is made of both: internal, and compared with nothing.
INTERNAL = ("private", "metrics.json", "report.html", "plots", "run.log", "audit")
BY_TIME = ("renew", "takeover")


def _masked(text, out):
    return _DIGEST.sub("<digest>", text.replace(str(out.parent), "<folder>").replace(f"{out.name}.db", "<ledger>"))


def _shape(path, out):
    """What a file shows beside what was drawn; of texts, also how many were dropped, as the released model has it."""
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        dropped = read_json(out / "metrics.json")["synthetic"].get("degenerate", {}) if path.parent == out else {}
        return str(table.schema.remove_metadata()), len(table) + sum(dropped.values())
    if path.suffix == ".safetensors":
        with safe_open(path, "np") as tensors:
            slices = {name: tensors.get_slice(name) for name in sorted(tensors.keys())}
            return {name: (each.get_shape(), each.get_dtype()) for name, each in slices.items()}
    if path.name == "profile.json":  # numbers that were drawn, of words that passed
        return [*read_json(path)]
    if path.suffix in (".json", ".yaml", ".md", ".txt"):
        return _masked(path.read_text(), out)
    return None


def _released(recipe, out):
    out = rp.run(recipe, out, console=QUIET).path
    files = [path for path in out.rglob("*") if path.is_file() and path.relative_to(out).parts[0] not in INTERNAL]
    shapes = {_masked(str(path.relative_to(out)), out): _shape(path, out) for path in files}
    with rp.Ledger.open(recipe.privacy.ledger) as ledger:
        book = [entry for account in ledger.accounts() for entry in ledger.entries(account.name)]
    said = [(entry.kind, entry.account, entry.release_id, entry.rung, entry.events, entry.cost) for entry in book]
    return {"files": shapes, "ledger": [each for each in said if each[0] not in BY_TIME]}


def _cases(daily, but=()):
    dear = (pytest.mark.exhaustive, pytest.mark.slow)
    names = [name for name in rp.method_names() if name not in but]
    return [pytest.param(name, marks=() if name in daily else dear) for name in names]


@pytest.mark.parametrize("name", _cases(["toy", "seqpate"], but=WORD_FOR_WORD))
def test_one_user_more_changes_no_shape(name, tmp_path, tiny_base, tiny_bert):
    users, found = [f"user-{number}" for number in range(12)], []
    for world, own in (("with", users), ("without", users[:-1])):
        small_corpus(tmp_path, own)
        found.append(_released(smallest_recipe(name, tmp_path, tiny_base, tiny_bert, world), tmp_path / world))
    assert len(found[0]["files"]) > 2
    assert found[0]["files"] == found[1]["files"]
    assert found[0]["ledger"] == found[1]["ledger"]


BY_NIGHT = (*DEAR, "domain_private", "edp_sgd", "question_answering", "toy_selective")  # as the generator, or the toy


@pytest.mark.parametrize("name", _cases(set(rp.method_names()) - {*BY_NIGHT}))
def test_parts_may_hold_nobody(name, tmp_path, tiny_base, tiny_bert):
    recipe = smallest_recipe(name, tmp_path, tiny_base, tiny_bert)
    plan, key = rp.plan(recipe).plan, load_key(Path(recipe.privacy.key))
    layout = Layout(recipe.sharded_corpus, plan.shards, plan.shards_per_part, recipe.privacy.unit)
    names = (f"user-{number}" for number in count())
    first = (name for name in names if layout.shard_of(key, name) // layout.per_part == 0)
    small_corpus(tmp_path, list(islice(first, USERS)))
    result = rp.run(recipe, tmp_path / "out", console=QUIET)
    manifest = read_manifest(result.path / "private" / "shards")
    assert [entry.rows for entry in manifest.parts] == [USERS * SENTENCES, *[0] * (plan.parts - 1)]
    assert manifest.holdout.rows == 0
    assert result.certificate.release_id == recipe.release_id
    evidence_of(result.path)
