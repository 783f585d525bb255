"""The bugs by which words would decide how much of a text is released, each as one change of the real code."""

from mutation import Mutation

_SHAPE = "tests/sanitize/test_shape.py"
_COUPLED = f"{_SHAPE}::test_what_is_released_of_neighbours_has_one_shape"
_PLAN = "tests/sanitize/test_plan.py"

SHAPES = (
    Mutation(
        "words_trimmed",
        "for a claim word for word texts are trimmed, and dropped where nothing is left",
        "corpus/masking.py",
        "    if layout.by_place:\n        return whole(block)\n",
        "",
        f"{_COUPLED}[user]",
    ),
    Mutation(
        "order_by_text",
        "which documents of a user are kept, and in which order, follows from what they say",
        "corpus/bounding.py",
        '("record-place", PLACE) if PLACE in table.column_names else ("record", "text")',
        '("record", "text")',
        f"{_COUPLED}[user]",
    ),
    Mutation(
        "equal_documents_are_one",
        "of two documents of a user that say the same one is dropped",
        "corpus/bounding.py",
        "    repeated = _settle(table, index, users, order)\n",
        "    named = list(zip(users[index], table['text'].take(pa.array(index)).to_pylist(), strict=True))\n"
        "    repeated = np.array([each in named[:at] for at, each in enumerate(named)], dtype=bool)\n",
        f"{_SHAPE}::test_every_row_with_a_user_is_a_document_up_to_the_bound",
    ),
    Mutation(
        "turns_by_text",
        "which of two turns comes first follows from what they say, also for a claim word for word",
        "corpus/join.py",
        'between = PLACE if PLACE in rows.column_names else "text"',
        'between = "text"',
        f"{_COUPLED}[turns of a user]",
    ),
    Mutation(
        "shard_of_a_row_by_text",
        "the shard of a row by place follows from its text",
        "corpus/layout.py",
        'named = [table["user"], table[PLACE]] if PLACE in table.column_names else _record(table)',
        "named = _record(table)",
        f"{_COUPLED}[record]",
    ),
    Mutation(
        "coins_by_text",
        "the id and the coins of a document follow from what it says",
        "sanitize/job.py",
        'places = zip(rows["user"].to_pylist(), rows[PLACE].to_pylist(), strict=True)',
        'places = zip(rows["user"].to_pylist(), rows["text"].to_pylist(), strict=True)',
        f"{_COUPLED}[user]",
    ),
    Mutation(
        "place_within_a_stripe",
        "rows are counted within row groups, so that many have one place",
        "corpus/readers.py",
        "return itertools.chain.from_iterable(range(ends[at], ends[at + 1]) for at in groups)",
        "return itertools.chain.from_iterable(range(ends[at + 1] - ends[at]) for at in groups)",
        "tests/corpus/test_pieces.py::test_places_are_rows_of_files_however_these_are_cut[users]",
    ),
    Mutation(
        "places_uncharged",
        "texts that change places are the same corpus, so that each is drawn for twice under one charge",
        "corpus/layout.py",
        '_PLACES = ("shard", "part", "record", ORDER)',
        '_PLACES = ("shard", "part", "record", ORDER, PLACE)',
        f"{_SHAPE}::test_what_stands_where_is_part_of_what_is_charged[record]",
    ),
    Mutation(
        "words_not_compared",
        "a metric-local claim is not known as one that compares words",
        "core/units.py",
        "return self.kind is AccountKind.METRIC_LOCAL",
        "return False",
        f"{_SHAPE}::test_the_kind_of_a_claim_says_whether_it_compares_words",
    ),
    Mutation(
        "cut_by_characters",
        "a claim word for word takes a cut by characters",
        "corpus/settings.py",
        "if config.max_chars != WHOLE:",
        "if config.max_chars < 1:",
        f"{_PLAN}::test_a_cut_by_characters_is_refused_in_a_sentence",
    ),
    Mutation(
        "empty_block_without_types",
        "the block of a part that holds nobody has no types, and cannot be joined to the others",
        "sanitize/job.py",
        "return pa.table({**columns, **job.labels.released(rows, tags, coins)}, schema=job.schema)",
        "return pa.table({**columns, **job.labels.released(rows, tags, coins)})",
        f"{_COUPLED}[user]",
    ),
    Mutation(
        "missing_label_has_a_name",
        "a missing label is randomised as the value 'None'",
        "sanitize/labels.py",
        "[other if value is None else places.get(value, other) for value in values]",
        "[places.get(str(value), other) for value in values]",
        f"{_SHAPE}::test_a_missing_label_is_randomised_as_one_that_is_on_no_list",
    ),
    Mutation(
        "medians_of_nothing",
        "charts of few words have medians of nothing",
        "methods/santext/heldout.py",
        "np.array_split(words, min(_GROUPS, len(words)))",
        "np.array_split(words, _GROUPS)",
        f"{_PLAN}::test_charts_of_few_words_have_fewer_points_and_no_gap[3]",
    ),
    Mutation(
        "keep_that_no_draw_is_below",
        "a share of kept words that cannot be reached spends the whole budget",
        "methods/santext/mechanisms.py",
        "if keep is not None and keep <= 1 / outcomes:",
        "if keep is not None and keep <= 0:",
        f"{_PLAN}::test_a_share_of_kept_words_that_no_draw_is_below_is_refused[randomized_response]",
    ),
    Mutation(
        "file_without_version",
        "the book does not show which files were made before equal texts were kept",
        "release/files.py",
        "return VERSION + digest_file(path)",
        "return digest_file(path)",
        "tests/release/test_released_files.py::test_a_file_of_version_1_is_not_served_again",
    ),
)
