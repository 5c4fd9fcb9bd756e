"""Conversations with videos: against transformers' own processors, and what becomes of each."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from penstock.client import media
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.media.families.processor_folder import load_family
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.medium import HeldMedium
from penstock.server.media.video.clip_frames import ClipFrames, ClipWish, clip_of_file
from penstock.server.media.video.indexing import index_video
from penstock.server.media.video.read_spans import spans_of
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_index import VideoIndex
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.planning.make.measuring import Measuring
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processors import ConversationProcessor
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob
from talks import SMALL, context, marked, media_of, processed, transformers_positions
from videos import H264, UNEVEN, cut_off, film, written
from vision import (
    TorchvisionVideos,
    drawn,
    encoded,
    video_settings,
    vision_tokenizer,
    whole_processor,
    write_vision_folder,
)

KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@cache
def indexed(data: bytes) -> VideoIndex:
    return index_video(HeldMedium("v", data))


def frames_of(data: bytes, clip: ClipFrames) -> Any:
    """Return the frames that a clip shows: uint8 (n, height, width, 3)."""
    found = VideoFrames(1, 1, 0).frames(HeldMedium("v", data), indexed(data), clip.numbers)
    return np.stack([frame.rgb24() for frame in found])


def metadata_of(data: bytes, clip: ClipFrames) -> dict[str, Any]:
    """Return what transformers is told of a video of which frames were taken."""
    index = indexed(data)
    return {
        "total_num_frames": len(index),
        "fps": float(index.rate),
        "frames_indices": list(clip.numbers),
    }


def asked(*parts: Any) -> dict[str, Any]:
    """Return a conversation in which the user says these parts."""
    return {
        "messages": [
            {"role": "user", "content": list(parts)},
            {"role": "assistant", "content": "It is four."},
        ]
    }


def video(data: Any, **said: Any) -> dict[str, Any]:
    return {"type": "video", "video": data, **said}


TEXT = {"type": "text", "text": "What is the answer?"}
SHORT = "H.264, key frame every 2nd"


# --- what a sample is ---


@pytest.mark.parametrize("kernel", ["pillow", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_transformers(kind: str, kernel: str, home: Path) -> None:
    """Ids, labels, grids, seconds, pixels and positions, beside pictures, however frames are taken.

    Videos are normalized over torchvision in transformers, so with Pillow last bits differ.
    """
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    role = ConversationProcessor(home / kind, kernel=kernel)
    theirs = whole_processor(kind, home / kind, kernel=kernel, **SMALL.get(kind, {}))
    for number in range(4):
        parts: list[Any] = []
        told: list[Any] = []
        videos, metadata, images = [], [], []
        for _ in range(draw.randint(1, 3)):
            data = film(draw.choice([SHORT, "H.264, rotated by 90", "VP9"]))
            said = draw.choice([{}, {"fps": 7}, {"nframes": 2 * draw.randint(1, 5)}])
            clip = clip_of_file(indexed(data), ClipWish(**said), 2)
            parts += [video(data, **said), TEXT]
            told += [{"type": "video"}, TEXT]
            videos.append(frames_of(data, clip))
            metadata.append(metadata_of(data, clip))
            if draw.random() < 0.5:
                images.append(drawn(60, 90, number))
                parts.insert(-1, {"type": "image", "image": encoded(images[-1])})
                told.insert(-1, {"type": "image"})

        sample = processed(role, asked(*parts))

        text = theirs.apply_chat_template(asked(*told)["messages"], tokenize=False)
        expected = theirs(
            text=[text], images=images or None, videos=videos, video_metadata=metadata
        )
        ids = list(expected["input_ids"][0])
        assert sample["input_ids"].tolist() == ids, (seed, number)
        assert sample["labels"].tolist() == marked(kind, ids), (seed, number)
        pixels = np.asarray(expected["pixel_values_videos"])
        assert sample["pixel_values_videos"].dtype == pixels.dtype == np.float32
        if kernel == "torch":
            assert np.array_equal(sample["pixel_values_videos"], pixels), (seed, number)
        else:
            assert np.abs(sample["pixel_values_videos"] - pixels).max() < 1e-6, (seed, number)
        assert sample["video_grid_thw"].dtype == np.int64
        assert sample["video_grid_thw"].tolist() == expected["video_grid_thw"].tolist()
        assert ("second_per_grid_ts" in sample) == ("second_per_grid_ts" in expected)
        if "second_per_grid_ts" in sample:
            seconds = np.array(expected["second_per_grid_ts"], np.float32)
            assert np.array_equal(sample["second_per_grid_ts"], seconds)
            assert sample["second_per_grid_ts"].dtype == np.float32
        positions = transformers_positions(kind, sample)
        assert np.array_equal(sample["position_ids"], positions), (seed, number)
        assert len(sample["image_grid_thw"]) == len(images)


@pytest.mark.parametrize("kind", KINDS)
def test_levels_become_the_values_of_the_family(kind: str, home: Path) -> None:
    """With `patches: uint8` a trainer normalizes videos by `pixel_norm`, as it does pictures."""
    item = asked(video(film(SHORT), nframes=4), TEXT)
    ready = processed(ConversationProcessor(home / kind), item)
    raw = processed(ConversationProcessor(home / kind, patches="uint8"), item)

    found = media.normalize(raw, dtype=torch.float32)

    assert raw["pixel_values_videos"].dtype == np.uint8
    apart = found["pixel_values_videos"] - torch.from_numpy(ready["pixel_values_videos"])
    assert apart.abs().max() < 1e-5
    assert "pixel_norm" not in found


@pytest.mark.parametrize("kind", KINDS)
def test_frames_are_put_together_again(kind: str, home: Path) -> None:
    """To be looked at, of both forms of pixels."""
    for patches in ("uint8", "float32"):
        role = ConversationProcessor(home / kind, patches=patches)
        sample = processed(role, asked(video(film(SHORT), nframes=4), TEXT))

        found = role.pictures(sample)

        family = load_family(home / kind, None, None)
        clips = family.clips  # type: ignore[attr-defined]
        assert len(found) == 4
        again = clips.patches(np.stack(found))
        levels = sample["pixel_values_videos"]
        assert np.array_equal(again, levels if patches == "uint8" else family.levels(levels))


# --- which frames, and when they are shown ---


def test_a_video_that_was_thinned_says_so(home: Path) -> None:
    """30 s of 30 frames a second thinned to 32 frames are 1.07 a second, and not 2."""
    data = written(replace(H264, frames=900, width=64, height=32))
    item = asked(video(data, max_frames=32), TEXT)

    sample = processed(ConversationProcessor(home / "qwen2_5_vl"), item)
    timed = processed(ConversationProcessor(home / "qwen3_vl"), item)

    assert sample["video_grid_thw"][0, 0] == 16
    assert 2 / sample["second_per_grid_ts"][0] == pytest.approx(32 / 30)
    text = vision_tokenizer().decode(timed["input_ids"].tolist(), skip_special_tokens=False)
    said = [part.split(" seconds>")[0] for part in text.split("<")[1:] if " seconds>" in part]
    assert [float(each) for each in said[:2]] == [0.5, 2.4]
    assert float(said[-1]) == pytest.approx(29.5, abs=0.1)


def test_frames_that_are_named_are_shown_and_say_their_own_times() -> None:
    """Neighbours are as far apart as the video has them, and not as if they were all of it."""
    clip = clip_of_file(indexed(film(SHORT)), ClipWish(frame_indices=(10, 11, 12, 13, 14)), 2)

    assert clip.numbers == (10, 11, 12, 13, 14, 14)
    assert clip.fps == 30
    assert clip.times_s == tuple(number / 30 for number in clip.numbers)


def test_times_of_a_varying_rate_are_those_of_the_file() -> None:
    index = indexed(film("H.264, variable rate in mkv"))
    clip = clip_of_file(index, ClipWish(nframes=60), 2)

    assert np.allclose(clip.times_s, np.array(UNEVEN) / 12_800, atol=1e-3)
    assert clip.fps == pytest.approx(60 / index.duration_s)


def test_a_clip_of_one_frame_costs_what_it_has(home: Path) -> None:
    """Its size is told from the index: a patch of the one frame twice, in every family."""
    data = film("H.264, one frame")
    for kind in KINDS:
        role = ConversationProcessor(home / kind)
        item = asked(video(data), TEXT)

        told = role.size(item, media_of(role, item))
        sample = processed(role, item)

        assert told is not None
        assert told.size == len(sample["input_ids"])
        assert told.counts == tuple(role.counts(sample))
        assert sample["video_grid_thw"][0, 0] == 1
        first, second = role.pictures(sample)
        assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("total", "fps", "least", "most", "expected"),
    [
        (1, 2, 4, 768, [0, 0]),
        (3, 2, 4, 768, [0, 1, 1, 2]),
        (5, 60, 4, 768, [0, 1, 2, 2, 3, 4]),
        (60, 2, 4, 768, [0, 20, 39, 59]),
        (60, 2, 1, 768, [0, 20, 39, 59]),
        (60, 30, 4, 6, [0, 12, 24, 35, 47, 59]),
        (60, 30, 4, 5, [0, 12, 24, 35, 47, 59]),
    ],
)
def test_frames_of_a_rate(
    total: int, fps: float, least: int, most: int, expected: list[int]
) -> None:
    """Worked out by hand, for videos of 30 frames a second."""
    index = indexed(written(replace(H264, frames=total, width=64, height=32)))

    clip = clip_of_file(index, ClipWish(fps=fps, min_frames=least, max_frames=most), 2)

    assert list(clip.numbers) == expected
    assert clip.fps == pytest.approx(len(expected) / total * 30)


# --- sizes ---


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_those_of_samples(kind: str, home: Path) -> None:
    """Told from the index, counted in the sample, and by what only takes lengths."""
    role = ConversationProcessor(home / kind, patches="uint8", fake_image=True)
    pictures = [encoded(drawn(64, 48, number)) for number in range(3)]
    for parts in (
        [video(film(SHORT), fps=5), TEXT],
        [video(film("H.264, odd size"), nframes=5), video(film(SHORT)), TEXT],
        [video(pictures, fps=2), {"type": "image", "image": pictures[0]}, TEXT],
        [TEXT],
    ):
        item = asked(*parts)
        told = role.size(item, media_of(role, item))
        sample = processed(role, item)
        counted = processed(role.for_lengths("input_ids"), item)  # type: ignore[arg-type]

        assert told is not None
        assert told.size == len(sample["input_ids"]) == len(counted["input_ids"])
        assert told.counts == tuple(role.counts(sample)) == tuple(role.counts(counted))
        of = dict(zip(role.measures, told.counts, strict=True))
        assert of["videos"] == sum(part["type"] == "video" for part in parts)
        assert "fake_images" not in sample.get("noted", {}) or parts == [TEXT]


def test_an_index_counts_videos_without_decoding(home: Path) -> None:
    """Sizes and counts of an index are those of samples, and no frame was decoded for them."""
    role = ConversationProcessor(home / "qwen2_5_vl", unanswered="error")
    items = [asked(video(film(SHORT), nframes=2 * n), TEXT) for n in range(1, 4)] + [asked(TEXT)]
    samples = [processed(role.clone(), item) for item in items]
    job = Job(ItemsSource(items), processor=role, batcher=BestFitPackingBatcher(max_tokens=500))

    sizes = Measuring(job).block("main", 0, len(items)).sizes

    assert sizes.sizes.tolist() == [len(sample["input_ids"]) for sample in samples]
    assert sizes.measured is not None
    assert sizes.measured.tolist() == [list(role.counts(sample)) for sample in samples]
    assert sizes.measured[:, list(role.measures).index("videos")].tolist() == [1, 1, 1, 0]
    assert role.frame_counts.decoded == 0


@pytest.mark.parametrize("cap", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_those_of_transformers(kind: str, cap: bool, tmp_path: Path) -> None:
    """Of random videos, with and without a cap on the pixels of each frame."""
    seed = random.randrange(1 << 30)
    draw = random.Random(seed)
    bounds = {"shortest_edge": 4096, "longest_edge": 1 << 17}
    theirs = TorchvisionVideos(kind, size=bounds, cap_pixels_per_frame=cap)
    write_vision_folder(tmp_path, kind)
    given = {"video_min_pixels": 4096, "video_max_pixels": 1 << 17, "cap_pixels_per_frame": cap}
    family = load_family(tmp_path, None, given)
    for _ in range(10):
        frames = 2 * draw.randint(1, 8)
        width, height = draw.randint(8, 160), draw.randint(8, 160)
        flat = np.zeros((frames, height, width, 3), np.uint8)

        size = family.clips.size(frames, width, height)  # type: ignore[attr-defined]

        [grid] = theirs([flat])["video_grid_thw"].tolist()
        assert list(size.grid) == grid, (seed, frames, width, height)
        assert size.patches == np.prod(grid)


# --- how items have them ---


PICTURES = [encoded(drawn(56, 56, number)) for number in range(3)]


@pytest.mark.parametrize(
    ("item", "frames"),
    [
        ({"messages": "<video>\nWhat?", "videos": [film(SHORT)]}, 4),
        ({"messages": "<VIDEO>What?", "video": {"bytes": film(SHORT), "path": None}}, 4),
        ({"messages": "<video>What?", "videos": [{"bytes": film(SHORT), "nframes": 6}]}, 6),
        ({"messages": "<video>What?", "videos": [{"video": film(SHORT), "fps": 4}]}, 8),
        ({"messages": [{"type": "video"}, TEXT], "videos": [film(SHORT)]}, 4),
        ({"messages": [{"type": "video", "nframes": 8}, TEXT], "videos": [film(SHORT)]}, 8),
        ({"messages": [{"type": "video_url", "video_url": {"url": film(SHORT)}}, TEXT]}, 4),
        ({"messages": [video(film(SHORT), frame_indices=[3, 3, 9]), TEXT]}, 4),
        ({"messages": [video(film(SHORT), frame_indices=np.array([3, 9])), TEXT]}, 2),
        ({"messages": [video({"bytes": film(SHORT)}, max_frames=2, fps=9.5), TEXT]}, 2),
        ({"messages": [video(PICTURES, fps=1), TEXT]}, 4),
        ({"messages": "<video>What?", "videos": [PICTURES]}, 4),
        ({"messages": "<video>What?", "videos": [{"video": PICTURES[:2], "fps": 1}]}, 2),
    ],
)
def test_videos_take_their_places(item: Any, frames: int, home: Path) -> None:
    """Each form of data, and what it says of the frames; a list may take its rate from the job."""
    role = ConversationProcessor(home / "qwen2_vl", fps=2)
    turns = [{"role": "user", "content": item["messages"]}, asked()["messages"][1]]

    sample = processed(role, {**item, "messages": turns})

    assert sample["video_grid_thw"].tolist()[0][0] * 2 == frames
    text = vision_tokenizer().decode(sample["input_ids"].tolist(), skip_special_tokens=False)
    assert text.startswith("<|im_start|>user\n<|vision_start|><|video_pad|><|video_pad|>")
    assert text.split("<|vision_end|>")[1].startswith("What")


def test_pictures_and_videos_without_places_come_first(home: Path) -> None:
    """Pictures before videos, at the start of the user's turn, and the batch counts both."""
    role = ConversationProcessor(home / "qwen2_vl", unplaced_images="first_turn")
    item = asked(TEXT) | {"images": PICTURES[:2], "videos": [film(SHORT)]}

    sample = processed(role, item)

    assert sample["noted"] == {"unplaced_images": 2, "unplaced_videos": 1}
    tokens = sample["input_ids"].tolist()
    token_id = vision_tokenizer().token_to_id
    last_picture = len(tokens) - 1 - tokens[::-1].index(token_id("<|image_pad|>"))
    assert last_picture < tokens.index(token_id("<|video_pad|>"))


