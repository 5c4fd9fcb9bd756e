"""TokenizeProcessor gives the ids of the library, and says clearly what is wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.server.core.refs import ItemRef
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processors import TokenizeProcessor
from penstock.wire.errors import InvalidJob

TEXT = "the pipe feeds the turbine; the turbine turns, and the pipe is a penstock. Äpfel, 漢字 🙂\n"


def context() -> ProcessContext:
    return ProcessContext(ItemRef("main", 0, 0), seed=7)


def ids_of(processor: TokenizeProcessor, text: str) -> list[int]:
    sample = processor.process({"text": text}, context())
    assert sample is not None
    return [int(token) for token in sample["input_ids"]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE whose file asks for padding and truncation, and has a template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(5)
    made = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    tokenizer.save(str(made))
    return made


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    """The library's own, with padding and truncation off."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


@settings(deadline=None)
@given(
    text=st.none() | st.text(max_size=60),
    template=st.booleans(),
    around=st.booleans(),
    most=st.none() | st.integers(5, 30),
)
def test_counting_gives_the_lengths_and_filters_alike(
    path: Path, text: str | None, template: bool, around: bool, most: int | None
) -> None:
    """Whatever is added, cut or left out: an index of sizes is made of the counts."""
    token = "<eos>" if around else None
    processor = TokenizeProcessor(
        path, append=token, prepend=token, max_length=most, add_special_tokens=template
    )
    counting = processor.for_lengths("input_ids")
    here, there = context(), context()
    sample = processor.process({"text": text}, here)
    counted = counting.process({"text": text}, there)

    assert counting is not processor
    assert here.skipped == there.skipped
    assert (sample is None) == (counted is None)
    if sample is not None and counted is not None:
        assert len(counted["input_ids"]) == len(sample["input_ids"])


def test_counting_is_for_its_own_samples_alone(path: Path) -> None:
    """Another value's length, or a subclass that makes other samples: nothing is left out."""

    class Doubled(TokenizeProcessor):
        def process(self, raw: Any, context: ProcessContext) -> Any:
            ids = ids_of(TokenizeProcessor(path), raw["text"])
            return {"input_ids": ids + ids}

    class Together(TokenizeProcessor):
        def process_batch(self, raws: Any, contexts: Any) -> Any:
            found = super().process_batch(raws, contexts)
            return [{"input_ids": sample["input_ids"] + 0} for sample in found]

    doubled, plain = Doubled(path), TokenizeProcessor(path)
    together = Together(path)

    assert doubled.for_lengths("input_ids") is doubled
    assert together.for_lengths("input_ids") is together
    assert plain.for_lengths("labels") is plain
    counted = plain.for_lengths("input_ids").process({"text": TEXT}, context())
    assert counted is not None
    assert counted["input_ids"] == range(len(ids_of(plain, TEXT)))


@settings(deadline=None)
@given(text=st.text(min_size=1, max_size=60), template=st.booleans())
def test_the_ids_are_those_of_the_library(
    path: Path, reference: Any, text: str, template: bool
) -> None:
    """Leaving out offsets changes no id, and what the file says of padding has no part."""
    processor = TokenizeProcessor(path, add_special_tokens=template)

    assert ids_of(processor, text) == reference.encode(text, add_special_tokens=template).ids


def test_the_ids_are_int32_and_alone(path: Path) -> None:
    """A sample is one row of int32 token ids under the name that batchers and collators know."""
    sample = TokenizeProcessor(path).process({"text": TEXT, "other": 1}, context())

    assert sample is not None
    assert list(sample) == ["input_ids"]
    assert sample["input_ids"].dtype == np.int32
    assert sample["input_ids"].ndim == 1


def test_append_and_prepend_stand_around_every_document(path: Path, reference: Any) -> None:
    """One token before, one behind, the text's own between."""
    plain = reference.encode(TEXT, add_special_tokens=False).ids

    assert ids_of(TokenizeProcessor(path, append="<eos>"), TEXT) == [*plain, 2]
    both = TokenizeProcessor(path, append="<eos>", prepend="<bos>")
    assert ids_of(both, TEXT) == [1, *plain, 2]


