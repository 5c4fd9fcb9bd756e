"""Pictures with SPDL's pipeline: 2 threads of the training process decode and resize by FFmpeg."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from images_files import BATCH, SIDE, files, rates


def main(folder: str, width: int) -> None:
    """Read; print the rates."""
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    paths = files(folder)
    scale = spdl.io.get_video_filter_desc(scale_width=SIDE, scale_height=SIDE, pix_fmt="rgb24")

    def source() -> Iterator[list[str]]:
        while True:
            for place in range(0, len(paths) - BATCH + 1, BATCH):
                yield paths[place : place + BATCH]

    def decode(batch: list[str]) -> Any:
        frames = [
            spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=scale) for path in batch
        ]
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    builder = PipelineBuilder().add_source(source()).pipe(decode, concurrency=2)
    pipeline = builder.add_sink(2).build(num_threads=2)
    with pipeline.auto_stop():
        print(json.dumps(rates((len(batch) for batch in pipeline), 0, width)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
