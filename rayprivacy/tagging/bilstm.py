"""A bi-LSTM for intents and slots, on public word vectors and a CNN over letters: the CLC model of the eDP-SGD paper.

    word -> GloVe vector (public, not trained), and the maxima of a convolution over its first letters
    words of a text -> two layers of LSTM in both directions, 384 wide -> one matrix of both heads

Dupuy et al. (ICASSP 2022) take FastText vectors in place of GloVe, and do not give the sizes of the CNN; ours are those
of Ma and Hovy (ACL 2016). An LSTM has no rule for per-example gradients (`models.norms`), so the model is trained by
micro-batches alone. It computes in float32 always. Its tokens are words and bytes in one line (`WordTokenizer`);
outputs stand at all places of a word.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import TokenClassifierOutput

from rayprivacy.models.sources import GLOVE_WIDTH
from rayprivacy.tagging.crf import Crf

BYTES, START, END, UNKNOWN, FIRST_WORD = 256, 256, 257, 258, 259
MOST_BYTES = 16  # of a word that are read
MODEL_TYPE = "rayprivacy_bilstm"
HIDDEN, LAYERS = 384, 2
LETTER_WIDTH, FILTERS, WINDOW = 30, 30, 3
_FILE = "words.txt"


class WordTokenizer:
    """Numbers of words and of their first bytes; called as fast tokenizers of Hugging Face are, for one text.

        "play zydeco"  ->  play, b'p', b'l', b'a', b'y', <unknown>, b'z', b'y', b'd', b'e', b'c', b'o'

    Bytes are 0 to 255 and words the numbers behind. The public list of words is in lower case, and so is a word looked
    up; whether a word is on the list depends on that word alone.
    """

    special_tokens_map: Mapping[str, str] = {}  # it has none

    def __init__(self, words: Sequence[str]) -> None:
        self.words = tuple(words)

    def __len__(self) -> int:
        return FIRST_WORD + len(self.words)

    def __call__(self, text: str, **_: Any) -> dict[str, list[Any]]:
        """`input_ids`, and in `offset_mapping` the place of each in the text, whose words are single blanks apart."""
        ids, places, begin = [], [], 0
        for word in text.split():
            letters = word.encode(errors="replace")[:MOST_BYTES]
            ids += [self._numbers.get(word.lower(), UNKNOWN), *letters]
            places += [(begin, begin + len(word))] * (1 + len(letters))
            begin += len(word) + 1
        return {"input_ids": ids, "offset_mapping": places}

    def get_vocab(self) -> dict[str, int]:
        """Words by number."""
        return self._numbers

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, FIRST_WORD)}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the list, a word on each line."""
        (Path(folder) / _FILE).write_text("\n".join(self.words), encoding="utf-8")

    @staticmethod
    def from_pretrained(folder: str | Path) -> "WordTokenizer":
        """Read the list that was saved."""
        return WordTokenizer((Path(folder) / _FILE).read_text(encoding="utf-8").split("\n"))


class BiLstmConfig(PretrainedConfig):
    """What is saved of its shape; vocabulary and positions count words and bytes."""

    model_type = MODEL_TYPE

    def __init__(self, vocab_size: int = FIRST_WORD, **more: Any) -> None:
        super().__init__(**more)
        self.vocab_size, self.max_position_embeddings, self.num_hidden_layers = vocab_size, 4096, LAYERS


class BiLstmForTokenClassification(PreTrainedModel):
    """The model; `forward` is called as those of transformers are."""

    config_class = BiLstmConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size - BYTES, GLOVE_WIDTH)
        self.letters = nn.Embedding(BYTES + 1, LETTER_WIDTH, padding_idx=BYTES)
        self.convolution = nn.Conv1d(LETTER_WIDTH, FILTERS, WINDOW, padding=WINDOW // 2)
        self.lstm = nn.LSTM(GLOVE_WIDTH + FILTERS, HIDDEN, LAYERS, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(2 * HIDDEN, config.num_labels)
        if config.tagger["crf"]:
            self.crf = Crf(config.tagger["words"])
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Torch's own first weights stay."""

    def get_input_embeddings(self) -> nn.Module:
        """The word vectors."""
        return self.words

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> TokenClassifierOutput:
        """Outputs of the heads at every place, float32 [rows, width, labels]; at a byte they are those of its word.

        `input_ids` are int64 [rows, width]: words, each with its bytes behind it; a row begins with a word.
        """
        is_word = (input_ids >= BYTES) & attention_mask
        number = is_word.cumsum(1) - 1  # of the word that a place belongs to
        words, letters = _taken_apart(input_ids, is_word, number, attention_mask)
        with torch.autocast(input_ids.device.type, enabled=False):
            convolved = self.convolution(self.letters(letters).flatten(0, 1).transpose(1, 2))
            spelt = convolved.amax(2).relu().unflatten(0, words.shape)
            read = torch.cat([self.words(words), spelt], 2)
            line = pack_padded_sequence(read, is_word.sum(1).cpu(), batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(self.lstm(line)[0], batch_first=True)
            outputs = self.classifier(states)
        return TokenClassifierOutput(logits=outputs.gather(1, number[..., None].expand(-1, -1, outputs.shape[2])))


def _taken_apart(ids: Tensor, is_word: Tensor, number: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Words [rows, words], from 0, and their letters [rows, words, MOST_BYTES], from one line of both."""
    rows, most = len(ids), int(number.max()) + 1
    words = ids.new_zeros(rows, most)
    row, place = torch.nonzero(is_word, as_tuple=True)
    words[row, number[row, place]] = ids[row, place] - BYTES
    letters = ids.new_full((rows, most, MOST_BYTES), BYTES)
    begins = ids.new_zeros(rows, most)
    begins[row, number[row, place]] = place
    row, place = torch.nonzero((ids < BYTES) & real, as_tuple=True)
    own = number[row, place]
    letters[row, own, place - begins[row, own] - 1] = ids[row, place]
    return words, letters
