"""One recipe through the whole house, by the command line, as a user would run it."""

import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from recipes import EVALUATION, SEQPATE
from small_jobs import job_of, write_profile, write_talk

import rayprivacy as rp
from rayprivacy.blocks import match as matching
from rayprivacy.core.private import digest_bytes
from rayprivacy.evaluation.shape import LENGTHS
from rayprivacy.ledger.store import Ledger
from rayprivacy.methods.registry import load_recipe, parse_recipe
from rayprivacy.methods.seqpate import method as seqpate
from rayprivacy.methods.seqpate.public_side import ensemble
from rayprivacy.teachers.workspace import Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
Done = subprocess.CompletedProcess[str]
LORA = {"kind": "lora", "layers": 1, "steps": 5, "warm_steps": 0}
MATCH = {"candidates": 2, "topics": 3, "noise_multiplier": 4.0}
CHARGED = ["create", *["reserve", "start", "commit"] * 2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny_base, pretrain, local_ray):
    """Teachers and a LoRA student of a pretrained model, and users who vote for its texts and for released words."""
    folder = tmp_path_factory.mktemp("job")
    write_talk(folder / "talk.parquet")
    words = {"words": write_profile(folder / "profile.json", "cat", "mat")}
    blocks = SEQPATE | {"student": LORA, "match": MATCH | words, "pretrain": pretrain}
    return job_of(folder, tiny_base, **blocks, evaluation=EVALUATION)


@pytest.fixture(scope="module")
def first(whole, stopped_at):
    """One run, stopped when the users have voted and finished, which several tests look at and none changes."""
    specs, real, out = [], seqpate.cache_features, whole.folder / "first"
    with pytest.MonkeyPatch.context() as patch, stopped_at(matching, "raked"):
        patch.setattr(seqpate, "cache_features", lambda spec, *more: specs.append(spec) or real(spec, *more))
        whole.run("first")
    assert not (out / "synthetic.parquet").exists()
    assert whole.kinds() == CHARGED
    assert [Path(spec.model.base).parent for spec in specs] == [out / "public"], "of the pretrained model"
    done: Done = whole.run("first", "--resume")
    assert done.returncode == 0, done.stderr
    return done


def released(job):
    """Charges of the one release, and what was drawn for each."""
    with Ledger.open(f"sqlite:///{job.folder}/ledger.db") as ledger:
        (release,) = {entry.release_id for entry in ledger.entries("talk") if entry.release_id}
        return [(charge, ledger.output(charge)) for charge in ledger.charges_of("talk", release)]


def teachers(out):
    """The tensors of all 12 teachers, however they lie in files."""
    state = Workspace(out / "private" / "teachers", "any").read(range(12))
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def texts(path):
    return list(pq.read_table(path)["text"].to_pylist())


def test_a_run_leaves_everything_it_promises(whole, first, check_pretrained):
    out, certificate, metrics = whole.folder / "first", whole.certificate("first"), whole.metrics("first")
    assert (certificate["epsilon"], certificate["delta"], certificate["unit"]) == (3.0, 1e-6, "user")
    assert certificate["events"][0]["count"] == 40
    assert metrics["synthetic"]["releasable"] is True
    assert metrics["heldout"]["releasable"] is False
    losses = metrics["synthetic"]["pretraining"]
    assert losses["loss_after"] < losses["loss_before"] - 0.5
    check_pretrained(whole, "first", "model.layers.0.self_attn.q_proj.weight")
    for figures in (metrics["heldout"]["perplexity"], metrics["heldout"]["bleu"]):
        assert list(figures) == ["base", "pretrained", "base_pseudo", "student", "nonprivate"]
        assert figures["base_pseudo"] == figures["pretrained"], "there was no warm start"
    assert len(set(metrics["heldout"]["perplexity"].values())) == 4
    assert all(said in first.stdout for said in ("epsilon = 3", "internal"))
    for name in ("recipe.yaml", "certificate.md", "run.log", "model/config.json", "model/README.md"):
        assert (out / name).is_file(), name
    assert not (out / "evaluation.json").exists(), "a comparison that nobody asked for"
    assert "Base model after pretraining" in (out / "report.html").read_text()
    plain = parse_recipe(load_recipe(whole.recipe).model_dump(mode="json") | {"pretrain": None})
    assert [charge.event for charge, _ in released(whole)] == rp.plan(plain).plan.charges
    assert whole.kinds() == CHARGED


