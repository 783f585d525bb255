"""eDP-SGD as it is registered, and what it releases."""

from rayprivacy.methods.edp_sgd.recipe import EdpSgdRecipe
from rayprivacy.runs.method import Card, Method

CARD = Card(
    citation="eDP-SGD (Dupuy et al., ICASSP 2022)",
    sentence="a public model with a head for intents and one for slots was fine-tuned with clipped, noisy gradients"
    " of keyed samples of private text.",
    private=(("corpus", "text, intents, slots"), ("users", "one id each"), ("sample", "by coin"), ("sums", "clipped")),
    released=(("tagger", "noisy steps"), ("report", "this page")),
    texts="",
    loader="AutoModelForTokenClassification",
)
METHOD = Method(
    recipe=EdpSgdRecipe,
    card=CARD,
    plan="rayprivacy.methods.edp_sgd.plan:plan_run",
    run="rayprivacy.methods.edp_sgd.method:run",
    reading="rayprivacy.methods.edp_sgd.reading:reading_of",
)
