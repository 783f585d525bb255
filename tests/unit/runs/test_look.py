"""A corpus that cannot be read is refused before anything is imported that takes seconds."""

import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

CODE = """import sys, rayprivacy as rp
corpus = {"source": sys.argv[1], "user": sys.argv[2], "text": sys.argv[3]}
try:
    rp.run(rp.load_recipe({"method": "generator", "corpus": corpus}), "out")
except rp.CorpusError as error:
    print(error, [name for name in ("torch", "ray", "transformers") if name in sys.modules])"""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("talk.parquet", "who", "words"), "corpus.text is 'words', which is not a column of the corpus"),
        (("talk.parquet", "author", "said"), "corpus.user is 'author', which is not a column of the corpus"),
        (("no.csv", "who", "said"), "corpus.source is 'no.csv', which does not exist"),
    ],
)
def test_what_is_not_there_is_said_at_once(tmp_path, given, said):
    pq.write_table(pa.table({"who": ["a"], "said": ["hello"]}), tmp_path / "talk.parquet")
    done = subprocess.run(
        [sys.executable, "-c", CODE, *given], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert said in done.stdout
    assert done.stdout.endswith(". []\n")
    assert [path.name for path in tmp_path.iterdir()] == ["talk.parquet"]
