---- MODULE ChandyLamport ----
(***************************************************************************)
(* The marker rule of Chandy and Lamport (1985), on any directed graph of  *)
(* reliable FIFO channels, for any number of snapshots at once.            *)
(*                                                                         *)
(* A channel is a pair <<from, to>>. A snapshot is what `cutSent`, `cutGot`*)
(* and `inFlight` say of it: how many messages each process had sent and   *)
(* received when it recorded itself, and what the channels held.           *)
(***************************************************************************)
EXTENDS Naturals, Sequences

VARIABLES
    nodes, edges,     \* the graph, which stays as it is
    wire,             \* wire[c]: messages and markers on their way, the oldest first
    sent, got,        \* sent[c], got[c]: how many messages
    has,              \* has[s]: the processes that have recorded themselves
    cutSent, cutGot,  \* cutSent[s][c], cutGot[s][c]: the numbers when they did
    awaited,          \* awaited[s]: channels into such processes whose marker is still to come
    inFlight,         \* inFlight[s][c]: what came on c between the recording and the marker
    owed,             \* <<s, c>>: markers to be sent before anything else on any channel of the sender
    finished          \* <<s, p>>: p knows that its part of s is complete

vars == <<nodes, edges, wire, sent, got, has, cutSent, cutGot, awaited, inFlight, owed, finished>>

Message(m) == [kind |-> "message", message |-> m]
Marker(s) == [kind |-> "marker", snapshot |-> s]
Into(p) == {c \in edges : c[2] = p}
OutOf(p) == {c \in edges : c[1] = p}
Free(p) == \A o \in owed : o[2][1] # p

Start0(ns, cs, ss) ==
    /\ nodes = ns
    /\ edges = cs
    /\ wire = [c \in cs |-> <<>>]
    /\ sent = [c \in cs |-> 0]
    /\ got = [c \in cs |-> 0]
    /\ has = [s \in ss |-> {}]
    /\ cutSent = [s \in ss |-> [c \in cs |-> 0]]
    /\ cutGot = [s \in ss |-> [c \in cs |-> 0]]
    /\ awaited = [s \in ss |-> {}]
    /\ inFlight = [s \in ss |-> [c \in cs |-> <<>>]]
    /\ owed = {}
    /\ finished = {}

Record(s, p, arrived) ==
    /\ has' = [has EXCEPT ![s] = @ \cup {p}]
    /\ cutSent' = [cutSent EXCEPT ![s] = [c \in edges |-> IF c[1] = p THEN sent[c] ELSE @[c]]]
    /\ cutGot' = [cutGot EXCEPT ![s] = [c \in edges |-> IF c[2] = p THEN got[c] ELSE @[c]]]
    /\ awaited' = [awaited EXCEPT ![s] = @ \cup (Into(p) \ arrived)]
    /\ owed' = owed \cup {<<s, c>> : c \in OutOf(p)}

(* A process records itself of its own accord. *)
Start(s, p) ==
    /\ p \notin has[s]
    /\ Free(p)
    /\ Record(s, p, {})
    /\ UNCHANGED <<nodes, edges, wire, sent, got, inFlight, finished>>

SendMarker(s, c) ==
    /\ <<s, c>> \in owed
    /\ owed' = owed \ {<<s, c>>}
    /\ wire' = [wire EXCEPT ![c] = Append(@, Marker(s))]
    /\ UNCHANGED <<nodes, edges, sent, got, has, cutSent, cutGot, awaited, inFlight, finished>>

Send(c, m) ==
    /\ c \in edges
    /\ Free(c[1])
    /\ wire' = [wire EXCEPT ![c] = Append(@, Message(m))]
    /\ sent' = [sent EXCEPT ![c] = @ + 1]
    /\ UNCHANGED <<nodes, edges, got, has, cutSent, cutGot, awaited, inFlight, owed, finished>>

Receive(c, m) ==
    /\ Free(c[2])
    /\ wire[c] # <<>>
    /\ Head(wire[c]) = Message(m)
    /\ wire' = [wire EXCEPT ![c] = Tail(@)]
    /\ got' = [got EXCEPT ![c] = @ + 1]
    /\ inFlight' = [s \in DOMAIN has |->
                      IF c \in awaited[s] THEN [inFlight[s] EXCEPT ![c] = Append(@, m)] ELSE inFlight[s]]
    /\ UNCHANGED <<nodes, edges, sent, has, cutSent, cutGot, awaited, owed, finished>>

(* The first marker makes its receiver record itself, the channel empty; any other ends the recording of its channel. *)
ReceiveMarker(s, c, records) ==
    /\ Free(c[2])
    /\ wire[c] # <<>>
    /\ Head(wire[c]) = Marker(s)
    /\ wire' = [wire EXCEPT ![c] = Tail(@)]
    /\ records = (c[2] \notin has[s])
    /\ IF records
       THEN Record(s, c[2], {c})
       ELSE /\ awaited' = [awaited EXCEPT ![s] = @ \ {c}]
            /\ UNCHANGED <<has, cutSent, cutGot, owed>>
    /\ UNCHANGED <<nodes, edges, sent, got, inFlight, finished>>

(* A process says what its channels held, when the last marker has come. *)
Finish(s, p, channels) ==
    /\ p \in has[s]
    /\ <<s, p>> \notin finished
    /\ Into(p) \cap awaited[s] = {}
    /\ \A c \in Into(p) : channels[c[1]] = inFlight[s][c]
    /\ finished' = finished \cup {<<s, p>>}
    /\ UNCHANGED <<nodes, edges, wire, sent, got, has, cutSent, cutGot, awaited, inFlight, owed>>

(* Nothing is left to happen: a snapshot that was begun is finished, everywhere. *)
End ==
    /\ \A c \in edges : wire[c] = <<>>
    /\ owed = {}
    /\ \A s \in DOMAIN has : has[s] # {} => \A p \in nodes : <<s, p>> \in finished
    /\ UNCHANGED vars

(***************************************************************************)
(* What is recorded is a state that the system could have been in.         *)
(***************************************************************************)
NothingFromTheFuture ==
    \A s \in DOMAIN has : \A c \in edges :
        {c[1], c[2]} \subseteq has[s] => cutGot[s][c] <= cutSent[s][c]

Complete(s) == has[s] = nodes /\ awaited[s] = {}

Consistent ==
    \A s \in DOMAIN has :
        Complete(s) => \A c \in edges : cutGot[s][c] + Len(inFlight[s][c]) = cutSent[s][c]

Safe == NothingFromTheFuture /\ Consistent

(***************************************************************************)
(* Histories.                                                              *)
(***************************************************************************)
TraceInit(config) == Start0(config.nodes, config.edges, config.snapshots)

TraceStep(step) ==
    /\ CASE step.action = "Start" -> Start(step.snapshot, step.process)
         [] step.action = "SendMarker" -> SendMarker(step.snapshot, <<step.from, step.to>>)
         [] step.action = "Send" -> Send(<<step.from, step.to>>, step.message)
         [] step.action = "Receive" -> Receive(<<step.from, step.to>>, step.message)
         [] step.action = "ReceiveMarker" -> ReceiveMarker(step.snapshot, <<step.from, step.to>>, step.records)
         [] step.action = "Finish" -> Finish(step.snapshot, step.process, step.channels)
         [] step.action = "End" -> End
    /\ Safe'
====
