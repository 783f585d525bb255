"""Cards of what a run releases: `README.md` beside the synthetic text, `model/README.md` beside the weights.

Both are in the form of the Hugging Face hub and say what `claim.statement` makes of the certificate, and nothing that
was measured on private text: `metrics.json` is not read here.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rayprivacy.core.files import SHARED, write_atomic
from rayprivacy.core.units import AccountKind
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.models.settings import DOCUMENT_SEPARATOR
from rayprivacy.reporting import claim
from rayprivacy.reporting.format import markdown, one_line
from rayprivacy.reporting.inputs import RecipeFacts, read_facts, read_model, read_texts

SIZES = ("n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B")
DATA = """\
import pyarrow.parquet as pq
texts = pq.read_table("{texts}")["text"].to_pylist()"""
MODEL = f"""\
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("model")  # this folder
tokenizer = AutoTokenizer.from_pretrained("model")
start = "{DOCUMENT_SEPARATOR}" if "{DOCUMENT_SEPARATOR}" in tokenizer.get_vocab() else tokenizer.bos_token
inputs = tokenizer(start + {{prompt!r}}, return_tensors="pt", add_special_tokens=False)
tokens = model.generate(**inputs, do_sample=True, max_new_tokens=40)
print(tokenizer.decode(tokens[0], skip_special_tokens=True))"""
TAGGER = """\
from rayprivacy import Tagger
tagger = Tagger.load("model")  # this folder
intent, labels = tagger('play something by the beatles')  # a label for each word
print(intent)
print(labels)"""
LOADED_ALONE = (
    "A tagger on a BERT, a Llama or a GPT-2 is loaded by transformers alone as well, without its CRF if it has one:"
    ' `AutoModelForTokenClassification.from_pretrained("model")`. Of its outputs, those whose names begin with'
    " `intent:` are read from the mean over all tokens, and the others at one token of each word. Which one that is,"
    " and which tokens stand before and behind a text, is in its `config.json`, under `tagger`."
)
USE = (
    "To stand in for private text where that may not be seen: tests, prototypes, training of other models. Not as a"
    " source of facts, and not to learn anything about a single person."
)
TOGETHER = (
    "These files belong together: {files}, `certificate.json`, `certificate.md` and this card; no guarantee holds"
    " without the certificate."
)
SHARE = (
    "Share them one by one and never the whole folder of the run: `private/`, `metrics.json`, `run.log`,"
    " `report.html`, `audit.json`, `evaluation.json` and `plots/internal-*` are not covered by the certificate, and"
    " `recipe.yaml` holds paths."
)
KEEP = "Because of the warning above, treat all of them as private."


def write_cards(run_dir: Path) -> list[Path]:
    """Write the cards of a finished run and return them; a run without text, or without a model, gets the other one."""
    certificate = read_model(run_dir / "certificate.json", Certificate)
    facts = read_facts(run_dir / "recipe.yaml")
    cards = {}
    texts = run_dir / facts.card.texts
    if facts.card.texts and texts.is_file():
        cards[run_dir / "README.md"] = _dataset_card(certificate, facts, texts)
    if (run_dir / "model" / "config.json").is_file():
        cards[run_dir / "model" / "README.md"] = _model_card(certificate, facts)
    for path, text in cards.items():
        write_atomic(path, text.encode(), SHARED)
    return list(cards)


def protection(certificate: Certificate) -> str:
    """The statement of protection as Markdown: the same on all cards."""
    said = claim.statement(certificate)
    reasons = [f"> - {markdown(reason)}" for reason in said.reasons]
    lines = [f"> **{markdown(said.headline)}**", *[">"] * bool(reasons), *reasons]
    return "\n\n".join(["\n".join(lines), *map(markdown, said.notes)])


def _dataset_card(certificate: Certificate, facts: RecipeFacts, texts: Path) -> str:
    file = read_texts(texts)
    size = next((name for power, name in enumerate(SIZES, 3) if file.num_rows < 10**power), "n>1T")
    title = f"Synthetic text of release {one_line(certificate.release_id)}"
    front = {
        "pretty_name": title,
        "task_categories": ["text-generation"],
        "size_categories": [size],
        "tags": tags(certificate),
        "configs": [{"config_name": "default", "data_files": texts.name}],
    }
    columns = ", ".join(markdown(name) for name in file.schema.to_arrow_schema().names)
    what = [f"{facts.card.text} {facts.method_sentence}", f"Columns: {columns}. One row is one text."]
    code = DATA.replace("{texts}", texts.name)
    return _card(front, title, certificate, facts, what, code, facts.card.use or USE)


def _model_card(certificate: Certificate, facts: RecipeFacts) -> str:
    title = f"Model of release {one_line(certificate.release_id)}"
    front = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": tags(certificate)}
    if facts.card.has_language_model:
        code = MODEL.replace("{prompt!r}", repr(facts.prompt))
        return _card(front, title, certificate, facts, [f"A language model, made by {facts.method_sentence}"], code)
    front |= {"pipeline_tag": "token-classification", "tags": tags(certificate)[:-2]}
    what = f"A tagger: it says the intent of a text, and a label for each word. It was made by {facts.method_sentence}"
    return _card(
        front,
        title,
        certificate,
        facts,
        [what, LOADED_ALONE],
        TAGGER,
        "To find the intent and the slots of requests like those it learnt from.",
    )


def _card(
    front: Mapping[str, Any],
    title: str,
    certificate: Certificate,
    facts: RecipeFacts,
    what: Sequence[str],
    code: str,
    use: str = USE,
) -> str:
    protected, unprotected = map(markdown, claim.limits(certificate, bool(facts.card.texts)))
    files = [f"`{facts.card.texts}`"] * bool(facts.card.texts) + ["`model/`"] * facts.card.has_model
    files += [f"`{name}`" for name in facts.card.beside]
    files += ["`questions/` if it is there"] * bool(facts.card.texts)
    parts = [
        f"---\n{yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)}---",
        f"# {markdown(title)}",
        "## Protection",
        protection(certificate),
        "\n".join(f"- {markdown(name)}: {markdown(figure)}" for name, figure in certificate.figures.items()),
        "## What it is",
        *what,
        *facts.sentences(),
        "## How to load it",
        textwrap.indent(code, "    "),
        "## Intended use",
        use,
        "## Limits",
        protected,
        "\n".join(f"- {markdown(assumption)}" for assumption in certificate.assumptions),
        unprotected,
        "It repeats the biases and mistakes of its base model, whose licence applies as well.",
        "## Files",
        f"{TOGETHER.format(files=', '.join(files))} {KEEP if claim.warnings(certificate) else SHARE}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def tags(certificate: Certificate) -> list[str]:
    """Words by which a hub finds what was released."""
    # A search of a hub for this word must not find what has no such guarantee.
    private = certificate.kind is AccountKind.CENTRAL and not claim.warnings(certificate)
    return ["differential-privacy"] * private + ["synthetic-text", "rayprivacy"]
