"""WordPiece vocabularies (Schuster and Nakajima 2012), by the `tokenizers` package: greedy, longest piece first."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from suite.contract import UserError
from suite.tasks.bert.sample import LARGEST, Pieces

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ALPHABET = 1000  # characters in a trained vocabulary; a word with a rarer character becomes [UNK]
LONGEST = 200  # most characters of a word that is split into pieces (BERT's max_input_chars_per_word)


class WordPiece:
    """Splits text into the pieces of a vocabulary, as BERT uncased does: lower case, no accents, separate punctuation.

    Args:
        vocabulary: the pieces; a piece's number is its index. Pieces that continue a word begin with `##`.
        path: of the vocabulary, for messages.

    Attributes:
        unknown: the number of [UNK], which replaces words that the pieces cannot spell.

    Raises:
        UserError: if a special piece is missing, a piece is repeated, or there are more pieces than records can number.
    """

    def __init__(self, vocabulary: Sequence[str], path: str | Path = "vocabulary"):
        self.vocabulary = list(vocabulary)
        numbers = {piece: number for number, piece in enumerate(vocabulary)}
        if absent := [piece for piece in SPECIAL if piece not in numbers]:
            raise UserError(
                f"{path}: {absent[0]} is missing; the file must contain {' '.join(SPECIAL)}, one piece per line"
            )
        if len(numbers) < len(vocabulary):
            line = next(i for i, piece in enumerate(vocabulary) if numbers[piece] != i)
            repeated = numbers[vocabulary[line]]
            raise UserError(f"{path}, line {repeated + 1}: {vocabulary[line]!r} is in line {line + 1} already")
        if len(vocabulary) > LARGEST:
            raise UserError(f"{path}: {len(vocabulary):,} pieces; records can number at most {LARGEST:,}")
        pad, self.unknown, cls, sep, mask = (numbers[piece] for piece in SPECIAL)
        continues = np.array([piece.startswith("##") for piece in vocabulary])
        self.pieces = Pieces(len(vocabulary), pad, cls, sep, mask, continues)
        from tokenizers import models

        self._tokenizer = _tokenizer(models.WordPiece(numbers, unk_token="[UNK]", max_input_chars_per_word=LONGEST))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the pieces' numbers of each text, uint16, without special pieces."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, np.uint16) for encoding in encodings]

    def decode(self, numbers: Iterable[int]) -> str:
        """Return the pieces as text, in lower case with one space between words."""
        return " ".join(self.vocabulary[number] for number in numbers).replace(" ##", "")


def read_vocabulary(path: Path) -> WordPiece:
    """Read the vocabulary in a file, one piece a line."""
    # not `splitlines`: a piece may be a character such as U+2028, which is no end of a line here
    return WordPiece(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), path)


def learn_vocabulary(texts: Callable[[], Iterable[str]], size: int) -> WordPiece:
    """Learn a vocabulary from text that is read twice as a stream; only distinct characters and words are stored.

    Args:
        texts: returns the text in parts; called for each reading.
        size: of the vocabulary with special pieces; the result is smaller if the text has fewer pieces.
    """
    from tokenizers import models, trainers

    tokenizer = _tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]", max_input_chars_per_word=LONGEST))
    counts = Counter[str]()
    for text in texts():
        counts.update(tokenizer.normalizer.normalize_str(text))
    seen = sorted((character for character in counts if not character.isspace()), key=lambda c: (-counts[c], c))
    alphabet = sorted(seen[:ALPHABET])
    # the trainer would number `##x` in the order of a hash table, which differs between runs; ties go by number
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
