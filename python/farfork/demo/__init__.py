"""The demonstration: `python -m farfork.demo`.

One warm process, checkpointed into a pool; eight clones of it on two emulated nodes;
every answer checked against a process that was started cold.

| module | what |
| --- | --- |
| `command` | runs the binary `farfork` |
| `runtimes` | functions' processes that are started the slow way |
| `nodes` | emulated nodes: agents in namespaces of their own |
| `forked` | the comparison with local fork |
| `play` | the acts, in order |
| `table` | what was measured, for people |
"""
