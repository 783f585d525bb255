"""How much each stage of SeqPATE computes, for estimates of time (see `runs.effort`). Public numbers alone.

Private text is taken to be half as long as the recipe lets it be. Teachers that train layers, and students that do, are
counted as if they trained the whole model.
"""

from collections.abc import Mapping

from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.methods.seqpate.student_settings import PSEUDO_POSITIONS
from rayprivacy.models.size import ModelSize, size_of
from rayprivacy.runs.effort import FULL, Effort, Kernel, sampling_kernel

_NONPRIVATE_BATCH, _PSEUDO_BATCH, _BACKWARD = 128, 32, 3.0
_OF_TEACHERS = ("features", "teachers", "votes")  # what actors on GPUs do; only CPUs are timed
_MODELS = 3  # that are measured on held-out users beside the bases
Efforts = tuple[Effort, ...]


def efforts_of(recipe: SeqPateRecipe, queries: int) -> Mapping[str, Efforts]:
    """The efforts of the stages by a word for each, without those of GPUs; empty where the model's size is not known.
    """
    size = size_of(recipe.model.base)
    return _Counted(recipe, size, queries).all if size else {}


class _Counted:
    """The work of one recipe."""

    def __init__(self, recipe: SeqPateRecipe, size: ModelSize, queries: int) -> None:
        self._recipe, self._size, self._queries = recipe, size, queries
        self._written = recipe.pseudo.texts * recipe.pseudo.max_tokens * recipe.votes.rounds
        self._released = recipe.candidates(recipe.generation.texts)
        self._actors = min(recipe.resources.actors or recipe.teachers.parts, recipe.teachers.parts)

    @property
    def all(self) -> Mapping[str, Efforts]:
        size, recipe = self._size, self._recipe
        written = size.forward(self._written)
        counted = {
            "pseudo": (self._driver(sampling_kernel(recipe.pseudo.engine), written), self._driver("encode", written)),
            "bases": (self._driver("product", self._bases),),
            "features": (self._spread("encode", size.forward(self._tokens), users=True),),
            "teachers": (self._teachers,),
            "selection": (self._driver("product", 2 * size.head * min(self._written, 4 * self._queries)),),
            "votes": (self._votes,),
            "student": (self._student,),
            "writing": (self._writing,),
            "measuring": self._measuring,
        }
        on_gpus = _OF_TEACHERS if recipe.resources.gpus_per_actor else ()
        return {name: efforts for name, efforts in counted.items() if name not in on_gpus}

    @property
    def _writing(self) -> Effort:
        config = self._recipe.generation
        return self._spread(sampling_kernel(config.engine), self._size.forward(self._released * config.max_tokens))

    @property
    def _tokens(self) -> float:
        """Of one user, in rows."""
        config, most = self._recipe.teachers, self._recipe.corpus.max_records_per_user or 1
        return min(most * (config.max_tokens * FULL + 2), config.max_rows * config.row_tokens)

    @property
    def _of_token(self) -> float:
        """Operations of a teacher on the head, for one token it looks at."""
        config = self._recipe.teachers
        return 2.0 * config.width * (self._size.width + config.width + config.shortlist)

    @property
    def _on_head(self) -> bool:
        return self._recipe.teachers.kind == "square"

    @property
    def _bases(self) -> float:
        """The head over all pseudo-sentences, two decompositions, and the steps of the warm student."""
        student, size = self._recipe.student, self._size
        decomposed = 6.0 * size.width**2 * (self._written + size.vocabulary)
        warm = _BACKWARD * student.warm_steps * student.warm_batch
        return size.head * self._written + decomposed + warm * (size.head if student.kind == "head" else self._token)

    @property
    def _token(self) -> float:
        return self._size.forward(1)

    @property
    def _teachers(self) -> Effort:
        examples = self._recipe.teachers.epochs * self._tokens
        if self._on_head:
            return self._spread("batched", _BACKWARD * examples * self._of_token, users=True)
        return self._spread("train", self._size.trained(examples), users=True)

    @property
    def _votes(self) -> Effort:
        config = self._recipe.teachers
        if self._on_head:
            return self._spread("batched", self._queries * config.count * self._of_token)
        return self._spread("encode", config.count * self._size.forward(self._written))

    @property
    def _student(self) -> Effort:
        student, rounds = self._recipe.student, self._recipe.votes.rounds
        if student.kind == "head":
            pseudo = _PSEUDO_BATCH * self._size.head if student.pseudo else 0.0
            asked = student.batch * 2.0 * self._size.width * (self._recipe.votes.top_k + student.rank_in)
            return self._driver("product", _BACKWARD * rounds * student.steps * (pseudo + asked))
        tokens = max(student.batch * self._written / max(self._queries, 1), student.batch)
        without_head = max(0.0, tokens - PSEUDO_POSITIONS) * _BACKWARD * self._size.head
        return self._driver("train", rounds * student.steps * (self._size.trained(tokens) - without_head))

    @property
    def _measuring(self) -> Efforts:
        recipe, config, deep = self._recipe, self._recipe.evaluation, self._recipe.student.kind != "head"
        bases = 1 + bool(recipe.pretrain)
        models = _MODELS + bases - (deep and not recipe.student.warm_steps)  # without a warm start one is another
        read, seen = config.users * self._tokens, config.nonprivate_steps * _NONPRIVATE_BATCH
        completed = models * config.completions * recipe.generation.max_tokens
        return (
            self._driver("encode", self._size.forward((bases + deep) * read)),
            self._driver("product", self._size.head * (models * read + (0 if deep else _BACKWARD * seen))),
            self._driver("train", self._size.trained(seen) if deep else 0.0),
            self._driver("decode", self._size.forward(completed)),
        )

    def _driver(self, kernel: Kernel, flops: float) -> Effort:
        return Effort(kernel, flops)

    def _spread(self, kernel: Kernel, flops: float, users: bool = False) -> Effort:
        return Effort(kernel, flops, users, processes=self._actors, threads=False)
