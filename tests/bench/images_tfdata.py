"""Pictures with tf.data: decoded and resized in 2 threads of the training process.

`tf.image.resize` takes four pixels for each of the result, as OpenCV's linear kernel does: it does
not antialias.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from images_files import BATCH, SIDE, files, rates


def main(folder: str, width: int) -> None:
    """Read; print the rates."""
    paths = files(folder)

    def decode(path: tf.Tensor) -> tf.Tensor:
        pixels = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.cast(tf.image.resize(pixels, (SIDE, SIDE)), tf.uint8)

    data = tf.data.Dataset.from_tensor_slices(paths).repeat().shuffle(len(paths))
    data = data.map(decode, num_parallel_calls=2).batch(BATCH).prefetch(2)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 2
    batches = data.with_options(options).as_numpy_iterator()
    print(json.dumps(rates((len(batch) for batch in batches), 0, width)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
