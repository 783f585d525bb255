"""Bugs in what an account says it protects, and in what the accounts of a corpus tell each other."""

from mutation import Mutation

_MEANING = "tests/ledger/test_meaning.py"
_KEYS = "tests/contract/test_keys_of_meaning.py"

MEANINGS = (
    Mutation(
        "two_columns_one_account",
        "an account takes releases about users by another column, whose epsilons it adds",
        "ledger/accounts.py",
        "if wanted.get(name, have) != have:",
        "if False:",
        f"{_KEYS}::test_two_recipes_that_differ_in_who_is_protected_do_not_share_an_account",
    ),
    Mutation(
        "labels_of_a_record",
        "the labels of a record are no part of its meaning",
        "runs/meaning.py",
        '"corpus.labels": Key((RECORD,), ',
        '"corpus.labels": Key((), ',
        f"{_KEYS}::test_no_two_lists_of_columns_are_written_alike",
    ),
    Mutation(
        "phrases_by_their_path",
        "a list of phrases is named by its file, so that a changed list is the same account",
        "runs/meaning.py",
        'return [f"list {_digest(recipe)}"]',
        'return [f"list {recipe.corpus.phrases}"]',
        f"{_KEYS}::test_the_same_list_in_another_file_is_the_same_list",
    ),
    Mutation(
        "a_key_nobody_classified",
        "a new key of the corpus is classified by nobody",
        "runs/meaning.py",
        '    "corpus.holdout": Key(why="which users are used"),\n',
        "",
        f"{_KEYS}::test_every_key_of_corpus_and_privacy_is_classified",
    ),
    Mutation(
        "an_old_account_forgets",
        "the meaning that an account of before took from a release is not read again",
        "ledger/accounts.py",
        'values["parameters"] |= later',
        "later = {}",
        f"{_MEANING}::test_an_account_of_before_takes_its_meaning_once_and_durably",
    ),
    Mutation(
        "two_lists_one_account",
        "a metric-local account adds epsilons of several lists of protected words",
        "ledger/accounts.py",
        "if wanted is not None and wanted != found:",
        "if False:",
        "tests/ledger/test_composition_by_kind.py"
        "::test_events_that_protect_different_words_are_never_admitted_together",
    ),
    Mutation(
        "lists_by_a_stale_reading",
        "a release that raced another one is admitted by what its process had read before",
        "ledger/store.py",
        "            terms = self._with_words(tail, terms, event)\n",
        "",
        f"{_MEANING}::test_racing_releases_of_two_lists_are_not_both_admitted",
    ),
    Mutation(
        "two_lists_in_one_event",
        "an event whose parts protect the words of two lists is taken for one of them",
        "accounting/events.py",
        "    if len(lists) > 1:\n        raise EventError(",
        "    if False:\n        raise EventError(",
        "tests/ledger/test_composition_by_kind.py::test_one_event_protects_the_words_of_one_list",
    ),
    Mutation(
        "auditor_of_words",
        "the auditor does not compare what an event protects with its account",
        "ledger/audit/book.py",
        'if (lists - {""} or {""}) != {self.terms.meaning.get("protected")}:',
        "if False:",
        f"{_MEANING}::test_an_auditor_finds_words_that_an_account_does_not_protect",
    ),
    Mutation(
        "steps_paid_below_price",
        "the central account pays less than the steps, and no exposure is recorded",
        "ledger/exposures.py",
        "return all(part <= have for part, have in zip(rule.cost(event, others), paid, strict=True))",
        "return True",
        f"{_MEANING}::test_next_to_nothing_buys_no_exposure_off",
    ),
    Mutation(
        "auditor_of_exposures",
        "the auditor takes any central charge of the rung for a payment",
        "ledger/audit/rules.py",
        "if bounds is None or cost[0] < bounds[0]:",
        "if bounds is None:",
        f"{_MEANING}::test_an_auditor_finds_an_exposure_that_was_bought_off",
    ),
    Mutation(
        "paid_in_another_unit",
        "what a central account of other units pays spares the exposure of this one",
        "ledger/exposures.py",
        "not _differ(payment.terms.account.meaning, exposed.meaning)",
        "True",
        f"{_MEANING}::test_what_another_unit_pays_buys_no_exposure_off",
    ),
    Mutation(
        "meanings_that_do_not_expose",
        "accounts of one corpus with other columns, words or policies do not tell each other of their releases",
        "ledger/exposures.py",
        "    return charged.kind is exposed.kind and (",
        "    return False and (",
        f"{_MEANING}::test_accounts_of_one_corpus_that_mean_other_things_expose_each_other",
    ),
    Mutation(
        "words_never_said",
        "the auditor takes a charge of a metric-local account that has not said which words it protects",
        "ledger/audit/book.py",
        "if self.terms.kind == METRIC:",
        'if "protected" in self.terms.meaning:',
        f"{_MEANING}::test_an_auditor_finds_words_that_an_account_does_not_protect",
    ),
)
