"""How much each stage of SeqPATE computes, for estimates of time (see `runs.estimate`). Public numbers alone.

Private text is taken to be half as long as the recipe lets it be. Teachers that train layers, and students that do, are
counted as if they trained the whole model.
"""

from collections.abc import Mapping

from rayprivacy.methods.seqpate.recipe import HEAD_SHAPE, PSEUDO_POSITIONS, WARM_BATCH, SeqPateRecipe
from rayprivacy.models.size import ModelSize, size_of
from rayprivacy.runs.plan import FULL, UNKNOWN, Effort, Kernel, sampling_kernel
from rayprivacy.teachers.settings import SHORTLIST

_NONPRIVATE_BATCH, _PSEUDO_BATCH, _BACKWARD = 128, 32, 3.0
_MODELS = 3  # that are measured on held-out users beside the bases
Efforts = Mapping[str, tuple[Effort, ...]]


def efforts_of(recipe: SeqPateRecipe, queries: int) -> Efforts:
    """The efforts of the stages by a word for each; only CPUs are timed, so those of actors on GPUs are unknown."""
    size, teachers = size_of(recipe.model.base), recipe.teachers
    written = recipe.pseudo.texts * recipe.pseudo.max_tokens * recipe.votes.rounds
    most = (recipe.corpus.max_records_per_user or 1) * (teachers.max_tokens * FULL + 2)
    tokens = min(most, teachers.max_rows * teachers.row_tokens)  # of one user, in rows
    actors = _of_actors(recipe, size, queries, written, tokens)
    if recipe.resources.gpus_per_actor:
        actors |= dict.fromkeys(("features", "teachers", "votes"), (UNKNOWN,))
    return {**actors, **_of_students(recipe, size, queries, written), "measuring": _measuring(recipe, size, tokens)}


def _of_actors(
    recipe: SeqPateRecipe, size: ModelSize, queries: int, written: int, tokens: float
) -> dict[str, tuple[Effort, ...]]:
    teachers, config = recipe.teachers, recipe.generation

    def shared(kernel: Kernel, flops: float, users: bool = False) -> tuple[Effort, ...]:
        actors = min(recipe.resources.actors or teachers.parts, teachers.parts)
        return (Effort(kernel, flops, users, processes=actors, threads=False),)

    if teachers.kind == "square":
        of_token = 2.0 * teachers.width * (size.width + teachers.width + SHORTLIST)
        trained = shared("batched", _BACKWARD * teachers.epochs * tokens * of_token, users=True)
        votes = shared("batched", queries * teachers.count * of_token)
    else:
        trained = shared("train", size.trained(teachers.epochs * tokens), users=True)
        votes = shared("encode", teachers.count * size.forward(written))
    released = recipe.candidates(config.texts) * config.max_tokens
    writing = shared(sampling_kernel(config.engine), size.forward(released))
    features = shared("encode", size.forward(tokens), users=True)
    return {"features": features, "teachers": trained, "votes": votes, "writing": writing}


def _of_students(recipe: SeqPateRecipe, size: ModelSize, queries: int, written: int) -> Efforts:
    student, steps, pseudo = recipe.student, recipe.votes.rounds * recipe.student.steps, size.forward(written)
    if student.kind == "head":
        of_token = size.head
        asked = student.batch * 2.0 * size.width * (recipe.votes.top_k + HEAD_SHAPE[0])
        last = Effort("product", _BACKWARD * steps * (asked + (_PSEUDO_BATCH * size.head if student.pseudo else 0.0)))
    else:
        of_token = size.forward(1)
        tokens = max(student.batch * written / max(queries, 1), student.batch)
        without_head = max(0.0, tokens - PSEUDO_POSITIONS) * _BACKWARD * size.head
        last = Effort("train", steps * (size.trained(tokens) - without_head))
    # The head over all pseudo-sentences, two decompositions, and the steps of the warm student.
    decomposed = 6.0 * size.width**2 * (written + size.vocabulary)
    warm = _BACKWARD * student.warm_steps * WARM_BATCH * of_token
    return {
        "pseudo": (Effort(sampling_kernel(recipe.pseudo.engine), pseudo), Effort("encode", pseudo)),
        "bases": (Effort("product", size.head * written + decomposed + warm),),
        "selection": (Effort("product", 2 * size.head * min(written, 4 * queries)),),
        "student": (last,),
    }


def _measuring(recipe: SeqPateRecipe, size: ModelSize, tokens: float) -> tuple[Effort, ...]:
    config, bases, deep = recipe.evaluation, 1 + bool(recipe.pretrain), recipe.student.kind != "head"
    models = _MODELS + bases - (deep and not recipe.student.warm_steps)  # without a warm start one is another
    read, seen = config.users * tokens, config.nonprivate_steps * _NONPRIVATE_BATCH
    return (
        Effort("encode", size.forward((bases + deep) * read)),
        Effort("product", size.head * (models * read + (0 if deep else _BACKWARD * seen))),
        Effort("train", size.trained(seen) if deep else 0.0),
        Effort("decode", size.forward(models * config.completions * recipe.generation.max_tokens)),
    )
