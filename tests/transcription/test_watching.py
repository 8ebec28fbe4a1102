"""Files that appear in a directory are found once, when they are complete."""

from penstock.transcription.audio_inputs import FolderWatch, find_audio


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
