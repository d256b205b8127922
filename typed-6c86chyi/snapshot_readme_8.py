from snapshot.testing import Acted, Action, Received, Schedule, Send, Simulation, Violation
from snapshot.testing.search import search


class Replica:  # one of two copies of a value, which keeps the last value that it was told
    def __init__(self, name: str, other: str) -> None:
        self.name, self.other, self.value, self.writes = name, other, "", 1

    def actions(self):
        return [Action("write")] * self.writes

    def handle(self, event):
        match event:
            case Acted():
                self.value, self.writes = self.name, 0
                return [Send(self.other, self.value)]
            case Received(_, message):
                self.value = message
        return []


def run(schedule: Schedule) -> None:
    simulation = Simulation({"a": lambda: Replica("a", "b"), "b": lambda: Replica("b", "a")}, schedule)
    simulation.run()
    if len({replica.value for replica in simulation.processes.values()}) > 1:
        raise Violation("the copies differ")


print(search(run))
