"""The processor `sound`: samples, sizes, spans, bounds, and what is said of what cannot be."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef
from penstock.server.job.job import Job
from penstock.server.media.bad_sound import BadSound
from penstock.server.media.medium import HeldMedium
from penstock.server.media.resample import resample
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.maker import Maker
from penstock.server.roles import BestFitPackingBatcher, ProcessContext, SoundProcessor
from penstock.server.roles.collators import ListsCollator
from penstock.server.sources import ItemsSource
from penstock.server.usercode import libraries
from penstock.server.usercode.frames import user_line, user_traceback
from penstock.wire import frame
from penstock.wire.errors import InvalidJob, MissingExtra
from penstock.wire.v1 import feed_pb2
from sounds import FORMATS, decoded, drawn, written

RATE = 24000
FLAC = written(drawn(2, RATE, 2), RATE, "flac")
POINTS = decoded(FLAC)
MONO = (POINTS.astype(np.float64).sum(axis=1) / 2).astype(np.float32)


def process(processor: SoundProcessor, raw: Any) -> dict[str, Any]:
    media = [HeldMedium("clip", data) for data in processor.references(raw)]
    return processor.process(raw, ProcessContext(ItemRef("main", 3, 0), 7, media))


def told(processor: SoundProcessor, raw: Any) -> tuple[int, tuple[int, ...]]:
    size, counts = processor.size(
        raw, [HeldMedium("clip", data) for data in processor.references(raw)]
    )
    return size, counts


def item(**columns: Any) -> dict[str, Any]:
    return {"audio": FLAC, **columns}


# --- samples ---


def test_a_sample_is_the_sound_its_rate_and_what_is_kept() -> None:
    """The mean of all channels, at the file's rate, as float32."""
    sample = process(SoundProcessor(columns=["text", "id"]), item(text="a", id=None, other=1))

    assert list(sample) == ["sound", "sample_rate", "text", "id"]
    assert np.array_equal(sample["sound"], MONO)
    assert sample["sound"].dtype == np.float32
    assert (sample["sample_rate"], sample["text"], sample["id"]) == (RATE, "a", None)


def test_all_channels_are_kept_where_that_is_asked() -> None:
    """Time comes first: the length of the array is that of the sound."""
    assert np.array_equal(process(SoundProcessor(channels="all"), item())["sound"], POINTS)


def test_sound_is_resampled_to_one_rate() -> None:
    """After it was mixed; channels that are kept are each as they are alone."""
    mono = process(SoundProcessor(sample_rate=16000), item())
    both = process(SoundProcessor(sample_rate=16000, channels="all"), item())

    assert np.array_equal(mono["sound"], resample(MONO, RATE, 16000))
    assert mono["sample_rate"] == both["sample_rate"] == 16000
    for channel in range(2):
        alone = resample(POINTS[:, channel].copy(), RATE, 16000)
        assert np.array_equal(both["sound"][:, channel], alone)


def test_whole_numbers_are_rounded_and_limited() -> None:
    """Those of the file come back; what is beyond the range is its end, and does not wrap."""
    points = np.array([[-1.0], [0.99996], [1.5], [-1.5], [0.25 / 32768], [1.75 / 32768]], "f4")
    data = written(points, 8000, "wav of floats")
    processor = SoundProcessor(dtype="int16")

    sound = process(processor, {"audio": data})["sound"]

    assert sound.dtype == np.int16
    assert sound.tolist() == [-32768, 32767, 32767, -32768, 0, 2]
    whole = process(SoundProcessor(dtype="int16", channels="all"), item())["sound"]
    assert np.array_equal(whole.astype(np.float32) / 32768, POINTS)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"sample_rate": 16000, "tokens_per_second": 25},
        {"sample_rate": 44100, "points_per_token": 320, "token_rounding": "down"},
        {"channels": "all", "tokens_per_second": 12.1, "start_s": 0.1, "stop_s": "end"},
    ],
    ids=["plain", "resampled", "down", "span"],
)
def test_what_headers_tell_is_what_samples_have(kind: str, parameters: Any) -> None:
    """Size and counts, of every format: a plan that was made of them holds."""
    processor = SoundProcessor(**parameters)
    for seconds in (0.5, 1.337):
        data = written(drawn(seconds, RATE, 2), RATE, kind)
        raw = {"audio": data, "end": 0.4321}

        sample = process(processor, raw)

        size, counts = told(processor, raw)
        assert size == len(sample["input_ids" if "input_ids" in sample else "sound"])
        assert counts == tuple(processor.counts(sample))
        assert len(counts) == len(processor.measures)


