"""The data card of a question set: `README.md` in the form of the Hugging Face hub, protection first."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import yaml

from rayprivacy.core.files import SHARED, Json, read_json, write_atomic
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.questions.table import ORIGIN
from rayprivacy.reporting import claim
from rayprivacy.reporting.cards import KEEP, SIZES, protection, tags
from rayprivacy.reporting.format import markdown, one_line

TITLE = "Questions with answers and evidence"
LOAD = """\
from datasets import load_dataset
questions = load_dataset("parquet", data_files="questions.parquet")"""
CLOZES = (
    "Questions are clozes after C-MORE (Yue et al., 2022): a sentence in which a name, a date or a number has become a"
    " phrase that asks for it. {where} No person has looked at them, and they are worded as statements are."
)
ASKED = (
    "Questions are those of a language model that has learnt from public pairs of sentence and question (`asker` of"
    " `stages.json`); each asks about a sentence of its passage, and most begin with a phrase that was predicted for it"
    " (QPP; Yue et al., 2021). Where `answer_kind` is `span`, the answer is what the sentence has of the kind that is"
    " asked for, and else the sentence itself. No person has looked at them: some ask for what the sentence does not"
    " say."
)
STATED = (
    "Questions are the public phrases of the recipe about each released fact, and answers what most users state; the"
    " passage was written from the facts by public templates. No person has looked at them."
)
WHERE = {
    True: "The passage is another one of the sentence's document, by BM25: it may not say what the sentence does.",
    False: "The passage is the one that the sentence stands in: the answer is right, and easy to find.",
}
NONE = "Whoever may not read the text may not read the questions. There is no certificate."
COVERED = (
    "The questions were made of that text alone, and cost no budget. They belong to its release: no guarantee holds"
    " without its `certificate.json`."
)
FILES = (
    "The other files have what is `kept`. `split` is drawn by document, and `pairs.jsonl` has the training part alone."
    " Columns are empty where nothing was looked at: `roundtrip` says whether a reader finds the evidence again,"
    " `attribution` what a judge says of the answer, `value` what the question does for a reader, as a rank."
)
_KINDS = {"squad": "question-answering", "beir": "text-retrieval"}


def funnel(counts: Mapping[str, int]) -> str:
    """How many there are at each step, in a line."""
    return ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())


def without_retriever(found: Json) -> str | None:
    """Why a set that was to have a retriever has none, in a sentence."""
    why = found.get("retriever", {}).get("left_out")
    return why and f"There is no retriever: {why}."


def write_questions_card(folder: Path, certificate: Certificate | None = None) -> Path:
    """Write the card of a question set that is whole; the certificate is that of the text, None for public text."""
    found = read_json(folder / "stages.json")
    table = folder / "questions.parquet"
    file, counts, inputs = pq.read_metadata(table), found["counts"], found["inputs"]
    origin = file.metadata[ORIGIN].decode()
    title = f"Questions about the text of release {one_line(certificate.release_id)}" if certificate else TITLE
    front = {
        "pretty_name": title,
        "task_categories": [*_KINDS.values()],
        "size_categories": [next((name for power, name in enumerate(SIZES, 3) if file.num_rows < 10**power), "n>1T")],
        "tags": tags(certificate) if certificate else ["synthetic-text", "rayprivacy"],
        "configs": [{"config_name": "default", "data_files": table.name}],
    }
    columns = ", ".join(markdown(name) for name in file.schema.to_arrow_schema().names)
    settings = inputs["questions"]  # none where questions are those of facts
    clozes = CLOZES.format(where=WHERE[inputs.get("document") is not None])
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---",
        f"# {markdown(title)}",
        "## Protection",
        *(_protection(certificate) if certificate else (f"> **None: {origin}.**", NONE)),
        "## What it is",
        STATED if not settings else ASKED if settings.get("pairs") else clozes,
        "\n".join(f"- {name.replace('_', ' ')}: {count:,}" for name, count in counts.items()),
        *(_selected(found) if settings else ()),
        *_retrieval(found),
        f"Columns: {columns}. {FILES}",
        *([f"Entities were found by {settings['entities']}."] if settings else ()),
        "## How to load it",
        textwrap.indent(LOAD, "    "),
        "## Limits",
        *(_limits(certificate) if certificate else ()),
        "It repeats the biases and mistakes of the text, whose licence applies as well.",
    ]
    card = folder / "README.md"
    write_atomic(card, ("\n\n".join(parts) + "\n").encode(), SHARED)
    return card


def _selected(found: Json) -> Sequence[str]:
    """By what questions were kept, and how far their types are from those of public questions."""
    keep = found["inputs"]["questions"]["keep"]
    left = [f"that are not {name}" for name in ("attributable", "distinct") if keep[name]]
    said = [f"Kept by: {found['kept_by']}" + f", without those {' or '.join(left)}" * bool(left)]
    if found.get("kl"):
        figures = ", ".join(f"{figure} ({name})" for name, figure in found["kl"].items())
        said.append(f"Types of question, from those of the public pairs: KL {figures}, in nats x 100")
    return [f"{sentence}." for sentence in said]


def _retrieval(found: Json) -> Sequence[str]:
    """What the retriever finds of questions that it has not learnt from, beside words alone."""
    if why := without_retriever(found):
        return [why]
    said = found.get("retriever", {}).get("test")
    if said is None:
        return []
    figures = ", ".join(f"{name} {own['ndcg_10']['value']:.3f}" for name, own in said.items())
    return [f"`model/retriever` learnt from them. nDCG@10 on the split `test`: {figures}."]


def _protection(certificate: Certificate) -> Sequence[str]:
    figures = [f"- {markdown(name)}: {markdown(figure)}" for name, figure in certificate.figures.items()]
    return (
        protection(certificate),
        *["\n".join(figures)] * bool(figures),
        COVERED,
        *[KEEP] * bool(claim.warnings(certificate)),
    )


def _limits(certificate: Certificate) -> Sequence[str]:
    protected, unprotected = map(markdown, claim.limits(certificate))
    return protected, "\n".join(f"- {markdown(assumption)}" for assumption in certificate.assumptions), unprotected
