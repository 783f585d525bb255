"""Domain-private training as it is registered, and what it releases."""

from rayprivacy.methods.domain_private.recipe import DomainPrivateRecipe
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method

CARD = Card(
    citation="domain-private training (Domain Private Transformers for Multi-Domain Dialog Systems, 2023)",
    sentence="a language model was fine-tuned on copies of private text that a public policy had redacted, with light"
    " noise or none, and on the full text in noisy steps of DP-SGD. What the policy does not find is not protected.",
    private=(
        ("corpus", "the raw text"),
        ("users", "one id each"),
        ("copies", "redacted"),
        ("gradients", "clipped"),
    ),
    released=(("model", "noisy steps"), ("synthetic text", "new writing"), ("report", "this page")),
    models=BASE | PRETRAINED | {"domain_private": "Domain-private model (this run)"},
    ours="domain_private",
)
METHOD = Method(
    recipe=DomainPrivateRecipe,
    card=CARD,
    plan="rayprivacy.methods.domain_private.plan:plan_run",
    run="rayprivacy.methods.domain_private.method:run",
    reading="rayprivacy.methods.domain_private.method:reading_of",
    check="rayprivacy.methods.domain_private.plan:check_inputs",
)
