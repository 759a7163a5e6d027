"""Where device profiles are stored: one file per device, TensorFlow and executor.

In the user's cache directory, or in `AMP_CACHE_DIR`. `tune_device` writes them and
`hardware` reads them; nothing is measured here. A directory that may not be searched is
as one that is not there: who asks does so by `os.path`, as a `Path` may raise.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from amp.errors import ProfileError
from amp.graph_rewrite.cost.device_profile import Profile
from amp.integration import atomic_files, fallback
from amp.integration.process import PROCESS

VARIABLE = "AMP_CACHE_DIR"
# Where nothing can be made: the cache of a user without a home directory, whose jobs go
# on as with any directory that cannot be written.
NOWHERE = Path(os.devnull, "tf-amp")


def cache() -> Path:
    """The directory of everything the package stores; it may not exist yet.

    A relative one is where the process started, wherever it goes then.
    `NOWHERE` for a user who has no home directory, as in some containers.
    """
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(PROCESS.started_in, chosen)
    try:
        place = platformdirs.user_cache_path("tf-amp", appauthor=False)
    except RuntimeError:  # no home directory; earlier releases leave "~" as it is
        return NOWHERE
    return place if place.is_absolute() else NOWHERE


def directory() -> Path:
    """The directory of the profiles, which may not exist yet."""
    return cache() / "profiles"


def path(device: str, tensorflow: str, what: str) -> Path:
    """The file of a profile.

    Its name can be read, and differs wherever one of the three arguments does.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:48]
    digest = hashlib.sha256(device.encode()).hexdigest()[:8]
    version = re.sub(r"[^\w.+-]", "_", tensorflow)
    return directory() / f"{readable}-{digest}_tf-{version}_{what}.json"


def save(profile: Profile) -> Path:
    """Stores a profile and returns its file.

    Raises:
      ProfileError: the directory cannot be written.
    """
    file = path(profile.device, profile.tensorflow, profile.executor)
    write(file, profile.to_json())
    return file


def write(file: Path, content: str) -> None:
    """Writes a file of the cache, whole or not at all.

    Raises:
      ProfileError: the directory cannot be written.
    """
    try:
        atomic_files.write(file, content, sync=True)
    except OSError as e:
        raise _unwritable(file, "what was measured cannot be stored", e) from e


def require_writable() -> None:
    """Checks that a profile can be stored, before the time to measure it is spent.

    Raises:
      ProfileError: the directory cannot be made, or holds no further file.
    """
    place = directory()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"what is measured goes here")
    except OSError as e:
        raise _unwritable(place, "what is measured could not be stored", e) from e


def _unwritable(where: Path, found: str, error: OSError) -> ProfileError:
    homeless = where.is_relative_to(NOWHERE)
    return ProfileError(
        f"{found}: {'this user has no home directory' if homeless else error}",
        where=str(where),
        allowed="a directory that can be written, on a disk with room",
        remedy=f"set {VARIABLE} to one",
    )


@contextlib.contextmanager
def reading(file: Path) -> Iterator[None]:
    """Has what goes wrong as a file of the cache is read be an error that names it.

    Raises:
      ProfileError: the file cannot be read, or holds something else.
    """
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as e:
        raise ProfileError(
            f"it cannot be used: {type(e).__name__}: {e}",
            where=str(file),
            allowed="a file as this version of the package writes it",
            remedy="remove the file; what it held is measured anew",
        ) from e


def load(device: str, tensorflow: str, executor: str) -> Profile | None:
    """The stored profile, None where there is none that can be used.

    The user is warned of a file that cannot be read or is of another device; it is not
    removed.
    """
    file = path(device, tensorflow, executor)

    def read() -> Profile | None:
        if not os.path.exists(file):
            return None
        profile = Profile.parse(file.read_text(encoding="utf-8"), str(file))
        return of(profile, (device, tensorflow, executor), file)

    says = f"the device profile {file} is ignored; `amp tune` makes a new one"
    return fallback.attempt(fallback.Part(says), read, lambda: None)


def of(profile: Profile, wanted: tuple[str, str, str], file: Path) -> Profile:
    """The profile, if it is of this device, TensorFlow and executor.

    Raises:
      ProfileError: it is of another.
    """
    found = (profile.device, profile.tensorflow, profile.executor)
    if found == wanted:
        return profile
    raise ProfileError(
        f"it is of {', '.join(found)}",
        where=str(file),
        allowed=", ".join(wanted),
        remedy="run `amp tune` again",
    )
