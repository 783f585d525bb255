"""Four prompts by which a language model judges claims (AttributionLens, table D.2), without training or with examples.

The label is the one whose words the model finds likeliest behind the prompt, per token. The three examples are written
by hand, one of each label, and are no part of any test.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rayprivacy.auditing.scoring import ModelLoss
from rayprivacy.models.backbone import Backbone
from rayprivacy.questions.attribution import LABELS, Claim, Label

Example = tuple[str, str, Label]  # a claim, its reference, and what the reference says of it
EXAMPLES: tuple[Example, ...] = (
    (
        "Who wrote the opera? Verdi",
        "The opera was written by Verdi in 1871 and first sung in Cairo.",
        LABELS[0],
    ),
    (
        "How many towers has the bridge? four",
        "Workers opened the bridge in 1932. It has two towers of stone.",
        LABELS[2],
    ),
    ("When was the mill sold? 1904", "The mill stands beside the river and ground corn for three villages.", LABELS[1]),
)
SHOTS: Mapping[str, Sequence[Example]] = {"zero-shot": (), "few-shot": EXAMPLES}


@dataclass(frozen=True)
class Prompt:
    """An instruction, what it calls a claim and its reference, and its words for the three labels."""

    instruction: str
    claim: str
    reference: str
    words: tuple[str, str, str]  # attributable, extrapolatory, contradictory

    def __call__(self, claim: str, reference: str, examples: Sequence[Example]) -> str:
        told = [f"{self._about(one, text)} {self.words[LABELS.index(label)]}\n\n" for one, text, label in examples]
        return f"{self.instruction}\n\n{''.join(told)}{self._about(claim, reference)}"

    def _about(self, claim: str, reference: str) -> str:
        return f"{self.claim}: {claim}\n{self.reference}: {reference}\nAnswer:"


PROMPTS = {
    "attribution": Prompt(
        "Verify whether a given reference can support the given claim. Options: Attributable, Extrapolatory or"
        " Contradictory.",
        "Claim",
        "Reference",
        ("Attributable", "Extrapolatory", "Contradictory"),
    ),
    "fact-checking": Prompt(
        "Fact-check a claim based on the given evidence. Options: Supported, Not Enough Information or Refuted.",
        "Claim",
        "Evidence",
        ("Supported", "Not Enough Information", "Refuted"),
    ),
    "inference": Prompt(
        "Read the following and determine if the hypothesis can be inferred from the premise. Options: Entailment,"
        " Neutral or Contradiction.",
        "Hypothesis",
        "Premise",
        ("Entailment", "Neutral", "Contradiction"),
    ),
    "summary": Prompt(
        "Read the following article and summary, and tell how the summary relates to the article. Options: Faithful,"
        " Extrinsic error or Intrinsic error.",
        "Summary",
        "Article",
        ("Faithful", "Extrinsic error", "Intrinsic error"),
    ),
}


def labels(backbone: Backbone, prompt: Prompt, claims: Sequence[Claim], examples: Sequence[Example]) -> list[Label]:
    """The likeliest label of each claim."""
    losses, found = ModelLoss(backbone), []
    for claim in claims:
        text = prompt(f"{claim.question} {claim.answer}", claim.reference, examples)
        each = losses.per_token([f" {words}" for words in prompt.words], [text] * len(LABELS))
        found.append(LABELS[int(each.argmin())])
    return found
