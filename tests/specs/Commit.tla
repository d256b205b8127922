---- MODULE Commit ----
(***************************************************************************)
(* The two-phase commit of a job's output. The participants are the        *)
(* partitions of an attempt, and what a partition prepares for an epoch is *)
(* its transactions: the one that the epoch's cut has sealed, and those    *)
(* before it that are not known to be committed. The journal's entry is    *)
(* the decision; it may be made by the newest generation alone. After it,  *)
(* each attempt that restores the epoch may commit, and none may abort.    *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

VARIABLES
    plan,       \* what stays: [attempts |-> <<[generation, size], ...>>, ...]
    claimed,    \* the newest generation
    triggered,  \* the epochs that were ever triggered
    made,       \* [tx, attempt, partition, sink]: every transaction there ever was
    sealed,     \* [tx, attempt, partition, epoch, empty]: those that take no more rows
    prepared,   \* those that survive a crash, or have no rows
    taken,      \* [attempt, partition, txs]: what partitions were given to commit when they were restored
    acks,       \* [attempt, partition, epoch, txs]
    decided,    \* <<attempt, epoch>>: what the coordinator has decided to publish
    course,     \* [epoch, txs]: the complete epochs that were not given up; txs are pairs <<tx, epoch of its seal>>
    carried,    \* every transaction that a complete epoch has ever had
    committed,  \* those whose rows readers see
    aborted,    \* those that recovery has dropped
    accepted    \* <<generation, epoch>>: ways back that repeat output, accepted by a person

vars == <<plan, claimed, triggered, made, sealed, prepared, taken, acks, decided, course, carried, committed, aborted, accepted>>

Parts(a) == 0..(plan.attempts[a].size - 1)
Generation(a) == plan.attempts[a].generation
Ids(txs) == {pair[1] : pair \in txs}
Due == UNION {Ids(one.txs) : one \in course} \ committed

Start(p) ==
    /\ plan = p
    /\ claimed = 0
    /\ triggered = {} /\ made = {} /\ sealed = {} /\ prepared = {} /\ taken = {} /\ acks = {} /\ decided = {}
    /\ course = {} /\ carried = {} /\ committed = {} /\ aborted = {} /\ accepted = {}

Claim(g) ==
    /\ g > claimed
    /\ claimed' = g
    /\ UNCHANGED <<plan, triggered, made, sealed, prepared, taken, acks, decided, course, carried, committed, aborted, accepted>>

(***************************************************************************)
(* The first phase.                                                        *)
(***************************************************************************)
Trigger(e) ==
    /\ e \notin triggered
    /\ triggered' = triggered \cup {e}
    /\ UNCHANGED <<plan, claimed, made, sealed, prepared, taken, acks, decided, course, carried, committed, aborted, accepted>>

Take(a, j, txs) ==
    /\ txs \subseteq carried
    /\ taken' = taken \cup {[attempt |-> a, partition |-> j, txs |-> txs]}
    /\ UNCHANGED <<plan, claimed, triggered, made, sealed, prepared, acks, decided, course, carried, committed, aborted, accepted>>

Begin(a, j, t, sink) ==
    /\ \A one \in made : one.tx # t
    /\ made' = made \cup {[tx |-> t, attempt |-> a, partition |-> j, sink |-> sink]}
    /\ UNCHANGED <<plan, claimed, triggered, sealed, prepared, taken, acks, decided, course, carried, committed, aborted, accepted>>

Seal(a, j, t, e, empty) ==
    /\ \E one \in made : one.tx = t /\ one.attempt = a /\ one.partition = j
    /\ \A one \in sealed : one.tx # t
    /\ sealed' = sealed \cup {[tx |-> t, attempt |-> a, partition |-> j, epoch |-> e, empty |-> empty]}
    /\ UNCHANGED <<plan, claimed, triggered, made, prepared, taken, acks, decided, course, carried, committed, aborted, accepted>>

Prepare(a, j, t) ==
    /\ \E one \in sealed : one.tx = t /\ one.attempt = a /\ one.partition = j
    /\ prepared' = prepared \cup {t}
    /\ UNCHANGED <<plan, claimed, triggered, made, sealed, taken, acks, decided, course, carried, committed, aborted, accepted>>

(* All that a partition is responsible for, up to an epoch. *)
Owes(a, j, e) ==
    {one.tx : one \in {s \in sealed : s.attempt = a /\ s.partition = j /\ s.epoch <= e /\ ~s.empty}}
    \cup UNION {one.txs : one \in {t \in taken : t.attempt = a /\ t.partition = j}}

Acknowledge(a, j, e, txs) ==
    /\ \E one \in sealed : one.attempt = a /\ one.partition = j /\ one.epoch = e
    /\ Owes(a, j, e) \ committed \subseteq txs
    /\ txs \subseteq Owes(a, j, e)
    /\ txs \subseteq prepared \cup carried
    /\ acks' = acks \cup {[attempt |-> a, partition |-> j, epoch |-> e, txs |-> txs]}
    /\ UNCHANGED <<plan, claimed, triggered, made, sealed, prepared, taken, decided, course, carried, committed, aborted, accepted>>

(***************************************************************************)
(* The decision.                                                           *)
(***************************************************************************)
Decide(a, e) ==
    /\ \A j \in Parts(a) : \E one \in acks : one.attempt = a /\ one.partition = j /\ one.epoch = e
    /\ decided' = decided \cup {<<a, e>>}
    /\ UNCHANGED <<plan, claimed, triggered, made, sealed, prepared, taken, acks, course, carried, committed, aborted, accepted>>

Complete(a, e, txs) ==
    /\ Generation(a) = claimed
    /\ <<a, e>> \in decided
    /\ \A one \in course : one.epoch < e
    /\ Ids(txs) = UNION {one.txs : one \in {k \in acks : k.attempt = a /\ k.epoch = e}}
    /\ Due \subseteq Ids(txs)
    /\ course' = course \cup {[epoch |-> e, txs |-> txs]}
    /\ carried' = carried \cup Ids(txs)
    /\ UNCHANGED <<plan, claimed, triggered, made, sealed, prepared, taken, acks, decided, committed, aborted, accepted>>

(* A person is asked, and accepts that output is made once more. *)
Accept(g, e) ==
    /\ accepted' = accepted \cup {<<g, e>>}
    /\ UNCHANGED <<plan, claimed, triggered, made, sealed, prepared, taken, acks, decided, course, carried, committed, aborted>>

GoBack(g, e) ==
    LET again == {pair \in UNION {one.txs : one \in course} : pair[2] > e}
    IN /\ g = claimed
       /\ again # {} => <<g, e>> \in accepted
       /\ course' = {one \in course : one.epoch <= e}
       /\ UNCHANGED <<plan, claimed, triggered, made, sealed, prepared, taken, acks, decided, carried, committed, aborted, accepted>>

(***************************************************************************)
(* The second phase.                                                       *)
(***************************************************************************)
(* The transactions that the same sink and partition has sealed before this one. *)
Before(t) ==
    LET mine == CHOOSE one \in made : one.tx = t
        at == CHOOSE one \in sealed : one.tx = t
    IN {one.tx : one \in {m \in made : m.attempt = mine.attempt /\ m.partition = mine.partition /\ m.sink = mine.sink}}
       \cap {one.tx : one \in {s \in sealed : s.epoch < at.epoch}}

Commit(t) ==
    /\ t \in carried
    /\ t \notin committed
    /\ Before(t) \cap Due = {}
    /\ committed' = committed \cup {t}
    /\ UNCHANGED <<plan, claimed, triggered, made, sealed, prepared, taken, acks, decided, course, carried, aborted, accepted>>

(* Recovery aborts what attempts before this one have prepared for a sink, but for what is named. *)
AbortOthers(a, sink, keep) ==
    /\ \A one \in made : one.tx \in Due /\ one.sink = sink /\ one.attempt < a => one.tx \in keep
    /\ aborted' = aborted \cup ({one.tx : one \in {m \in made : m.attempt < a /\ m.sink = sink}} \ (keep \cup carried))
    /\ UNCHANGED <<plan, claimed, triggered, made, sealed, prepared, taken, acks, decided, course, carried, committed,
                   accepted>>

(* A partition says that all is committed that it is responsible for. *)
Settle(a, j, e) ==
    /\ Owes(a, j, e) \subseteq committed
    /\ UNCHANGED vars

(* The journal says that all is committed up to this epoch. *)
Note(e) ==
    /\ \A one \in course : one.epoch <= e => Ids(one.txs) \subseteq committed
    /\ UNCHANGED vars

End ==
    /\ Due = {}
    /\ UNCHANGED vars

(***************************************************************************)
(* Rows are seen if a complete epoch has them, which has only what was     *)
(* prepared, and nothing that was aborted.                                 *)
(***************************************************************************)
Safe ==
    /\ committed \subseteq carried
    /\ carried \subseteq prepared
    /\ carried \subseteq {one.tx : one \in made}
    /\ carried \cap aborted = {}

(***************************************************************************)
(* Histories.                                                              *)
(***************************************************************************)
TraceInit(config) == Start(config)

TraceStep(step) ==
    /\ CASE step.action = "Claim" -> Claim(step.generation)
         [] step.action = "Trigger" -> Trigger(step.epoch)
         [] step.action = "Take" -> Take(step.attempt, step.partition, step.txs)
         [] step.action = "Begin" -> Begin(step.attempt, step.partition, step.tx, step.sink)
         [] step.action = "Seal" -> Seal(step.attempt, step.partition, step.tx, step.epoch, step.empty)
         [] step.action = "Prepare" -> Prepare(step.attempt, step.partition, step.tx)
         [] step.action = "Acknowledge" -> Acknowledge(step.attempt, step.partition, step.epoch, step.txs)
         [] step.action = "Decide" -> Decide(step.attempt, step.epoch)
         [] step.action = "Complete" -> Complete(step.attempt, step.epoch, step.txs)
         [] step.action = "Accept" -> Accept(step.generation, step.epoch)
         [] step.action = "GoBack" -> GoBack(step.generation, step.epoch)
         [] step.action = "Commit" -> Commit(step.tx)
         [] step.action = "AbortOthers" -> AbortOthers(step.attempt, step.sink, step.keep)
         [] step.action = "Settle" -> Settle(step.attempt, step.partition, step.epoch)
         [] step.action = "Note" -> Note(step.epoch)
         [] step.action = "Over" -> End
    /\ Safe'
====
