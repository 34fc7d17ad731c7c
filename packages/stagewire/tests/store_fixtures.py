"""Store the documents of `data/documents` as files of the current versions: `python store_fixtures.py`.

Run it once when a version is raised. Files that exist are never written again: they must load for ever.
"""

from __future__ import annotations

from pathlib import Path

from stagewire.codec import VERSIONS, save
from stagewire.parser import parse_document

DATA = Path(__file__).parent / "data"


def main() -> None:
    """Write data/v<N>/<kind>.json and .msgpack."""
    for kind, version in VERSIONS.items():
        document = parse_document((DATA / "documents" / f"{kind}.txt").read_text(encoding="utf-8"))
        directory = DATA / f"v{version}"
        directory.mkdir(parents=True, exist_ok=True)
        for suffix in ("json", "msgpack"):
            path = directory / f"{kind}.{suffix}"
            if not path.exists():
                save(document, path)
                print(path)


if __name__ == "__main__":
    main()
