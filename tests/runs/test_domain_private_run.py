"""Domain-private training as its users run it: a recipe in, a model, text, selective charges and a certificate out."""

import json
import signal
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from dying import dying
from small_jobs import job_of, sentence

from rayprivacy.core.units import AccountKind, Budget, NeighbouringRelation, PrivacyUnit
from rayprivacy.ledger.store import Ledger
from rayprivacy.policies.settings import PolicyConfig, make_policy

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Steps 0 to 3 are redacted and 4 to 7 noisy, in chunks of 2: steps 0 to 5 are charged at once, and saved three times.
FIRST, NOISY, LAST = "step-00000002", "progress 5", "step-00000008"
CHARGED = ["create", *["reserve", "start", "commit"] * 2]
JOIN = {"by": "conversation", "order": "turn", "prefix": "USR: "}


@pytest.fixture
def job(tmp_path, tiny_base, local_ray):
    """30 conversations of 3 turns, with telephone numbers."""
    rows = [
        (f"talk-{talk}", turn, f"{sentence(talk, turn)} call 555 {1000 + 7 * turn} 4567", ("air", "media")[talk >= 10])
        for talk, turn in product(range(30), range(3))
    ]
    columns = zip(("conversation", "turn", "said", "domain"), map(list, zip(*rows, strict=True)), strict=True)
    pq.write_table(pa.table(dict(columns)), tmp_path / "talk.parquet")
    corpus = {"user": "conversation", "labels": ["domain"], "join": JOIN, "max_records_per_user": 1}
    text = {"corpus": corpus, "codes": {"values": {"domain": ["air", "media"]}}, "redacted": {"schedule": "step"}}
    training = {"sampling_rate": 0.4, "expected_batch": 10, "steps": 8, "chunk": 2, "max_tokens": 24}
    sizes = {"generation": {"texts": 6, "max_tokens": 10}, "resources": {"cpus": 1, "actors": 1}}
    privacy = {"corpus": "talks", "epsilon": 8.0}
    (tmp_path / "base").symlink_to(tiny_base)
    own = Path("base")  # of the folder that the command is called in; workers stand in another
    return job_of(tmp_path, own, method="domain_private", privacy=privacy, training=training, **text, **sizes)


def _open_plain_account(job):
    meaning = (PrivacyUnit.USER, NeighbouringRelation.ADD_OR_REMOVE, Budget(3.0, 1e-6), "gdp")
    with Ledger.open(f"sqlite:///{job.folder}/ledger.db") as ledger:
        ledger.ensure_account("plain", *meaning, corpus="talks", kind=AccountKind.CENTRAL)


def test_a_run_leaves_a_selective_claim_its_exposure_and_what_it_promises(job):
    _open_plain_account(job)
    finished, out = job.run("out"), job.folder / "out"
    assert finished.returncode == 0, finished.stderr
    assert job.kinds() == CHARGED
    assert job.kinds("plain") == ["create", "exposure", "exposure"]
    certificate, heldout = job.certificate("out"), job.metrics("out")["heldout"]
    assert certificate["kind"] == "selective"
    policy = yaml.safe_load((out / "recipe.yaml").read_text())["policy"]
    named = make_policy(PolicyConfig.parse(policy), ("USR:",)).digest
    assert certificate["parameters"]["policy"] == f"patterns {named}"
    assert sum(row["count"] for row in certificate["events"]) == 4
    assert {row["q"] for row in certificate["events"]} == {0.4}
    assert certificate["figures"]["Noisy steps"].startswith("4 of 8, drawn by the public seed; ")
    assert certificate["figures"]["For plain differential privacy"] == "central: non-private run"
    assert len(certificate["as_published"]) == 3
    assert any(sentence.startswith("Protected is what the public policy") for sentence in certificate["assumptions"])
    assert not certificate["warnings"]
    page = (out / "certificate.md").read_text()
    assert "selectively differentially private (what its policy calls sensitive, and nothing else)" in page
    assert named in page
    shown = job.call("ledger", "show", "--ledger", f"sqlite:///{job.folder}/ledger.db").stdout
    assert "plain: 2 runs of its corpus are non-private for it." in shown
    assert pq.read_table(out / "synthetic.parquet").column_names == ["text", "domain"]
    assert set(heldout["perplexity"]) == {"base", "domain_private"}
    assert heldout["releasable"] is False
    assert "What the policy does not find is not protected" in (out / "model" / "README.md").read_text()
    assert "selectively" in (out / "report.html").read_text()
    for name in ("run.log", "certificate.json", "certificate.md", "report.html", "recipe.yaml"):
        assert "talk-" not in (out / name).read_text(), name


