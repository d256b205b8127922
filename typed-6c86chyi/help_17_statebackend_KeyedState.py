from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import ValueState
from statebackend import KeyedState
from statebackend import Operator
from statebackend import ValueState

visits = Operator("visits", key=str, states={"count": ValueState(int, default=0)})

with KeyedState.open(visits, "snapshots") as state:
    state.set_key("ann")
    state["count"].set(state["count"].get() + 1)
    state.save()

