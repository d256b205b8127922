---- MODULE Epochs ----
(***************************************************************************)
(* Epochs of a job that fails and recovers: sources that read splits,      *)
(* operators behind them, aligned and unaligned markers, and what a        *)
(* complete epoch holds.                                                   *)
(*                                                                         *)
(* An attempt is a number; `plan.attempts[a]` is its generation and size.  *)
(* Partition i of the source and partition j of the operator are linked by *)
(* the channel <<i, j>>. `log` has all that a source ever put on a channel:*)
(* records are positive numbers, markers negative ones, the end is 0. Where*)
(* a marker stands in the log is the source's cut of that channel; what    *)
(* the operator had processed when it cut is `cuts`. What is between the   *)
(* two was in flight.                                                      *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

VARIABLES
    plan,        \* what stays: [exactly |-> BOOLEAN, splits |-> set, attempts |-> <<[generation, size], ...>>]
    claimed,     \* the newest generation
    latest,      \* latest[g]: the complete epoch from which generation g would start an attempt; 0 for none
    deployed,    \* the attempts that were begun
    newest,      \* newest[w]: the newest attempt that worker w has heard of since it was started
    restored,    \* [attempt, partition, ...]: what each partition of an attempt began with
    spare,       \* spare[a]: the splits that no partition of the attempt has been given
    given,       \* given[a]: <<split, partition>> for the splits that are on their way
    triggered,   \* [attempt, epoch, spare, given]: epochs, and where the splits without a reader were at the trigger
    read,        \* read[a][i][s]: how far partition i has read split s; -1 if it does not read it
    log,         \* log[a][c]: all that was put on a channel, in order
    pos,         \* pos[a][c]: the place in the log of the last record that was processed
    held,        \* held[a][j]: the records that the state of partition j has seen
    lastCut,     \* lastCut[a][j]: the last epoch that partition j has cut
    over,        \* over[a][j]: epochs that partition j has given up
    marks,       \* [attempt, partition, epoch, read]: cuts of sources
    cuts,        \* [attempt, partition, epoch, at, entries, held, watermark]: cuts of operators
    acks,        \* <<attempt, partition, epoch>>
    complete     \* what each complete epoch holds

vars == <<plan, claimed, latest, deployed, newest, restored, spare, given, triggered, read, log, pos, held, lastCut, over,
          marks, cuts, acks, complete>>

Attempts == DOMAIN plan.attempts
Parts(a) == 0..(plan.attempts[a].size - 1)
Generation(a) == plan.attempts[a].generation
Into(a, j) == {<<i, j>> : i \in Parts(a)}
Split(id) == (id - 1) \div 100
Index(id) == (id - 1) % 100
Read(r) == UNION {{s * 100 + n + 1 : n \in 0..(r[s] - 1)} : s \in plan.splits}
Joined(rs) == [s \in plan.splits |-> IF \E r \in rs : r[s] >= 0 THEN (CHOOSE r \in rs : r[s] >= 0)[s] ELSE -1]
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

Has(l, x) == \E k \in 1..Len(l) : l[k] = x
Place(l, x) == CHOOSE k \in 1..Len(l) : l[k] = x
Data(l, first, last) == {l[k] : k \in {n \in first..last : l[n] > 0}}
(* Where the cut of an epoch divides a channel at its sender: at the marker, or at the end if that came first. *)
Divides(l, e) == IF Has(l, -e) THEN Place(l, -e) ELSE IF Has(l, 0) THEN Len(l) ELSE 0

Start(p) ==
    /\ plan = p
    /\ claimed = 0
    /\ latest = [g \in 0..p.generations |-> 0]
    /\ deployed = {}
    /\ newest = [w \in p.workers |-> 0]
    /\ restored = {}
    /\ spare = [a \in DOMAIN p.attempts |-> {}]
    /\ given = [a \in DOMAIN p.attempts |-> {}]
    /\ triggered = {}
    /\ read = [a \in DOMAIN p.attempts |-> [i \in 0..(p.attempts[a].size - 1) |-> [s \in p.splits |-> -1]]]
    /\ log = [a \in DOMAIN p.attempts |->
                [c \in (0..(p.attempts[a].size - 1)) \X (0..(p.attempts[a].size - 1)) |-> <<>>]]
    /\ pos = [a \in DOMAIN p.attempts |->
                [c \in (0..(p.attempts[a].size - 1)) \X (0..(p.attempts[a].size - 1)) |-> 0]]
    /\ held = [a \in DOMAIN p.attempts |-> [j \in 0..(p.attempts[a].size - 1) |-> {}]]
    /\ lastCut = [a \in DOMAIN p.attempts |-> [j \in 0..(p.attempts[a].size - 1) |-> 0]]
    /\ over = [a \in DOMAIN p.attempts |-> [j \in 0..(p.attempts[a].size - 1) |-> {}]]
    /\ marks = {}
    /\ cuts = {}
    /\ acks = {}
    /\ complete = {[epoch |-> 0, entries |-> {}, inFlight |-> {}, read |-> [s \in p.splits |-> -1],
                    spare |-> p.splits, held |-> {}, watermark |-> -1]}

Of(e) == CHOOSE one \in complete : one.epoch = e

(***************************************************************************)
(* Generations and attempts.                                               *)
(***************************************************************************)
Claim(g) ==
    /\ g > claimed
    /\ claimed' = g
    /\ latest' = [latest EXCEPT ![g] = latest[claimed]]
    /\ UNCHANGED <<plan, deployed, newest, restored, spare, given, triggered, read, log, pos, held, lastCut, over, marks,
                   cuts, acks, complete>>

(* The generation goes back to an earlier epoch, for a person who wants that. *)
GoBack(g, e) ==
    /\ g = claimed
    /\ e <= latest[g]
    /\ \E one \in complete : one.epoch = e
    /\ latest' = [latest EXCEPT ![g] = e]
    /\ UNCHANGED <<plan, claimed, deployed, newest, restored, spare, given, triggered, read, log, pos, held, lastCut, over,
                   marks, cuts, acks, complete>>

(* An attempt begins where its generation knows the last complete epoch to be. *)
Deploy(a, e) ==
    /\ a \notin deployed
    /\ \A b \in deployed : Generation(b) = Generation(a) => b < a
    /\ e = latest[Generation(a)]
    /\ deployed' = deployed \cup {a}
    /\ spare' = [spare EXCEPT ![a] = Of(e).spare]
    /\ lastCut' = [lastCut EXCEPT ![a] = [j \in Parts(a) |-> e]]
    /\ UNCHANGED <<plan, claimed, latest, newest, restored, given, triggered, read, log, pos, held, over, marks, cuts, acks,
                   complete>>

Boot(w) ==
    /\ newest' = [newest EXCEPT ![w] = 0]
    /\ UNCHANGED <<plan, claimed, latest, deployed, restored, spare, given, triggered, read, log, pos, held, lastCut, over,
                   marks, cuts, acks, complete>>

(* A worker follows the newest attempt that it has heard of. *)
Follow(w, a) ==
    /\ a \in deployed
    /\ a > newest[w]
    /\ newest' = [newest EXCEPT ![w] = a]
    /\ UNCHANGED <<plan, claimed, latest, deployed, restored, spare, given, triggered, read, log, pos, held, lastCut, over,
                   marks, cuts, acks, complete>>

(* A partition begins with its share of the epoch, which no other has. *)
Restore(a, j, share) ==
    /\ a \in deployed
    /\ LET whole == Of(lastCut[a][j])
           others == {one \in restored : one.attempt = a}
       IN /\ \A one \in others : one.partition # j
          /\ share.entries \subseteq whole.entries
          /\ share.inFlight \subseteq whole.inFlight
          /\ share.watermark >= whole.watermark
          /\ \A one \in others : one.entries \cap share.entries = {} /\ one.inFlight \cap share.inFlight = {}
          /\ \A s \in plan.splits : share.read[s] >= 0 =>
                /\ share.read[s] = whole.read[s]
                /\ \A one \in others : one.read[s] = -1
    /\ restored' = restored \cup {[attempt |-> a, partition |-> j, epoch |-> lastCut[a][j], entries |-> share.entries,
                                   inFlight |-> share.inFlight, read |-> share.read]}
    /\ read' = [read EXCEPT ![a][j] = share.read]
    /\ held' = [held EXCEPT ![a][j] = share.held]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, spare, given, triggered, log, pos, lastCut, over, marks, cuts,
                   acks, complete>>

