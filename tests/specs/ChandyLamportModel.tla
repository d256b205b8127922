---- MODULE ChandyLamportModel ----
(* Small instances of the marker rule, every behaviour of which TLC explores. *)
EXTENDS ChandyLamport

CONSTANTS Nodes, Channels, Snapshots, MaxMessages

Pair == {<<"a", "b">>, <<"b", "a">>}
Ring == {<<"a", "b">>, <<"b", "c">>, <<"c", "a">>}
Chord == Ring \cup {<<"b", "a">>}

Init == Start0(Nodes, Channels, Snapshots)

Next ==
    \/ \E s \in Snapshots, p \in Nodes : Start(s, p)
    \/ \E o \in owed : SendMarker(o[1], o[2])
    \/ \E c \in Channels : sent[c] < MaxMessages /\ Send(c, sent[c] + 1)
    \/ \E c \in Channels : wire[c] # <<>> /\ Head(wire[c]).kind = "message" /\ Receive(c, Head(wire[c]).message)
    \/ \E s \in Snapshots, c \in Channels : ReceiveMarker(s, c, c[2] \notin has[s])
    \/ \E s \in Snapshots, p \in Nodes : Finish(s, p, [q \in {c[1] : c \in Into(p)} |-> inFlight[s][<<q, p>>]])

Spec == Init /\ [][Next]_vars

(* No marker is lost: what was begun comes to its end when nothing else can happen. *)
Settled == (\A c \in Channels : wire[c] = <<>>) /\ owed = {}
FinishedWhenSettled == Settled => \A s \in Snapshots : has[s] # {} => Complete(s)
====
