"""The media of one set of roles: from what items say of them to what a processor is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.server.core.shown import shown
from penstock.server.files.catalog import HandedOver
from penstock.server.media.fetched_parts import FetchedParts
from penstock.server.media.fetching import Fetching
from penstock.server.media.file_medium import FileMedium
from penstock.server.media.listing import Listed, MediaListing
from penstock.server.media.lmdb_store import DATA_FILE, LmdbMedium
from penstock.server.media.media_files import MediaFiles, absolute_root
from penstock.server.media.media_places import MediaPlace, MediaPlaces, is_url, plain_root
from penstock.server.media.media_reference import FileReference, LmdbReference, read_reference
from penstock.server.media.medium import Medium
from penstock.wire.credentials import without_credentials
from penstock.wire.errors import BadItem

EXPECTED_FAR_S = 0.05
"""How long a medium behind a URL is expected to take, until some were fetched."""


class MediaReader:
    """Makes media of references, and fetches what they name.

    Args:
        files: Where media lie.
        dirs: By source, the directories that its items' media are relative to, by name.

    Attributes:
        files: The same.
        fetching: Fetches ahead, and counts.
        parts: Parts of large files that are fetched ahead.

    Raises:
        InvalidJob: A directory is not there.
        SourceUnavailable: One cannot be listed at the moment.
    """

    def __init__(
        self, files: MediaFiles, dirs: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.files = files
        self._dirs = {
            source: {name: absolute_root(root) for name, root in own.items()}
            for source, own in (dirs or {}).items()
        }
        roots = [] if files.dir is None else [files.dir]
        roots += [root for own in self._dirs.values() for root in own.values()]
        self._listings: dict[str, MediaListing | None] = {
            plain_root(root): files.listing(root) for root in dict.fromkeys(roots)
        }
        self._places = MediaPlaces(list(self._listings), files.allow)
        may_be_far = any(map(is_url, [*self._listings, *files.allow]))
        self.fetching = Fetching(
            files.requests, files.ahead_bytes, EXPECTED_FAR_S if may_be_far else 0.0
        )
        self.parts = FetchedParts(self.fetching)

    def media(self, references: Sequence[Any], source: str = "") -> list[Medium]:
        """Return the media of an item; nothing is read for that.

        Args:
            references: As `MediaProcessor.references` gives them.
            source: The name of the item's source.

        Raises:
            BadItem: One is none, names nothing that was there, or what the job does not allow.
        """
        found: list[Medium] = []
        for number, value in enumerate(references):
            try:
                said: Medium | FileReference | LmdbReference = read_reference(
                    value, number, self.files.max_file_bytes
                )
                if isinstance(said, FileReference | LmdbReference):
                    said = self._named(said, self._dir(said.dir, source))
                found.append(said)
            except ValueError as error:
                raise BadItem(str(error), reason=str(error)) from None
        return found

    def _dir(self, name: str, source: str) -> str | None:
        """Return what a reference is relative to: a directory of its source, else of the job."""
        own = self._dirs.get(source, {})
        if name and name not in own:
            raise ValueError(f"{shown(name)} is no directory of media of source {source!r}")
        return own.get(name, self.files.dir)

    def _named(self, said: FileReference | LmdbReference, directory: str | None) -> Medium:
        if isinstance(said, LmdbReference):
            place = self._places.find(said.database, directory)
            listed = self._listed(place._replace(name=f"{place.name}/{DATA_FILE}"))
            listed = listed or self._listed(place)
            return LmdbMedium(place, said.key, listed, self.files.max_file_bytes, self.fetching)
        place = self._places.find(said.path, directory)
        listed = self._listed(place)
        listing = self._listings.get(place.root)
        if listed is None and listing is not None and listing.lists(place.name):
            raise ValueError(
                f"{shown(without_credentials(said.path))} is not there: it is none of the "
                f"{len(listing):,} media that {without_credentials(place.root)} held when the job "
                "began"
            )
        return FileMedium(
            said,
            place,
            listed,
            self.files.max_file_bytes,
            self.files.filesystems,
            self.fetching,
            self.parts,
        )

    def _listed(self, place: MediaPlace) -> Listed | None:
        listing = self._listings.get(place.root)
        return None if listing is None else listing.find(place.name)

    # --- what a job knows of them ---

    def identity(self) -> dict[str, Any]:
        """Return what identifies the content of media, as far as it is known; {} = none is."""
        if not self._listings:
            return {}
        return {
            "files": [
                None if listing is None else listing.fingerprint
                for listing in self._listings.values()
            ]
        }

    def cautions(self) -> list[str]:
        """Return sentences about media whose content the log id does not know."""
        roots = [root for root, listing in self._listings.items() if listing is None]
        named = ", ".join(map(without_credentials, [*roots, *self.files.allow]))
        if not named:
            return []
        return [
            f"of media below {named} only the names are known, so the log id does not know their "
            "content: where that changes, a run goes on in the changed data without an error; "
            "files below a directory that can be listed are known"
        ]

    def hand_over(self) -> list[HandedOver]:
        """Return what this process knows of directories, for those that it starts."""
        return [listing for listing in self._listings.values() if listing is not None]

    def read_bytes(self) -> int:
        """Return how many bytes of media were read since the last call."""
        return self.fetching.read_bytes()