def test_a_video_that_is_shown_twice_is_decoded_once(home: Path) -> None:
    """Whatever is shown of it; both have the frames that each would have alone."""
    role = ConversationProcessor(home / "qwen3_vl", frame_bytes=0)
    data = film(SHORT)
    twice = asked(video(data, nframes=10), video(data, nframes=6), video(data, nframes=10))

    sample = processed(role, twice)

    wanted = {
        number
        for count in (10, 6)
        for number in clip_of_file(indexed(data), ClipWish(nframes=count), 2).numbers
    }
    assert role.frame_counts.delivered == len(wanted)
    assert role.frame_counts.misses == 1
    alone = [processed(role, asked(video(data, nframes=count))) for count in (10, 6, 10)]
    pixels = np.concatenate([each["pixel_values_videos"] for each in alone])
    assert np.array_equal(sample["pixel_values_videos"], pixels)


def test_items_that_share_a_video_decode_it_in_one_pass(home: Path) -> None:
    """Whatever the order of draws, beside pictures and texts; each result is its own item's."""
    data = film("H.264")  # a key frame at its beginning alone
    picture = {"type": "image", "image": PICTURES[0]}
    items = [
        asked(picture, video(data, frame_indices=[40, 45, 50]), TEXT),
        asked(TEXT),
        asked(video(data, frame_indices=[3, 7]), TEXT),
        asked(video(data, frame_indices=[20, 21]), TEXT),
        asked(picture, TEXT),
    ]
    together = ConversationProcessor(home / "qwen3_vl", frame_bytes=0)
    contexts = [context(media_of(together, item)) for item in items]

    found = together.process_batch(items, contexts)

    # Up to the last frame that is shown, and what a decoder may have read beyond it.
    assert together.frame_counts.delivered == 7
    assert together.frame_counts.decoded <= 51 + 3
    assert together.frame_counts.misses == 1
    one_by_one = ConversationProcessor(home / "qwen3_vl", frame_bytes=0)
    for item, sample in zip(items, found, strict=True):
        alone = processed(one_by_one, item)
        assert sample.keys() == alone.keys()
        for key, value in alone.items():
            assert np.array_equal(sample[key], value), key
    assert one_by_one.frame_counts.decoded > 51 + 3


