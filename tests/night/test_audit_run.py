"""A recipe with an `audit` block: canaries in the corpus, attacks at the end, and nothing that could be a release."""

import json
import stat

import pyarrow.parquet as pq
import pytest
import yaml
from small_jobs import Job, ledger_lines

from rayprivacy.auditing.canaries import CanaryPlan, canaries
from rayprivacy.auditing.scoring import Shadow
from rayprivacy.core.keys import load_key
from rayprivacy.corpus.manifest import read_manifest
from rayprivacy.ledger.certificate import AUDIT_WARNING
from rayprivacy.methods.registry import load_recipe

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(900)]
PLAN = {"kinds": ["phone"], "repetitions": [1, 6], "candidates": 200}
ATTACKS = {"loss", "calibrated", "LiRA", "LiRA, offline", "shadow attack"}


def _rows(run):
    files = (run / "private" / "shards").glob("*.parquet")
    return {file.name: pq.read_table(file, partitioning=None).to_pylist() for file in files}


def test_an_audit_run_plants_attacks_and_is_marked(generator):
    plain_id = load_recipe(generator.recipe).release_id
    audited = yaml.safe_load(generator.recipe.read_text()) | {"audit": {"canaries": PLAN}}
    generator.recipe.write_text(yaml.safe_dump(audited))
    assert load_recipe(generator.recipe).release_id != plain_id
    done = generator.run("out")
    assert done.returncode == 0, done.stderr
    run, key = generator.folder / "out", load_key(generator.folder / "secret.key")
    planted = {user for canary in canaries(CanaryPlan.parse(PLAN), key) for user in canary.users}
    where = [(row["user"], name) for name, rows in _rows(run).items() for row in rows if row["user"] in planted]
    assert sorted(user for user, _ in where) == sorted(planted)  # each once, whether trained on or held out
    assert all(row["topic"] is None for rows in _rows(run).values() for row in rows if row["user"] in planted)
    certificate = generator.certificate("out")
    assert certificate["audit"]["repetitions"] == [1, 6]
    assert certificate["warnings"] == [AUDIT_WARNING]
    assert AUDIT_WARNING in (run / "certificate.md").read_text()
    assert AUDIT_WARNING in done.stdout.replace("\n", " ")
    audit = json.loads((run / "audit.json").read_text())
    assert [each["users"] for each in audit["canaries"]] == [1, 6]
    assert set(audit["membership"]) == {"loss", "calibrated"}
    assert 'id="audit"' in (run / "report.html").read_text()
    assert "audit run" in generator.call("report", str(run), "--public").stderr
    assert generator.run("out", "--resume").returncode == 0
    assert generator.certificate("out") == certificate


@pytest.mark.parametrize("which", ["generator", "job"])
def test_shadow_models_are_trained_on_halves_and_scored(which, request):
    method: Job = request.getfixturevalue(which)
    assert method.run("out").returncode == 0
    run, key = method.folder / "out", load_key(method.folder / "secret.key")
    before, charges = method.certificate("out"), ledger_lines(method.folder)
    words = ("audit", str(run), "--shadows", "4", "--json")
    done = method.call(*words)
    assert done.returncode == 0, done.stderr
    found = json.loads((run / "audit.json").read_text())
    assert found == json.loads(done.stdout)
    assert set(found["membership"]) == ATTACKS
    assert found["sample"]["shadows"] == 4
    everybody = {row["user"] for rows in _rows(run).values() for row in rows}
    corpus = read_manifest(run / "private" / "shards").corpus_digest(key)[:16]  # of a changed one, none is found here
    for number in range(4):
        folder = run / "private" / "shadows" / corpus / f"{number:03d}"
        shadow = Shadow(number, folder, key)
        own = {row["user"] for rows in _rows(folder / "run").values() for row in rows}
        assert own == {user for user in everybody if shadow.holds(user)}
        assert stat.S_IMODE((folder / "corpus.parquet").stat().st_mode) == 0o600
    assert method.certificate("out") == before  # the run's account paid for nothing more
    assert ledger_lines(method.folder) == charges
    stamps = {path: path.stat().st_mtime_ns for path in run.glob("private/shadows/*/*/run/model/*")}
    assert stamps
    assert method.call(*words).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps  # trained once
    assert "no run made it" not in method.call("clean", str(run)).stdout
    assert not (run / "private" / "shadows").exists()
