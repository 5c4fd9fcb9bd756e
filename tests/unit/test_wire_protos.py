"""The checked-in generated code is that of the checked-in `.proto` files."""

from __future__ import annotations

import hashlib
import importlib
import re
from pathlib import Path

import pytest

import penstock.wire.v1

FOLDER = Path(penstock.wire.v1.__file__).parent
PROTOS = sorted(FOLDER.glob("*.proto"))


def recorded() -> dict[str, str]:
    """File name -> SHA-256, as written when the code was generated."""
    lines = (FOLDER / "SOURCES.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def test_the_code_was_generated_from_these_sources() -> None:
    """A `.proto` that was edited without generating, or is not listed, fails here."""
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in PROTOS}

    assert recorded() == there, "run `make protos`"


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.stem)
def test_package_path_and_import_are_one_name(path: Path) -> None:
    """Proto path = proto package = Python import, so that nothing has to be rewritten."""
    module = importlib.import_module(f"penstock.wire.v1.{path.stem}_pb2")

    assert module.DESCRIPTOR.name == f"penstock/wire/v1/{path.name}"
    assert module.DESCRIPTOR.package == "penstock.wire.v1"
    assert (FOLDER / f"{path.stem}_pb2.pyi").is_file()


@pytest.mark.parametrize("path", PROTOS, ids=lambda path: path.stem)
def test_generated_messages_are_those_of_the_source(path: Path) -> None:
    """Every message with its fields and their numbers, every enum and service are the same."""
    text = re.sub(r"//.*", "", path.read_text())
    descriptor = importlib.import_module(f"penstock.wire.v1.{path.stem}_pb2").DESCRIPTOR

    written = {
        name: {
            (field, int(number))
            for field, number in re.findall(r"(\w+) = (\d+);", re.sub(r"oneof \w+ \{", "", body))
        }
        for name, body in re.findall(r"^message (\w+) \{(?:\}|(.*?)^\})", text, re.M | re.S)
    }
    generated = {
        name: {(field.name, field.number) for field in message.fields}
        for name, message in descriptor.message_types_by_name.items()
    }

    assert written == generated
    assert set(re.findall(r"^service (\w+)", text, re.M)) == set(descriptor.services_by_name)
    assert set(re.findall(r"^enum (\w+)", text, re.M)) == set(descriptor.enum_types_by_name)
