"""A corpus that cannot be read is refused before anything is imported that takes seconds."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

CODE = """import json, sys, rayprivacy as rp
for source, user, text in json.loads(sys.argv[1]):
    try:
        rp.run(rp.load_recipe({"method": "generator", "corpus": {"source": source, "user": user, "text": text}}), "out")
    except rp.CorpusError as error:
        print(error, [name for name in ("torch", "ray", "transformers") if name in sys.modules])"""
SAID = {
    ("talk.parquet", "who", "words"): "corpus.text is 'words', which is not a column of the corpus",
    ("talk.parquet", "author", "said"): "corpus.user is 'author', which is not a column of the corpus",
    ("no.csv", "who", "said"): "corpus.source is 'no.csv', which does not exist",
}


def test_what_is_not_there_is_said_at_once(tmp_path):
    pq.write_table(pa.table({"who": ["a"], "said": ["hello"]}), tmp_path / "talk.parquet")
    command = [sys.executable, "-c", CODE, json.dumps([*SAID])]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    for line, said in zip(done.stdout.splitlines(), SAID.values(), strict=True):
        assert line.startswith(said)
        assert line.endswith(". []")
    assert [path.name for path in tmp_path.iterdir()] == ["talk.parquet"]
