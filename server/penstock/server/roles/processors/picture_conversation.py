"""Conversations with pictures and videos to token ids and patches, as models take them."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

from penstock.server.core.refs import ItemRef
from penstock.server.media.families.family import Family, Pixels, identity_of
from penstock.server.media.families.processor_folder import FAMILIES, load_family
from penstock.server.media.medium import Medium
from penstock.server.media.picture import DECODERS, MAX_BYTES, MAX_PIXELS, Decoding
from penstock.server.media.resize import load_kernel
from penstock.server.media.video.clip_frames import BEYOND, ClipWish
from penstock.server.media.video.frame_counts import FrameCounts
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_indexes import VideoIndexes
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.parameters import (
    PATH,
    AtLeast,
    FilePath,
    NumberUpTo,
    OfType,
    OneOf,
    TrueOrFalse,
    declared,
)
from penstock.server.roles.processors.answer_finder import UNMATCHED, AnswerFinder
from penstock.server.roles.processors.conversation_columns import ConversationColumns
from penstock.server.roles.processors.conversation_layout import LaidConversation
from penstock.server.roles.processors.conversation_samples import ConversationSamples
from penstock.server.roles.processors.conversation_tokens import ConversationTokens, TokenRules
from penstock.server.roles.processors.frames_processor import (
    ERROR,
    ON_BROKEN_TAIL,
    FramesProcessor,
)
from penstock.server.roles.processors.parts_template import PartsTemplate
from penstock.server.roles.processors.picture_turns import PictureTurns, PlacedPictures
from penstock.server.roles.processors.said_frames import first_said
from penstock.server.roles.processors.shown_media import MediaShown, each_part
from penstock.server.roles.processors.shown_parts import Clip, Picture, references_of
from penstock.server.roles.processors.shown_pixels import ShownPixels
from penstock.server.roles.samples import RawItem, Sample, SampleSizes
from penstock.wire.errors import InvalidJob

WHITE = (255, 255, 255)
"""What transparent pictures lie on: transformers' processors have no other."""

_MEASURED = "measured"
"""In samples that are made for their lengths alone: what the whole one would count."""


