"""WordPiece vocabularies (Schuster and Nakajima 2012), by the `tokenizers` package: greedy, longest piece first."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import UserError
from suite.tasks.bert.sample import LARGEST, Pieces

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 1000  # characters that a trained vocabulary knows by themselves; rarer ones make a word [UNK]
LONGEST = 200  # characters of a word that is cut into pieces at all (BERT's max_input_chars_per_word)


class WordPiece:
    """A vocabulary and what it makes of text: lower case, accents stripped, punctuation apart, as in BERT uncased.

    Args:
        vocabulary: the pieces; a piece's number is its place. Those that continue a word begin with `##`.
        path: where it was read from, for messages.

    Raises:
        UserError: a special piece is missing, a piece stands there twice, or there are more than a record can number.
    """

    def __init__(self, vocabulary: Sequence[str], path: str | Path = "vocabulary"):
        self.vocabulary = list(vocabulary)
        numbers = {piece: number for number, piece in enumerate(vocabulary)}
        if absent := [piece for piece in SPECIAL if piece not in numbers]:
            raise UserError(f"{path}: {absent[0]} is missing; it must hold {' '.join(SPECIAL)}, a piece a line")
        if len(numbers) < len(vocabulary):
            line = next(i for i, piece in enumerate(vocabulary) if numbers[piece] != i)
            again = numbers[vocabulary[line]]
            raise UserError(f"{path}, line {again + 1}: {vocabulary[line]!r} stands in line {line + 1} already")
        if len(vocabulary) > LARGEST:
            raise UserError(f"{path}: {len(vocabulary):,} pieces; a record numbers at most {LARGEST:,}")
        pad, _, cls, sep, mask = (numbers[piece] for piece in SPECIAL)
        continues = np.array([piece.startswith("##") for piece in vocabulary])
        self.pieces = Pieces(len(vocabulary), pad, cls, sep, mask, continues)
        from tokenizers import models

        self._tokenizer = _tokenizer(models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=LONGEST))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The pieces' numbers of each text, uint16, without special pieces."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.uint16) for one in found]

    def decode(self, numbers: Iterable[int]) -> str:
        """The pieces as text; words are lower case and a space apart."""
        return " ".join(self.vocabulary[number] for number in numbers).replace(" ##", "")


def read(path: Path) -> WordPiece:
    """The vocabulary in a file, one piece a line."""
    return WordPiece(path.read_text(encoding="utf-8").splitlines(), path)


def train(texts: Callable[[], Iterable[str]], size: int) -> WordPiece:
    """A vocabulary for a text that is read as a stream, twice: only distinct characters and words are held.

    Args:
        texts: called for each reading; pieces of text in any cut.
        size: of the vocabulary, special pieces included; less where the text has no more to offer.
    """
    from tokenizers import models, trainers

    tokenizer = _tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]", max_input_chars_per_word=LONGEST))
    counts = Counter[str]()
    for text in texts():
        counts.update(tokenizer.normalizer.normalize_str(text))
    seen = sorted((character for character in counts if not character.isspace()), key=lambda c: (-counts[c], c))
    alphabet = sorted(seen[:ALPHABET])
    # the trainer numbers `##x` in the order of a hash table, which differs from run to run, and ties go by number
    first = [*SPECIAL, *(f"##{character}" for character in alphabet)]
    options = {"special_tokens": first, "initial_alphabet": alphabet, "limit_alphabet": len(alphabet)}
    trainer = trainers.WordPieceTrainer(vocab_size=size, show_progress=False, **options)
    tokenizer.train_from_iterator(texts(), trainer)
    return WordPiece(sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__))


def _tokenizer(model: Any) -> Any:
    from tokenizers import Tokenizer, normalizers, pre_tokenizers

    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
