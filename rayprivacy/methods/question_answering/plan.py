"""The plan of question answering: one charged training, passages, and the stages that ask about these for nothing.

Imports neither torch nor Ray.
"""

from dataclasses import replace

from rayprivacy.blocks import pretrain_plan, steps_plan, writing_plan
from rayprivacy.methods.question_answering.recipe import QuestionAnsweringRecipe
from rayprivacy.models.size import size_of
from rayprivacy.runs import questions_plan
from rayprivacy.runs.assumptions import Placed, Where, at
from rayprivacy.runs.figures_plan import Figures
from rayprivacy.runs.plan import FULL, SENTENCES_CALL, Block, Effort, Kernel, Plan, Stage, sampling_kernel

STEPS, WRITING = "DP-SGD", "synthetic passages"
_DRAWN = 3  # texts for each question: itself, and two draws of a set of phrases
_READ = 1e9  # operations that take as long as finding the entities of a sentence
_MANY = 1 << 10  # actors, where the recipe names no number
_SAYS = (
    *at(
        Where.PUBLIC,
        "Sampling rate, batch size, steps and clipping norm are public, and so is the base model; none was chosen by "
        "looking at the corpus.",
    ),
    *at(
        Where.RELEASED,
        "The model left the private side, and nothing else; metrics marked 'releasable: false' are not part of the "
        "claim.",
    ),
)
_ANNOTATIONS = (
    "The pairs and annotations that questions are learnt from and chosen by (questions.pairs.source, "
    "questions.value.annotations) are public: annotations are of released or public passages, never of private ones."
)


class Questions(Block):
    """Asking about the passages, for nothing; no stage without the `questions` block."""

    def stages(self, recipe: QuestionAnsweringRecipe) -> tuple[Stage, ...]:
        """Those of any question set."""
        if recipe.questions is None:
            return ()
        known = _efforts(recipe)
        stages = questions_plan.question_stages(recipe.questions.asked)
        return tuple(replace(stage, efforts=known.get(stage.name, stage.efforts)) for stage in stages)

    def assumptions(self, recipe: QuestionAnsweringRecipe) -> tuple[Placed, ...]:
        """That what is learnt from is public."""
        config = recipe.questions
        learns = config is not None and bool(config.pairs or config.value.annotations)
        return at(Where.PRETRAINING, _ANNOTATIONS) if learns else ()

    def check(self, recipe: QuestionAnsweringRecipe) -> None:
        """Refuse settings or public files that cannot be used."""
        if recipe.questions is not None:
            questions_plan.check_questions(recipe.questions.asked, recipe.corpus)


def _efforts(recipe: QuestionAnsweringRecipe) -> dict[str, tuple[Effort, ...]]:
    """What stages that take long compute, about: of the sentences that may be asked about half are there."""
    config = recipe.questions
    assert config is not None, "a recipe that asks"
    asker, actors = config.asker, recipe.resources.actors or _MANY
    sentences = FULL * recipe.generation.texts * config.evidence.most
    asked, size = sentences * config.phrases.most, size_of(asker.base or recipe.model.base)
    tokens = FULL * (asker.max_tokens + asker.question_tokens)
    values, claims = config.value, (sentences, asked)[config.pairs is not None]

    def shared(kernel: Kernel, flops: float) -> tuple[Effort, ...]:
        return (Effort(kernel, flops, processes=actors, threads=False),)

    writing = shared(sampling_kernel(asker.engine), size.forward(round(_DRAWN * asked * tokens)))
    return {
        questions_plan.WRITER: (Effort("train", size.trained(round(asker.steps * asker.batch * tokens))),),
        questions_plan.QUESTIONS: writing if config.pairs else shared("product", sentences * _READ),
        questions_plan.ANSWERS: shared("product", sentences * _READ),
        questions_plan.LIKELIHOODS: shared("encode", size.forward(round(asked * tokens))),
        questions_plan.JUDGEMENTS: shared("product", claims * SENTENCES_CALL),
        questions_plan.RETRIEVER: (Effort("product", claims * SENTENCES_CALL),),
        questions_plan.VALUES: shared("product", values.iterations * values.estimators * SENTENCES_CALL),
    }


def plan_run(recipe: QuestionAnsweringRecipe) -> Plan:
    """The plan of a recipe."""
    detail = f"{recipe.training.steps} steps on {recipe.corpus.source}, {recipe.adapter.kind}"
    size, models = size_of(recipe.model.base), 2 + bool(recipe.pretrain)
    return Plan.of(
        recipe,
        pretrain_plan.Pretrain(),
        steps_plan.Steps(STEPS, recipe.training, detail, size),
        writing_plan.Writing(WRITING, recipe.generation),
        Questions(),
        Figures(steps_plan.PART_FILES),
        says=_SAYS,
        measuring=writing_plan.measuring_stage(recipe, size, recipe.training.max_tokens, models),
    )