(* All shares together are the epoch. *)
Whole(a) ==
    LET mine == {one \in restored : one.attempt = a}
    IN /\ {one.partition : one \in mine} = Parts(a)
       /\ LET whole == Of((CHOOSE one \in mine : TRUE).epoch)
          IN /\ UNION {one.entries : one \in mine} = whole.entries
             /\ UNION {one.inFlight : one \in mine} = whole.inFlight
             /\ Joined({one.read : one \in mine}) = whole.read

(***************************************************************************)
(* Splits, triggers, records.                                              *)
(***************************************************************************)
HandOut(a, i, s) ==
    /\ s \in spare[a]
    /\ spare' = [spare EXCEPT ![a] = @ \ {s}]
    /\ given' = [given EXCEPT ![a] = @ \cup {<<s, i>>}]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, triggered, read, log, pos, held, lastCut, over, marks,
                   cuts, acks, complete>>

(* It comes on the channel of the triggers, and in their order. *)
Assigned(a, i, s) ==
    /\ <<s, i>> \in given[a]
    /\ \A one \in triggered :
         one.attempt = a /\ s \in one.spare => \E m \in marks : m.attempt = a /\ m.partition = i /\ m.epoch = one.epoch
    /\ given' = [given EXCEPT ![a] = @ \ {<<s, i>>}]
    /\ read' = [read EXCEPT ![a][i][s] = 0]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, triggered, log, pos, held, lastCut, over, marks,
                   cuts, acks, complete>>

