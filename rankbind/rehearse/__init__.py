"""A launch rehearsed: the processes of a topology file, without what they are for, on the sockets that they would have.

The map of this package; each imports only from those before it:

    script     what each process is told to do, and what it tells of it
    network    a network namespace for each host
    holder     who has a port or a path
    traces     what may be left behind, taken away
    rank       one process: it claims, binds, dials, sends and receives
    stage      the process that starts them, and keeps them together from phase to phase
    ports      which port stands for a declared one
    cast       the script, from a plan
    outcome    what was seen
    verdict    that beside what `check` predicted
    rehearsal  all of it

`stage` runs in a process of its own, which imports nothing that it does not need: the ranks are forked from it.
"""