def test_items_that_show_the_same_frames_in_opposite_order_decode_them_once(home: Path) -> None:
    """Of two videos each: the second item finds what is held of the first, as far as there is room.

    Without room the second item decodes again what it shows.
    """
    clips = [video(film(name), frame_indices=[10, 20, 50]) for name in ("H.264", "VP9")]
    items = [asked(*clips, TEXT), asked(*reversed(clips), TEXT)]
    for frame_bytes, once in ((1 << 27, True), (0, False)):
        role = ConversationProcessor(home / "qwen3_vl", frame_bytes=frame_bytes)

        role.process_batch(items, [context(media_of(role, item)) for item in items])

        assert role.frame_counts.delivered == 12
        assert (role.frame_counts.decoded <= 2 * (51 + 3)) == once
        assert role.frame_counts.shared == (6 if once else 0)


def test_a_bad_video_is_its_own_items(home: Path) -> None:
    """Whatever is wrong with it, and wherever it stands among those that are made together."""
    good = [asked(video(film(SHORT), frame_indices=[at, at + 1]), TEXT) for at in (30, 4)]
    for bad, said in (
        (asked(video(film(SHORT), frame_indices=["x"]), TEXT), "frame_indices is"),
        (asked(video(b"no video"), TEXT), "video 0: it is damaged, or cut off"),
        ({"messages": 3}, "int"),
    ):
        role = ConversationProcessor(home / "qwen3_vl", unanswered="error")
        alone = [processed(role, item)["pixel_values_videos"] for item in good]
        for place in range(3):
            items = [*good[:place], bad, *good[place:]]
            job = Job(ItemsSource(items), processor=role, batch_size=3)
            refs = [ItemRef("main", number, 0) for number in range(3)]

            found = Items(job).outcomes(refs, "exit")

            refused = found.pop(place)
            assert isinstance(refused, Bad)
            assert said in str(refused.error)
            for outcome, pixels in zip(found, alone, strict=True):
                assert isinstance(outcome, list)
                assert np.array_equal(outcome[0]["pixel_values_videos"], pixels)


