from pathlib import Path

import recovery
from snapshot import Files, Stream, ToDriver

words = (
    Stream.read(Files("lines", "text"), uid="lines")
    .flat_map(lambda row: [(word,) for word in row.line.split()], schema={"word": str})
    .key_by("word")
    .count(uid="total", per="end")
    .write(ToDriver(), uid="counts")
)


def count() -> None:
    with recovery.run(words, checkpoints="checkpoints", available_now=True) as run:
        print(" ".join(sorted(f"{row['word']}={row['count']}" for row in run.rows("counts"))))


Path("lines").mkdir()
Path("lines/monday").write_text("to be or not to be\nthat is the question\n" * 500)
count()
Path("lines/tuesday").write_text("to sleep no more\n")
count()
