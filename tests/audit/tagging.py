"""Bugs in the loss of taggers: what one user's requests have to do with those of others."""

from mutation import Mutation

_LOSS = "tests/dpsgd/test_tagger_loss.py"
_COUPLED = f"{_LOSS}::test_one_more_user_changes_no_bit_of_the_others_and_moves_the_sum_by_c"

TAGGING = (
    Mutation(
        "mask_left_out",
        "the attention mask of a batch in which no row is padded is left out, so that its kernels are other ones",
        "dpsgd/tagger_loss.py",
        "attention_mask=mask,",
        "attention_mask=None if read.real.all() else mask,",
        f"{_LOSS}::test_a_batch_without_padding_has_a_mask_like_any_other",
    ),
    Mutation(
        "words_of_the_batch",
        "a row's loss is divided by the words of the whole batch, where it should be by its own",
        "dpsgd/tagger_loss.py",
        "words.lengths.clamp(min=1)",
        "words.lengths.sum().clamp(min=1)",
        f"{_COUPLED}[bert]",
    ),
    Mutation(
        "tokens_of_others",
        "the tokens of other users' rows enter the mean that a user's intent is read from",
        "dpsgd/tagger_loss.py",
        "return (logits * real).sum(1) / real.sum(1)",
        "return (logits * real).sum(1).mean(0, keepdim=True).expand(len(logits), -1) / real.sum(1)",
        f"{_COUPLED}[bert]",
    ),
    Mutation(
        "partition_of_the_batch",
        "the partition function of the CRF sums over the rows of all users",
        "models/crf.py",
        "torch.where(lengths > 0, alpha.logsumexp(1), 0)",
        "torch.where(lengths > 0, alpha.logsumexp((0, 1)), 0)",
        f"{_COUPLED}[bert-crf-bfloat16]",
    ),
    Mutation(
        "one_table_of_transitions",
        "the transitions of the CRF are looked up once for all rows, so that no row's gradient is known by itself",
        "models/crf.py",
        "self.transitions(every.expand(rows, -1).contiguous())).float()",
        "self.transitions(every[None])).float().expand(rows, -1, -1)",
        f"{_COUPLED}[bert-crf-bfloat16]",
    ),
    Mutation(
        "words_behind_the_last",
        "the CRF goes on past a row's last word, up to the length of the batch",
        "models/crf.py",
        "further, alpha)",
        "further, further)",
        "tests/models/test_crf.py::test_it_is_the_definition_summed_over_all_sequences",
    ),
)
