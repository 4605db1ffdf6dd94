"""Hypothesis strategies for damaged files and garbage lines."""

from collections.abc import Callable

from hypothesis import strategies as st

NASTY = [
    b"\0", b"\xff", b"\xed\xa0\x80", b"\xc3", b"\r", b"\n", b"\r\n", b"\t", b'"', b"'", b",", b";",
    b":", b"\\", b"{", b"}", b"[", b"]", b"&a ", b"*a", b"!!str ", b"? ", b"- ", b"#", b"~", b"|",
    b"\xe2\x80\xa8", b"\xc2\x85", b"\xef\xbb\xbf", b"\xff\xfe", b"\x1f\x8b", b"\x1b[31m", b"1e999",
    b"-1", b"0", b"nan", b"null", b"9" * 20, "\u200d👩🏽\u0338".encode(), b"%s", b"..",
]  # fmt: skip
nasty_bytes = st.sampled_from(NASTY) | st.binary(max_size=8)
# The offset is a fraction of the length, so that every part of a file is equally likely.
edits = st.tuples(
    st.sampled_from(["flip", "insert", "delete", "truncate", "repeat", "replace"]),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 64),
    nasty_bytes,
)


def apply_edit(content: bytes, edit: tuple[str, float, int, bytes]) -> bytes:
    """Apply one edit to content."""
    kind, fraction, size, piece = edit
    offset = int(fraction * len(content))
    end = offset + size
    before, part, after = content[:offset], content[offset:end], content[end:]
    if kind == "flip":
        part = bytes([part[0] ^ (1 << size % 8)]) + part[1:] if part else b"\1"
    return {
        "flip": before + part + after,
        "insert": before + piece + part + after,
        "delete": before + after,
        "truncate": before,
        "repeat": before + part * 2 + after,
        "replace": before + piece + after,
    }[kind]


def damaged(content: bytes, max_edits: int = 4) -> st.SearchStrategy[bytes]:
    """Draw content to which 1 to `max_edits` edits have been applied."""

    def apply(drawn: list[tuple[str, float, int, bytes]]) -> bytes:
        result = content
        for edit in drawn:
            result = apply_edit(result, edit)
        return result

    return st.lists(edits, min_size=1, max_size=max_edits).map(apply)


garbage_lines = st.one_of(
    st.binary(max_size=30),
    st.lists(st.sampled_from(NASTY), max_size=6).map(b"".join),
    st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [
            b"",
            b" ",
            b"\t",
            b"only one side\t",
            b"\tother side",
            b"one\ttwo\tthree",
            b"source\ttarget",
        ]
    ),
).map(lambda line: line.replace(b"\n", b""))


def result_or_error(call: Callable[[], object], *errors: type[Exception]):
    """Return the result of a call, or the error of a given type that it raises."""
    try:
        return call()
    except errors as error:
        return error
