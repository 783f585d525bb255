"""The DP-SGD generator as it is registered, and what it releases."""

from rayprivacy.methods.generator.recipe import GeneratorRecipe
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method

CARD = Card(
    citation="the DP-SGD generator (Yue et al., ACL 2023)",
    sentence="a language model was fine-tuned with clipped, noisy gradients of keyed samples of private text; each text"
    " stood behind its control code, if it has any.",
    private=(
        ("corpus", "the raw text"),
        ("users", "one id each"),
        ("sample", "by keyed coin"),
        ("gradients", "clipped"),
    ),
    released=(("generator", "noisy steps"), ("synthetic text", "new writing"), ("report", "this page")),
    models=BASE | PRETRAINED | {"generator": "Generator (this run)"},
    ours="generator",
)
METHOD = Method(
    recipe=GeneratorRecipe,
    card=CARD,
    plan="rayprivacy.methods.generator.plan:plan_run",
    run="rayprivacy.methods.generator.method:run",
    reading="rayprivacy.methods.generator.method:reading_of",
    check="rayprivacy.methods.generator.plan:check_inputs",
)