@pytest.mark.parametrize(
    ("rule", "points", "tokens"),
    [
        ({"tokens_per_second": 25}, 24000, 25),
        ({"tokens_per_second": 25}, 24001, 26),
        ({"tokens_per_second": 25, "token_rounding": "down"}, 24959, 25),
        ({"tokens_per_second": 12.1}, 240_000, 121),
        ({"tokens_per_second": 0.5, "token_rounding": "down"}, 24000, 0),
        ({"points_per_token": 320}, 640, 2),
        ({"points_per_token": 320}, 641, 3),
        ({"points_per_token": 320, "token_rounding": "down"}, 959, 2),
    ],
)
def test_tokens_follow_the_rule(rule: Any, points: int, tokens: int) -> None:
    """By whole numbers: 12.1 tokens of 10 s are 121, though 12.1 is no binary fraction."""
    raw = {"audio": written(np.zeros((points, 1), np.float32), RATE, "flac")}
    sample = process(SoundProcessor(**rule, token_id=9), raw)

    assert sample["input_ids"].tolist() == [9] * tokens
    assert told(SoundProcessor(**rule), raw) == (tokens, (-(-points // RATE), tokens))


def test_seconds_are_rounded_up() -> None:
    """So a limit of seconds is never exceeded."""
    for points, seconds in ((1, 1), (RATE, 1), (RATE + 1, 2)):
        raw = {"audio": written(np.zeros((points, 1), np.float32), RATE, "wav")}
        assert told(SoundProcessor(sample_rate=8000), raw)[1] == (seconds,)


def test_a_piece_has_the_points_of_its_tokens() -> None:
    """Where a batcher cuts, all pieces together are the sound, in one channel or several."""
    rules: list[dict[str, Any]] = [{"tokens_per_second": 12.5}, {"points_per_token": 7000}, {}]
    for rule in (*rules, {"channels": "all"}):
        processor = SoundProcessor(columns=["text", "each"], **rule)
        size, _ = told(processor, item())
        sample = process(processor, item(text="a", each=list(range(size))))
        cuts = [0, size // 3, size // 2, size]

        pieces = [processor.cut(sample, *cuts[n : n + 2], size) for n in range(3)]

        whole = np.concatenate([piece["sound"] for piece in pieces])
        assert np.array_equal(whole, sample["sound"])
        assert [each for piece in pieces for each in piece["each"]] == sample["each"]
        assert [piece["text"] for piece in pieces] == ["a"] * 3
        for piece in pieces:
            assert "input_ids" not in piece or len(piece["input_ids"]) == len(piece["each"])


# --- spans ---


@pytest.mark.parametrize("rule", [{}, {"tokens_per_second": 10}, {"points_per_token": 100}])
def test_a_batch_that_quarantine_has_emptied_is_of_silence(rule: Any) -> None:
    """A file that is cut off after its header was all of the batch: its zeros have a rate."""
    whole = written(drawn(0.9, 8000), 8000, "flac")
    cut_off = written(drawn(0.3, 8000), 8000, "flac")[:-500]
    job = Job(
        ItemsSource([{"audio": whole}, {"audio": cut_off}]),
        processor=SoundProcessor(**rule),
        batcher=BestFitPackingBatcher(
            100_000, length_key="input_ids" if rule else "sound", overlong="drop"
        ),
        collator=ListsCollator(),
        lanes=1,
        on_item_error="quarantine",
    )
    size, counts = told(SoundProcessor(**rule), {"audio": cut_off})
    plan = BatchPlan(0, 0, [[SampleRef(ItemRef("main", 1, 0), 0, size, None, counts)]])

    made = Maker(job, Items(job)).make(plan)

    body = bytearray(made.nbytes)
    header = feed_pb2.BatchHeader.FromString(made.write(memoryview(body)))
    values = frame.decode_values(header, bytes(body))
    assert header.padding
    [sound] = values["sound"]
    assert not sound.any()
    assert len(values["input_ids"][0] if rule else sound) == size


def test_a_span_is_a_number_or_a_column() -> None:
    """Seconds to the nearest point; a number as the end means at most so much."""
    assert np.array_equal(
        process(SoundProcessor(start_s=0.5, stop_s=1.25), item())["sound"], MONO[12000:30000]
    )
    assert np.array_equal(process(SoundProcessor(stop_s=30), item())["sound"], MONO)
    by_column = SoundProcessor(start_s="from", stop_s="to")
    for start, stop in ((0, 2), (0.25, 0.5), (np.float32(0.25), None), (None, 1)):
        sound = process(by_column, item(**{"from": start, "to": stop}))["sound"]
        first, last = round(RATE * (start or 0)), round(RATE * (2 if stop is None else stop))
        assert np.array_equal(sound, MONO[first:last])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"from": 0, "to": 2.1},
            r"clip: the item wants 0.000 s to 2.100 s of it, and it has 2.000 s",
        ),
        ({"from": 1, "to": 1}, "wants 1.000 s to 1.000 s"),
        ({"from": 1, "to": 0.5}, "wants 1.000 s to 0.500 s"),
        ({"from": -1, "to": 1}, "'from' is -1, where seconds are needed"),
        ({"from": "1", "to": 1}, "'from' is '1', where seconds"),
        ({"from": True, "to": 1}, "'from' is True, where seconds"),
        ({"from": float("nan"), "to": 1}, "'from' is nan, where seconds"),
        ({"from": 0}, "its column 'to' is missing; it has"),
    ],
)
def test_a_span_that_is_not_there_is_refused(columns: Any, said: str) -> None:
    """Told by the header, and when it is decoded."""
    for call in (process, told):
        with pytest.raises(ValueError, match=said):
            call(SoundProcessor(start_s="from", stop_s="to"), item(**columns))


