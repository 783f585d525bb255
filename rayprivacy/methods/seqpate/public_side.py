"""What happens on public text: pseudo-sentences, the bases of all adapters, the warm student, the queries of a round.

In the first round the public base writes the pseudo-sentences; in later rounds the student of the round before does,
which costs nothing: it is post-processing of released votes. Results are kept in the run's public folder.

Source of the queries: SeqPATE (Tian et al., NeurIPS 2022), section 3.3: a position is worth asking about when its
pseudo-label is outside the student's top m; candidates are the student's own top k (or top p). A context is asked about
once: equal beginnings of several pseudo-sentences are one query.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save, save_file

from rayprivacy.core.console import Told, nobody
from rayprivacy.core.errors import ConfigError
from rayprivacy.core.files import read_json, write_json
from rayprivacy.core.private import digest_bytes, digest_file, digest_json
from rayprivacy.generation import decode, fast
from rayprivacy.methods.seqpate.deep_student import DeepStudent
from rayprivacy.methods.seqpate.recipe import WARM_BATCH, WARM_LEARNING_RATE, SeqPateRecipe, VotesConfig
from rayprivacy.methods.seqpate.students import HeadStudent, Student
from rayprivacy.models.adapters import Basis, public_basis
from rayprivacy.models.backbone import Backbone, tokenizer_rules
from rayprivacy.models.features import Encoded, Queries, driver_threads, encode
from rayprivacy.models.settings import ModelConfig
from rayprivacy.models.store import FeatureStore
from rayprivacy.runs.clean import remember_store
from rayprivacy.runs.directory import Run
from rayprivacy.teachers.encoding import store_recipe
from rayprivacy.teachers.settings import SHORTLIST
from rayprivacy.teachers.spec import GroupSpec
from rayprivacy.teachers.workspace import Workspace

ROWS = 512  # positions whose logits are computed at once
WARM = "warm.safetensors"


@dataclass(frozen=True)
class Round:
    """One round of questions, by its number from 0, and a name for its files, with the digest of who asks."""

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
    run: Run[SeqPateRecipe], backbone: Backbone, prompts: list[str], model: Any, asked: Round, told: Told = nobody
) -> Encoded:
    """Pseudo-sentences of a round, written by `model` and encoded by the public trunk; `told` how many are written."""
    texts, path = run.public(f"pseudo-{asked.name}.json"), asked.rows(run)
    config = run.recipe.pseudo.seeded(run.recipe.seed + asked.number)
    if not texts.exists():
        with fast.sampler_of(run.recipe.pseudo.engine, model, backbone, texts.parent, told) as sampler:
            write_json(texts, sampler(decode.cut_prompts(prompts, config), config))
    if not path.exists():
        documents, teachers = read_json(texts), run.recipe.teachers
        shape = teachers.row_tokens, len(documents)
        rows = encode(backbone, documents, *shape, threads=driver_threads())
        save_tensors(path, {"ids": rows.ids, "segment": rows.segment, "hidden": rows.hidden})
    return Encoded(**load_file(path))


def bases(run: Run[SeqPateRecipe], backbone: Backbone, rows: Encoded) -> Basis:
    """The public bases of all adapters, from the first pseudo-sentences."""
    path = run.public("basis.safetensors")
    if not path.exists():
        basis = public_basis(backbone, rows.examples, run.recipe.base_rank, SHORTLIST)
        save_tensors(path, {"inward": basis.inward, "outward": basis.outward, "shortlist": basis.shortlist})
    return Basis.load(path)


def warm_students(
    run: Run[SeqPateRecipe], backbone: Backbone, basis: Basis, rows: Encoded, told: Told = nobody
) -> tuple[Student, Student]:
    """The student (teachers start from the head one) before and after the pseudo-sentences, before any vote."""
    config = run.recipe.student
    head = HeadStudent.untrained(backbone, basis)
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
        warm = untrained.fitted(rows, config.warm_steps, WARM_BATCH, WARM_LEARNING_RATE, config.seed, told)
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


@torch.no_grad()
def select_queries(
    rows: Encoded, student: Student, backbone: Backbone, config: VotesConfig, count: int, seed: int
) -> Queries:
    """Choose positions and candidates; fewer than `count` when the pseudo-sentences have no more."""
    places, labels = _distinct(rows)
    adapted = student.hidden(rows)
    found, parts = 0, []
    for take in _order(adapted, places, backbone.head, config, seed).split(ROWS):
        row, position = places[take].T
        logits = adapted[row, position].float() @ backbone.head.T
        rank = (logits > logits.gather(1, labels[take][:, None])).sum(1)
        keep = rank >= (1 if config.select == "threshold" else 0)
        candidates, allowed = candidate_tokens(logits[keep], backbone.end, config)
        own = logits[keep].gather(1, candidates).masked_fill(~allowed, -torch.inf)
        hidden = rows.hidden[row, position][keep].float()
        parts.append(Queries(hidden, candidates, allowed, torch.softmax(own, -1), places[take][keep]))
        found += len(candidates)
        if found >= count:
            break
    return Queries.join(parts).rows(0, count).by_context()


def _distinct(rows: Encoded) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions [n, 2] whose context occurs there for the first time, and the tokens [n] that follow."""
    seen: set[tuple[int, ...]] = set()
    places = []
    for row, position in rows.predicts.nonzero().tolist():
        start = int((rows.segment[row] == rows.segment[row, position]).nonzero()[0])
        context = tuple(rows.ids[row, start : position + 1].tolist())
        if context not in seen:
            seen.add(context)
            places.append((row, position))
    where = torch.tensor(places, dtype=torch.int64).reshape(-1, 2)
    return where, rows.ids[where[:, 0], where[:, 1] + 1]


