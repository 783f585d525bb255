"""Bugs of names: charges named by an answer, or not by all of a question; policies named by less than they do."""

from mutation import Mutation

_GATE = "tests/release/test_gate.py"
_ASKED = "tests/methods/test_asked_questions.py"
_CHANGED = f"{_ASKED}::test_another_question_with_an_equal_answer_is_another_charge_and_draw"
_OTHER_QUESTION = f"{_GATE}::test_another_corpus_or_question_is_another_charge_and_draw_though_the_answers_are_equal"

ASKING = (
    Mutation(
        "question_left_out",
        "two questions with equal answers share a charge and a draw",
        "release/gate.py",
        "asked.corpus, asked.question, parameters)",
        "asked.corpus, parameters)",
        _OTHER_QUESTION,
    ),
    Mutation(
        "corpus_left_out",
        "the stored answer of another corpus is served",
        "release/gate.py",
        "asked.corpus, asked.question, parameters)",
        "asked.question, parameters)",
        _OTHER_QUESTION,
    ),
    Mutation(
        "named_by_the_answer",
        "the name of a charge says whether two private answers are equal",
        "release/gate.py",
        'self._reserved("release-votes", release_id, mechanism, asked, stage)',
        'self._reserved("release-votes", release_id, mechanism, asked, stage + digest_json(checked.tolist()))',
        "tests/contract/test_charge_names.py::test_no_charge_of_the_package_is_named_by_an_answer",
    ),
    Mutation(
        "answers_of_another_machine",
        "the same question is charged and drawn again where the last bit of its answer differs",
        "release/gate.py",
        'self._reserved("release-votes", release_id, mechanism, asked, stage)',
        'self._reserved("release-votes", release_id, mechanism, asked, stage + digest_json(checked.tolist()))',
        f"{_GATE}::test_the_same_question_is_one_charge_and_one_draw_though_the_answers_differ",
    ),
    Mutation(
        "values_left_out",
        "labels counted into other cells are the same question",
        "generation/codes.py",
        "digest_json([list(self.columns), [list(values) for values in self._values]])",
        "digest_json([list(self.columns), self.cells])",
        f"{_CHANGED}[methods/generator/method.py _shares-values]",
    ),
    Mutation(
        "topics_left_out",
        "votes for other topics are the same question",
        "blocks/match.py",
        "[digest_array(self.centres), list(LENGTH_EDGES), model.digest]",
        "[list(LENGTH_EDGES), model.digest]",
        f"{_CHANGED}[blocks/match.py match_texts-candidates]",
    ),
    Mutation(
        "queries_left_out",
        "votes on other queries are the same question",
        "methods/seqpate/ensemble.py",
        "*teachers, queries.digest, digest_file(rows)",
        "*teachers, digest_file(rows)",
        f"{_CHANGED}[methods/seqpate/method.py round-candidates]",
    ),
    Mutation(
        "teachers_left_out",
        "votes of teachers with another base model are the same question",
        "methods/seqpate/ensemble.py",
        "[asked.name, *teachers, queries.digest",
        "[asked.name, queries.digest",
        f"{_CHANGED}[methods/seqpate/method.py round-teachers]",
    ),
    Mutation(
        "model_left_out",
        "a search is served the figure of another model of the same release id",
        "tuning/heldout_loss.py",
        "digest_json([models, reading,",
        "digest_json([reading,",
        f"{_CHANGED}[tuning/heldout_loss.py heldout_loss-weights]",
    ),
    Mutation(
        "kept_words_left_out",
        "two policies that never hide different words share a digest, and an account",
        "policies/policy.py",
        "digest_json([digest, sorted(self.kept)]) if self.kept else digest",
        "digest",
        "tests/policies/test_digests.py::test_policies_of_one_digest_are_one_function[KeywordPolicy-kept]",
    ),
    Mutation(
        "prefix_of_hidden_words",
        "a prefix takes words out of the policy, which are then trained on without noise",
        "policies/make.py",
        "if policy.hides(words):",
        "if not words:",
        "tests/policies/test_digests.py::test_a_prefix_that_the_policy_hides_is_refused",
    ),
    Mutation(
        "account_of_the_file",
        "an account is kept for the file of a policy, and not for the function that workers apply",
        "methods/domain_private/plan.py",
        'return f"{recipe.policy.kind} {make_policy(recipe.policy, recipe.kept).digest}"',
        'return f"{recipe.policy.kind} {recipe.policy.digest}"',
        "tests/methods/test_domain_private_recipe.py::test_policies_that_keep_other_words_need_accounts_of_their_own",
    ),
    Mutation(
        "shared_by_default",
        "a table of private figures that a method forgot to mark is on the page to share",
        "runs/exhibits.py",
        "rows: Sequence[Sequence[str]]\n    internal: bool = True",
        "rows: Sequence[Sequence[str]]\n    internal: bool = False",
        "tests/report/test_exhibits.py::test_what_a_method_forgets_to_mark_is_not_shared[table]",
    ),
)