@pytest.mark.parametrize(
    "around", [{}, {"append": "<eos>"}, {"append": "<eos>", "prepend": "<bos>"}]
)
@pytest.mark.parametrize("template", [False, True])
def test_max_length_counts_every_token(
    path: Path, reference: Any, around: dict[str, Any], template: bool
) -> None:
    """At every max_length the ids are at most that many, and what stands around is never cut."""
    whole = ids_of(TokenizeProcessor(path, **around, add_special_tokens=template), TEXT)
    plain = reference.encode(TEXT, add_special_tokens=False).ids
    before, behind = (whole[: whole.index(plain[0])], whole[whole.index(plain[0]) + len(plain) :])

    for max_length in range(len(before) + len(behind) + 1, len(whole) + 3):
        processor = TokenizeProcessor(
            path, **around, add_special_tokens=template, max_length=max_length
        )
        room = max_length - len(before) - len(behind)
        assert ids_of(processor, TEXT) == [*before, *plain[:room], *behind]


@pytest.mark.parametrize("template", [False, True])
@pytest.mark.parametrize(("text", "reason"), [("", "empty"), (None, "null")])
def test_an_item_without_text_is_filtered_with_its_reason(
    path: Path, template: bool, text: str | None, reason: str
) -> None:
    """Tokens that stand around nothing are no document."""
    told = context()
    processor = TokenizeProcessor(path, append="<eos>", add_special_tokens=template)

    assert processor.process({"text": text}, told) is None
    assert told.skipped == reason


def test_a_text_within_an_object_is_named_by_a_path(path: Path) -> None:
    """As in a tar of JSON files; a column of that very name comes first."""
    processor = TokenizeProcessor(path, column="json.text")
    alone = TokenizeProcessor(path).process({"text": "a text"}, context())
    assert alone is not None

    for item in ({"json": {"text": "a text"}}, {"json.text": "a text", "json": {"text": "b"}}):
        found = processor.process(item, context())
        assert found is not None
        assert found["input_ids"].tolist() == alone["input_ids"].tolist()
    assert processor.process({"json": {"text": None}}, context()) is None
    processor.check_columns({"json": "struct"})
    for item in ({"json": {"body": "a"}}, {"json": "a text"}, {"text": "a text"}):
        with pytest.raises(InvalidJob, match=r"processor.column is 'json.text'"):
            processor.process(item, context())


def test_plain_strings_need_no_column(path: Path) -> None:
    """A list of texts is a source as it stands."""
    processor = TokenizeProcessor(path, column="anything")
    sample = processor.process(TEXT, context())

    assert sample is not None
    assert sample["input_ids"].tolist() == ids_of(TokenizeProcessor(path), TEXT)


def test_the_files_bytes_are_the_identity_not_its_place(path: Path, tmp_path: Path) -> None:
    """The same tokenizer at another path makes the same log; another one makes another."""
    copy, other = tmp_path / "copy.json", tmp_path / "other.json"
    shutil.copy(path, copy)
    other.write_bytes(path.read_bytes() + b"\n")

    identity = TokenizeProcessor(str(path), append="<eos>", column="text").identity()

    assert identity == TokenizeProcessor(copy, append="<eos>").identity()
    assert identity != TokenizeProcessor(other, append="<eos>").identity()
    assert identity != TokenizeProcessor(copy).identity()
    assert identity["content"] == {"tokenizer": hashlib.sha256(path.read_bytes()).hexdigest()}
    assert identity["parameters"] == {"append": "<eos>"}


# --- what is wrong, in one sentence ---


def test_a_missing_column_is_named_with_the_nearest(path: Path) -> None:
    """The error lists the columns that there are."""
    processor = TokenizeProcessor(path, column="txt")

    with pytest.raises(InvalidJob) as caught:
        processor.process({"id": 1, "text": TEXT}, context())

    message = str(caught.value)
    assert all(word in message for word in ["'txt'", "'id'", "'text'", "did you mean 'text'?"])
    assert caught.value.fields["columns"] == ["id", "text"]


