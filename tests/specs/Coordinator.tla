---- MODULE Coordinator ----
(***************************************************************************)
(* The coordinator of one generation, as a recorded trace of a real run    *)
(* shows it: what it is told and what it says.                             *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

VARIABLES
    incarnation,  \* of the present attempt
    parts,        \* its participants, once they have started
    awaited,      \* awaited[e]: partitions that have not acknowledged an epoch in flight
    publishing,   \* the epochs whose entry is being written: one at most
    complete,     \* all complete epochs, and the one that the generation began with
    last          \* the last of them; "" for none

vars == <<incarnation, parts, awaited, publishing, complete, last>>

Range(s) == {s[k] : k \in 1..Len(s)}
Without(f, e) == [d \in DOMAIN f \ {e} |-> f[d]]

Trigger(e, participants) ==
    /\ e \notin DOMAIN awaited \cup complete
    /\ participants = parts
    /\ awaited' = [d \in DOMAIN awaited \cup {e} |-> IF d = e THEN parts ELSE awaited[d]]
    /\ UNCHANGED <<incarnation, parts, publishing, complete, last>>

Acknowledged(e, by, partition) ==
    /\ awaited' = IF by = incarnation /\ e \in DOMAIN awaited
                  THEN [awaited EXCEPT ![e] = @ \ {partition}] ELSE awaited
    /\ UNCHANGED <<incarnation, parts, publishing, complete, last>>

Publish(e, by, contents) ==
    /\ publishing = {}
    /\ by = incarnation
    /\ e \in DOMAIN awaited
    /\ awaited[e] = {}
    /\ contents = Cardinality(parts)
    /\ publishing' = {e}
    /\ UNCHANGED <<incarnation, parts, awaited, complete, last>>

Published(e) ==
    /\ publishing = {e}
    /\ publishing' = {}
    /\ complete' = complete \cup {e}
    /\ last' = e
    /\ awaited' = Without(awaited, e)
    /\ UNCHANGED <<incarnation, parts>>

PublishFailed(e) ==
    /\ publishing = {e}
    /\ publishing' = {}
    /\ UNCHANGED <<incarnation, parts, awaited, complete, last>>

Abandon(e) ==
    /\ e \in DOMAIN awaited
    /\ e \notin publishing
    /\ awaited' = Without(awaited, e)
    /\ UNCHANGED <<incarnation, parts, publishing, complete, last>>

(* A roll-back waits for the publication under way, and goes to the last complete epoch. *)
RollBack(e, by) ==
    /\ publishing = {}
    /\ e = last
    /\ awaited = <<>>
    /\ by # incarnation
    /\ incarnation' = by
    /\ parts' = {}
    /\ UNCHANGED <<awaited, publishing, complete, last>>

Started(by, participants) ==
    /\ incarnation' = IF incarnation = "" THEN by ELSE incarnation
    /\ parts' = IF incarnation \in {"", by} /\ parts = {} THEN participants ELSE parts
    /\ UNCHANGED <<awaited, publishing, complete, last>>

TraceInit(config) ==
    /\ incarnation = ""
    /\ parts = {}
    /\ awaited = <<>>
    /\ publishing = {}
    /\ complete = IF config.complete = "" THEN {} ELSE {config.complete}
    /\ last = config.complete

TraceStep(step) ==
    CASE step.action = "Trigger" -> Trigger(step.epoch, Range(step.participants))
      [] step.action = "Acknowledged" -> Acknowledged(step.epoch, step.incarnation, step.partition)
      [] step.action = "Publish" -> Publish(step.epoch, step.incarnation, Len(step.contents))
      [] step.action = "Published" -> Published(step.epoch)
      [] step.action = "PublishFailed" -> PublishFailed(step.epoch)
      [] step.action = "Complete" -> step.epoch \in complete /\ UNCHANGED vars
      [] step.action = "Abandon" -> Abandon(step.epoch)
      [] step.action = "RollBack" -> RollBack(step.epoch, step.incarnation)
      [] step.action = "AttemptStarted" -> Started(step.incarnation, Range(step.participants))
      [] OTHER -> UNCHANGED vars
====
