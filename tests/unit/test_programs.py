"""The two commands know each other's commands, and what a start needs."""

from __future__ import annotations

import pytest

from penstock.client import cli as reader_cli
from penstock.client.cli import build_parser
from penstock.common.programs import COMMANDS
from penstock.server import cli as node_cli
from penstock.server.commands.group import cli


def test_the_commands_of_both_programs_are_those_that_are_listed() -> None:
    assert list(COMMANDS["penstockd"]) == list(cli.commands)
    for name in COMMANDS["penstock"]:
        assert f"\n    {name} " in build_parser().format_help()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["check", "p.yaml"], "check is a command of penstockd: write penstockd check p.yaml"),
        (["-v", "serve"], "serve is a command of penstockd: write penstockd serve"),
        (["pin", "h:1"], "there is no command 'pin': did you mean ping?"),
        (["chek"], "there is no command 'chek': did you mean penstockd check?"),
        (["zzz"], "there is no command 'zzz': known are bench, cat, cursors, demo, nodes, ping"),
    ],
)
def test_penstock_says_where_a_command_is(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        reader_cli.main(arguments)

    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"penstock: error: {sentence}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["cat", "local:p.yaml", "main"],
            "cat is a command of penstock: write penstock cat local:p.yaml main",
        ),
        (["serv", "p.yaml"], "there is no command 'serv': did you mean serve?"),
        (["topp"], "there is no command 'topp': did you mean penstock top?"),
    ],
)
def test_penstockd_says_where_a_command_is(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert node_cli.run(arguments) == 2

    assert capsys.readouterr().err.startswith(f"penstockd: error: {sentence}")
