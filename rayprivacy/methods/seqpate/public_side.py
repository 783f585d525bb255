"""What happens on public text: pseudo-sentences, the bases of all adapters, the warm student, the queries of a round.

In the first round the public base writes the pseudo-sentences; in later rounds the student of the round before does,
which costs nothing: it is post-processing of released votes. Results are kept in the run's public folder.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save, save_file

from rayprivacy.core.artifacts import digest_bytes
from rayprivacy.core.counting import Told, nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import read_json, write_json
from rayprivacy.generation.decode import cut_prompts
from rayprivacy.generation.fast import sampler_of
from rayprivacy.methods.seqpate.deep_student import DeepStudent
from rayprivacy.methods.seqpate.query_selection import select_queries
from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.methods.seqpate.students import HeadStudent, Student
from rayprivacy.models.adapters import Basis, public_basis
from rayprivacy.models.backbone import Backbone
from rayprivacy.models.features import Encoded, encode
from rayprivacy.models.queries import Queries
from rayprivacy.models.side_by_side import driver_threads
from rayprivacy.runs.directory import Run

WARM = "warm.safetensors"


@dataclass(frozen=True)
class Round:
    """One round of questions.

    Attributes:
        number: from 0.
        name: names its files; it holds the digest of the student that asks, because other votes before are other
            questions now.
    """

    number: int
    name: str

    @staticmethod
    def of(number: int, student: Student) -> "Round":
        """The round in which this student asks."""
        return Round(number, f"{number}-{digest_bytes(save(student.state()))[:16]}") if number else FIRST

    def rows(self, run: Run[SeqPateRecipe]) -> Path:
        """The file of its encoded pseudo-sentences."""
        return run.public(f"pseudo-{self.name}.safetensors")


FIRST = Round(0, "0")


def pseudo_rows(
    run: Run[SeqPateRecipe],
    backbone: Backbone,
    prompts: list[str],
    model: Any,
    asked: Round,
    told: Told = nobody,
) -> Encoded:
    """Pseudo-sentences of a round, written by `model` and encoded by the public trunk; `told` how many are written."""
    texts, path = run.public(f"pseudo-{asked.name}.json"), asked.rows(run)
    config = run.recipe.pseudo.model_copy(update={"seed": run.recipe.pseudo.seed + asked.number})
    if not texts.exists():
        with sampler_of(config.engine, model, backbone, texts.parent, told) as sampler:
            write_json(texts, sampler(cut_prompts(prompts, config), config))
    if not path.exists():
        documents = read_json(texts)
        teachers = run.recipe.teachers
        shape = teachers.row_tokens, len(documents)
        rows = encode(backbone, documents, *shape, whole=teachers.whole, threads=driver_threads())
        save_tensors(path, {"ids": rows.ids, "segment": rows.segment, "hidden": rows.hidden})
    return Encoded(**load_file(path))


def bases(run: Run[SeqPateRecipe], backbone: Backbone, rows: Encoded) -> Basis:
    """The public bases of all adapters, from the first pseudo-sentences."""
    path, config = run.public("basis.safetensors"), run.recipe.teachers
    if not path.exists():
        basis = public_basis(backbone, rows.examples, run.recipe.base_rank, config.shortlist)
        save_tensors(path, {"inward": basis.inward, "outward": basis.outward, "shortlist": basis.shortlist})
    return Basis.load(path)


def warm_students(
    run: Run[SeqPateRecipe],
    backbone: Backbone,
    basis: Basis,
    rows: Encoded,
    told: Told = nobody,
) -> tuple[Student, Student]:
    """The student before anything, and after the pseudo-sentences, before any vote; `told` how many steps are done.

    Teachers on the head start from the warm head student, also where the recipe's student is a deep one.
    """
    config = run.recipe.student
    head = HeadStudent.untrained(backbone, basis, config)
    warm = _warm(run, head, rows, WARM, told)
    if config.kind == "head":
        return head, warm
    deep = DeepStudent.untrained(backbone, config)
    if not config.warm_steps:
        return deep, deep
    return deep, _warm(run, deep, rows, "warm-lora.safetensors", told)


def _warm(run: Run[SeqPateRecipe], untrained: Student, rows: Encoded, name: str, told: Told) -> Student:
    path, config = run.public(name), run.recipe.student
    if not path.exists():
        warm = untrained.fitted(rows, config.warm_steps, config.warm_batch, config.warm_step_size, config.seed, told)
        save_tensors(path, warm.state())
    return untrained.restored(load_file(path))


def round_queries(
    run: Run[SeqPateRecipe], backbone: Backbone, rows: Encoded, student: Student, asked: Round, count: int
) -> Queries:
    """What is asked in a round: `count` queries, or fewer where the pseudo-sentences have no more."""
    path, recipe = run.public(f"queries-{asked.name}.safetensors"), run.recipe
    if not path.exists():
        queries = select_queries(rows, student, backbone, recipe.votes, count, recipe.seed + asked.number)
        if not len(queries):
            raise ConfigError("no position of the pseudo-sentences is to be asked about: raise pseudo.texts.")
        save_tensors(path, vars(queries))
    return Queries.load(path)


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file that appears whole: stages take its being there as being finished."""
    scratch = path.with_suffix(".tmp")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, scratch)
    scratch.replace(path)