Trigger(a, e) ==
    /\ a \in deployed
    /\ \A one \in triggered : one.epoch # e
    /\ \A one \in triggered : one.attempt = a => one.epoch < e
    /\ (\E one \in triggered : one.attempt = a) \/ Whole(a)
    /\ triggered' = triggered \cup {[attempt |-> a, epoch |-> e, spare |-> spare[a], given |-> given[a]]}
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, given, read, log, pos, held, lastCut, over,
                   marks, cuts, acks, complete>>

Emit(a, i, j, id) ==
    /\ read[a][i][Split(id)] = Index(id)
    /\ ~Has(log[a][<<i, j>>], 0)
    /\ read' = [read EXCEPT ![a][i][Split(id)] = @ + 1]
    /\ log' = [log EXCEPT ![a][<<i, j>>] = Append(@, id)]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, given, triggered, pos, held, lastCut, over,
                   marks, cuts, acks, complete>>

EndSource(a, i) ==
    /\ log' = [log EXCEPT ![a] = [c \in DOMAIN @ |-> IF c[1] = i THEN Append(@[c], 0) ELSE @[c]]]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, given, triggered, read, pos, held, lastCut,
                   over, marks, cuts, acks, complete>>

(* A source cuts: its positions are noted, and the marker is put behind all that it has read. A trigger comes on the    *)
(* same channel as the splits, so those that were sent before it are there.                                             *)
Mark(a, i, e) ==
    /\ \E one \in triggered :
         one.attempt = a /\ one.epoch = e /\ \A pair \in one.given \cap given[a] : pair[2] # i
    /\ \A one \in marks : one.attempt = a /\ one.partition = i => one.epoch < e
    /\ marks' = marks \cup {[attempt |-> a, partition |-> i, epoch |-> e, read |-> read[a][i]]}
    /\ log' = [log EXCEPT ![a] = [c \in DOMAIN @ |->
                 IF c[1] = i /\ ~Has(@[c], 0) THEN Append(@[c], -e) ELSE @[c]]]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, given, triggered, read, pos, held, lastCut,
                   over, cuts, acks, complete>>

(* An epoch that partition j will never cut: cut before, given up, or left out by one of its channels. *)
Dead(a, j, e) ==
    \/ e <= lastCut[a][j]
    \/ e \in over[a][j]
    \/ \E c \in Into(a, j) : \E k \in 1..Len(log[a][c]) :
         log[a][c][k] < -e /\ \A n \in 1..k : log[a][c][n] # -e

(* The next record of a channel is processed; no marker before it may still be waiting for its cut. *)
Process(a, j, i, id) ==
    LET c == <<i, j>>
        l == log[a][c]
        rest == {k \in (pos[a][c] + 1)..Len(l) : l[k] > 0}
    IN /\ rest # {}
       /\ l[Min(rest)] = id
       /\ plan.exactly => \A k \in (pos[a][c] + 1)..(Min(rest) - 1) : l[k] < 0 => Dead(a, j, -l[k])
       /\ pos' = [pos EXCEPT ![a][c] = Min(rest)]
       /\ held' = [held EXCEPT ![a][j] = @ \cup {id}]
       /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, given, triggered, read, log, lastCut, over,
                      marks, cuts, acks, complete>>

(***************************************************************************)
(* Cuts of operators.                                                      *)
(***************************************************************************)
(* All that came before the marker is processed. *)
Reached(a, c, e) ==
    LET d == Divides(log[a][c], e) IN d > 0 /\ Data(log[a][c], pos[a][c] + 1, d) = {}

Cut(a, j, e, unaligned, entries, seen, watermark) ==
    /\ e > lastCut[a][j]
    /\ e \notin over[a][j]
    /\ IF unaligned
       THEN \E c \in Into(a, j) : Divides(log[a][c], e) > 0
       ELSE \A c \in Into(a, j) : Reached(a, c, e)
    /\ plan.exactly => \A c \in Into(a, j) : Has(log[a][c], -e) => pos[a][c] < Place(log[a][c], -e)
    /\ seen = held[a][j]
    /\ cuts' = cuts \cup {[attempt |-> a, partition |-> j, epoch |-> e, at |-> [i \in Parts(a) |-> pos[a][<<i, j>>]],
                           entries |-> entries, held |-> seen, watermark |-> watermark]}
    /\ lastCut' = [lastCut EXCEPT ![a][j] = e]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, given, triggered, read, log, pos, held, over,
                   marks, acks, complete>>

