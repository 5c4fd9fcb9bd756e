"""Processors: a raw item becomes samples.

* `identity.py`: items that are samples already.
* `tokenize.py`: text to token ids.
* `chat.py`: conversations to token ids, with `chat_template.py` (what a template writes),
  `turns.py` (the forms of conversations) and `answers.py` (which tokens are the assistant's).
* `tokenizer_file.py`: what the two share.
* `sound.py`: sound to arrays of points.
* `function.py`: a user's function.
"""

from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.processors.chat import ChatProcessor
from penstock.server.roles.processors.function_processor import FunctionProcessor
from penstock.server.roles.processors.identity import IdentityProcessor
from penstock.server.roles.processors.sound import SoundProcessor
from penstock.server.roles.processors.tokenize import TokenizeProcessor

BUILTIN_PROCESSORS: dict[str, type[RawItemProcessor]] = {
    cls.type_name: cls
    for cls in (IdentityProcessor, TokenizeProcessor, ChatProcessor, SoundProcessor)
}
"""What `type:` of a processor may name; `function:` in its place makes a `FunctionProcessor`."""

__all__ = [
    "BUILTIN_PROCESSORS",
    "ChatProcessor",
    "FunctionProcessor",
    "IdentityProcessor",
    "SoundProcessor",
    "TokenizeProcessor",
]
