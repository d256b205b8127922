---- MODULE Retention ----
(***************************************************************************)
(* What is kept of a job: an object is written once, and is there as long  *)
(* as an epoch refers to it that was not removed; what is pinned, and the  *)
(* newest epoch, is not removed.                                           *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

VARIABLES
    objects,   \* <<path, content>>: what was ever written
    retained,  \* [epoch, files]: the complete epochs that were not removed
    pins,      \* <<pin, epoch>>
    gone       \* the paths that were deleted, and not written again

vars == <<objects, retained, pins, gone>>

Start == objects = {} /\ retained = {} /\ pins = {} /\ gone = {}

Write(path, content) ==
    /\ \A one \in objects : one[1] = path => one[2] = content
    /\ objects' = objects \cup {<<path, content>>}
    /\ gone' = gone \ {path}
    /\ UNCHANGED <<retained, pins>>

Complete(e, files) ==
    /\ files \subseteq {one[1] : one \in objects} \ gone
    /\ retained' = retained \cup {[epoch |-> e, files |-> files]}
    /\ UNCHANGED <<objects, pins, gone>>

Pin(p, e) == pins' = pins \cup {<<p, e>>} /\ UNCHANGED <<objects, retained, gone>>
Unpin(p) == pins' = {one \in pins : one[1] # p} /\ UNCHANGED <<objects, retained, gone>>

Remove(epochs) ==
    /\ \A one \in pins : one[2] \notin epochs
    /\ \E one \in retained : one.epoch \notin epochs
    /\ retained' = {one \in retained : one.epoch \notin epochs}
    /\ UNCHANGED <<objects, pins, gone>>

Delete(path) ==
    /\ \A one \in retained : path \notin one.files
    /\ gone' = gone \cup {path}
    /\ UNCHANGED <<objects, retained, pins>>

(***************************************************************************)
(* Histories.                                                              *)
(***************************************************************************)
TraceInit(config) == Start

TraceStep(step) ==
    CASE step.action = "Write" -> Write(step.path, step.content)
      [] step.action = "Complete" -> Complete(step.epoch, step.files)
      [] step.action = "Pin" -> Pin(step.pin, step.epoch)
      [] step.action = "Unpin" -> Unpin(step.pin)
      [] step.action = "Remove" -> Remove(step.epochs)
      [] step.action = "Delete" -> Delete(step.path)
====
