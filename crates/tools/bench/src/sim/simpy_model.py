"""The workload of `farfork bench sim` as a plain SimPy model, as a simulation for a paper is written by hand.

Functions have sessions of calls. A call takes the idle instance that was used last, or starts one on the node with most
free memory: cold until the function has answered 16 calls, then a clone. Idle instances end after a window.
Prints the requests, how many of them were warm, and the seconds of processor time that the simulation took.
"""

import sys
import time

import simpy

REQUESTS, FUNCTIONS, NODES, CALLS, SPACING, PERIOD, RUN, WINDOW = map(float, sys.argv[1:9])
COLD, CLONE, CHECKPOINTED, MB = 0.0927, 0.003455, 16, 256


class Function:
    def __init__(self):
        self.idle, self.answered = [], 0


class Instance:
    def __init__(self, node):
        self.node, self.uses, self.alive = node, 0, True


def expire(env, function, instance, free):
    uses = instance.uses
    yield env.timeout(WINDOW)
    if instance.alive and instance.uses == uses:
        instance.alive = False
        function.idle.remove(instance)
        free[instance.node] += MB


def call(env, function, free, warm):
    if function.idle:
        instance = function.idle.pop()
        warm[0] += 1
    else:
        node = max(range(len(free)), key=free.__getitem__)
        free[node] -= MB
        instance = Instance(node)
        yield env.timeout(CLONE if function.answered >= CHECKPOINTED else COLD)
    instance.uses += 1
    yield env.timeout(RUN)
    function.answered += 1
    function.idle.append(instance)
    env.process(expire(env, function, instance, free))


def sessions(env, function, phase, free, warm, left):
    yield env.timeout(phase)
    while left[0] > 0:
        for _ in range(int(CALLS)):
            left[0] -= 1
            env.process(call(env, function, free, warm))
            yield env.timeout(SPACING)
        yield env.timeout(PERIOD - CALLS * SPACING)


def main():
    begun = time.process_time()
    env = simpy.Environment()
    free, warm, left = [8192] * int(NODES), [0], [REQUESTS]
    for index in range(int(FUNCTIONS)):
        phase = PERIOD * index / FUNCTIONS
        env.process(sessions(env, Function(), phase, free, warm, left))
    env.run()
    print(int(REQUESTS - left[0]), warm[0], time.process_time() - begun)


main()
