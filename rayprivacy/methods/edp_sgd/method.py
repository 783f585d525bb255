"""The algorithm of eDP-SGD (Dupuy et al., ICASSP 2022, "An Efficient DP-SGD Mechanism for Large Scale NLP Models").

    public base, public lists of intents and slots -> a tagger with small random heads           (public)
    corpus -> users -> coins -> clipped gradients of users, or of means of micro-batches         (private)
    their noisy sums, step by step, charged in chunks before they run -> the tagger              (released)

What is clipped is the sum of two cross entropies, of the intent and, in the mean, of the words. One user moves the sum
of a step by C, and by 2C with micro-batches (`release.step_mechanism`). See docs/edp_sgd.md.
"""

from collections.abc import Sequence
from functools import partial

from rayprivacy.blocks import trial
from rayprivacy.blocks.steps import Training, save_trained, train
from rayprivacy.dpsgd.losses import own_losses
from rayprivacy.dpsgd.units import Reading
from rayprivacy.methods.edp_sgd import plan, reading
from rayprivacy.methods.edp_sgd.heldout import Heldout
from rayprivacy.methods.edp_sgd.recipe import EdpSgdRecipe
from rayprivacy.models.backbone import Backbone, load_backbone
from rayprivacy.runs.context import RunContext
from rayprivacy.runs.method import Output
from rayprivacy.tagging.bilstm import MODEL_TYPE
from rayprivacy.tagging.loss import TaggerLoss
from rayprivacy.tagging.model import check_length

HOW = "A tagger of intents and slots, fine-tuned with DP-SGD on private text."


def loss_of(recipe: EdpSgdRecipe) -> TaggerLoss:
    """The loss of intents and slots."""
    tags = recipe.model.tags
    return TaggerLoss(len(tags.all_intents), len(tags.names))


def try_base(recipe: EdpSgdRecipe, readings: Sequence[Reading]) -> Backbone:
    """Load and try the base; the bi-LSTM is our own."""
    backbone = load_backbone(recipe.model)
    check_length(backbone.model, recipe.training.max_tokens)
    if backbone.model.config.model_type != MODEL_TYPE:
        trial.try_training(recipe, backbone, partial(own_losses, loss=loss_of(recipe)))
    return backbone


def run(context: RunContext[EdpSgdRecipe]) -> Output | None:
    """Run, or finish, a recipe; None when it was stopped after some chunks, with its model saved."""
    recipe = context.recipe
    context.shard()
    backbone = context.load_model()
    loss = loss_of(recipe)
    training = Training.of(recipe, reading.reading_of(recipe), loss)
    model = save_trained(context, train(context, plan.STEPS, training), recipe.adapter, HOW)
    if context.stops_early:
        return None
    heldout = Heldout(context, backbone, model, loss)
    return Output(heldout=heldout.metrics, exhibits=heldout.tables)
