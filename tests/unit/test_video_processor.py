"""Videos to samples: which frames an item has, and what they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import videos
from penstock.client.media import ToRgb
from penstock.server.core.refs import ItemRef
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.geometry import Extent
from penstock.server.media.medium import HeldMedium, Medium
from penstock.server.media.resize import resize
from penstock.server.roles import ProcessContext, VideoProcessor
from penstock.wire.errors import InvalidJob


def media_of(processor: VideoProcessor, raw: Mapping[str, Any]) -> list[Medium]:
    return [HeldMedium("a.mp4", data) for data in processor.references(raw)]


def processed(processor: VideoProcessor, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sample of an item, whose size was told as it is."""
    media = media_of(processor, raw)
    told = processor.size(raw, media)
    sample = processor.process(raw, ProcessContext(ItemRef("main", 0, 0), 0, media))
    assert told.size == len(sample["frame_numbers"])
    assert tuple(told.counts) == tuple(processor.counts(sample))
    return dict(sample)


def numbers_in(sample: Mapping[str, Any]) -> list[int]:
    return [videos.read_number(frame) for frame in sample["video"]]


ITEM = {"video": videos.film("H.264"), "label": 3}


@pytest.mark.parametrize(
    ("told", "more", "wanted"),
    [
        ({}, {}, [*range(60)]),
        ({"numbers": [5, 2, 2, 59]}, {}, [5, 2, 2, 59]),
        ({"numbers": "which"}, {"which": [0, 31]}, [0, 31]),
        ({"numbers": "which"}, {"which": np.array([7], np.int32)}, [7]),
        ({"times": [0.1, 1.0]}, {}, [3, 30]),
        ({"times": "when", "tolerance_s": 0.02}, {"when": [0.31, 0]}, [9, 0]),
        ({"fps": 5}, {}, [*range(0, 60, 6)]),
        ({"nframes": 3}, {}, [0, 30, 59]),
    ],
)
def test_an_item_has_the_frames_that_are_asked_for(
    told: dict[str, Any], more: dict[str, Any], wanted: list[int]
) -> None:
    """By number, time, rate or count, in that order; with their numbers and times."""
    sample = processed(VideoProcessor(columns=["label"], **told), {**ITEM, **more})

    assert list(sample) == ["video", "frame_numbers", "frame_times", "label"]
    assert numbers_in(sample) == wanted
    assert sample["frame_numbers"].tolist() == wanted
    assert sample["frame_numbers"].dtype == np.int64
    assert sample["frame_times"].tolist() == [n / 30 for n in wanted]
    assert sample["video"].shape == (len(wanted), 96, 128, 3)
    assert sample["label"] == 3


def test_planes_become_what_rgb_is() -> None:
    """At the trainer, to the byte, in half the bytes."""
    for name in ("H.264", "H.264, BT.709, full range", "H.264, rotated by 270", "MJPEG"):
        item = {"video": videos.film(name)}
        rgb = processed(VideoProcessor(nframes=4), item)
        planes = processed(VideoProcessor(nframes=4, pixels="yuv420p"), item)

        made = ToRgb()(planes)

        assert np.array_equal(made["video"], rgb["video"])
        sent = sum(planes[f"video.{plane}"].nbytes for plane in "yuv")
        assert sent == rgb["video"].nbytes // 2


def test_frames_are_resized_as_pictures_are() -> None:
    """By the same kernels, after they were turned."""
    item = {"video": videos.film("H.264, rotated by 90")}
    whole = processed(VideoProcessor(numbers=[9]), item)["video"][0]

    exact = processed(VideoProcessor(numbers=[9], resize="exact", resize_to=[30, 50]), item)
    side = processed(
        VideoProcessor(numbers=[9, 9], resize="shortest", resize_to=48, filter="bicubic"), item
    )

    assert np.array_equal(exact["video"][0], resize(whole, Extent(30, 50), "pillow", "bilinear"))
    assert side["video"].shape == (2, 48, 64, 3)
    for frame in side["video"]:
        assert np.array_equal(frame, resize(whole, Extent(48, 64), "pillow", "bicubic"))


@pytest.mark.parametrize(
    ("told", "item", "said"),
    [
        ({"numbers": [60]}, {}, "a.mp4: frame 60 is wanted, and it has 60, numbered from 0"),
        ({"times": [5.0]}, {}, r"a.mp4: no frame is shown at 5.000000 s: .* 3.033333 s away"),
        ({"nframes": 61}, {}, "a.mp4: nframes is 61, and it has 60 frames"),
        ({"max_bytes": 1 << 20}, {}, "60 frames of 128 x 96 pixels take 4,423,680 bytes"),
        ({"numbers": "which"}, {"which": []}, "the item wants no frame of it"),
        ({}, {"video": b"abc"}, "a.mp4: it is damaged, or cut off; libav says"),
        (
            {},
            {"video": videos.cut_off(videos.film("H.264 in mkv"), 0.6)},
            r"a.mp4: its header says .* bytes.*on_broken_tail: keep takes the \d+ frames before",
        ),
        (
            {"pixels": "yuv420p"},
            {"video": videos.film("H.264, odd size")},
            "a.mp4: its frames are yuv444p",
        ),
    ],
)
def test_what_cannot_be_is_a_bad_item(
    told: dict[str, Any], item: dict[str, Any], said: str
) -> None:
    """By its file's name, with the numbers; found from the index where that tells it."""
    processor, raw = VideoProcessor(**told), {**ITEM, **item}
    with pytest.raises(BadVideo, match=said):
        processor.process(raw, ProcessContext(ItemRef("main", 0, 0), 0, media_of(processor, raw)))


