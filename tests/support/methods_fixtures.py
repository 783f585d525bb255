"""Small jobs of our methods."""

import json
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from recipes import EVALUATION, GENERATOR, SEQPATE, TRAINING
from safetensors.torch import load_file
from small_jobs import job_of, write_talk

from rayprivacy.methods.registry import load_recipe
from rayprivacy.models.backbone import load_backbone


@pytest.fixture
def job(tmp_path, tiny_base, local_ray):
    """30 users with 4 sentences each, 12 teachers in stacks of 4, 40 queries."""
    write_talk(tmp_path / "talk.parquet")
    return job_of(tmp_path, tiny_base, **SEQPATE, evaluation=EVALUATION)


def generator_job(folder, base):
    """DP-SGD on the same users: 6 steps in chunks of 2, with two label values of three."""
    write_talk(folder / "talk.parquet")
    table = pq.read_table(folder / "talk.parquet")
    topics = pa.array([("food", "pets", "home")[n % 3] for n in range(len(table))])
    pq.write_table(table.append_column("topic", topics), folder / "talk.parquet")
    blocks = GENERATOR | {"training": TRAINING | {"steps": 6}}
    return job_of(folder, base, **blocks, corpus={"labels": ["topic"]})


@pytest.fixture
def generator(tmp_path, tiny_base, local_ray):
    """A job of the generator."""
    return generator_job(tmp_path, tiny_base)


class _StoppedError(Exception):
    pass


@pytest.fixture(scope="session")
def stopped_at():
    """A context in which a run comes to a function of a module, and no further."""

    @contextmanager
    def stopping(module, name):
        def stop(*_):
            raise _StoppedError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, stop)
            with pytest.raises(_StoppedError):
                yield

    return stopping


@pytest.fixture(scope="session")
def check_undisturbed():
    """A run ended in the certificate and the files of one that nobody disturbs, which costs nothing more."""

    def check(job, out, files, options=()):
        charged, undisturbed = job.kinds(), job.run("undisturbed", *options)
        assert undisturbed.returncode == 0, undisturbed.stderr
        assert job.certificate("undisturbed") == job.certificate(out)
        for name in files:
            assert (job.folder / "undisturbed" / name).read_bytes() == (job.folder / out / name).read_bytes()
        assert job.kinds() == charged

    return check


@pytest.fixture(scope="session")
def pretrain(tmp_path_factory, public_sentences):
    """A `pretrain` block of a few steps on public text."""
    path = tmp_path_factory.mktemp("public") / "public.jsonl"
    path.write_text("".join(json.dumps({"written": text}) + "\n" for text in public_sentences * 8))
    sizes = {"steps": 30, "batch": 4, "max_tokens": 32, "learning_rate": 3e-3}
    return {"source": str(path), "text": "written", **sizes}


@pytest.fixture
def check_pretrained(tiny_base):
    """Certificate and figures of a run are of the pretrained model, and so is a weight that nothing else trains."""

    def check(job, out, untrained):
        run, certificate, perplexity = job.folder / out, job.certificate(out), job.metrics(out)["heldout"]["perplexity"]
        (weights,) = (run / "public").glob("pretrained-*/model.safetensors")
        places = (tiny_base / weights.name, weights, run / "model" / weights.name)
        before, after, released = (load_file(place)[untrained] for place in places)
        assert released.equal(after)
        assert not released.equal(before)
        inputs = json.loads((run / "public" / "inputs.json").read_text())
        assert any(inputs["pretraining_text"] in sentence for sentence in certificate["assumptions"])
        assert certificate["versions"]["base model"] == f"{tiny_base} {inputs['base_model'][:16]}"
        assert certificate["versions"]["pretrained model"].endswith(inputs["pretrained_model"][:16])
        assert perplexity["base"] != perplexity["pretrained"]
        afterwards = load_recipe(run / "recipe.yaml").on_its_base(run)  # as audits read it
        assert load_backbone(afterwards.model).digest == inputs["pretrained_model"] != inputs["base_model"]
        assert afterwards.pretrain is None

    return check