def test_lanes_make_no_conversations_ahead_for_the_company_of_others(home: Path) -> None:
    """Only a subclass that makes several at once in less time says that they gain."""

    class Together(ConversationProcessor):
        def process_batch(self, raws: Any, contexts: Any) -> Any:
            return super().process_batch(raws, contexts)

    assert not ConversationProcessor(home / "qwen3_vl").gains_together()
    assert Together(home / "qwen3_vl").gains_together()


def test_parts_that_videos_need_are_told_by_their_indexes(home: Path, tmp_path: Path) -> None:
    """Pictures are fetched whole, and their heads for a size; so are frames that are pictures."""
    files = {"a.mp4": film("H.264"), "b.mp4": film(SHORT), "0.png": PICTURES[0]}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    reader = MediaReader(MediaFiles(str(tmp_path), endings=[".mp4", ".png"]))
    item = asked(
        video("a.mp4", frame_indices=[2, 3]),
        {"type": "image", "image": "0.png"},
        video(["0.png", "0.png"], fps=1),
        video("b.mp4", nframes=2),
        TEXT,
    )
    first, later = (ConversationProcessor(home / "qwen3_vl") for _ in range(2))
    media = reader.media(first.references(item))
    told = ProcessContext(ItemRef("main", 0, 0), 7, media)

    before = first.parts_read(item, media, for_size=True)
    first.process(item, told)
    sized = later.parts_read(item, media, for_size=True)
    lacking = later.parts_read(item, media, for_size=False)
    held = first.parts_read(item, media, for_size=False)

    whole = {name: [(0, len(data))] for name, data in files.items()}
    assert before == [whole["a.mp4"], None, None, None, whole["b.mp4"]]
    assert sized == [(), None, None, None, ()]
    numbers = clip_of_file(indexed(files["b.mp4"]), ClipWish(nframes=2), 2).numbers
    assert lacking == [
        spans_of(indexed(files["a.mp4"]), [2, 3], len(files["a.mp4"])),
        None,
        None,
        None,
        spans_of(indexed(files["b.mp4"]), numbers, len(files["b.mp4"])),
    ]
    assert held == [(), None, None, None, ()]


