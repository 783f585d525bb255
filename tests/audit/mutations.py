"""The bugs that break a guarantee, each as one change of the real code, and the test that must notice it.

A mutation replaces a piece of one source file in a copy of the package. The test then runs on that copy, in whatever
processes it starts (two ranks under ZeRO, say), and must fail. The piece must occur exactly once, so that the table
cannot outlive the code it is about.
"""

from asking import ASKING
from correlated import CORRELATED
from falling import FALLING
from layer_scales import LAYER_SCALES
from matching import MATCHING
from meanings import MEANINGS
from micro_batches import MICRO_BATCHES
from mutation import Mutation
from pretraining import PRETRAINING
from public_inputs import PUBLIC_INPUTS
from published import PUBLISHED
from redacting import REDACTING
from repaired import REPAIRED
from sanitising import SANITISING
from shapes import SHAPES
from tagging import TAGGING
from trial_steps import TRIAL_STEPS
from two_stages import TWO_STAGES

_STEP_NOISE = "tests/statistical/test_step_noise.py"
_VOTES = "tests/statistical/test_vote_mechanism.py"
_GATE_NOISE = "tests/statistical/test_gate_noise.py"
_STEPS = "tests/release/test_steps.py"

MUTATIONS = (
    Mutation(
        "noise_without_C",
        "noise is not multiplied by the clipping norm C",
        "release/step_mechanism.py",
        "return self.multiplier(step) * self.sensitivity",
        "return self.multiplier(step)",
        f"{_STEPS}::test_noise_event_and_sensitivity_are_of_one_piece",
    ),
    Mutation(
        "noise_by_world_size",
        "noise is divided by the world size (two ranks, ZeRO 2)",
        "dpsgd/engines/noisy_optimizer.py",
        "part.add_(drawn.to(part), alpha=std)",
        "part.add_(drawn.to(part), alpha=std / collectives.world())",
        f"{_STEP_NOISE}::test_the_noise_has_the_declared_scale_and_is_that_of_one_rank[zero2-first]",
    ),
    Mutation(
        "noise_by_world_size_zero3",
        "under ZeRO 3 gradients are not brought back to sums, and the noise no longer fits them",
        "dpsgd/engines/zero.py",
        "scale=collectives.world() if stage == 3 else 1,",
        "scale=1,",
        "tests/dpsgd/test_engine_updates.py::test_two_ranks_agree_with_the_exact_sum[zero3-two]",
    ),
    Mutation(
        "same_noise_on_ranks",
        "ranks draw the same noise for different coordinates (two ranks, ZeRO 2)",
        "dpsgd/engines/noisy_optimizer.py",
        "fragment.start + first, len(part))",
        "first, len(part))",
        f"{_STEP_NOISE}::test_the_noise_has_the_declared_scale_and_is_that_of_one_rank[zero2-first]",
    ),
    Mutation(
        "same_noise_on_steps",
        "every step draws the same noise",
        "dpsgd/engines/noisy_optimizer.py",
        "self._stream.normal(self._step,",
        "self._stream.normal(0,",
        f"{_STEP_NOISE}::test_steps_parameters_and_neighbours_share_no_noise",
    ),
    Mutation(
        "std_of_the_first_step",
        "noise that changes by step has the standard deviation of step 0 throughout",
        "dpsgd/engines/noisy_optimizer.py",
        "std = self._noise.mechanism.noise_std(self._step)",
        "std = self._noise.mechanism.noise_std(0)",
        f"{_STEP_NOISE}::test_the_noise_of_a_step_has_the_scale_of_that_step[plain]",
    ),
    Mutation(
        "charge_of_the_first_chunk",
        "noise that changes by step is charged like that of the first chunk throughout",
        "release/steps.py",
        "steps, mechanism = self.steps(rung), self.mechanism",
        "steps, mechanism = self.steps(1), self.mechanism",
        f"{_STEPS}::test_a_chunk_is_charged_the_event_of_its_own_steps",
    ),
    Mutation(
        "same_noise_on_restart",
        "a restarted run of other inputs draws the noise of the one before",
        "release/steps.py",
        "return digest_json([self.opening, self.release_id, self.inputs])",
        "return digest_json([self.release_id])",
        f"{_STEPS}::test_streams_differ_between_books_releases_and_inputs",
    ),
    Mutation(
        "stage_left_out",
        "two trainings of one release share their charges, coins and noise",
        "release/charging.py",
        'return key.digest(f"{kind} of a stage", stage, *parts) if stage else key.digest(kind, *parts)',
        "return key.digest(kind, *parts)",
        "tests/release/test_stages.py::test_two_trainings_of_one_release_share_neither_coins_nor_noise",
    ),
    Mutation(
        "cached_noise",
        "the noise of one query is kept and used for all",
        "release/vote.py",
        "return np.stack([add(query, self.noise_scale_grid) for query in self.check(sums)])",
        "return self.check(sums) + add(np.zeros_like(sums[0]), self.noise_scale_grid)",
        f"{_GATE_NOISE}::test_no_noise_is_shared_between_draws_rows_or_columns",
    ),
    Mutation(
        "noise_with_a_seed",
        "the noise comes from a generator with a fixed seed",
        "release/noise.py",
        "return np.asarray(measurement(signal.tolist()), dtype=np.int64)\n\n\ndef add_discrete_laplace",
        "return signal + np.random.default_rng(0).normal(0, std, len(signal)).astype(np.int64)"
        "\n\n\ndef add_discrete_laplace",
        f"{_GATE_NOISE}::test_no_noise_is_shared_between_draws_rows_or_columns",
    ),
    Mutation(
        "key_with_a_seed",
        "a fresh key is the public key of the tests",
        "core/keys.py",
        "secret = os.urandom(KEY_BYTES)",
        "secret = TEST_SECRET",
        "tests/core/test_keys_and_seals.py::test_fresh_keys_differ",
    ),
    Mutation(
        "clip_after_mean",
        "the mean of the batch is clipped, not each user",
        "dpsgd/gradients.py",
        "coefficients = self._clipping.coefficients(squared)",
        "coefficients = self._clipping.coefficients(squared.mean(0, keepdim=True).expand_as(squared))",
        "tests/statistical/test_clipped_gradients.py::test_a_user_who_cancels_another_moves_the_sum_as_far",
    ),
    Mutation(
        "per_layer_to_C",
        "each parameter's part is clipped to C, so that the whole is longer",
        "dpsgd/clipping.py",
        "norm / math.sqrt(squared.shape[1])",
        "norm",
        "tests/dpsgd/test_clipping.py::test_no_gradient_is_left_longer_than_the_norm",
    ),
    Mutation(
        "tied_norm",
        "what a tied embedding and output head have in common is left out of the norm",
        "models/norms/parameter.py",
        "squared = squared + 2 * self.rows.inner(self.outer)",
        "pass",
        "tests/dpsgd/test_gradients.py::test_flat_clipping_is_the_definition",
    ),
    Mutation(
        "actual_batch",
        "the sum is divided by the number of users who took part",
        "dpsgd/engines/plain.py",
        "collectives.add_up(total)",
        "collectives.add_up(total); total.div_(max(1, len(batches)))",
        "tests/dpsgd/test_engine_updates.py::test_one_rank_in_plain_pytorch[gpt2]",
    ),
    Mutation(
        "shuffled_batches",
        "batches of a fixed size are accounted as Poisson samples",
        "dpsgd/sampler.py",
        "np.flatnonzero(open_to & (coins < self._threshold)).tolist()",
        "np.sort(np.argsort(coins)[: round(len(coins) * self._threshold / 2**64)]).tolist()",
        "tests/dpsgd/test_sampler.py::test_an_inserted_unit_moves_nobody_else",
    ),
    Mutation(
        "coins_of_versions",
        "another version of the texts tosses other coins",
        "dpsgd/sampler.py",
        'coins, turns = self._words("dpsgd-coins", step)',
        'coins, turns = self._words("dpsgd-coins", step + 1000 * self._version_of(step))',
        "tests/dpsgd/test_text_versions.py::test_coins_and_turns_do_not_depend_on_the_version",
    ),
    Mutation(
        "empty_batch_skipped",
        "a step without users adds no noise",
        "dpsgd/engines/plain.py",
        "with self._noisy.open(step, ",
        "if not batches:\n            return\n        with self._noisy.open(step, ",
        f"{_STEP_NOISE}::test_one_rank_adds_the_keyed_noise_of_each_step_and_parameter",
    ),
    Mutation(
        "empty_batch_skipped_zero3",
        "a step without users adds no noise (two ranks, ZeRO 3)",
        "dpsgd/engines/zero.py",
        "with self._noisy.open(step, ",
        "if not collectives.largest(len(batches), self._device):\n            return\n"
        "        with self._noisy.open(step, ",
        f"{_STEP_NOISE}::test_three_steps_without_users_are_three_noises[zero3]",
    ),
    Mutation(
        "nan_gradient",
        "a gradient that is not finite enters the sum",
        "dpsgd/clipping.py",
        "return found.where(whole.isfinite(), 0)",
        "return found",
        "tests/dpsgd/test_clipping.py::test_a_unit_that_is_not_finite_in_one_parameter_is_out_of_all",
    ),
    Mutation(
        "nan_vote",
        "a vote that is not finite enters the sum",
        "release/ballots.py",
        "valid = _valid(votes)",
        "valid = _valid(votes) | True",
        f"{_VOTES}::test_a_failing_teacher_votes_a_constant",
    ),
    Mutation(
        "replace_or_add",
        "votes that can be exchanged are given the noise of votes that are added: sqrt(2) too little",
        "release/ballots.py",
        "apart = math.sqrt(2) if self.clip is None else min(2 * self.clip, math.sqrt(2))",
        "apart = 1 if self.clip is None else min(self.clip, 1)",
        f"{_VOTES}::test_one_changed_teacher_moves_the_sum_by_at_most_the_sensitivity",
    ),
    Mutation(
        "laplace_by_l2",
        "Laplace noise is scaled to the L2 sensitivity",
        "release/vote.py",
        'ballots.l1_difference if self.noise == "laplace" else ballots.l2_difference',
        "ballots.l2_difference",
        "tests/statistical/test_laplace_votes.py::test_one_changed_teacher_moves_the_sum_by_at_most_the_sensitivity",
    ),
    Mutation(
        "many_records",
        "each record of a user is a unit with a coin and a gradient of its own",
        "dpsgd/units.py",
        "if reading.unit is PrivacyUnit.RECORD:",
        "if True:",
        "tests/dpsgd/test_private_units.py::test_all_records_of_a_user_are_one_unit",
    ),
    Mutation(
        "loud_users",
        "a user with many records weighs more in the label histogram",
        "release/histogram.py",
        "(whole * SCALE // records)",
        "(whole * SCALE // np.minimum(records, 1))",
        "tests/statistical/test_label_histogram.py::test_a_unit_weighs_the_same_however_much_it_wrote",
    ),
    Mutation(
        "user_in_two_shards",
        "the records of one user are spread over shards",
        "corpus/layout.py",
        "own = shards[encoded.indices.to_numpy()]",
        "own = (shards[encoded.indices.to_numpy()] + np.arange(len(table)) % 2) % layout.shards",
        "tests/corpus/test_layout.py::test_one_user_one_shard_within_the_bound",
    ),
    Mutation(
        "two_names_of_one_user",
        "one user has two names, and sits in two shards",
        "corpus/users.py",
        'unicodedata.normalize("NFC", value).strip()',
        "value",
        "tests/corpus/test_users.py::test_canonical_users",
    ),
    Mutation(
        "duplicate_teacher",
        "a teacher's vote is counted twice",
        "teachers/votes.py",
        "if overlap or len(set(partial.teachers)) != len(partial.teachers):",
        "if False:",
        "tests/teachers/test_votes.py::test_a_teacher_is_never_counted_twice",
    ),
    Mutation(
        "block_of_a_piece",
        "how teachers are dealt out decides the last bits of their votes",
        "teachers/pieces.py",
        "_cut(range(teachers.count), blocks * VOTERS)",
        "_cut(range(teachers.count), size or VOTERS - 1)",
        "tests/teachers/test_group.py::test_votes_come_from_the_files_and_do_not_depend_on_grouping",
    ),
    Mutation(
        "stale_teacher",
        "teachers of an earlier corpus vote",
        "teachers/workspace.py",
        "place.source == source",
        "True",
        "tests/teachers/test_workspace.py::test_another_recipe_or_another_shard_is_not_finished",
    ),
    Mutation(
        "missing_teacher",
        "votes are released although some are missing or doubled",
        "release/gate.py",
        "manifest.check(mechanism.teachers)",
        "pass",
        "tests/release/test_gate.py::test_votes_missing_or_doubled_are_refused_before_any_charge",
    ),
    Mutation(
        "drawn_twice",
        "a release that is asked for again draws again",
        "release/gate.py",
        "if started.state is not ChargeState.COMMITTED:",
        "if True:",
        "tests/release/test_gate.py::test_asking_again_is_served_from_the_ledger",
    ),
    Mutation(
        "data_dependent_shards",
        "the number of shards follows the number of users",
        "corpus/layout.py",
        "layout.shard_of(key, user) for user",
        "layout.shard_of(key, user) % (len(encoded.dictionary) + 1) for user",
        "tests/corpus/test_layout.py::test_a_user_who_joins_moves_nobody_and_changes_no_choice",
    ),
    Mutation(
        "private_metric",
        "the tuner may look at held-out private text",
        "tuning/metric.py",
        "if name not in MODES:",
        "if False:",
        "tests/tuning/test_space.py::test_a_wrong_space_is_one_sentence[blocks0-it reads private text]",
    ),
    Mutation(
        "private_error",
        "an error quotes the private row that it failed on",
        "core/sealing.py",
        'return self.kind(f"{step} stopped with {name} (its text is withheld, it may be private): {self.remedy}.")',
        'return self.kind(f"{step} stopped with {name} ({error}): {self.remedy}.")',
        "tests/corpus/test_files.py::test_sealed_says_the_type_and_nothing_else",
    ),
    Mutation(
        "uncharged_chunk",
        "a model is released although some of its steps were not charged",
        "release/steps.py",
        "if missing:",
        "if False:",
        f"{_STEPS}::test_a_chunk_is_charged_before_it_runs_and_stopping_early_charges_no_more",
    ),
    Mutation(
        "reset_on_resume",
        "an account forgets what was committed",
        "ledger/balances.py",
        "return total((self.reserved, self.started, self.committed), len(self.reserved))",
        "return total((self.reserved, self.started), len(self.reserved))",
        "tests/ledger/test_rungs_and_groups.py::test_a_rung_that_no_longer_fits_leaves_the_ones_before[sqlite]",
    ),
    Mutation(
        "steps_clamped",
        "the accountant counts fewer steps than run",
        "release/step_mechanism.py",
        "shared // self.bands)",
        "min(shared // self.bands, 3))",
        f"{_STEPS}::test_a_training_charges_its_steps_in_chunks",
    ),
    Mutation(
        "nan_swallowed",
        "the accountant takes a noise multiplier of NaN",
        "accounting/fields.py",
        "if not _is_number(value) or not above < value <= most:",
        "if not _is_number(value) or value <= above or value > most:",
        "tests/accounting/test_events.py::test_no_mechanism_has_such_an_event",
    ),
    Mutation(
        "overspending",
        "a charge above the cap is admitted",
        "ledger/filters/gdp.py",
        "return used[0] <= self.limit",
        "return used[0] <= 2 * self.limit",
        "tests/ledger/test_admission.py::test_the_cap_is_reached_and_not_passed",
    ),
    Mutation(
        "order_of_sums",
        "votes are summed as floats, whose sum depends on the order",
        "teachers/votes.py",
        "np.zeros((queries, candidates), dtype=np.int64)",
        "np.zeros((queries, candidates), dtype=np.float32)",
        "tests/teachers/test_votes.py::test_any_order_gives_the_same_sums_and_manifest",
    ),
    *REPAIRED,
    *SANITISING,
    *MATCHING,
    *CORRELATED,
    *FALLING,
    *LAYER_SCALES,
    *MICRO_BATCHES,
    *TRIAL_STEPS,
    *SHAPES,
    *ASKING,
    *MEANINGS,
    *PUBLIC_INPUTS,
    *PUBLISHED,
    *PRETRAINING,
    *TWO_STAGES,
    *REDACTING,
    *TAGGING,
)
