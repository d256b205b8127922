---- MODULE TwoPhaseCommit ----
(***************************************************************************)
(* What Gray and Lamport (2006) ask of a transaction commit: resource      *)
(* managers prepare; all of them commit, or none does. A step may be one   *)
(* of several resource managers at once.                                   *)
(***************************************************************************)
CONSTANT RM
VARIABLE rm

Init == rm = [r \in RM |-> "working"]

Become(S, state) == rm' = [r \in RM |-> IF r \in S THEN state ELSE rm[r]]
Those(states) == {r \in RM : rm[r] \in states}

Prepare == \E S \in SUBSET Those({"working"}) : Become(S, "prepared")

Commit ==
    /\ Those({"prepared", "committed"}) = RM
    /\ \E S \in SUBSET Those({"prepared"}) : Become(S, "committed")

Abort ==
    /\ Those({"committed"}) = {}
    /\ \E S \in SUBSET Those({"working", "prepared"}) : Become(S, "aborted")

Spec == Init /\ [][Prepare \/ Commit \/ Abort]_rm
====