# --- what is refused ---


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({}, r"its column 'audio' is missing; it has \[\]"),
        ({"audio": None}, "its column 'audio' is null"),
        (b"bytes", "it is bytes, and sound needs items with named columns"),
        ({"audio": b"RIFF"}, "clip: it is RIFF, and not a wav"),
        ({"audio": FLAC[:-9]}, "clip: it was cut, or is damaged; libsndfile says: "),
    ],
)
def test_what_an_item_lacks_is_said(raw: Any, said: str) -> None:
    """With the name of the file, where it is about one."""
    with pytest.raises(ValueError, match=said):
        process(SoundProcessor(), raw)


def test_bounds_hold_before_memory_is_taken() -> None:
    """A header that promises gigabytes, and a second too much; a span of the same file is fine."""
    form = struct.pack("<HHIIHH", 1, 8, 8000, 128_000, 16, 16)
    data = b"RIFF" + struct.pack("<I", 2**32 - 1) + b"WAVEfmt " + struct.pack("<I", 16) + form
    data += b"data" + struct.pack("<I", 2**32 - 16) + bytes(16000)
    tracemalloc.start()
    for call in (process, told):
        with pytest.raises(BadSound, match=r"clip: it takes 1,073,741,820 bytes to decode, and"):
            call(SoundProcessor(), {"audio": data})
        with pytest.raises(BadSound, match=r"it has 2\.0 s, and max_seconds is 1"):
            call(SoundProcessor(max_seconds=1), item())
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert process(SoundProcessor(max_seconds=1, stop_s=1), item())["sound"].shape == (RATE,)
    needed = 4 * len(MONO)
    assert process(SoundProcessor(max_bytes=needed), item())["sound"].shape == MONO.shape
    with pytest.raises(BadSound, match=r"raise that, or take a span of it with stop_s"):
        process(SoundProcessor(max_bytes=needed - 1), item())


