from snapshot import Collection, Stream, ToDriver, Tumbling

ROWS = [(1_767_268_801_000, "to"), (1_767_268_890_000, "be")]

words = (
    Stream.read(Collection(ROWS, {"at": "timestamp[ms]", "word": str}), uid="lines")
    .with_event_time("at", out_of_order="5s")
    .filter(lambda row: row.word)
    .key_by("word")
    .window(Tumbling("1m"))
    .count(uid="per-minute")
    .write(ToDriver(), uid="counts")
)
print(words.explain())