@pytest.mark.usefixtures("first")
def test_the_texts_are_those_that_the_users_vote_for_once(whole):
    certificate, metrics, out = whole.certificate("first"), whole.metrics("first"), whole.folder / "first"
    assert certificate["events"][-1]["sigma_eff"] == 4.0
    names = ["release gate", "topics and lengths", "all stages together"]
    assert [stage["name"] for stage in certificate["stages"]] == names
    assert certificate["stages"][-1]["epsilon"] <= certificate["epsilon"] * (1 + 1e-6)
    found, candidates = texts(out / "synthetic.parquet"), texts(out / "public" / "candidates.parquet")
    assert (len(found), len(candidates)) == (8, 16)
    if (more := out / "public" / "opened.parquet").exists():  # the noise of the votes says whether words are lacking
        candidates += texts(more)
    assert all(any(each.startswith(text) for each in candidates) for text in found), "whole, or cut after a sentence"
    assert metrics["synthetic"]["texts"] == 8
    assert metrics["synthetic"]["match"]["candidates"] == len(candidates)
    assert set(metrics["synthetic"]["match"]["total_variation_to_votes"]) == {"topics", "lengths", "words"}
    (word, *shares), _ = metrics["synthetic"]["match"]["words"]
    assert len(shares) == 3, "by the votes, of the candidates, and of the text"
    (table,) = (each for each in metrics["exhibits"]["tables"] if each["title"].startswith("Released words"))
    assert table["rows"][0][0] == word
    assert table["internal"] is False
    assert table["title"] in (out / "report.html").read_text()
    (votes,) = (out / "private").glob("votes-*")
    assert votes.stat().st_size == 8 * (MATCH["topics"] + LENGTHS + 1 + 2), "topics, lengths, no word or one of two"
    digest = digest_bytes((whole.folder / "profile.json").read_bytes())
    words = "the words that users voted for are those of profile-0123456789abcdef"
    assert f"Public input: {words}, whose file has digest {digest}." in certificate["assumptions"]
    assert digest in (out / "README.md").read_text()


def test_private_things_stay_private(whole, first):
    out = whole.folder / "first"
    secret = (whole.folder / "secret.key").read_bytes()
    for path in [whole.folder / "secret.key", *(out / "private").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path.name
    shared = [path for path in out.rglob("*") if path.is_file() and "private" not in path.relative_to(out).parts]
    spoken = b"the cat sat on my mat"  # a run of private words that no public text has
    for text in [first.stdout.encode(), first.stderr.encode(), *(path.read_bytes() for path in shared)]:
        assert not [each for each in (secret, secret.hex().encode(), b"user-7", spoken) if each in text]


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("actors", [2, pytest.param(8, marks=pytest.mark.exhaustive)])
def test_performance_settings_change_nothing_that_is_released(whole, actors):
    votes, outs = released(whole), [whole.folder / name for name in ("first", f"of-{actors}")]
    resources = f"resources={{actors: {actors}, cpus_per_actor: {1 / actors}}}"
    assert whole.run(outs[1].name, "-o", resources).returncode == 0
    assert teachers(outs[0]) == teachers(outs[1])
    assert released(whole) == votes
    assert whole.kinds() == CHARGED
    assert (outs[0] / "synthetic.parquet").read_bytes() == (outs[1] / "synthetic.parquet").read_bytes()
    assert whole.certificate("first") == whole.certificate(outs[1].name)


@pytest.mark.usefixtures("first")
def test_the_account_refuses_before_any_work_and_nothing_is_overwritten_by_accident(whole):
    refused = whole.run("refused", "-o", "seed=1")
    assert (refused.returncode, refused.stderr.count("\n")) == (3, 1)
    assert "3" in refused.stderr
    assert not (whole.folder / "refused").exists()
    for more, says in (([], "--resume"), (["--resume", "-o", "seed=3"], "another recipe")):
        again = whole.run("first", *more)
        assert again.returncode == 2
        assert says in again.stderr
    assert whole.kinds() == CHARGED


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_actors_compute_on_a_gpu_where_they_reserve_a_share_of_one(share, job, tmp_path):
    for name in ("basis.safetensors", "warm.safetensors"):
        (tmp_path / name).write_bytes(b"public")
    recipe = load_recipe(job.recipe, [f"resources.gpus_per_actor={share}"])
    (tmp_path / "private").mkdir()
    run: Any = SimpleNamespace(recipe=recipe, root=tmp_path, public=tmp_path.joinpath, private=tmp_path.joinpath)
    backbone: Any = SimpleNamespace(digest="of the base")
    assert ensemble(run, backbone, recipe.model).gpu is (share > 0)


def test_bad_input_is_one_sentence(job):
    options = {"corpus.usr=who": "corpus.user", "privacy.epsilon=-1": "epsilon", "corpus.text=x": "x"}
    for option, word in (options | {"model.base=/nowhere/at/all": "model.base"}).items():
        failed = job.run(f"bad {word}", "-o", option)
        assert failed.returncode == 2, failed.stderr
        assert word in failed.stderr
        assert "Traceback" not in failed.stderr
    assert "commit" not in job.kinds()


@pytest.mark.exhaustive
def test_the_real_model_on_real_chat(job):
    small = [
        "model={base: smollm2-135m, dtype: bfloat16}",
        "corpus={source: chitchat, max_records_per_user: 1}",
        "teachers={count: 20, stack: 10, max_rows: 2}",
        "pseudo={texts: 24, max_tokens: 12}",
        "evaluation={users: 5, completions: 2, nonprivate_steps: 2}",
        "generation={texts: 8, max_tokens: 12}",
    ]
    assert job.run("real", *(part for option in small for part in ("-o", option))).returncode == 0
    found = texts(job.folder / "real" / "synthetic.parquet")
    assert len(set(found)) > 4
    assert all(found)
    perplexity = job.metrics("real")["heldout"]["perplexity"]
    assert 20 < perplexity["nonprivate"] < perplexity["base"] < 2000
