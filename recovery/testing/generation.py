"""One generation of the simulated job, from its claim to its end.

Invariant: it contains no rule of the protocol. What happens is fed to the coordinator and the journal's
machines, and what they say is done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from recovery.decisions.cleanup import EpochFiles, Fate, InFlight, ObservedTree, classify, plan_removal
from recovery.decisions.start import (
    Condition,
    FoundManifest,
    GivenUp,
    Hindrance,
    Observed,
    Refuse,
    Restore,
    StartFresh,
    decide,
    given_up_for,
)
from recovery.testing.journalling import AnyStep, JournalRun
from recovery.testing.manifests import manifest_of, roles_from, splits_of, transactions_of
from recovery.testing.messages import (
    Acknowledgement,
    AllEnded,
    AssignSplit,
    CannotCommit,
    Declining,
    Deploy,
    EpochIsOver,
    Failed,
    FromPartition,
    HasCommitted,
    Restored,
    TriggerEpoch,
    WantsSplit,
)
from recovery.testing.observer import Observer
from recovery.testing.requests import Requests
from recovery.testing.store import Content, Delete, Listing, Read, Write, Written
from recovery.testing.stream import Stream
from recovery.testing.target import AbortOthers
from snapshot.epochs import coordinator_events as events
from snapshot.epochs.coordinator import Coordinator, CoordinatorState
from snapshot.epochs.coordinator_options import CoordinatorOptions
from snapshot.epochs.splits import SplitEnumerator
from snapshot.journal.compaction import JournalCompactor
from snapshot.journal.entries import Body, Claimed, Committed, Completed, Nonce, PinId, Pinned, Pinner, Removed, Rewound
from snapshot.journal.reader import JournalRead, JournalReader
from snapshot.journal.state import EpochRecord, JournalState
from snapshot.journal.writer import Fenced, Forgotten, JournalWriter, Refused, Won
from snapshot.testing.history import Violation
from snapshot.testing.process import Action, Effect, Send
from snapshot.tree.layout import EPOCHS, SHARED, ManifestFile, path_of
from snapshot.tree.manifest import Manifest, only_carries
from snapshot.tree.manifest_json import decode, digest, encode
from statebackend.ids import Epoch, Generation, Incarnation, Partition

INTERVAL = 10
Contents = Acknowledgement
Outcome = Won | Fenced | Refused | Forgotten


@dataclass(frozen=True, slots=True)
class Person:
    """A person who takes a savepoint, and starts the job from it when so many epochs have come `behind` it.

    Looks for that a number of times; `accepts` repeated output, or puts back what was lost and leaves savepoints alone.
    """

    behind: int
    looks: int
    accepts: bool


@dataclass(frozen=True, slots=True)
class DriverPlan:
    """The plan of the job: its stream, the workers there are, and the parallelism of each start of it."""

    stream: Stream
    workers: tuple[str, ...]
    parallelism: tuple[int, ...]
    options: CoordinatorOptions
    suspicions: int
    """The number of times that a generation may take a living worker for dead."""
    idle: int = 0
    """The number of epochs that are triggered besides the necessary one, when all input has ended."""
    person: Person | None = None

    def parallelism_of(self, generation: Generation) -> int:
        """Return the parallelism of one start of the job."""
        return self.parallelism[(generation - 1) % len(self.parallelism)]


@dataclass(slots=True)
class Means:
    """The means of a driver process; `there` are the workers that it can talk to."""

    name: str
    boots: int
    observer: Observer
    store: Requests
    target: Requests
    effects: list[Effect]
    there: set[str]
    numbered: int = 0

    def nonce(self) -> Nonce:
        """Return a new name that no other process makes."""
        self.numbered += 1
        return Nonce(f"{self.name}x{self.boots}x{self.numbered}")


class GenerationRun:
    """The job in the hands of one driver, until a newer claim ends it."""

    def __init__(self, plan: DriverPlan, means: Means, *, from_savepoint: bool = False) -> None:
        self._plan = plan
        self._from_savepoint = from_savepoint
        self._means = means
        self._reader = JournalReader()
        self._writer: JournalWriter | None = None
        self._proposals: deque[tuple[Body, Callable[[Outcome], None]]] = deque()
        self._coordinator: Coordinator[Contents] | None = None
        self._manifests: dict[Epoch, Manifest] = {}
        self._found: dict[Epoch, FoundManifest] = {}
        self._enumerator: SplitEnumerator[int] = SplitEnumerator((), ())
        self._unassigned: dict[Epoch, tuple[int, ...]] = {}
        self._generation = Generation(0)
        self._now = 0
        self._to_deploy: events.RollBack | None = None
        self._deployed: dict[str, Partition] = {}
        self._suspected: set[str] = set()
        self._restored: set[Partition] = set()
        self._ended: set[Partition] = set()
        self._last: set[Epoch] = set()  # triggered when all input had ended
        self._outstanding: set[int] = set()  # removals whose deletions are under way
        self._removed_up_to = 0
        self._compacting = False
        self._sweeping = False
        self._swept_at_the_end = False
        self._savepoints = 1
        self._to_compact = 2 if plan.person is not None else 0
        self._suspicions = plan.suspicions

    # --- claim and decide -----------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Read the journal, then claim."""
        self._machine(self._reader.handle, self._journal_read).carry_out(self._reader.start())

    def _journal_read(self, result: object) -> None:
        assert isinstance(result, JournalRead)
        self._writer = JournalWriter(result.state)
        self._try_to_claim()

    def _try_to_claim(self) -> None:
        generation = Generation(self._journal.generation + 1)
        self._propose(Claimed(generation, self._means.name), self._claimed)

    def _claimed(self, outcome: Outcome) -> None:
        match outcome:
            case Won():
                self._generation = self._journal.generation
                self._look_at_manifests()
            case Forgotten():
                raise Violation("a claim was forgotten, though the journal is short")
            case _:
                self._try_to_claim()

    def _look_at_manifests(self) -> None:
        unread = [record for record in self._journal.retained if record.epoch not in self._found]
        if not unread:
            self._ask_again(Listing("shared/"), self._decide)
            return
        record = unread[0]

        def answered(answer: object) -> None:
            assert isinstance(answer, Content)
            if isinstance(answer.data, bytes):
                manifest = decode(answer.data, record.manifest)
                self._manifests[record.epoch] = manifest
                self._found[record.epoch] = FoundManifest(
                    record.epoch, Condition.SOUND, digest=digest(answer.data), files=manifest.references()
                )
            elif record.manifest in self._means.observer.ever_lost:
                self._found[record.epoch] = FoundManifest(record.epoch, Condition.MISSING)
            else:
                raise Violation(f"epoch {record.epoch} is complete, and its manifest {record.manifest} is not there")
            self._look_at_manifests()

        self._ask_again(Read(record.manifest), answered)

    def _decide(self, listed: object) -> None:
        assert isinstance(listed, Listing)
        state = self._journal
        found = tuple(self._found[record.epoch] for record in state.usable)
        observed = Observed(state, self._generation, found, frozenset(listed.paths))
        savepoint = self._savepoint()
        if self._from_savepoint and savepoint is not None:
            self._from_savepoint = False
            self._restore(savepoint, lambda: self._decide(listed))
            return
        match decide(observed):
            case StartFresh():
                self._start(None, ())
            case Restore(epoch, replay, gives_up, _):
                if gives_up.is_anything and not self._means.observer.ever_lost:
                    raise Violation(f"generation {self._generation} gives up {gives_up}, and nothing was damaged")
                self._go_back(epoch, gives_up, lambda: self._start(epoch, replay))
            case Refuse(hindrances):
                self._refused(observed, hindrances)

    # --- go back ----------------------------------------------------------------------------------------------------

    def _savepoint(self) -> EpochRecord | None:
        """Return the newest savepoint that can be read, None if there is none."""
        pinned = {pin.epoch for pin in self._journal.pins if pin.pinner is Pinner.SAVEPOINT}
        usable = [record for record in self._journal.usable if record.epoch in pinned & self._manifests.keys()]
        return usable[-1] if usable else None

    def _restore(self, savepoint: EpochRecord, then: Callable[[], None]) -> None:
        """Let the savepoint be the newest epoch, if no output is made again by that, or the person accepts it."""
        gives_up = given_up_for(self._journal, savepoint)
        if not gives_up.repeats.epochs or self._ask(savepoint.epoch, gives_up):
            self._go_back(savepoint.epoch, gives_up, then)
        else:
            then()

    def _refused(self, observed: Observed, hindrances: tuple[Hindrance, ...]) -> None:
        """Let a person, who sees why the job does not start, accept it or put back what was lost."""
        if not self._means.observer.ever_lost:
            raise Violation(f"generation {self._generation} refuses to start: {hindrances}")
        match decide(replace(observed, accept_duplicates=True)):
            case Restore(epoch, replay, gives_up, _) if self._ask(epoch, gives_up):
                self._go_back(epoch, gives_up, lambda: self._start(epoch, replay))
            case _:
                self._means.observer.repair()
                self._found.clear()
                self._look_at_manifests()

    def _ask(self, epoch: Epoch, gives_up: GivenUp) -> bool:
        back = Rewound(self._generation, epoch)
        accepts = self._plan.person is not None and self._plan.person.accepts
        self._means.observer.asks(back, gives_up.repeats, accepts=accepts)
        return accepts

    def _go_back(self, epoch: Epoch, gives_up: GivenUp, then: Callable[[], None]) -> None:
        def outcome(outcome: Outcome) -> None:
            if isinstance(outcome, Won):
                then()

        if gives_up.is_anything:
            self._propose(Rewound(self._generation, epoch), outcome)
        else:
            then()

    def _start(self, epoch: Epoch | None, replay: tuple[Epoch, ...]) -> None:
        state = self._journal
        self._coordinator = Coordinator(
            self._plan.options,
            self._generation,
            now=self._now,
            complete=epoch,
            last_number=state.newest_complete.number,
            uncommitted=replay,
        )
        self._roll_back(events.RollBack(epoch, self._coordinator.incarnation, confirm_first=False))
        for removal in state.removals:
            self._delete([*removal.files, *removal.manifests], removal.number)

    # --- deploy -----------------------------------------------------------------------------------------------------

    def _roll_back(self, roll_back: events.RollBack) -> None:
        self._deployed = {}
        self._to_deploy = None
        if not roll_back.confirm_first:
            self._to_deploy = roll_back
            self._deploy_if_possible()
        self._confirm_claim(roll_back)

    def _confirm_claim(self, roll_back: events.RollBack) -> None:
        reader = JournalReader()

        def done(result: object) -> None:
            assert isinstance(result, JournalRead)
            if result.state.generation > self._generation:
                self._tell(events.Fenced(result.state.generation))
            elif roll_back.confirm_first and self._is_current(roll_back.incarnation):
                self._to_deploy = roll_back
                self._deploy_if_possible()

        self._machine(reader.handle, done).carry_out(reader.start())

    def _deploy_if_possible(self) -> None:
        """Place every partition, on workers that are not suspected if there are enough of them."""
        if self._to_deploy is None:
            return
        parallelism = self._plan.parallelism_of(self._generation)
        there = [worker for worker in self._plan.workers if worker in self._means.there]
        chosen = sorted(there, key=lambda worker: worker in self._suspected)[:parallelism]
        if len(chosen) < parallelism:
            return
        epoch, incarnation = self._to_deploy.epoch, self._to_deploy.incarnation
        self._to_deploy = None
        self._suspected.clear()
        manifest = None if epoch is None else self._manifests[epoch]
        self._enumerator = splits_of(manifest, self._plan.stream)
        self._restored, self._ended = set(), set()
        self._deployed = {worker: Partition(index) for index, worker in enumerate(chosen)}
        self._target_again(AbortOthers(incarnation, transactions_of(manifest)))
        for worker, role in zip(chosen, roles_from(manifest, parallelism, self._plan.stream), strict=True):
            self._send(worker, Deploy(incarnation, epoch, role, tuple(chosen)))

    # --- what happens -----------------------------------------------------------------------------------------------

    def appeared(self, _worker: str) -> None:
        """Take note of a worker that is there, and free."""
        self._deploy_if_possible()

    def lost(self, worker: str) -> None:
        """Take note that the connection to a worker is gone."""
        if worker in self._deployed and self._coordinator is not None:
            self._tell(events.AttemptBroken(self._coordinator.incarnation, f"lost {worker}"))

    def reported(self, worker: str, message: FromPartition) -> None:
        """Handle what a partition says."""
        incarnation, partition = message.incarnation, message.partition
        match message:
            case Restored():
                self._partition_restored(incarnation, partition)
            case WantsSplit():
                if self._is_current(incarnation):
                    self._send(worker, AssignSplit(incarnation, self._enumerator.assign()))
            case AllEnded():
                if self._is_current(incarnation):
                    self._ended.add(partition)
            case Acknowledgement(epoch=epoch):
                self._tell(events.Acknowledged(epoch, incarnation, partition, message, message.has_committables))
            case Declining(epoch=epoch, reason=reason):
                self._tell(events.Declined(epoch, incarnation, partition, reason))
            case HasCommitted(epoch=epoch):
                self._tell(events.Committed(epoch, incarnation, partition))
            case CannotCommit(epoch=epoch, reason=reason):
                self._tell(events.CommitFailed(epoch, incarnation, partition, reason))
            case Failed(reason=reason):
                self._means.observer.failed(incarnation, reason)
                self._tell(events.AttemptBroken(incarnation, reason))
            case _:
                raise TypeError(f"{message} is nothing that a partition says")

    def _partition_restored(self, incarnation: Incarnation, partition: Partition) -> None:
        if not self._is_current(incarnation):
            return
        self._restored.add(partition)
        if len(self._restored) == len(self._deployed):
            self._tell(events.AttemptStarted(incarnation, frozenset(self._restored)))

    def _is_current(self, incarnation: Incarnation) -> bool:
        return self._coordinator is not None and incarnation == self._coordinator.incarnation

    # --- what it may do by itself -------------------------------------------------------------------------------------

    def actions(self) -> list[Action]:
        """Return its next steps: a tick, a suspected worker, a savepoint, a sweep, also at the end, or a compaction."""
        coordinator = self._coordinator
        if coordinator is None or coordinator.state is CoordinatorState.STOPPED:
            return []
        if self._is_finished:
            return [] if self._sweeping or self._swept_at_the_end else [Action("sweep")]
        running = coordinator.state is CoordinatorState.RUNNING
        actions = [Action("tick", weight=6, drain=running and not coordinator.in_flight)]
        if running:
            if self._suspicions:
                actions += [Action("suspect", worker, weight=1, drain=False) for worker in self._deployed]
            if self._savepoints:
                actions.append(Action("savepoint", drain=self._plan.person is not None))
            if not self._sweeping:
                actions.append(Action("sweep", weight=1, drain=False))
        if not self._compacting:
            actions.append(Action("compact", weight=2, drain=self._to_compact > 0))
        return actions

    @property
    def _is_finished(self) -> bool:
        """True if enough epochs that were triggered after the end of all input are complete and committed."""
        usable = self._journal.usable
        if not usable or usable[-1].epoch not in self._last or usable[-1].awaits_commit:
            return False
        return sum(epoch <= usable[-1].epoch for epoch in self._last) > self._plan.idle

    def act(self, action: Action) -> None:
        """Take one of these steps."""
        match action.name:
            case "tick":
                self._now += INTERVAL
                self._tell(events.Ticked(self._now))
            case "suspect":
                assert self._coordinator is not None
                self._suspicions -= 1
                self._suspected.add(str(action.argument))
                self._tell(events.AttemptBroken(self._coordinator.incarnation, f"{action.argument} is suspected"))
            case "savepoint":
                self._savepoints -= 1
                self._tell(events.SavepointRequested())
            case "compact":
                self._to_compact -= 1
                self._compact()
            case "sweep":
                self._sweep()
            case _:
                raise TypeError(f"{action} was not offered")

    # --- what the coordinator says ------------------------------------------------------------------------------------

    def _tell(self, event: events.CoordinatorEvent[Contents]) -> None:
        if self._coordinator is not None:
            for instruction in self._coordinator.handle(event):
                self._carry_out(instruction)

    def _carry_out(self, instruction: events.CoordinatorInstruction[Contents]) -> None:
        match instruction:
            case events.Trigger(marker):
                self._means.observer.triggered(marker.epoch)
                self._unassigned[marker.epoch] = self._enumerator.unassigned
                if len(self._ended) == len(self._deployed):
                    self._last.add(marker.epoch)
                self._send_all(lambda incarnation: TriggerEpoch(incarnation, marker))
            case events.Skipped():
                pass
            case events.Abandon(epoch):
                self._send_all(lambda incarnation: EpochIsOver(incarnation, epoch, complete=False))
            case events.Publish():
                self._publish(instruction)
            case events.Complete(epoch):
                self._send_all(lambda incarnation: EpochIsOver(incarnation, epoch, complete=True))
            case events.RecordCommitted(epoch):
                self._propose(Committed(self._generation, epoch), self._stop_if_fenced)
            case events.RemoveOlder(retain, oldest_base):
                self._remove(retain, oldest_base)
            case events.RollBack():
                self._roll_back(instruction)
            case events.Stop(reason):
                self._means.observer.stopped(self._generation, reason)

    def _publish(self, publish: events.Publish[Contents]) -> None:
        manifest = manifest_of(publish, self._unassigned[publish.epoch])
        path = path_of(ManifestFile(publish.epoch, self._means.nonce()))
        data = encode(manifest)

        def answered(answer: object | None) -> None:
            if answer is not Written.WRITTEN:
                self._tell(events.PublishFailed(publish.epoch, "the store did not take the manifest"))
                return
            carried = only_carries(manifest, self._journal.newest_usable)
            body = Completed(publish.epoch, path, digest(data), publish.has_committables, carried)
            self._propose(body, lambda outcome: self._published(publish, manifest, outcome))

        self._means.effects.append(self._means.store.ask(Write(path, data), answered))

    def _published(self, publish: events.Publish[Contents], manifest: Manifest, outcome: Outcome) -> None:
        epoch = publish.epoch
        match outcome:
            case Won():
                self._manifests[epoch] = manifest
                if publish.savepoint:
                    pin = Pinned(PinId(f"savepoint-{epoch}"), epoch, Pinner.SAVEPOINT)
                    self._propose(pin, self._stop_if_fenced)
                self._tell(events.Published(epoch))
            case Refused(refusal):
                self._tell(events.PublishFailed(epoch, refusal.text))
            case _:
                self._stop_if_fenced(outcome)

    # --- the journal --------------------------------------------------------------------------------------------------

    def _propose(self, body: Body, then: Callable[[Outcome], None]) -> None:
        self._proposals.append((body, then))
        if len(self._proposals) == 1:
            self._propose_next()

    def _propose_next(self) -> None:
        assert self._writer is not None
        body, _ = self._proposals[0]
        step = self._writer.propose(self._means.nonce(), body)
        self._machine(self._writer.handle, self._proposal_ended).carry_out(step)

    def _proposal_ended(self, outcome: object) -> None:
        assert isinstance(outcome, Won | Fenced | Refused | Forgotten)
        if isinstance(outcome, Won):
            self._means.observer.won(outcome.entry)
        _, then = self._proposals.popleft()
        if self._proposals:
            self._propose_next()
        then(outcome)

    def _stop_if_fenced(self, outcome: Outcome) -> None:
        match outcome:
            case Fenced(by):
                self._tell(events.Fenced(by))
            case Forgotten():
                raise Violation("a proposal was forgotten, though the journal is short")
            case _:
                pass

    def _remove(self, retain: int, oldest_base: Epoch | None) -> None:
        state = self._journal
        in_flight = () if oldest_base is None else (InFlight(oldest_base, oldest_base),)
        observed = ObservedTree(state, self._references(state), in_flight=in_flight)
        removed = plan_removal(observed, self._generation, retain)
        if removed is not None:
            self._propose(removed, lambda outcome: self._removed(removed, outcome))

    def _removed(self, removed: Removed, outcome: Outcome) -> None:
        if isinstance(outcome, Won):
            self._delete([*removed.files, *removed.manifests], outcome.entry.number)
        else:
            self._stop_if_fenced(outcome)

    def _delete(self, paths: list[str], number: int) -> None:
        """Delete one after the other, and note when all that the removal at this number names is gone."""
        self._removed_up_to = max(self._removed_up_to, number)
        self._outstanding.add(number)
        if paths:
            self._ask_again(Delete(paths[0]), lambda _: self._delete(paths[1:], number))
        else:
            self._outstanding.remove(number)

    def _references(self, state: JournalState) -> tuple[EpochFiles, ...]:
        known = ((record.epoch, self._manifests.get(record.epoch)) for record in state.retained)
        return tuple(EpochFiles(epoch, None if one is None else one.references()) for epoch, one in known)

    def _sweep(self) -> None:
        """Delete what attempts that are over have left: the tree is listed, and then one file deleted after another."""
        assert self._coordinator is not None
        state, attempt, at_the_end = self._journal, self._coordinator.incarnation, self._is_finished
        observed = ObservedTree(state, self._references(state), attempt=attempt)
        self._sweeping = True
        blind = any(one.files is None for one in observed.references)
        self._means.observer.sweeping(attempt, state.newest_complete, blind=blind)

        def listed_epochs(epochs: object) -> None:
            self._ask_again(Listing(f"{SHARED}/"), lambda shared: listed(epochs, shared))

        def listed(epochs: object, shared: object) -> None:
            assert isinstance(epochs, Listing)
            assert isinstance(shared, Listing)
            found = classify(replace(observed, found=(*epochs.paths, *shared.paths)))
            delete(list(found.of(Fate.ORPHANED)))

        def delete(paths: list[str]) -> None:
            if paths:
                self._ask_again(Delete(paths[0]), lambda _: delete(paths[1:]))
                return
            self._sweeping = False
            self._swept_at_the_end = self._swept_at_the_end or at_the_end

        self._ask_again(Listing(f"{EPOCHS}/"), listed_epochs)

    def _compact(self) -> None:
        carried_out = min(self._outstanding, default=self._removed_up_to + 1) - 1
        compactor = JournalCompactor(self._journal, carried_out)
        self._compacting = True

        def done(_: object) -> None:
            self._compacting = False

        self._machine(compactor.handle, done).carry_out(compactor.start())

    @property
    def _journal(self) -> JournalState:
        assert self._writer is not None
        return self._writer.state

    def _machine(self, handle: Callable[..., AnyStep], done: Callable[[object], None]) -> JournalRun:
        return JournalRun(self._means.store, self._means.effects, handle, done)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _send(self, to: str, message: object) -> None:
        self._means.effects.append(Send(to, message))

    def _send_all(self, message: Callable[[Incarnation], object]) -> None:
        assert self._coordinator is not None
        for worker in self._deployed:
            self._send(worker, message(self._coordinator.incarnation))

    def _ask_again(self, request: object, then: Callable[[object], None]) -> None:
        """Ask the store until it answers."""

        def answered(answer: object | None) -> None:
            if answer is None:
                self._ask_again(request, then)
            else:
                then(answer)

        self._means.effects.append(self._means.store.ask(request, answered))

    def _target_again(self, request: object) -> None:
        def answered(answer: object | None) -> None:
            if answer is None:
                self._target_again(request)

        self._means.effects.append(self._means.target.ask(request, answered))
