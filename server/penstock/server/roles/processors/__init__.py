"""Processors: a raw item becomes samples.

* `identity.py`: items that are samples already.
* `tokenize.py`: text to token ids.
* `chat.py`: conversations to token ids, with `chat_template.py` (what a template writes),
  `turns.py` (the forms of conversations), `answer_finder.py` and `answer_tokens.py` (which tokens
  are the assistant's).
* `picture_conversation.py`: conversations with pictures and videos, with `shown_parts.py`,
  `picture_turns.py` and `conversation_columns.py` (where these are), `parts_template.py`,
  `conversation_tokens.py` and `conversation_layout.py` (which tokens there are, and which are of
  what is shown), `shown_media.py` (sizes), `said_frames.py` (which frames of a video are shown),
  `shown_pixels.py` and `conversation_samples.py`; what becomes of a picture or a video is in
  `penstock.server.media.families`.
* `tokenizer_file.py`: what these share.
* `image.py`: pictures to pixels, with `picture_transform.py` (a user's pipeline of transforms) and
  `picture_sides.py` (how sizes are given).
* `frames_processor.py`: what processors share that decode videos; `frame_resizing.py`: the size of
  what they give.
* `robot.py`: frames of robots' episodes to pixels of each camera.
* `sound.py`: sound to arrays of points.
* `video.py`: frames of videos to pixels.
* `function_processor.py`: a user's function.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.server.roles.processor import RawItemProcessor
from penstock.wire.lazy_names import lazy_names

_PLACES = {
    "ChatProcessor": "chat",
    "ConversationProcessor": "picture_conversation",
    "FunctionProcessor": "function_processor",
    "IdentityProcessor": "identity",
    "ImageProcessor": "image",
    "RobotProcessor": "robot",
    "SoundProcessor": "sound",
    "TokenizeProcessor": "tokenize",
    "VideoProcessor": "video",
}

if TYPE_CHECKING:
    from penstock.server.roles.processors.chat import ChatProcessor
    from penstock.server.roles.processors.function_processor import FunctionProcessor
    from penstock.server.roles.processors.identity import IdentityProcessor
    from penstock.server.roles.processors.image import ImageProcessor
    from penstock.server.roles.processors.picture_conversation import ConversationProcessor
    from penstock.server.roles.processors.robot import RobotProcessor
    from penstock.server.roles.processors.sound import SoundProcessor
    from penstock.server.roles.processors.tokenize import TokenizeProcessor
    from penstock.server.roles.processors.video import VideoProcessor
else:  # decoders of pictures and sounds are not loaded for jobs of text
    __getattr__ = lazy_names(__name__, _PLACES)


class _Builtins(Mapping[str, type[RawItemProcessor]]):
    """Those that penstock brings, each imported when it is asked for."""

    _names: Mapping[str, str] = {
        "identity": "IdentityProcessor",
        "tokenize": "TokenizeProcessor",
        "chat": "ChatProcessor",
        "conversation": "ConversationProcessor",
        "image": "ImageProcessor",
        "sound": "SoundProcessor",
        "robot": "RobotProcessor",
        "video": "VideoProcessor",
    }

    def __getitem__(self, name: str) -> type[RawItemProcessor]:
        found: type[RawItemProcessor] = getattr(sys.modules[__name__], self._names[name])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


BUILTIN_PROCESSORS: Mapping[str, type[RawItemProcessor]] = _Builtins()
"""What `type:` of a processor may name; `function:` in its place makes a `FunctionProcessor`."""

__all__ = [
    "BUILTIN_PROCESSORS",
    "ChatProcessor",
    "ConversationProcessor",
    "FunctionProcessor",
    "IdentityProcessor",
    "ImageProcessor",
    "RobotProcessor",
    "SoundProcessor",
    "TokenizeProcessor",
    "VideoProcessor",
]
