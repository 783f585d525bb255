"""The bugs that break the guarantee of sanitised text, each as one change of the real code."""

from mutation import Mutation

_TABLE = "tests/sanitize/test_table.py"
_DRAWS = "tests/sanitize/test_draws.py"
_DOCUMENTS = "tests/sanitize/test_documents.py"
_PLAN = "tests/sanitize/test_plan.py"

SANITISING = (
    Mutation(
        "epsilon_not_halved",
        "words are drawn with epsilon where the law has epsilon / 2",
        "sanitize/table.py",
        "found *= -self.epsilon / 2\n        return np.exp",
        "found *= -self.epsilon\n        return np.exp",
        f"{_TABLE}::test_no_pair_of_words_has_a_larger_ratio_than_claimed[True-santext]",
    ),
    Mutation(
        "normalisers_left_out",
        "the bound of a word leaves out the normalisers of the table",
        "sanitize/table.py",
        "bounds += np.abs(logs[block][:, None] - logs[None, first:])",
        "bounds += 0",
        f"{_TABLE}::test_no_pair_of_words_has_a_larger_ratio_than_claimed[True-santext]",
    ),
    Mutation(
        "no_floor",
        "far words get weight 0, as in floating point",
        "sanitize/table.py",
        "rows += _FLOOR",
        "rows += 0",
        f"{_TABLE}::test_far_words_are_possible_where_floats_would_say_never",
    ),
    Mutation(
        "one_stream_for_all_documents",
        "equal words at equal places of all documents are drawn by one coin",
        "sanitize/coins.py",
        "blocks[:, 0] = tags",
        "blocks[:, 0] = 0",
        f"{_DRAWS}::test_a_retry_shares_all_coins_and_nothing_else_does",
    ),
    Mutation(
        "coins_of_a_fixed_seed",
        "coins do not depend on the key file",
        "sanitize/coins.py",
        'bytes.fromhex(key.digest("sanitize-coins", *release))',
        'bytes.fromhex(Key.for_tests().digest("sanitize-coins", *release))',
        f"{_DRAWS}::test_a_retry_shares_all_coins_and_nothing_else_does",
    ),
    Mutation(
        "unknown_words_kept",
        "a word that is not on the list is treated as one that may be released",
        "sanitize/mechanism.py",
        "(ids >= self.table.first) | (coin < self.replaced)",
        "((ids >= self.table.first) & (ids < len(self.table.vocabulary))) | (coin < self.replaced)",
        f"{_DRAWS}::test_common_words_are_kept_by_a_coin_of_their_own_and_others_never",
    ),
    Mutation(
        "kept_words_free",
        "SanText+ charges nothing for words that are released as they are",
        "sanitize/mechanism.py",
        "return MetricLocalDpEvent(epsilon, reach, tokens, self.keep_cost, self.sensitive)",
        "return MetricLocalDpEvent(epsilon, reach, tokens, 0.0, self.sensitive)",
        f"{_DRAWS}::test_the_charge_is_that_of_the_table",
    ),
    Mutation(
        "remainder_of_a_draw",
        "a draw beyond a whole multiple is not rejected",
        "sanitize/coins.py",
        "taken = found <= np.uint64(2**64 - 1) - spare[open_]",
        "taken = found >= 0",
        f"{_DRAWS}::test_numbers_below_a_limit_are_exactly_uniform",
    ),
    Mutation(
        "words_not_cut",
        "texts are not cut to the number of words that is charged",
        "sanitize/tokens.py",
        "each = [one.ids[:most] for one in encoded]",
        "each = [one.ids for one in encoded]",
        f"{_DOCUMENTS}::test_texts_are_cut_to_the_public_bound",
    ),
    Mutation(
        "one_document_charged",
        "all documents of a user are charged like one",
        "methods/santext/blocks.py",
        "found.mechanism.event(recipe.records * recipe.sanitize.max_tokens)",
        "found.mechanism.event(recipe.sanitize.max_tokens)",
        f"{_PLAN}::test_all_documents_of_a_user_are_charged",
    ),
    Mutation(
        "sensitive_words_turned_round",
        "the most frequent words are taken for the sensitive ones",
        "methods/santext/mechanisms.py",
        "first = size - max(2, round(config.plus.sensitive * size)) if config.plus else 0",
        "first = max(2, round(config.plus.sensitive * size)) if config.plus else 0",
        f"{_PLAN}::test_sensitive_words_are_the_least_frequent_ones_of_the_public_list",
    ),
)
