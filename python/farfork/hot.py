"""Memory declared hot: its pages become local in clones that touch them.

Invariants:
- A declared buffer stays where it is: it is kept alive, and cannot be resized.
- Ranges have the format of `farfork checkpoint --hot` and `farfork hot set`.
"""

import ctypes
from typing import Any


class _View(ctypes.Structure):
    """`Py_buffer`, filled by the interpreter; keeps the buffer alive until it is released."""

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


_SIMPLE = 0  # PyBUF_SIMPLE: contiguous bytes, read-only or not
_views: list[_View] = []


def mark_hot(buffer: Any) -> None:
    """Declare the pages of a contiguous buffer hot: bytes, a memoryview, a NumPy array.

    Raises TypeError if it is not a buffer, BufferError if it is not contiguous.
    """
    view = _View()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), _SIMPLE)
    _views.append(view)


def hot_ranges() -> list[str]:
    """Return the declared ranges as START-END in hexadecimal, adjacent ones joined."""
    spans = sorted((view.buf, view.buf + view.len) for view in _views if view.len)
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return [f"{start:x}-{end:x}" for start, end in joined]