def test_an_item_without_the_column_is_named_with_what_leaves_it_out(path: Path) -> None:
    """Of a thousand lines a single one may lack it: the key is right, and the item is wrong."""
    with pytest.raises(InvalidJob) as caught:
        TokenizeProcessor(path).process({"body": TEXT}, context())

    assert "item main[0] in epoch 0 has 'body'" in str(caught.value)
    assert "columns: [text] in the source" in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "error", "words"),
    [
        ({"text": "ab\ud800"}, ValueError, ["half a surrogate pair", r"'\ud800'", "character 2"]),
        ({"text": 5}, TypeError, ["'text'", "int"]),
        ({"text": b"abc"}, TypeError, ["'text'", "bytes"]),
        (5, InvalidJob, ["int", "'text'", "function:"]),
    ],
)
def test_what_is_no_text_is_named(
    path: Path, raw: Any, error: type[Exception], words: list[str]
) -> None:
    """The error says what the column holds in place of text."""
    with pytest.raises(error) as caught:
        TokenizeProcessor(path).process(raw, context())

    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("name", "token", "near"),
    [
        ("append", "<eod>", "'<eos>'"),
        ("prepend", "<boss>", "'<bos>'"),
        ("append", "zzz", "'<eos>'"),
    ],
)
@pytest.mark.parametrize("call", ["setup", "content"])
def test_a_token_out_of_vocabulary_is_named_with_near_ones(
    path: Path, name: str, token: str, near: str, call: str
) -> None:
    """Both when the job is built and when a worker starts: value, place and what there is."""
    around: dict[str, Any] = {name: token}
    processor = TokenizeProcessor(path, **around)

    with pytest.raises(InvalidJob) as caught:
        getattr(processor, call)()

    assert caught.value.fields["key"] == name
    assert all(word in str(caught.value) for word in [repr(token), str(path), near])


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("gpt2", "; to get it from the Hugging Face Hub: hf download gpt2 tokenizer.json"),
        ("openai/gpt-oss-20b", " hf download openai/gpt-oss-20b tokenizer.json --local-dir gpt-o"),
        ("tokenizer.json", "relative to the job file"),
        ("a/b/c", "relative to the job file"),
    ],
)
def test_a_model_name_says_how_to_get_its_file(tmp_path: Path, name: str, remedy: str) -> None:
    """What AutoTokenizer takes is not a path; a path that is not one of a model says only that."""
    with pytest.raises(InvalidJob) as caught:
        TokenizeProcessor(tmp_path / name).content()

    assert remedy in caught.value.message
    assert ("hf download" in caught.value.message) == ("hf download" in remedy)


@pytest.mark.parametrize("call", ["setup", "content"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"not json", ["is not a tokenizer", "tokenizer.json"]),
        (b"{}", ["is not a tokenizer", "tokenizer.json"]),
        (b"", ["is not a tokenizer", "tokenizer.json"]),
        (b"\xff\xfe\x00", ["is not a tokenizer", "tokenizer.json"]),
        (None, ["there is no tokenizer file", "relative to the job file"]),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(
    tmp_path: Path, content: bytes | None, words: list[str], call: str
) -> None:
    """One sentence of one line, with the path."""
    wrong = tmp_path / "wrong.json"
    if content is not None:
        wrong.write_bytes(content)

    with pytest.raises(InvalidJob) as caught:
        getattr(TokenizeProcessor(wrong), call)()

    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in [str(wrong), *words])


def test_a_folder_is_named(tmp_path: Path) -> None:
    """Naming the folder that transformers saved leads to the file in it."""
    with pytest.raises(InvalidJob, match=r"is a folder; name the tokenizer\.json in it"):
        TokenizeProcessor(tmp_path).setup()


def test_a_tokenizer_with_dropout_is_refused(path: Path, tmp_path: Path) -> None:
    """BPE dropout draws from the library's own generator: no two nodes would agree."""
    config = json.loads(path.read_text())
    config["model"]["dropout"] = 0.5
    random = tmp_path / "random.json"
    random.write_text(json.dumps(config))

    with pytest.raises(InvalidJob, match=r"dropout of 0\.5"):
        TokenizeProcessor(random).content()


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"max_length": 0}, "max_length"),
        ({"max_length": True}, "max_length"),
        ({"max_length": "8"}, "max_length"),
        ({"max_length": 1, "append": "<eos>"}, "max_length"),
        ({"append": 3}, "append"),
        ({"prepend": 3}, "prepend"),
    ],
)
def test_parameters_that_cannot_be_are_refused(
    path: Path, parameters: dict[str, Any], key: str
) -> None:
    """A wrong parameter fails where it is given, by name."""
    with pytest.raises(InvalidJob) as caught:
        TokenizeProcessor(path, **parameters)

    assert caught.value.fields["key"] == key


def test_max_length_must_leave_room_beside_the_template(path: Path) -> None:
    """The tokens that the tokenizer itself adds count too, known once it is read."""
    processor = TokenizeProcessor(path, max_length=2, add_special_tokens=True)

    with pytest.raises(InvalidJob, match="at least 3"):
        processor.setup()