@declared
class ConversationProcessor(FramesProcessor):
    """Turn a conversation with pictures or videos into token ids and patches, for one family.

    Gives, for a conversation of t tokens and n pictures:

    * `input_ids`: int32 (t,), by the chat template; a picture is as many tokens as its size asks.
    * `labels`: int32 (t,), the ids of the answers and of the token that ends each; else -100, and
      on every token of a picture.
    * `token_mask`: bool (t,), True where there is a label.
    * `pad_token_id`: int.
    * `position_ids`: int32 (3, t), time, row and column, of Qwen's families.
    * `attention_mask`: bool (t,), False on the tokens of a fake picture; with `fake_image` alone.
    * `pixel_values`: the pictures, one after another: `patches` of the dtype that this says. Of
      Qwen's families (p, channels * times * side * side), of kimi (p, channels, side, side),
      with p patches; of llava and default (n, channels, height, width).
    * `image_grid_thw`: int64 (n, 3), patches in time, rows and columns; not of llava and default.
    * `pixel_norm`: float32, what normalizes `patches: uint8`: (level - first) / second; (2, values)
      of Qwen's families, else (2, 3, 1, 1).

    And where it shows m videos, of Qwen's families:

    * `pixel_values_videos`: as `pixel_values`, of the videos, frame pair after frame pair.
    * `video_grid_thw`: int64 (m, 3), patches in time, rows and columns.
    * `second_per_grid_ts`: float32 (m,), of qwen2_5_vl: the seconds from one time to the next.

    Conversations are lists of `{"role": ..., "content": ...}`, with text or lists of parts, or of
    `{"from": ..., "value": ...}`. A picture's place is `<image>` in a user's text, in any case, or
    a part of type `image` or `image_url`; the item's pictures take these places in order, unless
    the part names its own. Texts beside `<image>` are stripped. What else a part says is kept for
    the template.

    Videos are placed the same way: by `<video>`, a part of type `video` or `video_url`, and the
    column of videos. A video is a file, which the extra `video` decodes, or a list of pictures, its
    frames. It may say which frames are shown: `frame_indices`, `nframes`, or `fps` with
    `min_frames` and `max_frames`; a list says with `fps` how many were taken in a second. The last
    frame fills the last temporal patch. Sizes follow from the file's index, without decoding.

    Filtered are items without a conversation (`null`), without an answer (`no answer`), and longer
    ones (`overlong`), each under its reason.

    Args:
        tokenizer: The folder of the model's processor, as `save_pretrained` of transformers writes
            it: tokenizer, chat template, and settings of pictures. Nothing is downloaded. The
            content of its files is part of the job's identity, its path is not.
        family: How pictures are taken: `qwen2_vl`, `qwen2_5_vl`, `qwen3_vl`, `llava`, `kimi`, or
            `default`, where all pictures have one shape and `image_seq_length` tokens. None =
            by the processor's class, which the folder names.
        settings: Values over those of the folder, such as `{max_pixels: 401408}`. Fewer pixels are
            fewer tokens and patches, and smaller print that cannot be read.
        column: The column that holds the conversation. None = `messages`, else `conversations`.
        image_column: The column that holds its pictures. None = `images`, else `image`.
        video_column: The column that holds its videos. None = `videos`, else `video`.
        fps: Frames in a second that are shown of a video, where it does not say it itself, evenly
            over all of it. More are more tokens. Of a list of pictures it is how many were taken in
            a second, which has to be known. None = what the folder says of files, and nothing of
            lists.
        nframes: So many frames of each video file in place of a rate; one with fewer is a bad item.
        min_frames: The fewest frames that a rate gives, where the video has them. None = what the
            folder says.
        max_frames: The most frames that a rate gives: longer videos are thinned, and say so in
            their times. None = what the folder says.
        frames_beyond: What becomes of a number in `frame_indices` after the last frame. `error`:
            the item is a bad item. `last`: the last frame is shown, and the batch counts it under
            `clamped_frames`.
        on_broken_tail: What becomes of a video that was cut off, and can be read up to there.
            `error`: the item is a bad item. `keep`: the video has the frames up to there, and none
            after a gap, and frames are chosen as if it were no longer.
        patches: `float32`: what the family's processor of transformers gives, to the bit, where it
            resizes by Pillow. `uint8`: the same before it is normalized, for a quarter of the bytes
            on the wire and in memory; `penstock.client.media.normalized` makes the rest.
        fake_image: Give a conversation without pictures and videos a white picture, whose tokens
            attention does not see and which is not learned, so that every rank runs its vision
            tower: without that FSDP and ZeRO-3 hang where a rank has only text. It costs the tokens
            of a picture of 56x56 pixels, and the batch counts it under `fake_images`.
        answer_images: What `<image>` and `<video>` are in an assistant's text: `text`, or a
            picture's place with `place`. Its tokens are not learned.
        surplus_placeholders: What happens to a placeholder without a picture. `error`: the item is
            a bad item. `skip`: it is left out, and counted.
        unplaced_images: What happens to a picture or a video without a placeholder. `error`: the
            item is a bad item. `first_turn`: it is shown at the start of the first user turn.
            `drop`: it is left out. The batch counts both under `unplaced_images`, and
            `unplaced_videos`.
        unanswered: What becomes of an item without a conversation, or without an answer. `drop`: it
            is filtered. `error`: it is a bad item; then, if `overlong` and `unmatched` refuse, too,
            every item gives a sample: batches are planned from the headers of pictures, and these
            are decoded when their batch is made, and not while they wait in a pool.
        chat_template: A file with a template in place of the folder's own.
        template_args: What else the template is given, as of `chat`.
        roles: Further names of speakers, as of `chat`.
        tags: The names that turns use where they are others, as of `chat`.
        unknown_roles: What becomes of a turn by another speaker. `error`: the item is a bad item.
            `skip`: the turn is left out.
        unmatched: What becomes of a conversation whose answers are not found among its tokens.
            `error`, `skip` and `search`, as of `chat`.
        max_length: The most tokens of a conversation, those of pictures among them. None = any
            number, and the batcher decides.
        overlong: What becomes of a longer one. `drop`: it is filtered, as `overlong`. `truncate`:
            it is cut on the right; where the cut would go through a picture, that picture's turn
            goes, too, and those after it, counted under `dropped_turns`. Pictures that go are
            counted under `dropped_images`, videos under `dropped_videos`. It is filtered where no
            label is left. `error`: it is a bad item.
        decoder: What decodes pictures, as of `image`: `jpeg` or `pillow`, with the same pixels.
        kernel: What resizes. `pillow`: as transformers does over Pillow. `torch`: as it does over
            torchvision, in a quarter of the time; torch must be installed wherever the job is
            computed.
            The two differ by up to three levels.
        max_pixels: The most pixels of a picture, or of a video's frame, as it comes; one with more
            is a bad item. How many it is given to the model with is said in `settings`.
        max_bytes: The most bytes of its file, and of its pixels as they are decoded; of a video,
            of the frames that are shown, as they are given to the model.
        decoders: The most videos that a worker keeps open, as of `video`. It changes no batch.
        decoder_bytes: The most bytes that these take, by estimate.
        frame_bytes: The most bytes of decoded frames that a worker holds for items that follow, as
            of `video`. It pays where several items show the same file. It changes no batch.

    Raises:
        InvalidJob: A parameter has a value that cannot be.
    """

    type_name: ClassVar[str] = "conversation"
    version: ClassVar[int | str | None] = 2
    path_params: ClassVar[tuple[str, ...]] = ("tokenizer", "chat_template")

    tokenizer: Annotated[FilePath, OfType(PATH, "a path")]
    _: KW_ONLY
    family: Annotated[str | None, OneOf(tuple(FAMILIES))] = None
    settings: Annotated[dict[str, Any] | None, OfType((Mapping,), "values by names")] = None
    column: str | None = None
    image_column: str | None = None
    video_column: str | None = None
    fps: Annotated[float | None, NumberUpTo(1000)] = None
    nframes: Annotated[int | None, AtLeast(2)] = None
    min_frames: Annotated[int | None, AtLeast(1)] = None
    max_frames: Annotated[int | None, AtLeast(1)] = None
    frames_beyond: Annotated[str, OneOf(BEYOND)] = ERROR
    on_broken_tail: Annotated[str, OneOf(ON_BROKEN_TAIL)] = ERROR
    patches: Annotated[str, OneOf(("float32", "uint8"))] = "float32"
    fake_image: Annotated[bool, TrueOrFalse()] = False
    answer_images: Annotated[str, OneOf(("text", "place"))] = "text"
    surplus_placeholders: Annotated[str, OneOf(("error", "skip"))] = "error"
    unplaced_images: Annotated[str, OneOf(("error", "first_turn", "drop"))] = "error"
    unanswered: Annotated[str, OneOf(("drop", "error"))] = "drop"
    chat_template: Annotated[FilePath | None, OfType(PATH, "a path")] = None
    template_args: Annotated[dict[str, Any] | None, OfType((Mapping,), "values by names")] = None
    roles: dict[str, str] | None = None
    tags: dict[str, str] | None = None
    unknown_roles: Annotated[str, OneOf(("error", "skip"))] = "error"
    unmatched: Annotated[str, OneOf(UNMATCHED)] = "error"
    max_length: Annotated[int | None, AtLeast(1, "the tokens of a conversation")] = None
    overlong: Annotated[str, OneOf(("drop", "truncate", "error"))] = "drop"
    decoder: Annotated[str, OneOf(DECODERS)] = "jpeg"
    kernel: Annotated[str, OneOf(("pillow", "torch"))] = "pillow"
    max_pixels: Annotated[int, AtLeast(1)] = MAX_PIXELS
    max_bytes: Annotated[int, AtLeast(1)] = MAX_BYTES
    decoders: Annotated[int, AtLeast(1)] = 64
    decoder_bytes: Annotated[int, AtLeast(1)] = 1 << 29
    frame_bytes: Annotated[int, AtLeast(0)] = 1 << 27

    def __post_init__(self) -> None:
        folder = Path(self.tokenizer)
        self.folder = folder.parent if folder.name == "tokenizer.json" else folder
        self.template_file = None if self.chat_template is None else Path(self.chat_template)
        if self.nframes is not None and self.fps is not None:
            raise InvalidJob("fps and nframes both say which frames: give one", key="nframes")
        least, most = self.min_frames, self.max_frames
        if least is not None and most is not None and least > most:
            raise InvalidJob(
                f"min_frames is {least}, and max_frames {most}: give a smaller one",
                key="min_frames",
            )
        turns = PictureTurns(
            self.roles,
            self.tags,
            self.unknown_roles,
            self.answer_images,
            self.surplus_placeholders,
            self.unplaced_images,
        )
        self._columns = ConversationColumns(
            turns, self.column, self.image_column, self.video_column
        )
        self.decoding = Decoding(self.decoder, WHITE, self.max_pixels, self.max_bytes)
        self.frames = VideoFrames(self.decoders, self.decoder_bytes, self.frame_bytes)
        self.indexes = VideoIndexes()
        self._only_lengths = False
        self._loaded: _Loaded | None = None
        # Here it is the job's word, and not the class's: see `unanswered`.
        self.one_to_one = (  # type: ignore[misc]
            self.unanswered == "error"
            and self.unmatched != "skip"
            and (self.max_length is None or self.overlong == "error")
        )

    @property
    def measures(self) -> Sequence[str]:
        """Return what samples count beside their tokens."""
        return ("media_tokens", "images", "videos", "patches", "pixels")

    @property
    def frame_counts(self) -> FrameCounts | None:
        """Return what was decoded so far in this process; None = of a family without video."""
        return super().frame_counts if self._load().family.takes_video else None

    def most_video_bytes(self) -> int:
        """Return what the bounds allow, as far as videos were seen; of pictures alone nothing."""
        return super().most_video_bytes() if self._load().family.takes_video else 0

    def content(self) -> dict[str, str]:
        """Return hashes of what decides tokens and pixels, after checking it.

        Raises:
            InvalidJob: As `setup`: a job with a wrong folder ends before any worker starts.
            MissingExtra: A package that it needs is not installed.
        """
        loaded = self._load()
        decides = {**identity_of(loaded.family), "decoder": self.decoder}
        pictures = json.dumps(decides, sort_keys=True).encode()
        return {**loaded.template.hashes, "pictures": hashlib.sha256(pictures).hexdigest()}

    def setup(self) -> None:
        """Load tokenizer, template, family and what decodes.

        Raises:
            InvalidJob: One of them is not there, or they do not fit together.
            MissingExtra: A package that it needs is not installed.
        """
        self._load()
        self.decoding.load()
        load_kernel(self.kernel)

    def check_columns(self, columns: Mapping[str, str]) -> None:
        """Refuse items without the column.

        Raises:
            InvalidJob: Names the columns that there are.
        """
        if self.keeps(ConversationProcessor, "process", "conversation"):
            self._columns.check(columns)

    def keys_of_samples(self, columns: Mapping[str, str] | None) -> Sequence[str] | None:
        """Return the keys that samples have, unless a subclass makes other ones."""
        if not self.keeps(ConversationProcessor, "process"):
            return None
        return self._load().samples.keys

    def conversation(self, raw: RawItem) -> RawItem:
        """Return an item as a conversation: for a subclass, where items of a corpus are none.

        By default the item is returned as it is. It must be the same each time: sizes, pictures and
        samples are made of what it returns. Whoever changes it raises the class's `version`.
        """
        return raw

    def references(self, raw: RawItem) -> Sequence[Any]:
        """Return the pictures and videos of a conversation, in the order in which it shows them.

        Raises:
            InvalidJob: The item has no such column.
            TypeError, ValueError: It holds no conversation, or one that the job refuses.
        """
        return references_of(self._parts(raw))

    def parts_read(
        self, raw: RawItem, media: Sequence[Medium], *, for_size: bool
    ) -> Sequence[Sequence[tuple[int, int]] | None]:
        """Return where the frames lie that videos show, as far as these have an index.

        Pictures are read whole.
        """
        if not self.keeps(ConversationProcessor, "references"):
            return super().parts_read(raw, media, for_size=for_size)
        return self._load().media.parts(self._parts(raw), media, for_size=for_size)

    def begins(self, raw: RawItem, media: Sequence[Medium]) -> tuple[str, float]:
        """Return the first video that is a file, and the first of its frames that is shown."""
        knows = media and self._load().family.takes_video
        if knows and self.keeps(ConversationProcessor, "references"):
            for part, own in each_part(self._parts(raw), media):
                if isinstance(part, Clip) and not part.is_listed:
                    return own[0].name, first_said(part.said)
        return "", 0.0

    def gains_together(self) -> bool:
        """Tell that conversations do not, unless a subclass says how.

        Only those that show the same video do, and the room in which a lane makes samples ahead
        has place for few with videos.
        """
        return not self.keeps(ConversationProcessor, "process_batch")

    def process(self, raw: RawItem, context: ProcessContext) -> Sample | None:
        """Return the sample of a conversation, or None if there is nothing to learn in it.

        Raises:
            InvalidJob: The item has no such column, or the folder is not fit (see `setup`).
            MissingExtra: Pillow is not installed.
            TypeError: The column holds no conversation.
            ValueError: A turn, the template, a picture or a rule refuses the conversation.
        """
        laid = self._lay(raw, context.media, context.item)
        if isinstance(laid, str):
            context.skip(laid)
            return None
        if self._only_lengths:
            return {"input_ids": range(int(laid.widths.sum())), _MEASURED: laid.measured()}
        return self._load().samples.make(laid)

    def size(self, raw: RawItem, media: Sequence[Medium] = ()) -> SampleSizes | None:
        """Return the tokens of a conversation, and what else it counts, from headers alone."""
        laid = self._lay(raw, media, None)
        if isinstance(laid, str):
            return None
        return SampleSizes(int(laid.widths.sum()), laid.measured())

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return what a sample counts, in the order of `measures`."""
        if (measured := sample.get(_MEASURED)) is not None:
            found: Sequence[int] = measured
            return found
        return self._load().samples.counts(sample)

    def for_lengths(self, key: str) -> ConversationProcessor:
        """Return one that reads headers of pictures and decodes none."""
        if key != "input_ids" or not self.keeps(ConversationProcessor, "process", "process_batch"):
            return self
        found = copy.copy(self)
        found._only_lengths = True
        return found

    def cut(self, sample: Sample, start: int, stop: int, size: int) -> Sample:
        """Refuse to cut a conversation: a picture in two pieces would be none.

        Raises:
            InvalidJob: Always.
        """
        raise InvalidJob(
            f"a conversation of {size} tokens is longer than the batcher's rows, and conversations "
            "with pictures are not split: set overlong of the batcher to drop or error, or "
            "max_length of the processor",
            key="batcher.overlong",
        )

    def stand_in(self, empty: Sample, most: int | None) -> Sample:
        """Return a white picture that attention does not see, or padding where none fits."""
        if not self.keeps(ConversationProcessor, "process", "process_batch"):
            return super().stand_in(empty, most)
        return self._load().samples.stand_in(most)

    def pictures(self, sample: Sample) -> list[Pixels]:
        """Return the pictures of a sample as they were resized, then the frames of its videos.

        Raises:
            InvalidJob: The folder makes no family (see `setup`).
        """
        return self._load().samples.pictures(sample)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special ones included.

        Raises:
            InvalidJob: The tokenizer is missing or not one (see `setup`).
            MissingExtra: The package `tokenizers` is not installed.
        """
        tokenizer = self._load().template.tokenizer
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))

    def _load(self) -> _Loaded:
        if self._loaded is None:
            template = PartsTemplate(self.folder, self.template_file, self.template_args)
            family = load_family(self.folder, self.family, self.settings, self.kernel)
            family.find_tokens(template.tokenizer.token_to_id)
            template.check(family.image_token, family.image_id)
            media = self._media(template, family)
            finder = AnswerFinder(template, self.unmatched, self.folder)
            rules = TokenRules(self.fake_image, self.unanswered, self.overlong, self.max_length)
            samples = ConversationSamples(
                family,
                ShownPixels(family, self.decoding, self.frames, self.indexes),
                template.pad_id,
                has_fakes=self.fake_image,
                is_raw=self.patches == "uint8",
            )
            tokens = ConversationTokens(template, family, finder, media, rules)
            self._loaded = _Loaded(template, family, media, tokens, samples)
        return self._loaded

    def _media(self, template: PartsTemplate, family: Family) -> MediaShown:
        said = family.settings
        wish = ClipWish(
            nframes=self.nframes,
            fps=self.fps or said.get("video_fps", ClipWish.fps),
            min_frames=self.min_frames or said.get("min_frames", ClipWish.min_frames),
            max_frames=self.max_frames or said.get("max_frames", ClipWish.max_frames),
            beyond=self.frames_beyond,
        )
        return MediaShown(
            family,
            self.decoding,
            wish,
            self.fps,
            self.on_broken_tail,
            self.frames,
            self.indexes,
            template.ids,
        )

    def _parts(self, raw: RawItem) -> Sequence[Picture]:
        """Return the pictures and videos of an item, in the order in which it shows them."""
        placed = self._placed(raw, None)
        return () if placed is None else placed.pictures

    def _placed(self, raw: RawItem, item: ItemRef | None) -> PlacedPictures | None:
        """Return the conversation of an item; None = there is none."""
        return self._columns.placed(self.conversation(raw), item)

    def _lay(
        self, raw: RawItem, media: Sequence[Medium], item: ItemRef | None
    ) -> LaidConversation | str:
        """Return a conversation's tokens, or the reason for which it is filtered."""
        loaded = self._load()
        return loaded.tokens.lay(self._placed(raw, item), media)


class _Loaded(NamedTuple):
    """What a folder holds, and what is made of that."""

    template: PartsTemplate
    family: Family
    media: MediaShown
    tokens: ConversationTokens
    samples: ConversationSamples
