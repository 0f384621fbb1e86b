"""A launch rehearsed: the processes of a topology file, without what they are for, on the sockets that they would have.

The map of this package; each imports only from those before it:

    script     what each process is told to do, and what it tells of it
    network    a network namespace for each host
    rank       one process: it claims, binds, dials, sends and receives
    stage      the process that starts them, keeps them together from phase to phase, and clears up
    cast       the script, from a plan: who runs where, on which ports
    outcome    what was seen, beside what `check` predicted
    rehearsal  all of it

`stage` runs in a process of its own, which imports nothing that it does not need: the ranks are forked from it.
"""
