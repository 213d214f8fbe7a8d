"""The beginning of a long message is masked as the whole of it would be, whatever follows."""

from __future__ import annotations

import random
import time

from sagas.text.masked_texts import mask_beginning, mask_texts
from sagas.text.printable import MASK

LENGTHS = (1, 3, 8, 39, 40, 60, 700)


def test_it_is_the_beginning_of_the_masked_message() -> None:
    chance = random.Random(7)
    for _ in range(300):
        texts = ["".join(chance.choices("ab ü'", k=chance.choice(LENGTHS))) for _ in range(4)]
        pieces = [*texts, "a", "b", " ", "word ", "-" * 300]
        message = " ".join(chance.choices(pieces, k=chance.randrange(1, 30)))
        most = chance.choice((0, 1, 50, 400, 3_000))
        whole, beginning = mask_texts(message, texts), mask_beginning(message, texts, most)
        assert whole.startswith(beginning)
        assert len(beginning) <= most
        if len(message) <= most:
            assert beginning == whole


def test_no_half_of_a_text_stays_at_the_end() -> None:
    for length in (12, 30, 60, 5_000):
        secret = "s" + "x" * (length - 1)
        for before in range(95, 101):
            masked = mask_beginning("-" * (before - 1) + " " + secret + " " + "-" * 9_000, [secret], 100)
            assert "x" not in masked
    assert mask_beginning("x" * 5_000 + " rest", ["x" * 5_000], 100) == MASK


def test_the_work_does_not_grow_with_the_message() -> None:
    texts = [f"{n:06d}" for n in range(40_000)]
    message = "031999 " * 260_000
    mask_beginning(message, texts, 8_000)  # the searches are made once
    begins = time.process_time()
    masked = mask_beginning(message, texts, 8_000)
    assert time.process_time() - begins < 0.1
    assert masked.startswith(f"{MASK} {MASK} ")
