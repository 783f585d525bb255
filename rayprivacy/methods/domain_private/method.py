"""The algorithm of domain-private training (Domain Private Transformers for Multi-Domain Dialog Systems, 2023).

    base model -> trained on public text, with `pretrain`                                (public)
    public policy, public schedule -> for each step: redacted, or noisy                  (before the run)
    corpus -> users -> bounded rows -> pairs (redacted copy, full text)                  (private)
    redacted step: coins -> clipped gradients of redacted copies -> optimizer            (free: post-processing)
                   with `redacted.central` also NOISE, charged to a plain account
    noisy step:    coins -> clipped gradients of full text -> NOISE -> the same optimizer   (charged before it runs)
    the model -> control codes -> synthetic text -> report                               (free)

One user adds a vector of norm C at most to the sum of a noisy step. Steps of both kinds clip, and divide by the same
public number, so that the moments of the optimizer, which they share, are of one scale; the paper clips the whole
gradient of a redacted step to 1 instead.

What it protects is what the policy hides, by a selective account. For plain differential privacy it is a non-private
run, and the ledger records it as one, unless light noise in redacted steps gives all steps an epsilon for users, which
a central account pays. See docs/domain_private.md.
"""

from typing import Any

from rayprivacy.blocks import pretrain, steps, writing
from rayprivacy.core.private import digest_json
from rayprivacy.dpsgd.units import Reading
from rayprivacy.generation.writing import Written
from rayprivacy.methods.domain_private import plan
from rayprivacy.methods.domain_private.reading import Redacting, redacting
from rayprivacy.methods.domain_private.recipe import DomainPrivateRecipe
from rayprivacy.policies import policy, settings
from rayprivacy.runs import directory, heldout
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import SYNTHETIC, Output
from rayprivacy.runs.plan import MODELS_MEASURED, TEXTS_WRITTEN

HOW = (
    "A language model fine-tuned on redacted private text, and on full private text with the noise of DP-SGD. It is "
    "selectively private, by a policy, and differentially private only where its certificate names an account for all "
    f"steps; it writes {policy.MARK} where its texts had that mark."
)
Context = RunContext[DomainPrivateRecipe]


def run(context: Context) -> Output | None:
    """Run, or finish, a recipe; None when it was stopped after some chunks, with its model saved."""
    recipe = context.recipe
    codes, text = recipe.control_codes, _text_of(recipe)
    redacted = context.plan.stage(plan.STEPS).mechanism.redacted
    context.shard()
    backbone = pretrain.load_model(context, policy=text.policy.digest)
    labels, tokens = recipe.corpus.labels, recipe.training.max_tokens
    reading = redacting(recipe.privacy.unit, labels, codes.prefix, tokens, text, redacted)
    training = steps.Training.of(recipe, reading)
    trained = steps.train(context, plan.STEPS, training)
    model = steps.save_trained(context, trained, recipe.adapter, HOW)
    if context.stops_early:
        return None
    with context.stage(plan.WRITING):
        written = _write(context, trained)
    models, counter = {**context.public_models, "domain_private": model}, context.counter(MODELS_MEASURED)
    return Output(
        figures={"degenerate": written.degenerate, **context.public_figures},
        heldout=lambda: heldout.heldout_metrics(context.run, backbone, reading_of(recipe), models, counter),
        codes=codes,
    )


def reading_of(recipe: DomainPrivateRecipe) -> Reading:
    """How audits read a row: its full text behind the control code of its labels."""
    labels, tokens = recipe.corpus.labels, recipe.training.max_tokens
    return Reading(recipe.privacy.unit, labels, recipe.control_codes.prefix, tokens, text=_text_of(recipe).full)


def _text_of(recipe: DomainPrivateRecipe) -> Redacting:
    return Redacting(settings.make_policy(recipe.policy, recipe.kept), recipe.corpus.max_chars)


def _write(context: Context, trained: steps.Trained) -> Written:
    root, config, codes = context.run.root, context.recipe.generation, context.recipe.control_codes
    prompts: list[Any] = [(cell, codes.text(cell)) for cell in codes.draw(codes.listed, config.texts, config.seed)]
    mark = digest_json([trained.inputs, prompts])
    model, out = root / directory.MODEL, root / SYNTHETIC
    return writing.written_once(context, model, prompts, config, codes, out, mark, TEXTS_WRITTEN, whole=policy.MARK)