def test_a_video_without_its_end_may_be_kept(home: Path) -> None:
    """Then frames are chosen as if it were no longer; sizes say the same."""
    data = cut_off(film("H.264 in mkv"), 0.6)
    frames = len(indexed(data))
    item = asked(video(data, nframes=4), TEXT)
    strict = ConversationProcessor(home / "qwen2_vl")
    keeping = ConversationProcessor(home / "qwen2_vl", on_broken_tail="keep")

    with pytest.raises(ValueError, match=f"keep takes the {frames} frames before that"):
        processed(strict, item)
    sample = processed(keeping, item)

    assert 10 < frames < 60
    named = video(data, frame_indices=[0, frames // 3, 2 * frames // 3, frames - 1])
    assert clip_of_file(indexed(data), ClipWish(nframes=4), 2).numbers[-1] == frames - 1
    with pytest.raises(ValueError, match=f"names frame {frames}"):
        processed(keeping, asked(video(data, frame_indices=[frames]), TEXT))
    assert sample["video_grid_thw"].tolist()[0][0] == 2
    assert len(processed(keeping, asked(named, TEXT))["video_grid_thw"]) == 1
    found = keeping.size(item, media_of(keeping, item))
    assert found.counts == keeping.counts(sample)
    assert keeping.parameters()["on_broken_tail"] == "keep"
    spelled_out = ConversationProcessor(home / "qwen2_vl", on_broken_tail="error", frame_bytes=1)
    assert spelled_out.identity() == strict.identity() != keeping.identity()


def test_where_a_cut_goes_through_a_video_its_turn_goes(home: Path) -> None:
    """And those after it; the batch counts the video."""
    for kind in KINDS:
        turns = [
            *asked(TEXT)["messages"],
            *asked(video(film(SHORT), nframes=4), TEXT)["messages"],
        ]
        whole = processed(ConversationProcessor(home / kind), {"messages": turns})
        first = processed(ConversationProcessor(home / kind), {"messages": turns[:2]})
        most = len(first["input_ids"]) + 12
        role = ConversationProcessor(home / kind, max_length=most, overlong="truncate")

        sample = processed(role, {"messages": turns})

        assert len(whole["input_ids"]) > most
        assert np.array_equal(sample["input_ids"], first["input_ids"])
        assert sample["noted"] == {"dropped_turns": 2, "dropped_videos": 1}
        assert "pixel_values_videos" not in sample


# --- what is refused ---


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (video(film(SHORT), nframes=61), "nframes is 61, and it has 60 frames"),
        (video(film(SHORT), nframes=1), "nframes is 1, and it has 60 frames"),
        (video(film("H.264, one frame"), nframes=2), "nframes is 2, and it has 1 frames"),
        (video(film(SHORT), frame_indices=[3, 60]), "names frame 60, and it has 60"),
        (video(film(SHORT), frame_indices=[-1]), r"frame_indices is \[-1\]"),
        (video(film(SHORT), frame_indices=[]), r"frame_indices is \[\]"),
        (video(film(SHORT), frame_indices=[5, 4]), "never fall"),
        (video(film(SHORT), fps=0), "its fps is 0"),
        (video(film(SHORT), fps=1, nframes=4), "nframes and fps both say"),
        (video(film(SHORT), frame_indices=[1], fps=1), "frame_indices and fps both say"),
        (video(film(SHORT), video_start=2.5), "video_start is said of it, and known is frame_ind"),
        (video(PICTURES, nframes=2), "nframes is said of it, and known is fps"),
        (video(PICTURES), "nothing says how many were taken in a second"),
        (
            video([PICTURES[0], encoded(drawn(56, 84))], fps=1),
            "56x56 pixels and picture 1 of video 0 56x84",
        ),
        (video([]), "an empty list of pictures"),
        (video(film(SHORT)[:-2000]), "^video 0: "),
        (video(b"no video"), "^video 0: "),
        ({"type": "video"}, "1 placeholders of videos and 0 videos"),
        ({"type": "text", "text": "a<|video_pad|>"}, r"holds <\|video_pad\|>"),
    ],
)
def test_what_cannot_be_is_named(part: Any, said: str, home: Path) -> None:
    """By the value, the place and what to do."""
    role = ConversationProcessor(home / "qwen2_vl")

    with pytest.raises(ValueError, match=said):
        processed(role, asked(part, TEXT))


