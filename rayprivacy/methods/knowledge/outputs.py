"""What is written of released facts, and learnt from them: all of it is post-processing, and costs nothing.

facts.parquet                 name, attribute, answer, noisy number of users, the ends of its 95% interval
synthetic.parquet             passages that state all facts of a name, in several wordings
questions/                    questions.parquet, SQuAD, BEIR, ragas and pairs, each question with its passage
model/                        a public model that learnt passages, questions and answers by heart, if asked for
"""

import shutil
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import pyarrow as pa

from rayprivacy.core.files import SHARED, made_folder, read_json, write_json
from rayprivacy.core.private import digest_file, digest_json
from rayprivacy.knowledge import facts
from rayprivacy.ledger import claim
from rayprivacy.ledger.certificate import Certificate
from rayprivacy.methods.knowledge import plan
from rayprivacy.methods.knowledge.recipe import FACTS, KnowledgeRecipe
from rayprivacy.models.pretraining import pretrained
from rayprivacy.models.save import save_model
from rayprivacy.models.settings import PretrainConfig
from rayprivacy.questions.clozes import Passage
from rayprivacy.questions.settings import Format
from rayprivacy.questions.table import finished, write_formats
from rayprivacy.runs import directory, drive
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import SYNTHETIC
from rayprivacy.runs.questions_folder import TABLE, write_table
from rayprivacy.runs.questions_plan import STAGES

LEARNT = "learnt.json"
HOW = "A public language model that learnt released facts by heart; it read no private text."
_HELD_ROWS = 64  # whose loss is measured
_TEXTS = pa.schema([("text", pa.large_string()), ("title", pa.large_string())])
Context = RunContext[KnowledgeRecipe]


def write(context: Context, found: pa.Table) -> list[Passage]:
    """Write facts, passages and questions; returns the passages. Trials of a search go without questions."""
    root, written = context.run.root, facts.passages(found, context.recipe.knowledge)
    texts = [[each.text for each in written], [each.title for each in written]]
    write_table(found, root / FACTS, SHARED)
    write_table(pa.table(texts, schema=_TEXTS), root / SYNTHETIC, SHARED)
    if context.run.measured:
        _write_questions(context, found, written)
    return written


def _write_questions(context: Context, found: pa.Table, written: Sequence[Passage]) -> None:
    recipe, folder = context.recipe, context.run.root / directory.QUESTIONS
    said = claim.statement(Certificate.model_validate(drive.certificate_of(context))).headline
    origin = f"made of the facts of release {recipe.release_id}. {said}"
    asked = facts.asked(found, recipe.knowledge)
    questions = finished(asked, {"kept": [True] * len(asked)}, recipe.seed, origin)
    shutil.rmtree(folder, ignore_errors=True)
    made_folder(folder, "the folder of questions")
    write_table(questions, folder / TABLE, SHARED)
    if len(asked):
        write_formats(folder, questions, written, get_args(Format))
    inputs = {"release": recipe.release_id, "facts": digest_file(context.run.root / FACTS), "questions": {}}
    counts = {"facts": len(found), "passages": len(written), "questions": len(asked)}
    write_json(folder / STAGES, {"inputs": inputs, "origin": origin, "counts": counts}, SHARED)


def learn(context: Context, found: pa.Table, written: Sequence[Passage]) -> Mapping[str, Any]:
    """Let a public model learn the facts by heart, if it is asked for, or find that done; returns its figures."""
    recipe, out = context.recipe, context.run.root / directory.MODEL
    config, kept = recipe.knowledge.model, context.run.public(LEARNT)
    asked = facts.asked(found, recipe.knowledge).to_pylist()
    answered = [f"Question: {row['question']}\nAnswer: {row['answers']['text'][0]}" for row in asked]
    texts = [*(each.text for each in written), *answered]
    if config is None or not texts:
        return {}
    backbone = context.load_model()
    inputs = digest_json([texts, config.model_dump(), backbone.digest])
    with context.stage(plan.MODEL):
        if not (kept.exists() and out.is_dir() and read_json(kept)["inputs"] == inputs):
            how = PretrainConfig(source=FACTS, **config.model_dump())
            told = context.counter(plan.STEPS_LEARNT)
            model, figures = pretrained(backbone, texts, how, _HELD_ROWS, told)
            save_model(model, backbone.tokenizer, out, recipe.release_id, HOW)
            write_json(kept, {"inputs": inputs, "learning": figures})
    return {"learning": read_json(kept)["learning"]}
