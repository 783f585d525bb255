"""Two-stage generation as it is registered, and what it releases."""

from rayprivacy.methods.two_stage.prompts import prompt
from rayprivacy.methods.two_stage.recipe import TwoStageRecipe
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method

CARD = Card(
    citation="two-stage generation (Mireshghallah et al., ACL 2023)",
    sentence="two language models were fine-tuned with clipped, noisy gradients of keyed samples of private text, one"
    " on parse trees and one on utterances behind their trees; the first wrote trees, and the second their utterances.",
    private=(
        ("corpus", "utterances and their trees"),
        ("users", "one id each"),
        ("samples", "by keyed coin, for each stage"),
        ("gradients", "clipped"),
    ),
    released=(
        ("tree model", "noisy steps"),
        ("utterance model", "noisy steps"),
        ("synthetic text", "new writing"),
        ("report", "this page"),
    ),
    text="Text that a language model wrote from the parse trees in the column `parse`, which another one had written."
    " Both were made by",
    opener=prompt("(Yield (Today))"),
    models=BASE | PRETRAINED | {"two_stage": "Both models (this run)"},
    ours="two_stage",
)
METHOD = Method(
    recipe=TwoStageRecipe,
    card=CARD,
    plan="rayprivacy.methods.two_stage.plan:plan_run",
    run="rayprivacy.methods.two_stage.method:run",
    reading="rayprivacy.methods.two_stage.readings:utterances_of",
    beside="rayprivacy.methods.two_stage.readings:models_beside",
    check="rayprivacy.methods.two_stage.public_side:check_inputs",
)
