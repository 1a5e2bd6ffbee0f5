"""SimFaaS with the arrivals of its own example: one function, calls at random.

Prints the requests, how many of them were warm, and the seconds of processor time that the simulation took.
"""

import sys
import time

from simfaas.ServerlessSimulator import ServerlessSimulator

begun = time.process_time()
simulator = ServerlessSimulator(
    arrival_rate=0.9,
    warm_service_rate=1 / 1.991,
    cold_service_rate=1 / 2.244,
    expiration_threshold=600,
    max_time=float(sys.argv[1]) / 0.9,
)
simulator.generate_trace(debug_print=False, progress=False)
took = time.process_time() - begun
print(simulator.total_req_count, simulator.total_warm_count, took)
