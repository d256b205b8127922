from decimal import Decimal
import numpy as np
import pyarrow as pa
from snapshot import AggregateTable
from snapshot import Count
from snapshot import Max
from snapshot import Sum
from statebackend import AggregateTable
from statebackend import Count
from statebackend import Max
from statebackend import Sum

totals = AggregateTable({"cents": int}, clicks=Count(), spent=Sum("cents"), most=Max("cents"))

