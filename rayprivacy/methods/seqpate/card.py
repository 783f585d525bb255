"""SeqPATE as it is registered, and what it releases."""

from rayprivacy.methods.seqpate.recipe import SeqPateRecipe
from rayprivacy.runs.method import BASE, PRETRAINED, Card, Method

CARD = Card(
    citation="SeqPATE (Tian et al., NeurIPS 2022)",
    sentence="many teachers, each trained on one shard of private text, voted on the next token of public sentences,"
    " and a student learned from the noisy sums of their votes.",
    private=(
        ("corpus", "the raw text"),
        ("users", "one id each"),
        ("shards", "by keyed hash"),
        ("teachers", "one per shard"),
    ),
    released=(("student", "learns from noise"), ("synthetic text", "new writing"), ("report", "this page")),
    models=BASE
    | PRETRAINED
    | {
        "base_pseudo": "Base model tuned on pseudo-text",
        "student": "Student (this run)",
        "nonprivate": "Trained without privacy",
    },
    ours="student",
)
METHOD = Method(
    recipe=SeqPateRecipe,
    card=CARD,
    plan="rayprivacy.methods.seqpate.plan:plan_run",
    run="rayprivacy.methods.seqpate.method:run",
    reading="rayprivacy.methods.seqpate.method:reading_of",
    check="rayprivacy.methods.seqpate.plan:check_inputs",
)