def test_numbers_after_the_last_frame_may_become_it(home: Path) -> None:
    """As decord's readers clamp them; the batch counts them."""
    role = ConversationProcessor(home / "qwen2_vl", frames_beyond="last")
    sample = processed(role, asked(video(film(SHORT), frame_indices=[58, 60, 75]), TEXT))
    named = processed(role, asked(video(film(SHORT), frame_indices=[58, 59, 59]), TEXT))

    assert sample["noted"] == {"clamped_frames": 2}
    assert np.array_equal(sample["pixel_values_videos"], named["pixel_values_videos"])


@pytest.mark.parametrize("kind", ["llava", "kimi"])
def test_other_families_say_that_they_take_no_video(kind: str, home: Path) -> None:
    role = ConversationProcessor(home / kind)

    with pytest.raises(ValueError, match=f"the family {kind} takes none"):
        processed(role, asked(video(film(SHORT)), TEXT))


def test_what_videos_need_of_a_folder_is_named(tmp_path: Path) -> None:
    """Where it is missing, conversations with pictures alone still have their samples."""
    folder = write_vision_folder(tmp_path / "a", "qwen2_5_vl")
    (folder / "config.json").unlink()
    bare = write_vision_folder(tmp_path / "b", "qwen2_vl")
    template = (bare / "chat_template.jinja").read_text()
    (bare / "chat_template.jinja").write_text(template.replace("<|video_pad|>", ""))
    for place, said in (
        (folder, r"put the model's config.json into the folder"),
        (bare, r"wrote 0 <\|video_pad\|> for 1 videos"),
    ):
        role = ConversationProcessor(place)

        assert len(processed(role, asked({"type": "image", "image": PICTURES[0]}, TEXT)))
        with pytest.raises(ValueError, match=said):
            processed(role, asked(video(film(SHORT)), TEXT))
    told = ConversationProcessor(folder, settings={"tokens_per_second": 2})
    assert len(processed(told, asked(video(film(SHORT)), TEXT)))


