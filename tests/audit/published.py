"""Bugs that audits of other libraries published, put in where they can exist here and no other entry stands for them.

The audits are those of twelve libraries by Re:cord-play (Cebere et al., 2026) and of six implementations of PATE-GAN
(Ganev et al., 2024); docs/soundness.md lists all their findings, each with the entry that stands for it.
"""

from mutation import Mutation

_RENYI = "tests/accounting/test_renyi.py"

PUBLISHED = (
    Mutation(
        "votes_unclipped",
        "votes are summed as they are, while the noise is for votes that are clipped",
        "release/ballots.py",
        "deviations *= (radius * SCALE / np.maximum(norms, radius))[..., None]",
        "deviations *= SCALE",
        "tests/statistical/test_centred_votes.py::test_one_changed_teacher_moves_the_sum_by_at_most_the_sensitivity",
    ),
    Mutation(
        "delta_forgotten",
        "the epsilon of a Renyi cost forgets what delta adds to it",
        "accounting/renyi.py",
        "return (math.log(delta) + math.log(order)) / (order - 1)",
        "return math.log(order) / (order - 1)",
        f"{_RENYI}::test_the_best_order_gives_the_epsilon_of_the_plan",
    ),
    Mutation(
        "one_order_off",
        "the epsilon of a Renyi cost is that of the next order",
        "accounting/renyi.py",
        "math.log(order)) / (order - 1)",
        "math.log(order)) / order",
        f"{_RENYI}::test_the_best_order_gives_the_epsilon_of_the_plan",
    ),
    Mutation(
        "no_noise_at_all",
        "the accountant takes a noise multiplier of 0, with which nothing is private",
        "accounting/fields.py",
        "SIGMA_RANGE = (1e-100, 1e100)",
        "SIGMA_RANGE = (-1.0, 1e100)",
        "tests/accounting/test_events.py::test_no_mechanism_has_such_an_event",
    ),
    Mutation(
        "values_of_the_corpus",
        "a value of a label that is on no public list gets a code of its own, so that the codes tell who is there",
        "generation/codes.py",
        "known = value if value in places else OTHER",
        "known = value if places.setdefault(str(value), len(places)) >= 0 else OTHER",
        "tests/generation/test_codes.py::test_what_is_not_on_the_public_list_is_other",
    ),
    Mutation(
        "bound_of_the_data",
        "losses are measured against the largest one of the corpus, where it should be a public bound",
        "tuning/heldout_loss.py",
        "GRID * (bounded / most)",
        "GRID * (bounded / bounded.max(initial=1e-9))",
        "tests/tuning/test_charged_sensitivity.py::test_a_unit_brings_the_same_in_any_company",
    ),
    Mutation(
        "one_shard_for_all_teachers",
        "all teachers of a piece learn from the shard of its first one, so that one user moves all their votes",
        "teachers/group.py",
        "[groups[teacher] for teacher in missing]",
        "[groups[piece.start] for teacher in missing]",
        "tests/teachers/test_group.py::test_teachers_learn_from_the_documents_of_their_own_shard",
    ),
)