def _order(
    adapted: torch.Tensor, places: torch.Tensor, head: torch.Tensor, config: VotesConfig, seed: int
) -> torch.Tensor:
    if config.select != "entropy":
        return torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    states = adapted[places[:, 0], places[:, 1]].float()
    entropy = [torch.distributions.Categorical(logits=part @ head.T).entropy() for part in states.split(ROWS)]
    return torch.cat(entropy).argsort(descending=True, stable=True)


def candidate_tokens(logits: torch.Tensor, end: int, config: VotesConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """The student's top k with the end token among them, and which of them the top-p filter keeps."""
    ranked = logits.clone()
    ranked[:, end] = torch.inf
    candidates = ranked.topk(config.top_k, dim=1).indices
    if config.top_p is None:
        return candidates, torch.ones_like(candidates, dtype=torch.bool)
    probability = torch.softmax(logits, -1).gather(1, candidates)
    before = torch.cumsum(probability[:, 1:], 1) - probability[:, 1:]
    return candidates, torch.cat([torch.ones_like(candidates[:, :1], dtype=torch.bool), before < config.top_p], 1)


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file that appears whole: stages take its being there as being finished."""
    scratch = path.with_suffix(".tmp")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, scratch)
    scratch.replace(path)


def ensemble(run: Run[SeqPateRecipe], backbone: Backbone, model: ModelConfig) -> GroupSpec:
    """The teachers of a run: features, files, and what decides that they are these; missing folders are made."""
    recipe, resources = run.recipe, run.recipe.resources
    basis, warm = run.public("basis.safetensors"), run.public(WARM)
    store = FeatureStore(
        root=Path(resources.features).absolute() if resources.features else run.private("features"),
        recipe=store_recipe(backbone.digest, recipe.teachers),
        key_path=Path(recipe.privacy.key).absolute(),
    )
    store.prepare()
    remember_store(run.root, store)
    origin = [store.recipe, recipe.teachers.model_dump(mode="json"), digest_file(basis), digest_file(warm)]
    workspace = Workspace(run.private("teachers"), digest_json(origin))
    workspace.prepare()
    return GroupSpec(
        model=model,
        teachers=recipe.teachers,
        unit=recipe.privacy.unit,
        shards=run.private("shards"),
        store=store,
        basis=basis,
        warm=warm,
        workspace=workspace,
        gpu=resources.gpus_per_actor > 0,
    )


def question_of(spec: GroupSpec, tokenizer: Any, asked: Round, queries: Queries, rows: Path) -> str:
    """Digest of what the teachers of an ensemble are asked in a round, and of what they were made of beside the corpus.

    The workspace of `spec` names base model, bases, warm student and settings; private text becomes tokens by the
    tokenizer; each round is a charge of its own; the queries point into the file `rows`.
    """
    teachers = [spec.workspace.recipe, tokenizer_rules(tokenizer)]
    return digest_json([asked.name, *teachers, queries.digest, digest_file(rows)])
