"""Videos: which frames a file has, and these frames by their numbers.

`index_video(medium)` demuxes a file once and gives its `VideoIndex`: when each frame is shown, and
from where it can be decoded. A frame's number is its place in presentation order, so it does not
depend on what is asked for, or was before.

`VideoFrames` has the decoders of a process, a bounded number of them, and a bounded number of bytes
of decoded frames. `VideoFrames.frames(medium, index, numbers)` gives `DecodedFrame`s, whose
`rgb24()` and `yuv420p()` are the pixels as they are shown, with rotation applied.

    index = index_video(medium)
    frames = VideoFrames(decoders=64, decoder_bytes=1 << 30, frame_bytes=256 << 20)
    numbers = [index.number_at(time_s, tolerance_s=1e-4) for time_s in (0.0, 0.1)]
    pixels = [frame.rgb24() for frame in frames.frames(medium, index, numbers)]

Nothing here depends on where a library's seek leads: after one, packets are recognized by their
places in the file, and each decoded frame carries the number of the packet that it was coded in.
"""
