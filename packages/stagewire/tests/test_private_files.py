"""Directories that others cannot write, and entries that are bound to their key."""

import errno
import os
import subprocess
import sys

import pytest

from stagewire import private_files
from stagewire.private_files import (
    CacheWarning,
    DamagedEntry,
    NotPrivate,
    private_directory,
    read_entry,
    temporary_directory,
    usable_directory,
    write_entry,
)


def mode(path):
    return path.stat().st_mode & 0o7777


def test_directories_are_made_for_one_user(tmp_path):
    before = os.umask(0)
    try:
        made = private_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert made == tmp_path / "a" / "b"
    assert (mode(made), mode(made.parent)) == (0o700, 0o700)
    assert private_directory(made) == made


@pytest.mark.parametrize("bits", [0o777, 0o775, 0o702, 0o1777], ids=oct)
def test_a_directory_that_others_can_write_is_refused(tmp_path, bits):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(bits)
    with pytest.raises(NotPrivate, match="others can write it"):
        private_directory(tmp_path / "open")


def test_a_directory_that_others_can_read_is_taken(tmp_path):
    (tmp_path / "read").mkdir(mode=0o755)
    assert private_directory(tmp_path / "read") == tmp_path / "read"


@pytest.mark.skipif(os.geteuid() != 0, reason="os.geteuid() != 0: only root gives files away")
def test_a_directory_of_another_user_is_refused(tmp_path):
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(NotPrivate, match="it belongs to user 12345"):
        private_directory(tmp_path / "theirs")


def test_the_owner_is_asked_for(tmp_path, monkeypatch):
    """As for another user than the one who made the directory, which is not root's."""
    monkeypatch.setattr(private_files, "_ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(NotPrivate, match=f"belongs to user {tmp_path.stat().st_uid}"):
        private_directory(tmp_path)


def test_a_directory_that_others_can_replace_is_refused(tmp_path):
    private_directory(tmp_path / "above" / "cache")
    (tmp_path / "above").chmod(0o777)
    with pytest.raises(NotPrivate, match="others can replace it"):
        private_directory(tmp_path / "above" / "cache")
    (tmp_path / "above").chmod(0o1777)  # as /tmp: each removes what is his own
    assert private_directory(tmp_path / "above" / "cache")


def test_a_link_is_judged_by_what_it_leads_to(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    with pytest.raises(NotPrivate):
        private_directory(tmp_path / "link")
    (tmp_path / "open").chmod(0o700)
    assert private_directory(tmp_path / "link") == tmp_path / "open"


def test_a_file_in_the_place_is_an_oserror(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError):
            private_directory(path)


def test_without_a_usable_directory_a_temporary_one_is_named(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.warns(CacheWarning, match="others can write it") as caught:
        found = usable_directory(tmp_path / "open", "machine code")
    assert found == temporary_directory() == usable_directory(None, "machine code")
    assert str(found) in str(caught[0].message)
    assert mode(found) == 0o700


SCRIPT = """
import os, sys
from stagewire.private_files import temporary_directory
path = temporary_directory()
print(path)
child = os.fork()
if not child:
    assert temporary_directory() != path
    sys.exit(0)
os.waitpid(child, 0)
assert path.is_dir(), "the child removed it"
"""


def test_the_temporary_directory_ends_with_its_own_process():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not os.path.exists(done.stdout.split()[0])


def test_what_a_killed_process_left_is_removed(tmp_path):
    script = "from stagewire.private_files import temporary_directory\nprint(temporary_directory(), flush=True)\n"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def started(code):
        return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)

    with started(script + "import os; os.kill(os.getpid(), 9)") as killed:
        left = killed.stdout.readline().strip()
    assert os.path.isdir(left)
    with started(script + "import time; time.sleep(300)") as living:
        used = living.stdout.readline().strip()
        assert not os.path.exists(left)
        with started(script) as last:
            assert last.stdout.readline().strip() != used
        assert os.path.isdir(used)
        living.kill()


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "below" / "file"
    assert read_entry(path, "key") is None
    assert not path.parent.exists()
    write_entry(path, "key", b"data")
    assert read_entry(path, "key") == b"data"
    assert os.listdir(path.parent) == ["file"]
    assert mode(path) == 0o600


@pytest.mark.parametrize("held", [b"", b"short", b"\0" * 100])
def test_damage_is_noticed(tmp_path, held):
    (tmp_path / "file").write_bytes(held)
    with pytest.raises(DamagedEntry):
        read_entry(tmp_path / "file", "key")


def test_an_entry_is_bound_to_its_key(tmp_path):
    write_entry(tmp_path / "file", "key", b"data")
    with pytest.raises(DamagedEntry, match="under its key"):
        read_entry(tmp_path / "file", "other")
    write_entry(tmp_path / "file", "ke", b"ydata")  # the same bytes, divided otherwise
    with pytest.raises(DamagedEntry):
        read_entry(tmp_path / "file", "key")


def test_nothing_is_read_or_written_where_others_can_write(tmp_path):
    write_entry(tmp_path / "open" / "file", "key", b"data")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(NotPrivate):
        read_entry(tmp_path / "open" / "file", "key")
    with pytest.raises(NotPrivate):
        write_entry(tmp_path / "open" / "file", "key", b"data")


@pytest.mark.parametrize("call", ["replace", "fdopen"])
def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch, call):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_entry(tmp_path / "file", "key", b"data")
    assert not os.listdir(tmp_path)
