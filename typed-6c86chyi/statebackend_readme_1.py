from statebackend import KeyedState, Operator, SnapshotFolder, ValueState, open_store

visits = Operator("visits", key=str, states={"count": ValueState(int, default=0)})
snapshots = SnapshotFolder(open_store("snapshots"), "visits")


def task(epoch, before, partition, parallelism):  # on any machine, tried again as often as Spark likes
    with KeyedState.open_part(visits, "snapshots", epoch, before, partition, parallelism) as state:
        ...
        return state.snapshot(epoch)


before, epoch = snapshots.latest(), snapshots.next_epoch(snapshots.begin())
snapshots.complete(epoch, {partition: task(epoch, before, partition, 3) for partition in range(3)})
print(f"complete: {epoch}")
