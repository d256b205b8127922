---- MODULE Epochs ----
(***************************************************************************)
(* Epochs of a job that fails and recovers: stages that cut at markers,    *)
(* aligned and unaligned, and what a complete epoch holds.                 *)
(*                                                                         *)
(* A node is a stage of a partition in one attempt; `plan.nodes[n]` says   *)
(* of which, and the channels that end there. Channels begin and end in    *)
(* one attempt; `plan.channels[c]` says at which nodes, on which edge of   *)
(* the program, and whether a marker may overtake there. Rows are counted: *)
(* a channel keeps their order, so numbers say which they are. Where a     *)
(* marker stands among them is the sender's cut of the channel; how many   *)
(* the receiver had processed when it cut is in `cuts`. What is between    *)
(* the two was in flight.                                                  *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

VARIABLES
    plan,        \* what stays: [exactly, splits, attempts, nodes, channels, edges, generations, workers]
    claimed,     \* the newest generation
    latest,      \* latest[g]: the complete epoch from which generation g would start an attempt; 0 for none
    deployed,    \* the attempts that were begun
    newest,      \* newest[w]: the newest attempt that process w has heard of
    restored,    \* the nodes that have what they begin with
    back,        \* back[n]: <<edge, rows>> in flight that the node began with
    spare,       \* spare[a]: the splits that no partition of the attempt has been given
    given,       \* given[a]: <<split, partition>> for the splits that are on their way
    triggered,   \* [attempt, epoch, spare, given]: epochs, and where the splits without a reader were at the trigger
    has,         \* has[n]: the splits that a node reads, or has read
    began,       \* began[n]: <<split, position>> that it began with
    sent,        \* sent[c]: how many rows were put on a channel
    marks,       \* marks[c]: <<epoch, rows>>, where markers stand
    ended,       \* the channels that their senders have ended
    taken,       \* taken[c]: how many of the rows were processed
    kept,        \* kept[c]: rows of the restored epoch that were taken for this channel and are not processed yet
    lastCut,     \* lastCut[n]: the last epoch that a node has cut
    over,        \* over[n]: epochs that a node has given up
    cuts,        \* [node, epoch, at, kept, read]
    acks,        \* <<attempt, partition, epoch>>
    complete     \* [epoch, back, read, spare]: what each complete epoch holds

vars == <<plan, claimed, latest, deployed, newest, restored, back, spare, given, triggered, has, began, sent, marks, ended,
          taken, kept, lastCut, over, cuts, acks, complete>>

Nodes(a) == {n \in DOMAIN plan.nodes : plan.nodes[n].attempt = a}
Parts(a) == 0..(plan.attempts[a].size - 1)
Generation(a) == plan.attempts[a].generation
Ins(n) == plan.nodes[n].ins
To(c) == plan.channels[c].to
Splits(pairs) == {pair[1] : pair \in pairs}

RECURSIVE Sum(_)
(* Of pairs <<something, number>>, the sum of the numbers. *)
Sum(pairs) == IF pairs = {} THEN 0 ELSE LET one == CHOOSE p \in pairs : TRUE IN one[2] + Sum(pairs \ {one})

Marked(c, e) == \E m \in marks[c] : m[1] = e
Place(c, e) == (CHOOSE m \in marks[c] : m[1] = e)[2]
(* Where the cut of an epoch divides a channel at its sender: at the marker, or at the end if that came first. *)
Divided(c, e) == Marked(c, e) \/ c \in ended
Divides(c, e) == IF Marked(c, e) THEN Place(c, e) ELSE sent[c]

Start(p) ==
    /\ plan = p
    /\ claimed = 0
    /\ latest = [g \in 0..p.generations |-> 0]
    /\ deployed = {}
    /\ newest = [w \in p.workers |-> 0]
    /\ restored = {}
    /\ back = [n \in DOMAIN p.nodes |-> {}]
    /\ spare = [a \in DOMAIN p.attempts |-> {}]
    /\ given = [a \in DOMAIN p.attempts |-> {}]
    /\ triggered = {}
    /\ has = [n \in DOMAIN p.nodes |-> {}]
    /\ began = [n \in DOMAIN p.nodes |-> {}]
    /\ sent = [c \in DOMAIN p.channels |-> 0]
    /\ marks = [c \in DOMAIN p.channels |-> {}]
    /\ ended = {}
    /\ taken = [c \in DOMAIN p.channels |-> 0]
    /\ kept = [c \in DOMAIN p.channels |-> 0]
    /\ lastCut = [n \in DOMAIN p.nodes |-> 0]
    /\ over = [n \in DOMAIN p.nodes |-> {}]
    /\ cuts = {}
    /\ acks = {}
    /\ complete = {[epoch |-> 0, back |-> {}, read |-> {}, spare |-> p.splits]}

Of(e) == CHOOSE one \in complete : one.epoch = e

(***************************************************************************)
(* Generations and attempts.                                               *)
(***************************************************************************)
Claim(g) ==
    /\ g > claimed
    /\ claimed' = g
    /\ latest' = [latest EXCEPT ![g] = latest[claimed]]
    /\ UNCHANGED <<plan, deployed, newest, restored, back, spare, given, triggered, has, began, sent, marks, ended, taken,
                   kept, lastCut, over, cuts, acks, complete>>

(* The generation goes back to an earlier epoch, as later ones are lost. *)
GoBack(g, e) ==
    /\ g = claimed
    /\ e <= latest[g]
    /\ \E one \in complete : one.epoch = e
    /\ latest' = [latest EXCEPT ![g] = e]
    /\ UNCHANGED <<plan, claimed, deployed, newest, restored, back, spare, given, triggered, has, began, sent, marks, ended,
                   taken, kept, lastCut, over, cuts, acks, complete>>

(* An attempt begins where its generation knows the last complete epoch to be. *)
Deploy(a, e) ==
    /\ a \notin deployed
    /\ \A b \in deployed : Generation(b) = Generation(a) => b < a
    /\ e = latest[Generation(a)]
    /\ deployed' = deployed \cup {a}
    /\ spare' = [spare EXCEPT ![a] = Of(e).spare]
    /\ lastCut' = [n \in DOMAIN lastCut |-> IF plan.nodes[n].attempt = a THEN e ELSE lastCut[n]]
    /\ UNCHANGED <<plan, claimed, latest, newest, restored, back, given, triggered, has, began, sent, marks, ended, taken,
                   kept, over, cuts, acks, complete>>

(* A process follows the newest attempt that it has heard of. *)
Follow(w, a) ==
    /\ a \in deployed
    /\ a > newest[w]
    /\ newest' = [newest EXCEPT ![w] = a]
    /\ UNCHANGED <<plan, claimed, latest, deployed, restored, back, spare, given, triggered, has, began, sent, marks, ended,
                   taken, kept, lastCut, over, cuts, acks, complete>>

(* A node begins with its share of the epoch, of which no other has a split. *)
Restore(n, share) ==
    LET a == plan.nodes[n].attempt
        whole == Of(lastCut[n])
    IN /\ a \in deployed
       /\ n \notin restored
       /\ share.read \subseteq whole.read
       /\ \A other \in restored \cap Nodes(a) : Splits(began[other]) \cap Splits(share.read) = {}
       /\ restored' = restored \cup {n}
       /\ began' = [began EXCEPT ![n] = share.read]
       /\ has' = [has EXCEPT ![n] = @ \cup Splits(share.read)]
       /\ back' = [back EXCEPT ![n] = share.back]
       /\ kept' = [c \in DOMAIN kept |-> Sum({pair \in share.kept : pair[1] = c}) + kept[c]]
       /\ UNCHANGED <<plan, claimed, latest, deployed, newest, spare, given, triggered, sent, marks, ended, taken, lastCut,
                      over, cuts, acks, complete>>

(* All shares together are the epoch. *)
Whole(a) ==
    LET mine == Nodes(a)
        whole == Of(lastCut[CHOOSE n \in mine : TRUE])
    IN /\ mine # {}
       /\ mine \subseteq restored
       /\ {plan.nodes[n].partition : n \in mine} = Parts(a)
       /\ UNION {began[n] : n \in mine} = whole.read
       /\ \A x \in 1..plan.edges :
            Sum({pair \in whole.back : pair[1] = x}) = Sum({<<n, Sum({pair \in back[n] : pair[1] = x})>> : n \in mine})

(***************************************************************************)
(* Splits and triggers.                                                    *)
(***************************************************************************)
HandOut(a, i, splits) ==
    /\ splits \subseteq spare[a]
    /\ spare' = [spare EXCEPT ![a] = @ \ splits]
    /\ given' = [given EXCEPT ![a] = @ \cup {<<s, i>> : s \in splits}]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, triggered, has, began, sent, marks, ended, taken,
                   kept, lastCut, over, cuts, acks, complete>>

(* They come on the channel of the triggers, and in their order. *)
Assigned(n, splits) ==
    LET a == plan.nodes[n].attempt
        i == plan.nodes[n].partition
    IN /\ \A s \in splits : <<s, i>> \in given[a]
       /\ \A one \in triggered :
            one.attempt = a /\ one.spare \cap splits # {} => one.epoch <= lastCut[n] \/ one.epoch \in over[n]
       /\ given' = [given EXCEPT ![a] = @ \ {<<s, i>> : s \in splits}]
       /\ has' = [has EXCEPT ![n] = @ \cup splits]
       /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, triggered, began, sent, marks, ended,
                      taken, kept, lastCut, over, cuts, acks, complete>>

Trigger(a, e) ==
    /\ a \in deployed
    /\ \A one \in triggered : one.epoch # e
    /\ \A one \in triggered : one.attempt = a => one.epoch < e
    /\ IF \E one \in triggered : one.attempt = a THEN TRUE ELSE Whole(a)
    /\ triggered' = triggered \cup {[attempt |-> a, epoch |-> e, spare |-> spare[a], given |-> given[a]]}
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, given, has, began, sent, marks, ended,
                   taken, kept, lastCut, over, cuts, acks, complete>>

(***************************************************************************)
(* Channels.                                                               *)
(***************************************************************************)
Emit(c, rows) ==
    /\ c \notin ended
    /\ sent' = [sent EXCEPT ![c] = @ + rows]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, given, triggered, has, began, marks, ended,
                   taken, kept, lastCut, over, cuts, acks, complete>>

(* A marker follows its sender's cut, and all rows that came out before it: none waits for others to fill a batch. *)
Mark(c, e, waiting) ==
    /\ e = lastCut[plan.channels[c].of]
    /\ waiting = 0
    /\ \A m \in marks[c] : m[1] < e
    /\ marks' = [marks EXCEPT ![c] = IF c \in ended THEN @ ELSE @ \cup {<<e, sent[c]>>}]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, given, triggered, has, began, sent, ended,
                   taken, kept, lastCut, over, cuts, acks, complete>>

End(c, waiting) ==
    /\ waiting = 0
    /\ ended' = ended \cup {c}
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, given, triggered, has, began, sent, marks,
                   taken, kept, lastCut, over, cuts, acks, complete>>

(* An epoch that a node will never cut: cut before, given up, or left out by one of its channels. *)
Dead(n, e) ==
    \/ e <= lastCut[n]
    \/ e \in over[n]
    \/ \E c \in Ins(n) : ~Marked(c, e) /\ \E m \in marks[c] : m[1] > e

(* The next rows of a channel are processed, those of the restored epoch first; no marker before them awaits its cut. *)
Process(c, rows, again) ==
    /\ again <= kept[c]
    /\ rows > 0 => again = kept[c]
    /\ taken[c] + rows <= sent[c]
    /\ plan.exactly => \A m \in marks[c] : m[2] < taken[c] + rows => Dead(To(c), m[1])
    /\ taken' = [taken EXCEPT ![c] = @ + rows]
    /\ kept' = [kept EXCEPT ![c] = @ - again]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, given, triggered, has, began, sent, marks,
                   ended, lastCut, over, cuts, acks, complete>>

(***************************************************************************)
(* Cuts.                                                                   *)
(***************************************************************************)
(* All that came before the marker is processed. *)
Reached(c, e) == Divided(c, e) /\ taken[c] >= Divides(c, e) /\ kept[c] = 0

Cut(n, e, unaligned, read) ==
    LET a == plan.nodes[n].attempt
        i == plan.nodes[n].partition
        was == CHOOSE one \in triggered : one.epoch = e
    IN /\ n \in restored
       /\ \E one \in triggered : one.epoch = e /\ one.attempt = a
       /\ e > lastCut[n]
       /\ Ins(n) # {} => \/ /\ unaligned
                            /\ \E c \in Ins(n) : Divided(c, e)
                            /\ \A c \in Ins(n) : plan.channels[c].ordered => Reached(c, e)
                         \/ \A c \in Ins(n) : Reached(c, e)
       /\ plan.exactly => \A c \in Ins(n) : Marked(c, e) => taken[c] <= Place(c, e)
       /\ Splits(read) = has[n]
       /\ Ins(n) = {} => \A pair \in was.given : pair[2] = i /\ pair[1] \in plan.nodes[n].splits => pair[1] \in has[n]
       /\ cuts' = cuts \cup {[node |-> n, epoch |-> e, at |-> [c \in Ins(n) |-> taken[c]],
                              kept |-> [c \in Ins(n) |-> kept[c]], read |-> read]}
       /\ lastCut' = [lastCut EXCEPT ![n] = e]
       /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, given, triggered, has, began, sent,
                      marks, ended, taken, kept, over, acks, complete>>

GiveUp(n, e) ==
    /\ over' = [over EXCEPT ![n] = @ \cup {e}]
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, given, triggered, has, began, sent, marks,
                   ended, taken, kept, lastCut, cuts, acks, complete>>

Acknowledge(a, i, e) ==
    /\ \A n \in Nodes(a) : plan.nodes[n].partition = i =>
         e \notin over[n] /\ \E one \in cuts : one.node = n /\ one.epoch = e
    /\ acks' = acks \cup {<<a, i, e>>}
    /\ UNCHANGED <<plan, claimed, latest, deployed, newest, restored, back, spare, given, triggered, has, began, sent, marks,
                   ended, taken, kept, lastCut, over, cuts, complete>>

(***************************************************************************)
(* An epoch is complete.                                                   *)
(***************************************************************************)
InFlight(cut) ==
    {pair \in {<<c, cut.kept[c] + Divides(c, cut.epoch) - cut.at[c]>> : c \in DOMAIN cut.at} : pair[2] > 0}

(* Every split has one place, whether it is read or not. *)
EverySplitOnce(read, without) ==
    /\ Splits(read) \cup without = plan.splits
    /\ Splits(read) \cap without = {}
    /\ Cardinality(Splits(read)) = Cardinality(read)

Complete(a, e, content) ==
    LET mine == {one \in cuts : one.epoch = e /\ plan.nodes[one.node].attempt = a}
    IN /\ Generation(a) = claimed
       /\ e > latest[claimed]
       /\ \A b \in deployed : b <= a
       /\ \A i \in Parts(a) : <<a, i, e>> \in acks
       /\ {one.node : one \in mine} = Nodes(a)
       /\ content.flight = UNION {InFlight(one) : one \in mine}
       /\ content.read = UNION {one.read : one \in mine}
       /\ \A one \in triggered : one.epoch = e => content.spare = one.spare
       /\ EverySplitOnce(content.read, content.spare)
       /\ complete' = complete \cup
            {[epoch |-> e, back |-> content.back, read |-> content.read, spare |-> content.spare]}
       /\ latest' = [latest EXCEPT ![claimed] = e]
       /\ UNCHANGED <<plan, claimed, deployed, newest, restored, back, spare, given, triggered, has, began, sent, marks,
                      ended, taken, kept, lastCut, over, cuts, acks>>

(***************************************************************************)
(* Histories.                                                              *)
(***************************************************************************)
TraceInit(config) == Start(config)

TraceStep(step) ==
    CASE step.action = "Claim" -> Claim(step.generation)
      [] step.action = "GoBack" -> GoBack(step.generation, step.epoch)
      [] step.action = "Deploy" -> Deploy(step.attempt, step.epoch)
      [] step.action = "Follow" -> Follow(step.worker, step.attempt)
      [] step.action = "Restore" -> Restore(step.node, step)
      [] step.action = "HandOut" -> HandOut(step.attempt, step.partition, step.splits)
      [] step.action = "Assigned" -> Assigned(step.node, step.splits)
      [] step.action = "Trigger" -> Trigger(step.attempt, step.epoch)
      [] step.action = "Emit" -> Emit(step.channel, step.rows)
      [] step.action = "Mark" -> Mark(step.channel, step.epoch, step.waiting)
      [] step.action = "EndChannel" -> End(step.channel, step.waiting)
      [] step.action = "Process" -> Process(step.channel, step.rows, step.again)
      [] step.action = "Cut" -> Cut(step.node, step.epoch, step.unaligned, step.read)
      [] step.action = "GiveUp" -> GiveUp(step.node, step.epoch)
      [] step.action = "Acknowledge" -> Acknowledge(step.attempt, step.partition, step.epoch)
      [] step.action = "Complete" -> Complete(step.attempt, step.epoch, step)
====