def test_a_folder_tells_the_settings_of_videos(tmp_path: Path) -> None:
    """In the newest file, in one of their own, or in that of pictures, as older folders have it."""
    folder = write_vision_folder(tmp_path, "qwen2_vl")
    bounds = ("video_min_pixels", "video_max_pixels")
    own = video_settings("qwen2_vl")["size"]

    def found() -> list[int]:
        family = load_family(folder, None, None)
        return [family.settings[name] for name in bounds]

    assert found() == list(own.values())
    (folder / "processor_config.json").write_text(
        json.dumps({"video_processor": {"size": {"shortest_edge": 3000, "longest_edge": 4000}}})
    )
    assert found() == [3000, 4000]
    (folder / "processor_config.json").unlink()
    (folder / "video_preprocessor_config.json").unlink()
    saved = json.loads((folder / "preprocessor_config.json").read_text())
    size = saved["size"]
    assert found() == [size["shortest_edge"], size["longest_edge"]]
    (folder / "video_preprocessor_config.json").write_text(json.dumps({"patch_size": 16}))
    with pytest.raises(InvalidJob, match=r"patch_size in .* is 16, and of pictures it is 14"):
        found()


def test_parameters_that_contradict_each_other_are_refused(home: Path) -> None:
    with pytest.raises(InvalidJob, match="fps and nframes both say"):
        ConversationProcessor(home / "qwen2_vl", fps=1, nframes=4)
    with pytest.raises(InvalidJob, match="min_frames is 8, and max_frames 4"):
        ConversationProcessor(home / "qwen2_vl", min_frames=8, max_frames=4)
    with pytest.raises(InvalidJob, match="fps is -1"):
        ConversationProcessor(home / "qwen2_vl", fps=-1)
