"""Memory that is declared hot, so that its pages become local in clones that touch them.

Invariants:
- A declared buffer stays where it is: it is kept alive, and cannot be resized.
- Ranges are told as `farfork checkpoint --hot` and `farfork hot set` take them.
"""

import ctypes
from typing import Any


class _View(ctypes.Structure):
    """`Py_buffer`, which the interpreter fills; it holds the buffer until it is released."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_SIMPLE = 0  # PyBUF_SIMPLE: bytes in one piece, written or not
_views: list[_View] = []


def mark_hot(buffer: Any) -> None:
    """Declare the pages of a buffer hot: bytes, a memoryview, an array of numpy's, in one piece.

    Raises TypeError for what is no buffer, BufferError for one that is not in one piece.
    """
    view = _View()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), _SIMPLE)
    _views.append(view)


def hot_ranges() -> list[str]:
    """Return what has been declared, as START-END in hexadecimal, neighbours joined."""
    spans = sorted((view.buf, view.buf + view.len) for view in _views if view.len)
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return [f"{start:x}-{end:x}" for start, end in joined]