@pytest.mark.exhaustive
def test_killed_at_three_points_it_ends_in_the_same_bytes_and_charges(job, check_undisturbed):
    for _ in range(2):  # in a chunk without a charge; then a worker in a noisy step, and the job at the last save
        patch = dying(job=[FIRST, LAST], worker=[NOISY])
        assert job.killed("out", patch, "--resume").returncode == -signal.SIGKILL
    assert len(list(job.folder.glob("died at *"))) == 3
    assert job.run("out", "--resume").returncode == 0
    assert job.kinds() == CHARGED
    check_undisturbed(job, "out", ["model/model.safetensors", "synthetic.parquet"])


@pytest.mark.exhaustive
def test_two_workers_with_zero_pay_the_same(job):
    pytest.importorskip("deepspeed")
    assert job.run("out", "-o", "resources.workers=2", "-o", "resources.zero=2").returncode == 0
    assert job.kinds() == CHARGED


@pytest.mark.exhaustive
def test_two_accounts_pay_for_a_run_with_light_and_falling_noise(job, pretrain):
    """The plain account of the corpus learns of no non-private run, since an account like it pays for all steps."""
    _open_plain_account(job)
    recipe = yaml.safe_load(job.recipe.read_text())
    recipe["pretrain"] = pretrain | {"steps": 4, "max_tokens": 16}
    recipe["redacted"]["central"] = {"account": "users", "epsilon": 30.0}
    recipe["training"] |= {"noise_schedule": {"kind": "linear", "tau": 0.2}, "microbatches": 16}
    job.recipe.write_text(yaml.safe_dump(recipe))
    assert job.run("out").returncode == 0
    assert job.kinds() == job.kinds("users") == CHARGED
    assert job.kinds("plain") == ["create"]
    certificate = job.certificate("out")
    assert certificate["kind"] == "selective"
    assert [row["count"] for row in certificate["events"]] == [2, 2]
    assert certificate["events"][0]["sigma_eff"] > certificate["events"][1]["sigma_eff"]
    assert "account 'users' pays for all 8 steps" in certificate["figures"]["For plain differential privacy"]
    assert {"users", "plain"} == {each["account"] for each in certificate["other_accounts"]}
    assert not certificate["exposures"]
    assert not certificate["warnings"]
    assert set(job.metrics("out")["heldout"]["perplexity"]) == {"base", "pretrained", "domain_private"}
    assert job.call("audit", str(job.folder / "out"), "--users", "8").returncode == 0


@pytest.mark.exhaustive
def test_audits_and_shadow_models_read_full_conversations(job):
    """Shadow models learn documents that are joined already, and a planted secret is a document of its own."""
    canaries = {"kinds": ["phone"], "repetitions": [6], "candidates": 50}
    job.recipe.write_text(job.recipe.read_text() + yaml.safe_dump({"audit": {"canaries": canaries}}))
    assert job.run("out").returncode == 0
    assert job.call("audit", str(job.folder / "out"), "--shadows", "4", "--users", "6").returncode == 0
    audit = json.loads((job.folder / "out" / "audit.json").read_text())
    assert audit["membership"]
    assert audit["canaries"][0]["trained_users"] > 0
    shadow = next((job.folder / "out" / "private" / "shadows").glob("*/000/corpus.parquet"))
    texts = pq.read_table(shadow)["text"].to_pylist()
    assert all(text.count("USR: ") == 3 and "555" in text for text in texts)
