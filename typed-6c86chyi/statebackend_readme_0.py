from statebackend import KeyedState, Operator, ValueState

visits = Operator("visits", key=str, states={"count": ValueState(int, default=0)})


def one_day(users: list[str]) -> None:
    with KeyedState.open(visits, "snapshots") as state:  # a path, s3://bucket/visits, or a store
        for user in users:
            state.set_key(user)
            state["count"].set(state["count"].get() + 1)
            print(user, state["count"].get())
        state.save()


one_day(["ann", "bob", "ann"])
one_day(["ann", "eve"])
