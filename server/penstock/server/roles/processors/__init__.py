"""Processors: a raw item becomes samples.

* `identity.py`: items that are samples already.
* `tokenize.py`: text to token ids.
* `chat.py`: conversations to token ids, with `chat_template.py` (what a template writes),
  `turns.py` (the forms of conversations), `answer_finder.py` and `answer_tokens.py` (which tokens
  are the assistant's).
* `picture_conversation.py`: conversations with pictures, with `picture_turns.py` (where these are)
  and `parts_template.py`; what becomes of a picture is in `penstock.server.media.families`.
* `tokenizer_file.py`: what these share.
* `image.py`: pictures to pixels, with `picture_transform.py` (a user's pipeline of transforms).
* `sound.py`: sound to arrays of points.
* `function_processor.py`: a user's function.
"""

from penstock.server.roles.processor import RawItemProcessor
from penstock.server.roles.processors.chat import ChatProcessor
from penstock.server.roles.processors.function_processor import FunctionProcessor
from penstock.server.roles.processors.identity import IdentityProcessor
from penstock.server.roles.processors.image import ImageProcessor
from penstock.server.roles.processors.picture_conversation import ConversationProcessor
from penstock.server.roles.processors.sound import SoundProcessor
from penstock.server.roles.processors.tokenize import TokenizeProcessor

BUILTIN_PROCESSORS: dict[str, type[RawItemProcessor]] = {
    cls.type_name: cls
    for cls in (
        IdentityProcessor,
        TokenizeProcessor,
        ChatProcessor,
        ConversationProcessor,
        ImageProcessor,
        SoundProcessor,
    )
}
"""What `type:` of a processor may name; `function:` in its place makes a `FunctionProcessor`."""

__all__ = [
    "BUILTIN_PROCESSORS",
    "ChatProcessor",
    "ConversationProcessor",
    "FunctionProcessor",
    "IdentityProcessor",
    "ImageProcessor",
    "SoundProcessor",
    "TokenizeProcessor",
]
