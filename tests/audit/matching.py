"""The bugs of matching: what a user may move in the votes by topic and by length, and the noise that goes with it."""

from mutation import Mutation

_VOTES = "tests/matching/test_shape_votes.py"

MATCHING = (
    Mutation(
        "margins_of_one_partition",
        "votes by topic and by length are given the noise of one of the two",
        "release/margins.py",
        "return math.sqrt(len(self.blocks)) * SCALE",
        "return float(SCALE)",
        "tests/statistical/test_margins.py::test_the_bound_is_tight",
    ),
    Mutation(
        "embedded_in_company",
        "the texts of several users are embedded in one batch, and their votes depend on each other",
        "blocks/match.py",
        'np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1])',
        "[np.arange(len(rows))]",
        f"{_VOTES}::test_nobody_changes_the_vote_of_a_text_between_two_topics",
    ),
    Mutation(
        "a_vote_for_each_text",
        "each text of a user is a unit with votes of its own",
        "corpus/parts.py",
        "if unit is PrivacyUnit.RECORD:",
        "if True:",
        f"{_VOTES}::test_a_user_has_one_vote_however_much_they_write",
    ),
)
