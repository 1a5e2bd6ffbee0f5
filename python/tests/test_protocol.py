"""Messages survive any split of the stream; invalid messages are refused."""

import random

import pytest

from farfork import protocol
from farfork.protocol import LineBuffer, ProtocolError, decode, encode


def test_a_message_comes_back_as_it_was() -> None:
    message = {"id": None, "args": {"text": "zeile\n\u2028", "n": [1, 2.5, True, None]}}
    assert decode(encode(message)[:-1]) == message
    assert encode(message).count(b"\n") == 1


@pytest.mark.parametrize("seed", range(20))
def test_lines_survive_any_cut(seed: int) -> None:
    rng = random.Random(seed)
    lines = [b"x" * rng.randrange(5) for _ in range(50)]
    stream = b"".join(line + b"\n" for line in lines) + b"unfinished"
    buffer, got = LineBuffer(), []
    while stream:
        size = rng.randrange(1, 12)
        got += buffer.feed(stream[:size])
        stream = stream[size:]
    assert got == lines


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_LINE_BYTES", 10)
    buffer = LineBuffer()
    assert buffer.feed(b"x" * 10) == []
    with pytest.raises(ProtocolError, match="longer than 10 bytes"):
        buffer.feed(b"x")


@pytest.mark.parametrize("line", [b"", b"nonsense", b"[1]", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_an_invalid_message_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="send one JSON object"):
        decode(line)


def test_nan_is_not_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"result": float("nan")})
