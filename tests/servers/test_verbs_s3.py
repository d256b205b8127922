"""The verbs of the `recovery` command on trees in buckets of a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.command.exits import Exit
from tests.command_line import Printed, run_command
from tests.stopped_trees import stop_one

from .s3 import S3Server


def test_a_job_is_moved_looked_at_edited_rescaled_copied_cleaned_and_goes_on_in_buckets(
    s3_server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = s3_server.options
    monkeypatch.setenv("AWS_ENDPOINT_URL", given["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", given["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", given["secret"])
    bucket = s3_server.make_bucket()
    tree, archive = f"{bucket}/tree", f"{bucket}/archive"
    stopped = stop_one(tmp_path / "job")

    def done(*arguments: object, checkpoints: str = tree) -> Printed:
        said = run_command(capsys, *arguments, "--checkpoints", checkpoints)
        assert said.code == Exit.DONE, said.err
        return said

    done("move", "--into", tree, checkpoints=stopped.uri)
    assert [job["job"] for job in run_command(capsys, "list", bucket, "--json").json] == [stopped.job]
    found = done("inspect", "--uid", "numbers", "--json").lines
    key = found[0]["key"]

    def of_the_key(there: str) -> list[object]:
        return done("inspect", "--uid", "numbers", "--key", str(key), "--json", checkpoints=there).lines[:-1]

    kept = of_the_key(tree)
    assert found[0] in kept
    done("show")
    done("history")
    done("edit", "--uid", "numbers", "--state", found[0]["state"], "--key", str(key), "--set", "1", "--dry-run")
    assert "from 2 partitions to 3" in done("rescale", "--to", "3").out
    assert done("diff", "--with", tree).out
    done("copy", "--into", archive)
    for there in (tree, archive):
        done("verify", checkpoints=there)
    done("gc")
    assert of_the_key(archive) == kept
    assert stopped.finish(tree, parallelism=3).exact
