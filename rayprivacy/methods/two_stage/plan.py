"""The plan of two-stage generation: trees of private text, two trainings that are calibrated together, and writing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dp_accounting.dp_event import DpEvent

from rayprivacy.accounting import published
from rayprivacy.blocks import pretrain_plan, steps_plan, writing_plan
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.models.size import size_of
from rayprivacy.runs.assumptions import Placed, Where, at
from rayprivacy.runs.figures_plan import Figures
from rayprivacy.runs.plan import FULL, Block, Effort, Plan, Stage, Work, composed

TREES, WRITING = "synthetic parse trees", "synthetic text"
TREES_WRITTEN = "trees_written"
_PUBLIC = (
    "Sampling rates, batch sizes, steps, clipping norm and bounds are public, and so is the base model; none was "
    "chosen by looking at the corpus."
)
_GRAMMAR = (
    "The grammar of the trees and the list of function names (parses.functions) are public, and neither was made from "
    "the corpus."
)
_RELEASED = (
    "The two models left the private side, and nothing else; metrics marked 'releasable: false' are not part of the "
    "claim."
)


def plan_run(recipe: TwoStageRecipe) -> Plan:
    """The plan of a recipe."""
    tokens = 2 * recipe.parses.max_tokens + recipe.training.max_tokens  # of a tree, and of an utterance behind it
    grammar = at(Where.RELEASED, _GRAMMAR) if recipe.parses.grammar else ()
    return Plan.of(
        recipe,
        pretrain_plan.Pretrain(),
        Trees(),
        Trainings(),
        writing_plan.Writing(TREES, recipe.tree_writing, TREES_WRITTEN, "the released models"),
        writing_plan.Writing(WRITING, recipe.generation, reads="the released models"),
        Figures(steps_plan.PART_FILES),
        says=(*at(Where.PUBLIC, _PUBLIC), *grammar, *at(Where.RELEASED, _RELEASED)),
        measuring=writing_plan.measuring_stage(recipe, size_of(recipe.model.base), tokens, 2 + bool(recipe.pretrain)),
    )


PARSES, UTTERANCES = "training on parse trees", "training on utterances"
PARSER, PARSER_STEPS = "parser", "parser_steps"
PARSING, PARTS_PARSED = "parse trees of private text", "parts_parsed"
_OF_COLUMN = "come from a column of the corpus, and each is a function of its own record"
_OF_PARSER = (
    "were written by a parser that learnt from public text alone (parser.source), and that reads one record at a time;"
    " which machine does so changes no bit of one record because of another"
)


class Trees(Block):
    """The parser's training on public pairs and its reading of private text; no stage for trees from a column."""

    def stages(self, recipe: TwoStageRecipe) -> tuple[Stage, ...]:
        """Both charge nothing: trees are not released."""
        config, size = recipe.parser, size_of(recipe.model.base)
        if config is None:
            return ()
        tree = round(FULL * recipe.parses.max_tokens)
        pair, records = tree + round(FULL * config.max_tokens), recipe.corpus.max_records_per_user or 1
        learning = (Effort("train", size.trained(config.steps * config.batch * pair)),)
        reading = (
            Effort("decode", size.forward(records * pair), users=True, processes=steps_plan.PART_FILES, threads=False),
        )
        detail = f"{config.steps} steps of {config.batch} pairs, lora"
        bound = f"one record at a time, {recipe.parses.max_tokens} tokens at most"
        parts = (Work(PARTS_PARSED, steps_plan.PART_FILES + 1),)  # and the held-out users
        return (
            Stage(PARSER, "public text", detail, work=(Work(PARSER_STEPS, config.steps),), efforts=learning),
            Stage(PARSING, "private text", bound, work=parts, efforts=reading),
        )

    def assumptions(self, recipe: TwoStageRecipe) -> tuple[Placed, ...]:
        """Where the trees come from."""
        source = _OF_COLUMN if recipe.parser is None else _OF_PARSER
        return at(
            Where.PUBLIC,
            f"Both trainings read the same users, and the claim is about both together; the parse trees {source}.",
        )


@dataclass(frozen=True)
class Trainings(Block):
    """The trainings on trees and on utterances, with the least noise with which both together fit the budget."""

    calibrated: ClassVar[bool] = True
    both: tuple[steps_plan.Steps, ...] = ()

    def fitted(self, recipe: TwoStageRecipe, beside: Sequence[DpEvent]) -> "Trainings":
        """With noise multipliers in the ratio that the recipe gives."""
        trainings = [recipe.training_of("trees"), recipe.training_of("utterances")]
        ratios, before = (recipe.stages.sigma_ratio, 1.0), composed(beside) if beside else None
        found = zip(trainings, steps_plan.sampled_trainings(trainings, ratios, recipe.privacy, before), strict=True)
        size, tree = size_of(recipe.model.base), round(FULL * recipe.parses.max_tokens)
        read = {PARSES: tree, UTTERANCES: tree + trainings[1].max_tokens}  # the tree in front is read as well
        where = f"on {recipe.corpus.source}, {recipe.adapter.kind}"
        return Trainings(
            tuple(
                steps_plan.Steps(name, training, f"{training.steps} steps {where}", size, read[name], mechanism)
                for name, (training, mechanism) in zip(read, found, strict=True)
            )
        )

    def stages(self, recipe: TwoStageRecipe) -> tuple[Stage, ...]:
        """One after the other."""
        return tuple(stage for steps in self.both for stage in steps.stages(recipe))

    def assumptions(self, recipe: TwoStageRecipe) -> tuple[Placed, ...]:
        """Those of either."""
        return self.both[0].assumptions(recipe)

    def facts(self, recipe: TwoStageRecipe) -> Mapping[str, Any]:
        """Noise and figures of both, and the paper's epsilon."""
        trees, utterances = self.both
        noise = [steps_plan.noise_line(each.mechanism, each.training) for each in self.both]
        return {
            **utterances.facts(recipe),
            "noise": f"trees: {noise[0]}; utterances: {noise[1]}",
            "figures": steps_plan.noise_figures(trees=trees.mechanism, utterances=utterances.mechanism),
            "as_published": self._as_published(recipe),
        }

    def _as_published(self, recipe: TwoStageRecipe) -> dict[str, float]:
        """Epsilon as the paper states it, and without amplification; none where noise differs by step or is shared."""
        training = recipe.training
        if training.bands > 1 or training.noise_schedule.rule.falls or training.microbatches is not None:
            return {}
        found = [each.mechanism for each in self.both]
        stages = [(each.sampling_rate, each.noise_multiplier, each.steps) for each in found]
        figures = published.two_stage_together(stages, recipe.privacy.delta)
        return {figure.label: round(figure.epsilon, 3) for figure in figures}
