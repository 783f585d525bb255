"""Runs of the generator and of SeqPATE on the posts about creatures, which the rows of knowledge_closed.py ask.

They are the packaged chat recipes with this corpus. Both begin with a warm start on public posts about other creatures
(`public.parquet`, none of whose names is in the corpus). What takes hours is smaller than in the packaged recipes: so
many of the steps, and so many tokens of a post; what is not measured here (figures, a match of topics) is left out.
"""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from creatures import Options, prepare

import rayprivacy as rp

JOBS = Path(__file__).parent.parent / "jobs"
WARM_STEPS = 40  # of 8 rows of 128 tokens
OPENING = 4  # words of a public post, with which SeqPATE's sentences begin
LEFT_OUT = ("codes", "match")
MEASURED = {"users": 4}  # held-out users, whose figures are not used here
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "generator": {
        "corpus": {"max_records_per_user": 10},
        "training": {"sampling_rate": 0.055, "steps": 20, "max_tokens": 96},  # 110 of 2,000 users
        "generation": {"texts": 400, "max_tokens": 80},
    },
    "seqpate": {
        "corpus": {"max_records_per_user": 2},
        "teachers": {"max_tokens": 62},
        "pseudo": {"max_tokens": 58, "engine": "transformers"},
        "generation": {"max_tokens": 80},
    },
}


def recipe_of(method: str, corpus: Path, epsilon: float, kept: Path) -> dict[str, Any]:
    """A recipe for the corpus that `prepare` wrote; its ledger, key and prompts are in the folder `kept`."""
    found: dict[str, Any] = yaml.safe_load((JOBS / method / "chat.yaml").read_text())
    found = {block: keys for block, keys in found.items() if block not in LEFT_OUT}
    found["corpus"] = {"source": str(corpus / "private.parquet")}
    for block, keys in CHANGES[method].items():
        found[block] = found[block] | keys
    found["evaluation"] = MEASURED
    found["privacy"] |= {
        "epsilon": epsilon,
        "account": f"creatures-{method}",
        "ledger": f"sqlite:///{kept}/ledger.db",
        "key": f"{kept}/key",
    }
    found["pretrain"] = {"source": str(corpus / "public.parquet"), "steps": WARM_STEPS}
    if method == "seqpate":
        found["prompts"] = str(corpus / "prompts.txt")
    return found


def finished(method: str, options: Options, epsilon: float, work: Path) -> rp.Result:
    """The run of a method, which goes on where it was stopped."""
    corpus = work / f"creatures-{options.seed}"
    if not (corpus / "prompts.txt").exists():
        prepare(options, corpus)
        (corpus / "prompts.txt").write_text("\n".join(openings(corpus)) + "\n")
    name = f"{method}-{epsilon:g}-{options.seed}"
    kept = work / f"{name}-account"
    kept.mkdir(exist_ok=True)
    return rp.run(rp.load_recipe(recipe_of(method, corpus, epsilon, kept.absolute())), work / name)


def openings(corpus: Path) -> list[str]:
    """The first words of public posts."""
    texts = pq.read_table(corpus / "public.parquet")["text"].to_pylist()
    return list(dict.fromkeys(" ".join(text.split()[:OPENING]) for text in texts))
