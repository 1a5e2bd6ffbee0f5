"""farfork for Python functions: hooks around a checkpoint, and the runtime.

`python -m farfork.runtime FUNCTION` serves a function; `farfork.client` calls it.
"""

from farfork.hooks import after_restore, before_checkpoint
from farfork.hot import hot_ranges, mark_hot
from farfork.seeds import prepare, reclaim, resume
from farfork.stages import Stages

__all__ = [
    "Stages",
    "__version__",
    "after_restore",
    "before_checkpoint",
    "hot_ranges",
    "mark_hot",
    "prepare",
    "reclaim",
    "resume",
]
__version__ = "0.1.0"
