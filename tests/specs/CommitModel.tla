---- MODULE CommitModel ----
(***************************************************************************)
(* Small instances of the commit: two partitions; a second generation      *)
(* recovers, at any moment, from what the first has published. Each epoch  *)
(* is a two-phase commit.                                                  *)
(***************************************************************************)
EXTENDS Commit

CONSTANTS First, Second \* the epochs of each generation

Both == {0, 1}
Epochs(a) == IF a = 1 THEN First ELSE Second
Tx(a, j, e) == a * 100 + j * 10 + e
Owner(t) == (t \div 10) % 10

Init == Start([attempts |-> <<[generation |-> 1, size |-> 2], [generation |-> 2, size |-> 2]>>])

Started(a, j) == a = 1 \/ \E one \in taken : one.attempt = a /\ one.partition = j
Cut(a, j, e) == \E one \in sealed : one.attempt = a /\ one.partition = j /\ one.epoch = e

(* A cut opens, seals and prepares; in the histories these are steps of their own. *)
SealAndPrepare(a, j, e) ==
    /\ e \in triggered
    /\ Started(a, j)
    /\ ~Cut(a, j, e)
    /\ \A d \in Epochs(a) : d < e => Cut(a, j, d)
    /\ LET t == Tx(a, j, e)
       IN /\ made' = made \cup {[tx |-> t, attempt |-> a, partition |-> j, sink |-> 0]}
          /\ sealed' = sealed \cup {[tx |-> t, attempt |-> a, partition |-> j, epoch |-> e, empty |-> FALSE]}
          /\ prepared' = prepared \cup {t}
    /\ UNCHANGED <<plan, claimed, triggered, taken, acks, decided, course, carried, committed, aborted, accepted>>

Acked(a, j, e) == {one \in acks : one.attempt = a /\ one.partition = j /\ one.epoch = e}

Next ==
    \/ \E g \in {1, 2} : Claim(g)
    \/ \E a \in {1, 2} : \E e \in Epochs(a) : (a = 1 \/ claimed = 2) /\ claimed > 0 /\ Trigger(e)
    \/ claimed = 2 /\ aborted = {} /\ taken = {} /\ AbortOthers(2, 0, Due)
    \/ \E j \in Both : claimed = 2 /\ ~Started(2, j) /\ Take(2, j, {t \in Due : Owner(t) = j})
    \/ \E a \in {1, 2}, j \in Both : \E e \in Epochs(a) : SealAndPrepare(a, j, e)
    \/ \E a \in {1, 2}, j \in Both : \E e \in Epochs(a) :
         Acked(a, j, e) = {} /\ Acknowledge(a, j, e, Owes(a, j, e) \ committed)
    \/ \E a \in {1, 2} : \E e \in Epochs(a) : <<a, e>> \notin decided /\ Decide(a, e)
    \/ \E a \in {1, 2} : \E e \in Epochs(a) :
         Complete(a, e, {<<t, t % 10>> : t \in UNION {one.txs : one \in {k \in acks : k.attempt = a /\ k.epoch = e}}})
    \/ \E t \in carried : Commit(t)

Spec == Init /\ [][Next]_vars

(* What an epoch is to Gray and Lamport: its partitions are the resource managers. *)
State(a, e, j) ==
    IF Acked(a, j, e) = {} THEN "working"
    ELSE LET txs == UNION {one.txs : one \in Acked(a, j, e)}
         IN IF (\E one \in course : one.epoch = e) /\ txs \subseteq committed THEN "committed"
            ELSE IF txs \cap aborted # {} THEN "aborted"
            ELSE "prepared"

First1 == INSTANCE TwoPhaseCommit WITH RM <- Both, rm <- [j \in Both |-> State(1, 1, j)]
First2 == INSTANCE TwoPhaseCommit WITH RM <- Both, rm <- [j \in Both |-> State(1, 2, j)]
Second3 == INSTANCE TwoPhaseCommit WITH RM <- Both, rm <- [j \in Both |-> State(2, 3, j)]

FirstEpoch == First1!Spec
SecondEpoch == First2!Spec
EpochAfterRecovery == Second3!Spec
====
