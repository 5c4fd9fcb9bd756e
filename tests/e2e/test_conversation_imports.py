"""What a process imports that makes samples of conversations with pictures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from vision import drawn, encoded, write_vision_folder

PROGRAM = """
import sys
from penstock.server.core.refs import ItemRef
from penstock.server.media.medium import HeldMedium
from penstock.server.roles import ConversationProcessor
from penstock.server.roles.context import ProcessContext

with open(sys.argv[2], "rb") as file:
    picture = file.read()
turns = [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "a"}]
role = ConversationProcessor(sys.argv[1], fake_image=True)
context = ProcessContext(ItemRef("main", 0, 0), 1, [HeldMedium("a", picture)])
sample = role.process({"messages": turns, "images": [picture]}, context)
assert len(sample["pixel_values"])
print([name for name in ("torch", "transformers", "torchvision") if name in sys.modules])
"""


def test_samples_are_made_without_torch_and_transformers(tmp_path: Path) -> None:
    """A worker has neither: they would take seconds to start, and hundreds of megabytes."""
    folder = write_vision_folder(tmp_path / "processor", "qwen2_vl")
    (tmp_path / "a.png").write_bytes(encoded(drawn(60, 40)))

    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path / "a.png")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() == "[]"
