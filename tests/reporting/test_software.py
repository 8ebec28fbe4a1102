import subprocess

from penstock.reporting import software


def test_the_commit_is_that_of_the_sources_and_says_where_they_have_changed(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *arguments], check=True)

    monkeypatch.setattr(software, "_SOURCES", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert software.commit() is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-q", "-m", "a")
    name = software.commit()
    assert 6 < len(name) < 20
    (tmp_path / "a").write_text("2")
    assert software.commit() == f"{name} with changes"


def test_packages_that_are_not_installed_are_left_out():
    assert list(software.package_versions(["torch", "no-such-package"])) == ["torch"]
