"""SanText as it is registered, and what it releases."""

from rayprivacy.methods.santext.recipe import SanTextRecipe
from rayprivacy.runs.method import Card, Method

CARD = Card(
    citation="SanText (Yue et al., ACL Findings 2021)",
    sentence="every word was replaced by a draw from a public table, in which near words are likelier.",
    private=(("corpus", "the raw text"), ("values", "made up anew"), ("words", "replaced by coins")),
    released=(("sanitised text", "word for word"), ("report", "this page")),
    text="Text whose words were replaced by random ones. It was made by",
    texts="sanitized.parquet",
    has_model=False,
)
METHOD = Method(
    recipe=SanTextRecipe,
    card=CARD,
    plan="rayprivacy.methods.santext.plan:plan_run",
    run="rayprivacy.methods.santext.method:run",
    reading="rayprivacy.methods.santext.method:reading_of",
    check="rayprivacy.methods.santext.method:check_inputs",
)
