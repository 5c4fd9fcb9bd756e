"""Where the names that items give lead, and which of them lead nowhere."""

from __future__ import annotations

import pytest

from penstock.server.media.media_places import MediaPlace, MediaPlaces

LOCAL = MediaPlaces(["/data/media", "/sets/one"], ["/more", "https://ok.org/pics"])
REMOTE_DIR = "s3://bucket/media"
REMOTE = MediaPlaces(["s3://bucket/media"], [])


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("cat.jpg", ("/data/media", "/data/media/cat.jpg", "cat.jpg")),
        ("./a//b/../cat.jpg", ("/data/media", "/data/media/a/cat.jpg", "a/cat.jpg")),
        ("/data/media/a/cat.jpg", ("/data/media", "/data/media/a/cat.jpg", "a/cat.jpg")),
        ("file:///data/media/cat.jpg", ("/data/media", "/data/media/cat.jpg", "cat.jpg")),
        ("file://localhost/data/media/c", ("/data/media", "/data/media/c", "c")),
        ("../../sets/one/cat.jpg", ("/sets/one", "/sets/one/cat.jpg", "cat.jpg")),
        ("/more/cat.jpg", ("", "/more/cat.jpg", "")),
        ("https://ok.org/pics/cat.jpg?sig=x", ("", "https://ok.org/pics/cat.jpg?sig=x", "")),
        ("what?.jpg", ("/data/media", "/data/media/what?.jpg", "what?.jpg")),
        ("https://ok.org/pics/a b.jpg", ("", "https://ok.org/pics/a b.jpg", "")),
        ("a::file:///etc/x", ("/data/media", "/data/media/a::file:/etc/x", "a::file:/etc/x")),
        ("~/cat.jpg", ("/data/media", "/data/media/~/cat.jpg", "~/cat.jpg")),
        ("%2e%2e/cat.jpg", ("/data/media", "/data/media/%2e%2e/cat.jpg", "%2e%2e/cat.jpg")),
    ],
)
def test_names_lead_below_what_the_job_names(name: str, place: tuple[str, str, str]) -> None:
    """A directory, another of a source, and what is allowed besides."""
    assert LOCAL.find(name, "/data/media") == MediaPlace(*place)


@pytest.mark.parametrize(
    "name",
    [
        "/etc/shadow",
        "//etc/shadow",
        "../../etc/shadow",
        "a/../../media2/cat.jpg",
        "/data/media/../secret",
        "/data/mediaother/cat.jpg",
        "/data/media",
        "file:///etc/shadow",
        "FILE:///etc/shadow",
        "file:///data/media/../../etc/shadow",
        "local:///etc/shadow",
        "file://localhost/etc/shadow",
        "/more/../etc/shadow",
        "http://169.254.169.254/latest/meta-data/",
        "https://ok.org.evil.com/pics/cat.jpg",
        "https://ok.org@evil.com/pics/cat.jpg",
        "https://ok.org:81/pics/cat.jpg",
        "http://ok.org/pics/cat.jpg",
        "https://ok.org/picsother/cat.jpg",
        "https://ok.org/pics/../secret",
        "https://ok.org/pics/%2e%2e/secret",
        "https://ok.org/pics/%252e%252e/secret",
        "https://ok.org/pics/..;/secret",
        "https://ok.org/pics/%2E./secret",
        "https://ok.org/pics/..\\secret",
        "https://ok.org/pics/a\n.jpg",
        "zip://a.txt::file:///etc/shadow",
        "https://ok.org/pics/a::file:///etc/shadow",
        "s3://bucket/cat.jpg",
        "ftp://host/cat.jpg",
    ],
)
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    """However they are written, and by the sentence that says what would allow them."""
    with pytest.raises(ValueError, match=r"lies outside of the directories|is no plain URL"):
        LOCAL.find(name, "/data/media")


def test_a_directory_behind_a_url_is_left_by_no_name() -> None:
    """Names below it are plain, and whole URLs are compared by host and by folders."""
    assert REMOTE.find("a/cat 1.jpg", REMOTE_DIR).path == "s3://bucket/media/a/cat 1.jpg"
    assert REMOTE.find("s3://bucket/media/a.jpg", None).name == "a.jpg"
    for name in ("../x", "a/../../x", "s3://bucket/mediaother/x", "s3://other/media/x", "%2e%2e/x"):
        with pytest.raises(ValueError, match=r"lies outside|is no plain"):
            REMOTE.find(name, REMOTE_DIR)


def test_without_a_directory_relative_names_lead_nowhere() -> None:
    """And whoever allows a scheme allows every host of it, which nobody does by accident."""
    places = MediaPlaces([], ["https://", "/"])

    assert places.find("https://any.host/x.jpg", None).path == "https://any.host/x.jpg"
    assert places.find("/any/file", None).path == "/any/file"
    with pytest.raises(ValueError, match=r"is relative.*media: \{dir: PATH\}"):
        places.find("cat.jpg", None)
    with pytest.raises(ValueError, match="lies outside"):
        places.find("http://any.host/x.jpg", None)


def test_credentials_in_urls_are_in_no_sentence() -> None:
    """What an item names may hold a signature."""
    with pytest.raises(ValueError, match="lies outside") as caught:
        LOCAL.find("https://me:hush@evil.com/x.jpg?sig=hush", None)

    assert "hush" not in str(caught.value)