GiveUp(a, j, e) ==
    /\ over' = [over EXCEPT ![a][j] = @ \cup {e}]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, given, triggered, read, log, pos, held, lastCut,
                   marks, cuts, acks, complete>>

Acknowledge(a, j, e) ==
    /\ e \notin over[a][j]
    /\ \E one \in marks : one.attempt = a /\ one.partition = j /\ one.epoch = e
    /\ \E one \in cuts : one.attempt = a /\ one.partition = j /\ one.epoch = e
    /\ acks' = acks \cup {<<a, j, e>>}
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, spare, given, triggered, read, log, pos, held, lastCut,
                   over, marks, cuts, complete>>

(***************************************************************************)
(* An epoch is complete.                                                   *)
(***************************************************************************)
InFlight(a, cut) ==
    UNION {LET l == log[a][<<i, cut.partition>>] IN Data(l, cut.at[i] + 1, Divides(l, cut.epoch)) : i \in Parts(a)}

Complete(a, e, content) ==
    LET mine == {one \in cuts : one.attempt = a /\ one.epoch = e}
        sources == {one \in marks : one.attempt = a /\ one.epoch = e}
    IN /\ Generation(a) = claimed
       /\ e > latest[claimed]
       /\ \A b \in deployed : b <= a
       /\ \A j \in Parts(a) : <<a, j, e>> \in acks
       /\ content.entries = UNION {one.entries : one \in mine}
       /\ content.inFlight = UNION {InFlight(a, one) : one \in mine}
       /\ content.read = Joined({one.read : one \in sources})
       /\ \A one \in triggered : one.epoch = e => content.spare = one.spare
       /\ complete' = complete \cup
            {[epoch |-> e, entries |-> content.entries, inFlight |-> content.inFlight, read |-> content.read,
              spare |-> content.spare, held |-> UNION {one.held : one \in mine},
              watermark |-> Min({one.watermark : one \in mine})]}
       /\ latest' = [latest EXCEPT ![claimed] = e]
       /\ UNCHANGED <<plan, claimed, deployed, newest, restored, spare, given, triggered, read, log, pos, held, lastCut,
                      over, marks, cuts, acks>>

(* What was read before the cut of the sources is in the state or in flight, once; every split has one place. *)
Exact(one) ==
    /\ one.held \cup one.inFlight = Read(one.read)
    /\ one.held \cap one.inFlight = {}
NothingLost(one) == Read(one.read) \subseteq one.held \cup one.inFlight
EverySplitOnce(one) == \A s \in plan.splits : (one.read[s] >= 0) = (s \notin one.spare)

Safe ==
    \A one \in complete :
        /\ IF plan.exactly THEN Exact(one) ELSE NothingLost(one)
        /\ EverySplitOnce(one)

(***************************************************************************)
(* Histories.                                                              *)
(***************************************************************************)
TraceInit(config) == Start(config)

TraceStep(step) ==
    /\ CASE step.action = "Claim" -> Claim(step.generation)
         [] step.action = "GoBack" -> GoBack(step.generation, step.epoch)
         [] step.action = "Deploy" -> Deploy(step.attempt, step.epoch)
         [] step.action = "Boot" -> Boot(step.worker)
         [] step.action = "Follow" -> Follow(step.worker, step.attempt)
         [] step.action = "Restore" -> Restore(step.attempt, step.partition, step)
         [] step.action = "HandOut" -> HandOut(step.attempt, step.partition, step.split)
         [] step.action = "Assigned" -> Assigned(step.attempt, step.partition, step.split)
         [] step.action = "Trigger" -> Trigger(step.attempt, step.epoch)
         [] step.action = "Emit" -> Emit(step.attempt, step.partition, step.to, step.record)
         [] step.action = "EndSource" -> EndSource(step.attempt, step.partition)
         [] step.action = "Mark" -> Mark(step.attempt, step.partition, step.epoch)
         [] step.action = "Process" -> Process(step.attempt, step.partition, step.from, step.record)
         [] step.action = "Cut" ->
              Cut(step.attempt, step.partition, step.epoch, step.unaligned, step.entries, step.held, step.watermark)
         [] step.action = "GiveUp" -> GiveUp(step.attempt, step.partition, step.epoch)
         [] step.action = "Acknowledge" -> Acknowledge(step.attempt, step.partition, step.epoch)
         [] step.action = "Complete" -> Complete(step.attempt, step.epoch, step)
    /\ Safe'
====