def test_rates_that_cannot_be_are_said_of_the_file() -> None:
    """A header may say any rate; the job's is a whole number."""
    data = written(drawn(0.1, 44101), 44101, "wav")

    with pytest.raises(
        BadSound, match=r"clip: from 44,101 Hz to 48,000 Hz .* leave such files out"
    ):
        process(SoundProcessor(sample_rate=48000), {"audio": data})


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"column": ""}, "column is ''"),
        ({"columns": "text"}, r"columns is 'text': give a list of names, such as \[text\]"),
        ({"columns": ["sound"]}, "columns names 'sound', which this processor gives itself"),
        ({"columns": ["input_ids"], "points_per_token": 9}, "columns names 'input_ids', which"),
        ({"sample_rate": 0}, "sample_rate is 0: give points in a second as a whole number"),
        ({"sample_rate": 16e3}, r"sample_rate is 16000\.0"),
        ({"channels": "stereo"}, "channels is 'stereo': choose one of mono, all"),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"start_s": -1}, "start_s is -1: give seconds, or the name of a column"),
        ({"start_s": None}, "start_s is None"),
        ({"stop_s": True}, "stop_s is True"),
        ({"stop_s": float("inf")}, "stop_s is inf"),
        ({"max_seconds": 0}, "max_seconds is 0"),
        ({"max_bytes": "1"}, "max_bytes is '1'"),
        ({"tokens_per_second": 0}, "tokens_per_second is 0: give a number above 0"),
        ({"tokens_per_second": "25"}, "tokens_per_second is '25'"),
        ({"tokens_per_second": 25, "points_per_token": 640}, "two rules for one number"),
        ({"token_rounding": "even"}, "token_rounding is 'even'"),
        ({"token_id": -1}, "token_id is -1"),
    ],
)
def test_parameters_that_cannot_be_are_refused(parameters: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        SoundProcessor(**parameters)


def test_columns_that_are_not_there_are_named_before_the_start() -> None:
    """Of the sound, of what is kept and of spans; sizes need no other ones."""
    processor = SoundProcessor("wav", columns=["text"], start_s="from", stop_s=2)
    columns = {"wav": "binary", "text": "string", "from": "double"}

    processor.check_columns(columns)

    assert processor.keys_of_samples(columns) == ["sound", "sample_rate", "text"]
    assert list(processor.size_columns or ()) == ["wav", "from"]
    for missing, parameter in (("wav", "column"), ("text", "columns"), ("from", "start_s")):
        with pytest.raises(InvalidJob, match=f"processor.{parameter} names '{missing}'"):
            processor.check_columns({name: columns[name] for name in columns if name != missing})


def test_the_filters_version_is_part_of_a_job_that_uses_it() -> None:
    """Other weights are another log; a job that resamples nothing stays what it is."""
    assert SoundProcessor(sample_rate=16000).identity()["resampler"] == 1
    assert "resampler" not in SoundProcessor().identity()


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra that brings it, when the job is built and when it is needed."""
    processor = SoundProcessor()
    monkeypatch.setitem(sys.modules, "soundfile", None)

    for call in (processor.check_identity, processor.setup, lambda: process(processor, item())):
        with pytest.raises(MissingExtra, match=r"pip install 'penstock\[sound\]'"):
            call()


def test_the_decoders_versions_are_recorded() -> None:
    """Of the package and of the library behind it: another one may give other points."""
    SoundProcessor().setup()

    found = libraries.in_use()

    assert found["soundfile"]
    assert found["libsndfile of soundfile"].startswith("1.")


def test_a_bad_sound_is_said_without_frames() -> None:
    """No code of the user is above it, so the sentence is all there is."""
    with pytest.raises(BadSound) as caught:
        process(SoundProcessor(max_seconds=1), item())

    ours = caught.value.__traceback__
    assert ours is not None
    assert ours.tb_next is not None
    error = caught.value.with_traceback(ours.tb_next.tb_next)  # as if penstock had called it
    assert user_traceback(error).startswith("penstock.server.media.bad_sound.BadSound: clip")
    assert user_line(error) == ""
