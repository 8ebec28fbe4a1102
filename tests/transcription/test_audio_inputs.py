"""Files, directories, lists and manifests as input."""

import io
import json
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.transcription.audio_inputs import FolderWatch, find_audio
from penstock.transcription.manifest import parse_lines


@pytest.fixture
def tree(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("calls/b.wav", "calls/a.FLAC", "calls/day/c.mp3", "calls/notes.txt", "calls/.hidden.wav",
                 "calls/.trash/d.wav", "one.wav", "empty/readme"):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return tmp_path


def found(*arguments: str, **more: str) -> list[tuple[str, str]]:
    given = {"file_list": None, "manifest": None, **more}
    return [(each.path, str(each.name)) for each in find_audio(arguments, given["file_list"], given["manifest"])]


def test_a_directory_gives_its_audio_files_at_any_depth(tree):
    expected = [("calls/a.FLAC", "a.FLAC"), ("calls/b.wav", "b.wav"), ("calls/day/c.mp3", "day/c.mp3")]
    assert found("calls") == expected
    assert found(str(tree / "calls")) == [(str(tree / path), name) for path, name in expected]
    with pytest.raises(PenstockError, match=r"AUDIO_INVALID: empty: the directory has no audio files \(\.3g2 .*\.wav"):
        found("empty")


def test_what_a_directory_has_beside_audio_is_named(tree):
    notes = []
    for name in "abcdef":
        (tree / "calls" / f"{name}.doc").touch()
    (tree / "calls" / "x.M4A").touch()
    paths = [each.path for each in find_audio(["calls", "calls/day"], None, None, notes.append)]
    assert "calls/x.M4A" in paths and len(paths) == 4
    skipped = "calls: skipped 7 files of other formats: a.doc, b.doc, c.doc, d.doc, e.doc and 2 more"
    assert notes == [skipped, "left out 1 repetition of the same audio"]


def test_a_file_keeps_its_relative_path(tree):
    assert found("calls/b.wav", "one.wav") == [("calls/b.wav", "calls/b.wav"), ("one.wav", "one.wav")]
    assert found(str(tree / "one.wav"), "../x/y.wav") == [(str(tree / "one.wav"), "one.wav"), ("../x/y.wav", "y.wav")]
    assert found("-", "gone.xyz") == [("-", "stdin"), ("gone.xyz", "gone.xyz")]


def test_a_list_names_files_and_directories(tree, monkeypatch):
    (tree / "list.txt").write_text("one.wav\n\ncalls/day\n")
    expected = [("one.wav", "one.wav"), ("calls/day/c.mp3", "c.mp3")]
    assert found(file_list="list.txt") == expected
    monkeypatch.setattr("sys.stdin", io.StringIO("one.wav\ncalls/day"))
    assert found(file_list="-") == expected
    (tree / "list.txt").write_bytes(b"\xef\xbb\xbfone.wav\r\ncalls/day\r\n")  # as editors on Windows write it
    assert found(file_list="list.txt") == expected
    (tree / "binary").write_bytes(b"\xff\xfe")
    for path, reason in {"gone.txt": "No such file or directory", "binary": "not UTF-8 text"}.items():
        with pytest.raises(PenstockError, match=f"SETTING_INVALID: --files-from {path}: {reason}; accepted: a file"):
            found(file_list=path)


def test_paths_of_a_manifest_start_at_its_folder(tree):
    manifest = tree / "calls" / "set.jsonl"
    manifest.write_text("\n".join(json.dumps({"audio_filepath": path}) for path in ("day/c.mp3", "/x/y.wav")))
    assert found("one.wav", manifest=str(manifest)) == [
        ("one.wav", "one.wav"),
        (str(tree / "calls/day/c.mp3"), "day/c.mp3"),
        ("/x/y.wav", "y.wav"),
    ]
    manifest.write_text('{"audio_filepath": "/"}')
    assert found(manifest=str(manifest)) == [("/", "unnamed")]


def test_a_file_is_new_once_it_no_longer_grows(tmp_path):
    watch = FolderWatch(lambda: find_audio([str(tmp_path)], None, None, may_be_empty=True))
    assert watch.look() == ([], [])
    (tmp_path / "a.wav").write_bytes(b"R")
    assert not watch.look().new
    (tmp_path / "a.wav").write_bytes(b"RIFF")  # it still grows
    (tmp_path / "b.txt").touch()
    assert not watch.look().new
    found = watch.look()
    assert [str(each.name) for each in found.files] == [str(each.name) for each in found.new] == ["a.wav"]
    assert not watch.look().new
    (tmp_path / "a.wav").write_bytes(b"RIFF and more")  # recorded again
    assert [len(watch.look().new) for _ in range(3)] == [0, 1, 0]
    (tmp_path / "a.wav").unlink()
    assert watch.look() == ([], [])


def test_links_to_directories_are_followed_without_circles(tree):
    (tree / "far" / "deep").mkdir(parents=True)
    (tree / "far" / "deep" / "e.wav").touch()
    (tree / "calls" / "far").symlink_to(tree / "far")
    (tree / "far" / "up").symlink_to(tree)  # a circle, and more than the directory
    (tree / "far" / "a").symlink_to(tree / "calls" / "day")
    (tree / "calls" / "lost.wav").symlink_to(tree / "gone.wav")
    names = [name for _, name in found("calls")]
    assert names == ["a.FLAC", "b.wav", "day/c.mp3", "far/deep/e.wav", "far/up/one.wav", "lost.wav"]


def test_names_have_as_much_of_the_folders_as_tells_them_apart(tree):
    for name in ("x/1/a.wav", "x/2/a.wav", "y/2/a.wav", "y/b.wav"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    given = [str(tree / name) for name in ("x/1/a.wav", "x/2/a.wav", "y/2/a.wav", "y/b.wav")]
    assert [name for _, name in found(*given, "x/../y/b.wav")] == ["x/1/a.wav", "x/2/a.wav", "y/2/a.wav", "b.wav"]
    assert [name for _, name in found(given[0], given[1], given[0])] == ["1/a.wav", "2/a.wav"]
    assert [name for _, name in found("x/1", "x/2", "/" + given[0])] == ["1/a.wav", "2/a.wav"]


def test_a_manifest_is_read_line_by_line(tree):
    taken = []

    def lines():
        for number in range(10**6):
            taken.append(number)
            yield json.dumps({"audio_filepath": f"{number}.wav", "offset": 0.5 * number, "duration": 1})

    read = parse_lines(lines(), "set", "s3://bucket/folder")
    assert [next(read).audio for _ in range(2)] == [("s3://bucket/folder/0.wav", 0.0, 1.0),
                                                    ("s3://bucket/folder/1.wav", 0.5, 1.0)]  # fmt: skip
    assert taken == [0, 1]


def test_where_paths_of_a_manifest_lead(tree, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    paths = ["~/a.wav", "one.wav", "b.wav", "gone.wav", "gs://bucket/a.wav"]
    text = [json.dumps({"audio_filepath": path}) for path in paths]
    located = [line.audio.path for line in parse_lines(text, "set", "calls")]
    assert located == ["/home/me/a.wav", "one.wav", "calls/b.wav", "calls/gone.wav", "gs://bucket/a.wav"]
