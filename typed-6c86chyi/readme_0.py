from pathlib import Path

import pyarrow as pa

import recovery
from snapshot import Files, Stream, ToDriver, Tumbling

Path("lines").mkdir(exist_ok=True)
Path("lines/first.jsonl").write_text("""\
{"at": "2026-01-01T12:00:01", "line": "to be or not to be"}
{"at": "2026-01-01T12:01:30", "line": "to sleep no more"}
""")

words = (
    Stream.read(Files("lines", "jsonl", pa.schema({"at": pa.timestamp("ms"), "line": pa.string()})), uid="lines")
    .with_event_time("at", out_of_order="5s")
    .flat_map(lambda row: [(word,) for word in row.line.split()], schema={"word": str})
    .key_by("word")
    .window(Tumbling("1m"))
    .count(uid="per-minute")
    .write(ToDriver(), uid="counts")
)

with recovery.run(words, checkpoints="checkpoints", every="1s", parallelism=2) as run:
    for row in sorted(run.rows("counts"), key=lambda row: (row["window_start"], row["word"])):
        print(row["window_start"].time(), row["word"], row["count"])
