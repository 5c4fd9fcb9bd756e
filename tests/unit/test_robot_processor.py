"""The `robot` processor: what cameras show, each frame the one that its number says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import pictures
import videos
from penstock.server.commands.memory_formula import node_memory
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.medium import HeldMedium
from penstock.server.roles import ProcessContext, SimpleBatcher
from penstock.server.roles.processors import RobotProcessor, VideoProcessor
from penstock.server.sources import LerobotSource
from penstock.server.testing import check_job
from penstock.wire.errors import InvalidJob
from robots import CAMERAS, HEIGHT, WIDTH, RobotFolder, frame_number, video_writer
from videos import read_number

FRONT, WRIST, _ = CAMERAS


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the videos of two cameras, whose episodes share files."""
    robots = RobotFolder(cameras=CAMERAS[:2])
    return robots.write(tmp_path_factory.mktemp("robot") / "robots", video_writer(robots.fps))


def processed(
    processor: RobotProcessor, root: Path, items: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return samples, made together, of media below a folder."""
    contexts = []
    for number, item in enumerate(items):
        media = [
            HeldMedium(each["path"], (root / each["path"]).read_bytes())
            for each in processor.references(item)
        ]
        contexts.append(ProcessContext(ItemRef("main", number, 0), 7, media))
    return processor.process_batch(items, contexts)  # type: ignore[return-value]


def test_each_camera_shows_the_frame_of_its_item(root: Path) -> None:
    """In any order of items, windowed or not; other keys stay."""
    source = LerobotSource(str(root), delta_timestamps={FRONT: [-0.1, 0.0, 0.1]})
    order = [26, 3, 11, 12, 0, 19, 7, 10]

    items = source.fetch(order)
    samples = processed(RobotProcessor(), root, items)

    robots = RobotFolder()
    for index, item, sample in zip(order, items, samples, strict=True):
        assert list(sample) == list(item)
        assert sample[FRONT].shape == (3, HEIGHT, WIDTH, 3)
        assert sample[WRIST].shape == (HEIGHT, WIDTH, 3)
        assert sample[FRONT].dtype == sample[WRIST].dtype == np.uint8
        start = max(s for s in robots.starts if s <= index)
        stop = min(s for s in robots.starts if s > index)
        wanted = [min(max(i, start), stop - 1) for i in (index - 1, index, index + 1)]
        assert [read_number(frame) for frame in sample[FRONT]] == wanted
        assert read_number(sample[WRIST]) == frame_number(WRIST, index)
        assert int(sample["index"]) == index


def test_cameras_that_are_not_named_stay_references(root: Path) -> None:
    [item] = LerobotSource(str(root)).fetch([5])

    [sample] = processed(RobotProcessor(cameras=[WRIST]), root, [item])

    assert read_number(sample[WRIST]) == frame_number(WRIST, 5)
    assert sample[FRONT] == item[FRONT]


def test_planes_take_the_place_of_a_camera(root: Path) -> None:
    """Luma holds the number; the shapes are those of the window, or of one frame."""
    [item] = LerobotSource(str(root), delta_timestamps={FRONT: [0.0, 0.1]}).fetch([11])

    [sample] = processed(RobotProcessor(pixels="yuv420p"), root, [item])

    assert FRONT not in sample
    assert [read_number(plane) for plane in sample[f"{FRONT}.y"]] == [11, 12]
    assert read_number(sample[f"{WRIST}.y"]) == frame_number(WRIST, 11)
    assert sample[f"{FRONT}.u"].shape == (2, HEIGHT // 2, WIDTH // 2)
    assert sample[f"{WRIST}.v"].shape == (HEIGHT // 2, WIDTH // 2)
    assert sample[f"{FRONT}.colours"].shape == (2, 3)
    assert sample[f"{WRIST}.colours"].shape == (3,)


def test_windows_that_overlap_decode_each_frame_once(root: Path) -> None:
    """All frames of an episode, with eight-step windows: as many are decoded as it has."""
    steps = [k / 10 for k in range(8)]
    source = LerobotSource(str(root), delta_timestamps={FRONT: steps}, episodes=[2])
    processor = RobotProcessor(cameras=[FRONT])

    processed(processor, root, source.fetch(range(9)))

    counts = processor.frames.counts
    assert counts.delivered == 9 * 8
    assert counts.decoded <= 9 + 2  # and those on the way from the key frame before


def test_an_error_names_file_episode_frame_and_camera(root: Path) -> None:
    """A time that no frame is shown at, as where rate and video do not agree."""
    [item] = LerobotSource(str(root)).fetch([8])
    item[WRIST]["times"] = [item[WRIST]["times"][0] + 0.04]

    with pytest.raises(BadVideo) as caught:
        processed(RobotProcessor(), root, [item])

    said = str(caught.value)
    assert said.startswith(f"videos/{WRIST}/chunk-000/file-000.mp4, {WRIST}, episode 1, frame 1: ")
    assert "no frame is shown at" in said
    assert "0.04" in said
    assert "tolerance_s is 0.0001" in said


def test_a_video_that_is_damaged_is_named_with_the_frame(root: Path) -> None:
    [item] = LerobotSource(str(root), features=[FRONT, "index"]).fetch([8])
    data = (root / item[FRONT]["path"]).read_bytes()
    context = ProcessContext(ItemRef("main", 0, 0), 7, [HeldMedium("front.mp4", data[:400])])

    with pytest.raises(BadVideo, match=rf"front\.mp4, {FRONT}, episode 1, frame 1: "):
        RobotProcessor().process(item, context)


def test_pictures_in_the_table_are_decoded() -> None:
    """Of a window several; PNG, so to the byte."""
    photo = pictures.photograph(40, 30)
    png = pictures.encoded(photo, "PNG")
    held = {"bytes": png, "path": "frame.png"}
    item = {"left": held, "right": [held, held], "right_is_pad": np.array([True, False])}
    context = ProcessContext(ItemRef("main", 0, 0), 7, [HeldMedium("frame.png", png)] * 3)

    sample = RobotProcessor().process(item, context)

    assert np.array_equal(sample["left"], np.asarray(photo))
    assert np.array_equal(sample["right"], np.stack([np.asarray(photo)] * 2))


RESIZED = [
    ({"resize": "exact", "resize_to": [30, 50]}, (30, 50), (30, 50)),
    ({"resize": "shortest", "resize_to": 48, "filter": "bicubic"}, (48, 64), (64, 48)),
    ({"resize": "longest", "resize_to": 160}, (120, 160), (160, 120)),
]
"""Parameters, and what becomes of a film of 96 x 128 and of one of 128 x 96."""


@pytest.mark.parametrize(("parameters", "wide", "high"), RESIZED)
def test_cameras_are_resized_as_videos_are(
    parameters: dict[str, Any], wide: tuple[int, int], high: tuple[int, int]
) -> None:
    """Byte for byte what `video` gives, of cameras of two sizes, windowed or not."""
    films = {
        "wide": videos.written(videos.Film(frames=4, width=128, height=96)),
        "high": videos.written(videos.Film(frames=4, width=96, height=128)),
    }
    times = [[0.0], [0.0, 1 / 30, 2 / 30]]
    item: dict[str, Any] = {"high_is_pad": np.zeros(3, bool)}
    for (name, film), each in zip(films.items(), times, strict=True):
        item[name] = {"bytes": film, "path": f"{name}.mp4", "times": each}
    media = [HeldMedium(f"{name}.mp4", film) for name, film in films.items()]

    robot = RobotProcessor(**parameters)
    found = robot.process(item, ProcessContext(ItemRef("main", 0, 0), 7, media))

    wanted = {}
    for (name, film), medium, each in zip(films.items(), media, times, strict=True):
        video = VideoProcessor(times=each, **parameters)
        context = ProcessContext(ItemRef("main", 0, 0), 7, [medium])
        wanted[name] = video.process({"video": film}, context)["video"]
    assert found["wide"].shape == (*wide, 3)
    assert found["high"].shape == (3, *high, 3)
    assert np.array_equal(found["wide"], wanted["wide"][0])
    assert np.array_equal(found["high"], wanted["high"])


@pytest.mark.parametrize(("parameters", "wide", "high"), RESIZED)
def test_pictures_in_the_table_are_resized_as_frames_are(
    parameters: dict[str, Any], wide: tuple[int, int], high: tuple[int, int]
) -> None:
    """PNGs of a film's frames give what the film's frames give, alone and in a window."""
    for size, shape in (((96, 128), wide), ((128, 96), high)):
        film = videos.written(videos.Film(frames=2, height=size[0], width=size[1]))
        context = ProcessContext(ItemRef("main", 0, 0), 7, [HeldMedium("a.mp4", film)])
        whole = VideoProcessor().process({"video": film}, context)["video"]
        wanted = VideoProcessor(**parameters).process({"video": film}, context)["video"]
        pngs = [pictures.encoded(Image.fromarray(frame), "PNG") for frame in whole]
        held = [{"bytes": png, "path": "frame.png"} for png in pngs]
        item = {"left": held[0], "right": held, "right_is_pad": np.array([True, False])}
        media = [HeldMedium("frame.png", png) for png in (pngs[0], *pngs)]

        sample = RobotProcessor(**parameters).process(
            item, ProcessContext(ItemRef("main", 0, 0), 7, media)
        )

        assert sample["left"].shape == (*shape, 3)
        assert np.array_equal(sample["left"], wanted[0])
        assert np.array_equal(sample["right"], wanted)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"decoders": 0}, "decoders"),
        ({"frame_bytes": -1}, "frame_bytes"),
        ({"cameras": "front"}, "cameras is 'front': give a list of names"),
        ({"tolerance_s": -1}, "tolerance_s is -1: give seconds"),
        ({"resize": "exact"}, "resize_to is None with resize: exact: give both"),
        ({"resize_to": 64}, "resize_to is 64 with resize: null: give both"),
        ({"resize": "longest", "resize_to": [3, 4]}, "takes the pixels of one side"),
        ({"resize": "pad", "resize_to": 8}, "resize is 'pad'"),
        ({"resize": "exact", "resize_to": 0}, "resize_to is 0: give pixels"),
        (
            {"resize": "exact", "resize_to": 8, "pixels": "yuv420p"},
            r"planes are resized where they become RGB.*ToRgb\(size=\)",
        ),
        ({"kernel": "opencv", "filter": "bicubic"}, "opencv has bilinear alone"),
    ],
)
def test_parameters_that_cannot_be_are_refused(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        RobotProcessor(**parameters)


def test_a_camera_that_is_not_there_is_refused_by_name(root: Path) -> None:
    source = LerobotSource(str(root))

    with pytest.raises(InvalidJob, match=r"processor\.cameras names 'front', and the items"):
        RobotProcessor(cameras=["front"]).check_columns(source.columns_of_items())


def test_bounds_are_not_part_of_the_identity() -> None:
    assert RobotProcessor(decoders=3).identity() == RobotProcessor().identity()
    assert RobotProcessor(tolerance_s=0.01).identity() != RobotProcessor().identity()
    resized = RobotProcessor(resize="exact", resize_to=64).identity()
    assert resized != RobotProcessor().identity()
    assert resized["version"] == RobotProcessor().identity()["version"]


@pytest.mark.parametrize("parameters", [{}, {"resize": "shortest", "resize_to": 24}])
def test_every_offset_restores_exactly(root: Path, parameters: dict[str, Any]) -> None:
    """With one open video and no kept frames, too: neither decides a byte."""

    def make() -> Job:
        source = LerobotSource(str(root), delta_timestamps={FRONT: [0.0, 0.1]})
        processor = RobotProcessor(decoders=1, frame_bytes=0, **parameters)
        return Job(source, processor=processor, batcher=SimpleBatcher(4), lanes=2, name="robots")

    check_job(make, batches=6)


def test_a_video_is_told_by_its_content_and_not_its_name() -> None:
    """Items that hold their videos may all call them alike."""
    films = [videos.written(videos.Film(frames=2, first=first)) for first in (10, 20)]
    processor, found = RobotProcessor(), []
    for film in films:
        context = ProcessContext(ItemRef("main", 0, 0), 7, [HeldMedium("a.mp4", film)])
        item = {"front": {"bytes": film, "path": "a.mp4", "times": [0.0]}}
        found.append(read_number(processor.process(item, context)["front"]))

    assert found == [10, 20]


def test_parts_that_cameras_need_are_told_by_their_indexes(root: Path) -> None:
    """Whole files before there is one; then where frames lie; and nothing of frames in memory."""
    source = LerobotSource(str(root), delta_timestamps={FRONT: [-0.1, 0.0]})
    [item] = source.fetch([5])
    reader = MediaReader(MediaFiles(str(root), endings=[".mp4"]))
    media = reader.media(RobotProcessor().references(item))
    sizes = [medium.size() for medium in media]
    first, later = RobotProcessor(), RobotProcessor()

    before = first.parts_read(item, media, for_size=False)
    first.process(item, ProcessContext(ItemRef("main", 5, 0), 7, media))
    after = first.parts_read(item, media, for_size=False)
    kept = later.parts_read(item, media, for_size=False)

    assert len(media) == 2
    assert before == [[(0, size)] for size in sizes]
    assert after == [(), ()]
    for spans, size in zip(kept, sizes, strict=True):
        assert spans is not None
        assert 0 <= spans[0][0] < spans[-1][1] <= size


def test_batches_of_declared_cameras_are_known_before_they_are_made(root: Path) -> None:
    """So a job of which a node holds none is refused; planes take half, resized ones their own."""
    source = LerobotSource(str(root), delta_timestamps={FRONT: [-0.1, 0.0]})
    whole, quarter = HEIGHT * WIDTH, HEIGHT * WIDTH // 4
    for parameters, takes in (
        ({}, 16 * 3 * whole * 3),
        ({"pixels": "yuv420p"}, 16 * 3 * whole * 3 // 2),
        ({"resize": "shortest", "resize_to": HEIGHT // 2}, 16 * 3 * quarter * 3),
        ({"resize": "exact", "resize_to": [20, 30]}, 16 * 3 * 20 * 30 * 3),
        ({"resize": "exact", "resize_to": 32, "cameras": [WRIST]}, 16 * 32 * 32 * 3),
    ):
        job = Job(
            name="robots",
            source=source,
            processor=RobotProcessor(**parameters),
            batcher=SimpleBatcher(16),
            media=MediaFiles(str(root), endings=[".mp4"]),
        )
        assert job.least_batch_bytes == takes
        job.check_fits(takes)
        said = f"a batch of job 'robots' takes {takes:,} bytes or more, and ready_bytes of the"
        with pytest.raises(InvalidJob, match=f"{said} server is {takes - 1:,}: not even one fits"):
            job.check_fits(takes - 1)


def test_the_memory_of_a_node_has_open_videos_and_frames(root: Path) -> None:
    """Their bounds, in each worker; as soon as videos were seen, no more than these can take."""
    processor = RobotProcessor(decoders=4, decoder_bytes=1 << 30, frame_bytes=1 << 20)
    job = Job(
        source=LerobotSource(str(root)),
        processor=processor,
        batch_size=2,
        media=MediaFiles(str(root), endings=[".mp4"]),
    )

    def videos_mib() -> float:
        told = {"workers": 3, "ready_bytes": 1 << 20, "imported": ()}
        return node_memory(job, **told, sample_bytes=1, batch_bytes=1).videos

    assert videos_mib() == 3 * (1024 + 1)
    processed(processor, root, job.sources["main"].fetch([0, 5]))
    assert 3 < videos_mib() < 3 * (4 * 4 + 1)
