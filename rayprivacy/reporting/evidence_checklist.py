"""A checklist after NIST SP 800-226, filled from the files of a run.

"Guidelines for Evaluating Differential Privacy Guarantees", final version of March 2025, has no form to fill in. The
topics are those of its sections 2, 3 and 4, in their order; the questions are our own words. Files answer them, and
stand beside the answer with the keys that show it; what no file shows is not covered.
"""

from typing import NamedTuple

from rayprivacy.core.files import Json
from rayprivacy.reporting.evidence_facts import Answer, Evidence
from rayprivacy.reporting.format import markdown

FOLLOWS = "NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees, March 2025, sections 2 to 4"
NOT_COVERED = "not covered"


class Question(NamedTuple):
    """One line of the checklist; `name` is that of its answer, empty where no file of a run can answer it."""

    topic: str
    name: str
    text: str


GUARANTEE, ALGORITHMS, DEPLOYMENT = (
    "The differential privacy guarantee",
    "Differentially private algorithms",
    "Deploying differential privacy",
)
PARAMETERS, PROPERTIES, UNIT, MIXING = (
    "Privacy parameters",
    "Properties",
    "Unit of privacy",
    "Mixing with other releases",
)
CORRECT, UTILITY, BIAS, LEARNING = "Algorithms and correctness", "Utility and accuracy", "Bias", "Machine learning"
QUERY, IMPLEMENTED, ACCESS = "Query model", "Implementation of mechanisms", "Data security and access control"
QUESTIONS = {
    GUARANTEE: (
        Question(PARAMETERS, "standing", "Does anything speak against relying on the certificate?"),
        Question(PARAMETERS, "claim", "How much may all that is ever released from the account reveal?"),
        Question(PARAMETERS, "figures", "Which figures should be read with the claim?"),
        Question(PARAMETERS, "request", "How much of it did this release ask for?"),
        Question(PARAMETERS, "", "Why these values, and is delta far below one divided by the number of units?"),
        Question(PROPERTIES, "composition", "By which rule are the losses of all releases added up?"),
        Question(PROPERTIES, "spent", "How much was spent up to this release?"),
        Question("Variants", "variant", "In which sense are releases private?"),
        Question("Variants", "accountants", "What do accountants of other variants say of what was spent?"),
        Question(UNIT, "unit", "Whose presence is hidden?"),
        Question(UNIT, "relation", "How do neighbouring corpora differ?"),
        Question(UNIT, "bound", "How much may one user contribute?"),
        Question("Comparing guarantees", "published", "What would the analysis of the method's paper say?"),
        Question(MIXING, "mixed", "What else in the ledger was, or may be, released from the corpus?"),
        Question(MIXING, "left", "What of this run left the private side?"),
        Question(MIXING, "unprotected", "What is released as it is, or not protected?"),
        Question(MIXING, "internal", "What was measured on private text without noise?"),
        Question(MIXING, "", "Was anything of the corpus published that is not in the ledger?"),
        Question("Auditing and empirical measures", "attacked", "Was the release attacked?"),
    ),
    ALGORITHMS: (
        Question(CORRECT, "method", "Which method made the release?"),
        Question(CORRECT, "mechanisms", "Which mechanisms drew noise, how much, and how often?"),
        Question(CORRECT, "sensitivity", "How does the noise follow from what one unit can change?"),
        Question(CORRECT, "software", "Which software made it?"),
        Question(CORRECT, "", "Did anybody else check design, proofs and code?"),
        Question(UTILITY, "quality", "What is known of the released text by itself?"),
        Question(UTILITY, "", "How close is it to the private text, by figures that may be shared?"),
        Question(BIAS, "", "Systemic bias: are small groups served worse?"),
        Question(BIAS, "", "Human bias: will readers take noise for an error, or for a fact?"),
        Question(BIAS, "", "Statistical bias: do noise, clipping or selection shift what is measured?"),
        Question("Analytics queries", "stages", "Which stages were paid for, and how much would each be alone?"),
        Question(LEARNING, "model", "Which trained model is released?"),
        Question(LEARNING, "public", "What is public, and was not chosen by looking at the corpus?"),
        Question("Synthetic data", "text", "Which data set is released?"),
        Question("Unstructured data", "", "Who else is spoken of in a text, beside the unit that it counts for?"),
    ),
    DEPLOYMENT: (
        Question(QUERY, "release", "Were the queries fixed before, or are they asked one by one?"),
        Question(QUERY, "book", "Does the book of all charges replay?"),
        Question("Trust model", "trust", "Who reads raw text, and where does noise protect it?"),
        Question("Trust model", "", "Who may have the release, and what may they know beside it?"),
        Question(IMPLEMENTED, "rounding", "How are noise and sums of finite precision accounted for?"),
        Question(IMPLEMENTED, "timing", "Are running time, memory and other side channels protected?"),
        Question(IMPLEMENTED, "tuning", "Were settings searched on the corpus, and was that charged?"),
        Question(IMPLEMENTED, "assumptions", "What else does the claim rest on, and software cannot check?"),
        Question(ACCESS, "access", "What has to be kept secret, or shows more than the release?"),
        Question(ACCESS, "keyed", "Is the ledger authenticated with a key?"),
        Question(ACCESS, "", "Who can read the corpus, and how is it encrypted, kept and deleted?"),
        Question("Data collection exposure", "", "Was no more collected than is needed?"),
    ),
}


def checklist_json(e: Evidence) -> Json:
    """The checklist for machines."""
    answers = e.answers()
    parts = {
        part: [{"topic": each.topic, "question": each.text, **_json(answers.get(each.name))} for each in questions]
        for part, questions in QUESTIONS.items()
    }
    return {"follows": FOLLOWS, "release_id": e.certificate.release_id, "parts": parts}


def _json(answer: Answer | None) -> Json:
    if answer is None:
        return {"answer": NOT_COVERED, "shown_by": []}
    places = (place.partition(": ") for place in answer.places)
    return {
        "answer": answer.value,
        "shown_by": [{"file": file, "keys": keys.split(", ") if keys else []} for file, _, keys in places],
    }


def checklist_markdown(e: Evidence) -> str:
    """The checklist for people."""
    answers = e.answers()
    said = [f"# Checklist for release {markdown(e.certificate.release_id)}", f"Topics: {FOLLOWS}."]
    for part, questions in QUESTIONS.items():
        rows = [("Topic", "Question", "Answer", "Shown by"), ("---",) * 4]
        for each in questions:
            found = answers.get(each.name, Answer(NOT_COVERED, ()))
            rows.append((each.topic, each.text, markdown(found.value), markdown("; ".join(found.places))))
        said += [f"## {part}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    return "\n\n".join(said) + "\n"