def test_a_broken_tail_is_kept_where_the_job_says_so() -> None:
    """Then the item has the frames up to it."""
    item = {"video": videos.cut_off(videos.film("H.264 in mkv"), 0.6)}
    numbers = numbers_in(processed(VideoProcessor(on_broken_tail="keep"), item))
    assert numbers == [*range(len(numbers))]
    assert 10 < len(numbers) < 60


@pytest.mark.parametrize(
    ("which", "said"),
    [
        (None, "'which' is null"),
        (3, "'which' is 3, where a list of frames' numbers is needed"),
        ([1.5], r"'which' is \[1.5\], where a list"),
        ([True], r"'which' is \[True\], where a list"),
    ],
)
def test_an_items_own_list_must_be_one(which: Any, said: str) -> None:
    processor = VideoProcessor(numbers="which")
    raw = {**ITEM, "which": which}
    with pytest.raises(ValueError, match=said):
        processor.size(raw, media_of(processor, raw))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"fps": 5, "nframes": 3}, "fps and nframes both say which frames: give one"),
        ({"numbers": []}, r"numbers is \[\]: give the column"),
        ({"numbers": [-1]}, r"numbers is \[-1\]: give the column that has them, or whole"),
        ({"times": [-0.5]}, r"times is \[-0.5\]: give the column"),
        ({"fps": 0}, "fps is 0: give a number above 0 to 1000"),
        ({"fps": float("nan")}, "fps is nan"),
        ({"nframes": 0}, "nframes is 0"),
        ({"tolerance_s": -1}, "tolerance_s is -1: give a number from 0"),
        ({"pixels": "bgr24"}, "pixels is 'bgr24'"),
        ({"decoders": 0}, "decoders is 0"),
        ({"decoders": None}, "decoders is None|decoders is null"),
        ({"resize": "exact"}, "resize_to is None with resize: exact: give both"),
        ({"resize": "longest", "resize_to": [3, 4]}, "takes the pixels of one side"),
        ({"resize": "pad", "resize_to": 8}, "resize is 'pad'"),
        (
            {"resize": "exact", "resize_to": 8, "pixels": "yuv420p"},
            r"planes are resized where they become RGB.*ToRgb\(size=\)",
        ),
        ({"columns": ["video"]}, "columns names 'video', which this processor gives itself"),
        ({"columns": "label"}, "columns is 'label': give a list of names"),
        ({"on_broken_tail": "skip"}, "on_broken_tail is 'skip'"),
    ],
)
def test_parameters_that_cannot_be_are_refused(told: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        VideoProcessor(**told)


def test_columns_that_are_not_there_are_refused() -> None:
    """Before anything is read, with those that there are."""
    for told, key in (
        ({}, "column"),
        ({"times": "whem"}, "times"),
        ({"columns": ["x"]}, "columns"),
    ):
        with pytest.raises(InvalidJob, match=f"processor.{key} names"):
            VideoProcessor(**told).check_columns({"film" if not told else "video": "", "when": ""})


def test_bounds_are_no_part_of_a_jobs_identity() -> None:
    """Nothing of a batch depends on them."""
    bound = VideoProcessor(fps=2, decoders=1, decoder_bytes=1, frame_bytes=0)
    assert bound.parameters() == VideoProcessor(fps=2).parameters() == {"fps": 2}


def test_many_items_are_decoded_in_the_order_of_their_files() -> None:
    """One pass for those of a file, whatever the order of draws; results are in that order."""
    processor = VideoProcessor(numbers="which", frame_bytes=0)
    raws = [{**ITEM, "which": [n]} for n in (50, 3, 40, 20, 10)]
    media = [media_of(processor, raw) for raw in raws]
    contexts = [ProcessContext(ItemRef("main", n, 0), 0, own) for n, own in enumerate(media)]

    found = processor.process_batch(raws, contexts)

    assert [numbers_in(sample) for sample in found] == [[50], [3], [40], [20], [10]]
    assert processor.frame_counts.decoded <= 51 + 3


def test_a_sample_is_cut_between_frames() -> None:
    """With all that it says of them."""
    processor = VideoProcessor(columns=["label"])
    found = processor.cut(processed(processor, ITEM), 10, 13, 60)
    assert numbers_in(found) == found["frame_numbers"].tolist() == [10, 11, 12]
    assert found["label"] == 3
